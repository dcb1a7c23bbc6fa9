"""A session was lost, skipped and quarantined on a real broker: no byte is left after erasure and ageing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lockstep import Ordered, Sequence, Strict, Suspend
from lockstep.errors import LockstepError
from lockstep.features.compaction.run import compact_stream
from lockstep.features.copies import relocate
from lockstep.features.copies.copied_files import MANIFEST, write_manifest
from lockstep.features.copies.relocate import export_savepoint
from lockstep.features.erase.erase import EraseRequest, erase_session, prepare_erasure, read_context
from lockstep.features.history.savepoint import make_savepoint
from lockstep.features.retention.housekeeping import run_housekeeping
from lockstep.integrity.resume_options import IntegrityLost, SkipSession
from lockstep.operations.lifecycle import close_hour
from lockstep.operations.resume import resume_stream
from lockstep.table import ledger
from lockstep.table.commit import OutputLog
from lockstep.verify.verify import verify_stream
from tests.features.erase.test_erased_places import age
from tests.support.adding_stream import adding
from tests.support.feed import session, snapshot, update
from tests.support.tiers import first_usual
from tests.support.traces import find_traces

if TYPE_CHECKING:
    from pathlib import Path

    import msgspec

    from lockstep.declare.stream import AnyStream
    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns

MARIA = "maria@example.org"
BEARING = Strict(evidence=Sequence(), on_violation=Suspend(accept_loss=True))
HALTING = Strict(evidence=Sequence())


def erase(runs: LocalRuns) -> None:
    request = EraseRequest(session=MARIA, drop_state=True, drop_savepoints=True)
    erase_session(runs.folders, request, read_context(runs.handle), who="ann", why="request 4711")


def clean(runs: LocalRuns) -> None:
    """Run housekeeping twice: log checkpoints are deleted if they are older than an hour."""
    for _ in range(2):
        age(runs.folders.root)
        run_housekeeping(runs.folders, retention_seconds=3600.0, stream=runs.stream)


def assert_proven(runs: LocalRuns) -> None:
    report = verify_stream(runs.stream, runs.folders, runs.settings.kafka)
    assert report.status.value == "proven", (report.violations, report.notes)


def lose_messages(feed: Feed, runs: LocalRuns, topic: str) -> None:
    """Send a session with missing messages, which the declaration accepts."""
    for sent in (session(3), [update(90, a=1)], [snapshot(100, a=1), update(101, a=2)]):
        feed.send(topic, sent, key=MARIA)
        feed.send(topic, session(2), key=f"bob-{len(runs.reports)}")
        runs.run()


def skip_session(feed: Feed, runs: LocalRuns, topic: str) -> None:
    """Lose more messages, let an operator skip the session, and start it again."""
    feed.send(topic, [update(190, a=1)], key=MARIA)
    with pytest.raises(IntegrityLost):
        runs.run()
    why = f"the meter of {MARIA} is broken"
    resume_stream(runs.folders, why=why, who="ann", accepted=[SkipSession(topic, 0, MARIA)])
    for sent in ([update(191, a=1)], [snapshot(200, a=1), update(201, a=2)]):
        feed.send(topic, sent, key=MARIA)
        runs.run()


@pytest.mark.parametrize("compacted", first_usual(1, [False, True]))
@pytest.mark.parametrize("begins_again", first_usual(1, [False, True]))
def test_a_session_that_was_lost_and_skipped_leaves_no_trace(
    feed: Feed, runs: LocalRuns, *, compacted: bool, begins_again: bool
) -> None:
    topic = feed.create("values")
    bearing: AnyStream = adding(feed.pattern, BEARING)
    lose_messages(feed, runs.of(bearing), topic)
    runs = runs.of(adding(feed.pattern, HALTING))
    skip_session(feed, runs, topic)
    if not begins_again:
        feed.send(topic, [update(290, a=1)], key=MARIA)
        with pytest.raises(IntegrityLost):
            runs.run()
        resume_stream(runs.folders, why="broken", who="ann", accepted=[SkipSession(topic, 0, MARIA)])
        runs.run()
    if compacted:
        close_hour(runs.folders)
        compact_stream(runs.folders)
    rows = ledger.read_ledger(runs.folders.ledger)
    assert {each.kind for row in rows for each in row.accepted} == {"accept-loss", "skip-session"}
    assert {each.session for row in rows for each in row.accepted} == {None, MARIA}
    assert_proven(runs)
    erase(runs)
    assert find_traces(runs.folders.ledger, MARIA) == []
    assert_proven(runs)
    clean(runs)
    assert find_traces(runs.folders.root, MARIA) == []
    feed.send(topic, session(2), key="cyd")
    runs.run()
    assert_proven(runs)


def test_a_session_of_which_only_a_decision_is_left_can_be_erased(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    runs = runs.of(adding(feed.pattern, HALTING))
    skip_session(feed, runs, topic)
    plan = prepare_erasure(runs.folders, EraseRequest(session=MARIA), read_context(runs.handle)).plan
    assert [each.decisions > 0 for each in plan.partitions] == [True]


def test_a_savepoint_that_an_erasure_deletes_while_it_is_exported_is_withdrawn(
    feed: Feed, runs: LocalRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = feed.create("values")
    runs = runs.of(adding(feed.pattern, Ordered(on_violation=Suspend())))
    feed.send(topic, session(3), key=MARIA)
    feed.send(topic, session(3), key="bob")
    runs.run()
    make_savepoint(runs.folders, "before", who="ann", why="test")

    def write_after_erasure(target: Path, written: msgspec.Struct, name: str = MANIFEST) -> None:
        if name == MANIFEST:
            erase(runs)
        write_manifest(target, written, name)

    monkeypatch.setattr(relocate, "write_manifest", write_after_erasure)
    with pytest.raises(LockstepError, match="savepoint before was deleted while it was exported"):
        export_savepoint(runs.handle, "before", tmp_path / "copy")
    assert OutputLog(runs.folders.table).base().head.savepoints == ()
    assert [path.name for path in (tmp_path / "copy").rglob("*") if path.is_file()] == ["lock"]
