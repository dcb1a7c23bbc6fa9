"""A shadow with corrected code starts at a batch of a running stream, and is proven, compared and promoted."""

from __future__ import annotations

import dataclasses
import errno
import os
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from lockstep import Envelope, Limits, OnGrowth, Ordered, Record, Sequence, Strict, Suspend, Topics, Transform
from lockstep.declare.discovery import digest_code
from lockstep.engine.driver.loop import RunOutcome
from lockstep.errors import Fenced, NotCommitted, TableError
from lockstep.features.compaction.ledger_files import compact_ledger
from lockstep.features.compaction.side_files import compact_side_tables, plan_side_tables
from lockstep.features.erase.erase import EraseContext, EraseRequest, erase_session
from lockstep.features.history import promote as promotion
from lockstep.features.history import proof
from lockstep.features.history import shadow as operation
from lockstep.features.history.diff import compare_streams, find_next_step
from lockstep.features.history.kept_rows import SHADOWS
from lockstep.features.history.promote import prepare_promotion, promote_shadow
from lockstep.features.history.rewind import SAVEPOINT_NAME, RewindReason, prepare_rewind, rewind_stream
from lockstep.features.history.savepoint import make_savepoint
from lockstep.features.history.shadow import (
    PIN,
    NotAShadow,
    begin_shadow,
    drop_shadow,
    list_shadows,
    make_pin,
    prepare_drop,
    prepare_shadow,
    release_pin,
)
from lockstep.features.retention.housekeeping import run_housekeeping
from lockstep.kafka.consumer_group import ConsumerGroup
from lockstep.model.position import TopicNamePartition
from lockstep.operations.inspect.state import StateFilter, read_states
from lockstep.operations.past_batches import NotRewindable
from lockstep.operations.plan_frame import Refused
from lockstep.operations.quarantine import QuarantineFilter, list_quarantine
from lockstep.operations.query import AsOf, query_sql
from lockstep.operations.retire import retire_topic
from lockstep.table.commit import OutputLog
from lockstep.table.delta_log import make_entry_path
from lockstep.table.head import FoldCode
from lockstep.table.ledger import read_ledger, read_positions_at
from lockstep.verify.report import InvariantStatus, ViolationKind
from lockstep.verify.verify import verify_stream
from tests.features.history.killed_promotion import AFTER, BEGINNINGS, MOMENTS
from tests.integration.cli.conftest import ROOT, platform_in
from tests.support.adding_stream import Adding, Panel, Snapshot, Update, adding
from tests.support.feed import folded, session, update
from tests.support.local_runs import read_grown_topic, read_in_batches
from tests.support.plain_reader import named_files, read_table
from tests.support.tiers import first_usual

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from lockstep.features.history.promote import Promoted
    from lockstep.features.history.shadow import ShadowShown
    from lockstep.features.localdev.broker import Broker
    from lockstep.integrity.base import IntegrityClass
    from lockstep.table.head import Head
    from lockstep.table.layout import StreamFolders
    from tests.support.adding_stream import Reading
    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns

NAME = "adding_shadow"


class Wrong(Adding):
    """The same fold with a fault: from a sequence on, its rows are off by one."""

    def on_update(self, state: Panel, message: Snapshot | Update, record: Record) -> Iterable[Reading]:
        """Emit the wrong rows."""
        for row in super().on_update(state, message, record):
            row.value += 1 if message.seq >= 3 else 0
            yield row


def head_of(runs: LocalRuns) -> Head:
    return OutputLog(runs.folders.table).base().head


def wrong(feed: Feed, runs: LocalRuns) -> LocalRuns:
    return runs.of(adding(feed.pattern, transform=Wrong()))


class Text(msgspec.Struct):
    """A row with a value of another type."""

    name: str
    value: str
    total: int


class AsText(Transform[Snapshot | Update, Panel, Text]):
    """The same fold with `Text` rows."""

    def envelope(self, message: Snapshot | Update, record: Record) -> Envelope:
        """Return the envelope of `Adding`."""
        return Adding().envelope(message, record)

    def on_snapshot(self, message: Snapshot | Update, record: Record, previous: Panel | None) -> Panel:
        """Return the state of `Adding`."""
        del record
        return Panel(dict(message.values))

    def on_update(self, state: Panel, message: Snapshot | Update, record: Record) -> Iterable[Text]:
        """Emit the rows with texts."""
        for row in Adding().on_update(state, message, record):
            yield Text(row.name, str(row.value), row.total)


def shadow_of(runs: LocalRuns) -> LocalRuns:
    return runs.of(dataclasses.replace(runs.stream, name=NAME))


def begin(runs: LocalRuns, start: str) -> ShadowShown:
    return begin_shadow(runs.handle, NAME, start, code="", who="ann", why="a fix")


def promote(runs: LocalRuns, *, accept_behind: bool = False) -> Promoted:
    return promote_shadow(runs.handle, NAME, who="ann", why="the fix", accept_behind=accept_behind)


def quarantined(runs: LocalRuns) -> list[str]:
    """Return all rows of the quarantine, undone rows included."""
    return sorted(str(sorted(row.items())) for row in read_table(runs.folders.quarantine).to_pylist())


def expected(values: list[bytes], since: int = 0) -> list[tuple[object, ...]]:
    """Return the rows of the right fold from an offset on."""
    whole = folded([(offset, "s", value) for offset, value in enumerate(values)])
    return [row for row in whole if int(str(row[0])) >= since]


def forget(feed: Feed, runs: LocalRuns, topic: str, *others: LocalRuns) -> None:
    """Retire and delete a topic, and run until these runs have forgotten it."""
    retire_topic(runs.handle, topic, who="ann", why="no longer sent")
    feed.delete(topic)
    for each in others or (runs,):
        for _ in range(2):
            each.run()
        assert topic not in {row.topic for row in each.handle.positions.values()}


def prove(runs: LocalRuns) -> tuple[str, ...]:
    """Assert that the stream is proven and return the notes of the proof."""
    report = verify_stream(runs.stream, runs.folders, runs.settings.kafka)
    assert report.status.value == "proven", (report.violations, report.notes)
    return report.notes


def test_a_shadow_goes_on_from_the_state_of_a_batch_with_rows_of_its_own(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    values = session(7)
    live = wrong(feed, runs)
    read_in_batches(feed, live, topic, values)
    before = live.rows(topic)
    plan = prepare_shadow(runs.handle, NAME, "2").plan
    assert (plan.from_batch, plan.last_batch, plan.to_read, plan.obstacles) == (2, 4, 4, ())
    assert begin(runs, "2").from_batch == 2
    shadow = shadow_of(runs)
    shadow.run()
    assert shadow.rows(topic) == expected(values, since=4)
    prove(shadow)
    found = compare_streams(live.folders, shadow.folders)
    assert (found.equal + found.changed, found.missing, found.added) == (len(expected(values, since=4)), 0, 0)
    assert [each.column for each in found.columns] == ["value"]
    assert f"lockstep verify {NAME}, then lockstep shadow promote adding {NAME} --plan" in found.next_step
    same = find_next_step(head_of(shadow), head_of(live), is_equal=True)
    assert same.startswith(f"lockstep shadow promote adding {NAME} --plan; ")
    assert "starts too late (after batch 2) or runs other code (lockstep shadow list adding)" in same
    assert sorted(live.rows(topic)) == before
    assert [each.name for each in list_shadows("adding", runs.folders.root)] == [NAME]
    asked = query_sql(f"SELECT count(*) FROM {NAME}", ["adding"], runs.folders.root, AsOf(), limit=None)  # noqa: S608  # its name
    assert asked.rows == [[len(shadow.rows(topic))]]


def test_a_promoted_shadow_is_the_stream_as_the_new_code_would_have_written_it(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    values = session(9)
    live = wrong(feed, runs)
    read_in_batches(feed, live, topic, values[:8])
    before = live.rows(topic)
    begin(runs, "2")
    shadow = shadow_of(runs).with_limits(Limits(batch_messages=2))
    shadow.run()
    assert head_of(shadow).batch == 3
    assert [each.kind for each in prepare_promotion(live.handle, NAME).plan.obstacles] == [RewindReason.CODE]
    done = promote(runs)
    assert (done.plan.to_batch, done.plan.last_batch, done.published) == (2, 4, True)
    head = head_of(runs)
    assert (head.batch, head.generation, head.desired.value) == (done.plan.batch, 2, "stopped")
    assert head.code == FoldCode(digest_code(runs.stream), 6)
    kept = [row for row in before if int(str(row[0])) < 4]
    assert sorted(runs.rows(topic)) == [*kept, *expected(values[:8], since=4)]
    assert prove(runs) == (f"states of 2 ledger rows of batches 6 to 7 stayed with shadow {NAME}, promoted since",)
    read_in_batches(feed, runs, topic, values[8:])
    assert sorted(runs.rows(topic)) == [*kept, *expected(values, since=4)]
    prove(runs)
    drop_shadow("adding", NAME, runs.settings, who="ann")
    assert list_shadows("adding", runs.folders.root) == ()
    assert head_of(runs).savepoints == ()
    prove(runs)
    rewind_stream(live.handle, "4", who="ann", why="back to the old code")
    assert sorted(live.rows(topic)) == before


@pytest.mark.slow
def test_a_compacted_quarantine_holds_what_a_promotion_brought_and_what_it_took_back(
    feed: Feed, runs: LocalRuns
) -> None:
    topic = feed.create("values")
    values = session(11)
    runs = runs.of(adding(feed.pattern, Ordered()))
    live = runs.of(adding(feed.pattern, Ordered(), transform=Wrong()))

    def read_with_ghosts(reader: LocalRuns, since: int, until: int) -> None:
        """Run a batch for every two messages, each with a message of a session that was never opened."""
        for at in range(since, until, 2):
            feed.send(topic, values[at : at + 2])
            feed.send(topic, [update(1, a=1)], key=f"ghost{at}")
            reader.run()

    read_with_ghosts(live, 0, 8)
    begin(runs, "2")
    shadow_of(runs).with_limits(Limits(batch_messages=3)).run()
    promote(runs)
    read_with_ghosts(runs, 8, 12)
    before = quarantined(runs)
    kept = list_quarantine(runs.folders, QuarantineFilter())
    assert (len(before), kept.messages) == (8, 6)  # the promotion undid two and added them again
    later = msgspec.structs.replace(head_of(runs), hour="2099-01-01T00")
    for _ in range(2):
        compact_side_tables(runs.folders, later)
        assert plan_side_tables(runs.folders, later) == ()
        assert quarantined(runs) == before
        assert list_quarantine(runs.folders, QuarantineFilter()) == kept
        prove(runs)
        for path in runs.folders.quarantine.rglob("*.parquet"):  # the next compaction deletes replaced files
            os.utime(path, (0, 0))
    files = {path.name for path in runs.folders.quarantine.rglob("*.parquet")}
    assert files == set(named_files(runs.folders.quarantine))
    rewind_stream(live.handle, "4", who="ann", why="back to the old code")
    prove(live)


def test_a_shadow_that_is_written_between_question_and_answer_is_not_deleted(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    values = session(5)
    read_in_batches(feed, runs, topic, values)
    begin(runs, "1")
    prepared = prepare_drop("adding", NAME, runs.settings, who="ann")
    shadow = shadow_of(runs)
    shadow.run()
    with pytest.raises(Refused, match=f"the plan has changed since it was shown: {NAME} was written after batch 1"):
        prepared.commit()
    assert shadow.rows(topic)
    last = head_of(shadow).batch
    assert prepare_drop("adding", NAME, runs.settings, who="ann").commit().batch == last > 1


def test_a_promotion_is_of_the_shadow_that_was_shown(feed: Feed, runs: LocalRuns) -> None:
    """The shadow continues to read after the plan: its later rows are not promoted."""
    topic = feed.create("values")
    values = session(5)
    read_in_batches(feed, runs, topic, values[:4])
    begin(runs, "1")
    shadow = shadow_of(runs)
    shadow.run()
    prepared = prepare_promotion(runs.handle, NAME)
    feed.send(topic, values[4:])
    shadow.run()
    done = prepared.commit()
    assert (done.plan, runs.rows(topic)) == (prepared.plan, expected(values[:4]))
    prove(runs)


def test_what_does_not_agree_refuses_a_promotion_by_name(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    values = session(5)
    read_in_batches(feed, runs, topic, values[:4])
    begin(runs, "1")
    with pytest.raises(TableError, match="is a shadow of adding already"):
        begin(runs, "1")
    shadow = shadow_of(runs)
    with pytest.raises(Refused, match="2 offsets behind in 1 partitions") as refused:
        promote(runs)
    assert [each.kind for each in refused.value.obstacles] == [RewindReason.BEHIND]
    with pytest.raises(NotAShadow):
        promote_shadow(shadow.handle, "adding", who="ann", why="the other way round")
    with pytest.raises(NotAShadow):
        drop_shadow("adding", "adding", runs.settings, who="ann")
    shadow.run()
    feed.send(topic, values[4:])
    head = head_of(runs)
    prepared = promotion._prepare(runs.handle, NAME)  # noqa: SLF001  # a batch between plan and commit
    runs.run()
    with pytest.raises((Fenced, NotRewindable)):
        promotion._commit(runs.handle, prepared, "too late")  # noqa: SLF001
    assert head_of(runs).batch > head.batch
    assert runs.rows(topic) == expected(values)
    prove(runs)
    promote(runs, accept_behind=True)
    assert runs.rows(topic) == expected(values[:4])
    runs.run()
    assert runs.rows(topic) == expected(values)
    prove(runs)


@pytest.mark.parametrize(
    ("integrity", "corrected", "kept"),
    [
        (Ordered(), Strict(evidence=Sequence()), InvariantStatus.NOT_PROVEN),  # the first batch is of the other class
        (Strict(evidence=Sequence()), Strict(evidence=Sequence(), on_violation=Suspend()), InvariantStatus.PROVEN),
        (
            Strict(evidence=Sequence(), on_violation=Suspend()),
            Strict(evidence=Sequence(), on_violation=Suspend(), on_growth=OnGrowth.RESTART_SESSIONS),
            InvariantStatus.PROVEN,
        ),
    ],
)
def test_the_batches_of_a_promotion_are_proven_by_the_class_and_the_policy_of_the_shadow(
    feed: Feed, runs: LocalRuns, integrity: IntegrityClass, corrected: IntegrityClass, kept: InvariantStatus
) -> None:
    topic = feed.create("values")
    live = runs.of(adding(feed.pattern, integrity))
    read_in_batches(feed, live, topic, session(3))
    fix = runs.of(adding(feed.pattern, corrected))
    begin(fix, "1")
    shadow = shadow_of(fix)
    for numbers in ((5, 6), (7, 8)):
        feed.send(topic, [update(number, a=1) for number in numbers])
        shadow.run()
    promote(fix)
    shown = [(each.first_batch, each.policy, each.integrity) for each in head_of(fix).policies]
    theirs = [(2 + each.first_batch, each.policy, each.integrity) for each in head_of(shadow).policies]
    assert (shown[0][0], shown[1:]) == (1, theirs)
    assert head_of(fix).code == FoldCode(digest_code(fix.stream), 4)
    for _ in range(2):
        report = verify_stream(fix.stream, fix.folders, fix.settings.kafka)
        assert (report.status, report.violations) == (kept, ()), report.notes
        fix.run()


def test_columns_that_do_not_fit_refuse_a_promotion_before_anything_is_copied(feed: Feed, runs: LocalRuns) -> None:
    read_in_batches(feed, runs, feed.create("values"), session(3))
    fix = runs.of(dataclasses.replace(runs.stream, transform=AsText()))
    begin(fix, "1")
    shadow_of(fix).run()
    before = sorted(runs.folders.table.rglob("*"))
    with pytest.raises(Refused, match="value: table int64, declared string") as refused:
        promote(fix)
    assert [each.kind for each in refused.value.obstacles] == [RewindReason.UNFIT]
    assert sorted(runs.folders.table.rglob("*")) == before
    prove(runs)


def test_a_topic_that_was_retired_since_the_shadow_began_stays_retired(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    left = feed.create("left")
    goes_on = feed.create("goes_on")
    for each in (left, goes_on):
        feed.send(each, session(1), key=each)
    read_in_batches(feed, runs, topic, session(3))
    begin(runs, "1")
    for each in (left, goes_on):
        retire_topic(runs.handle, each, who="ann", why="no longer sent")
    feed.send(goes_on, [update(3, a=1)], key=goes_on)
    shadow_of(runs).run()
    promote(runs)
    retired = {row.topic: row.retired for row in runs.handle.positions.values()}
    assert retired == {topic: False, left: True, goes_on: False}
    feed.delete(left)
    assert runs.run() is RunOutcome.ENDED
    prove(runs)


def test_what_the_stream_has_read_of_a_topic_that_is_forgotten_refuses_a_promotion(feed: Feed, runs: LocalRuns) -> None:
    runs = runs.of(adding(feed.pattern, Ordered())).tuned(forget_seconds=0.0)
    gone = feed.create("gone")
    read_in_batches(feed, runs, gone, session(3))
    begin(runs, "1")
    forget(feed, runs, gone)
    shadow_of(runs).run()
    plan = prepare_promotion(runs.handle, NAME).plan
    assert [each.kind for each in plan.obstacles] == [RewindReason.TOPIC]
    assert [(each.topic, each.position, each.shadow_at) for each in plan.partitions] == [(gone, 4, 2)]
    assert prepare_promotion(runs.handle, NAME, accept_deleted=True).plan.obstacles == ()


@pytest.mark.parametrize("of_stream", [False, True], ids=["shadow alone", "stream too"])
def test_a_topic_that_the_shadow_has_forgotten_is_no_loss(feed: Feed, runs: LocalRuns, *, of_stream: bool) -> None:
    runs = runs.of(adding(feed.pattern, Ordered())).tuned(forget_seconds=0.0)
    topic = feed.create("values")
    gone = feed.create("gone")
    read_in_batches(feed, runs, gone, session(3))
    begin(runs, "2")
    forget(feed, runs, gone, *([] if of_stream else [shadow_of(runs)]))
    feed.send(topic, session(1))
    for each in (shadow_of(runs), shadow_of(runs), runs) if of_stream else (shadow_of(runs),):
        each.run()
    assert gone not in {row.topic for row in shadow_of(runs).handle.positions.values()}
    assert prepare_promotion(runs.handle, NAME).plan.obstacles == ()
    promote(runs)
    runs.run()
    assert len(runs.rows(gone)) == len(session(3)) * 2 - 2
    assert not verify_stream(runs.stream, runs.folders, runs.settings.kafka).violations


def test_a_rewind_into_a_promotion_names_the_batches_before_and_after_it(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    read_in_batches(feed, runs, topic, session(7))
    begin(runs, "1")
    shadow_of(runs).with_limits(Limits(batch_messages=2)).run()
    promote(runs)
    assert head_of(runs).batch == 9
    for to in ("5", "8", f"{topic}/0@5"):
        with pytest.raises(NotRewindable, match="batches 5 to 9 are one commit, the promotion of adding_shadow") as no:
            prepare_rewind(runs.handle, to)
        assert no.value.next_step == "go back to batch 1, from which the shadow started, or to batch 9"
    with pytest.raises(NotRewindable, match="are one commit"):
        read_states(runs.stream, runs.folders.root, StateFilter(), at=6)
    assert len(read_states(runs.stream, runs.folders.root, StateFilter(), at=4).sessions) == 1


def take_away(path: Path) -> Callable[[], None]:
    """Move a file aside and return a function that restores it."""
    aside = path.with_name(f"{path.name}.aside")
    path.rename(aside)

    def put_back() -> None:
        aside.rename(path)

    return put_back


@pytest.mark.fault("F62")
def test_a_promotion_is_refused_by_name_where_something_is_gone(feed: Feed, runs: LocalRuns) -> None:
    """Missing rows or state of the shadow, state of its start batch, or messages that only the stream has read."""
    topic = feed.create("values")
    values = session(7)
    read_in_batches(feed, runs, topic, values[:4])
    begin(runs, "1")
    shadow = shadow_of(runs)
    shadow.run()
    rows = shadow.folders.table / named_files(shadow.folders.table)[0]
    reached = state_file(shadow)
    begun = state_file(runs, batch=1)
    before = head_of(runs)
    for path, kind in ((rows, RewindReason.DATA), (reached, RewindReason.STATE), (begun, RewindReason.STATE)):
        put_back = take_away(path)
        assert [each.kind for each in prepare_promotion(runs.handle, NAME).plan.obstacles] == [kind]
        with pytest.raises(Refused) as refused:
            promote(runs)
        assert path.name in str(refused.value)
        put_back()
    read_in_batches(feed, runs, topic, values[4:])
    feed.expire(topic, until=6)
    with pytest.raises(Refused, match="Kafka no longer has 2 offsets that adding_shadow has not read") as refused:
        promote(runs, accept_behind=True)
    assert [each.kind for each in refused.value.obstacles] == [RewindReason.EXPIRED]
    assert (head_of(runs).generation, runs.rows(topic)) == (before.generation, expected(values))
    prove(runs)


def state_file(runs: LocalRuns, batch: int | None = None) -> Path:
    """Return the state file of a batch, by default of the last batch."""
    rows = [row for row in read_ledger(runs.folders.ledger) if batch in {None, row.batch} and row.state_file]
    return runs.folders.state / str(rows[-1].state_file)


def test_no_shadow_brings_an_erased_session_back(feed: Feed, runs: LocalRuns, tmp_path: Path) -> None:
    topic = feed.create("values")
    values = session(3)
    feed.send(topic, values[:2], key="gone")
    feed.send(topic, values[:2], key="s")
    runs.run()
    begin(runs, "1")
    request = EraseRequest(session="gone", drop_state=True, drop_savepoints=True)

    def erase() -> None:
        erase_session(runs.folders, request, EraseContext(), who="ann", why="request 4711")

    with pytest.raises(Refused, match=rf"shadows keep .*: {NAME}"):
        erase()
    folder = shadow_of(runs).folders.table.parent
    folder.rename(tmp_path / "copy")
    with pytest.raises(Refused, match=rf"shadows keep .*: {NAME}") as refused:
        erase()
    assert [each.kind for each in refused.value.obstacles if each.kind not in request.accepted] == [SHADOWS]
    release_pin(runs.folders, NAME, "ann")
    erase()
    erased = head_of(runs)
    (tmp_path / "copy").rename(folder)  # a copy of the shadow is restored
    with pytest.raises(Refused, match=r"batch 2 of adding erased a session") as again:
        promote(runs)
    assert [each.kind for each in again.value.obstacles] == [RewindReason.START]
    assert "shadow drop" in again.value.next_step
    drop_shadow("adding", NAME, runs.settings, who="ann")
    begin(runs, "2")
    feed.send(topic, values[2:], key="s")
    shadow_of(runs).run()
    promote(runs)
    assert head_of(runs).erasure == erased.erasure
    assert {row[2] for row in runs.rows(topic)} == {"s"}
    prove(runs)


def test_the_proof_of_a_shadow_reads_the_positions_from_the_newest_full_set_on(
    feed: Feed, runs: LocalRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole ledger of the stream may be years old."""
    read_in_batches(feed, runs, feed.create("values"), session(5))
    begin(runs, "2")
    first_read = list[int]()

    def read_noted(folders: StreamFolders, batch: int, *, full_batch: int = 0) -> object:
        first_read.append(full_batch)
        return read_positions_at(folders, batch, full_batch=full_batch)

    monkeypatch.setattr(proof, "read_positions_at", read_noted)
    prove(shadow_of(runs))
    assert first_read == [2]


def test_the_proof_of_a_shadow_finds_another_state_at_its_start(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    values = session(5)
    read_in_batches(feed, runs, topic, values)
    begin(runs, "2")
    shadow = shadow_of(runs)
    shadow.run()
    head = head_of(shadow)
    assert head.origin is not None
    other = msgspec.structs.replace(head.origin, digest="0" * 64)
    entry = make_entry_path(shadow.folders.table, head.batch_version)
    entry.write_text(entry.read_text().replace(head.origin.digest, other.digest))
    report = verify_stream(shadow.stream, shadow.folders, shadow.settings.kafka)
    assert {each.kind for each in report.violations} == {ViolationKind.ORIGIN_DIFFERS}


@pytest.fixture
def _own_modules() -> Iterator[None]:
    """Restore the modules named `assets` of other tests, which the code of a shadow replaces."""
    modules = dict(sys.modules)
    path = list(sys.path)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "assets"]:
        del sys.modules[name]
    sys.modules.update({name: module for name, module in modules.items() if name.partition(".")[0] == "assets"})
    sys.path[:] = path


@pytest.mark.usefixtures("_own_modules")
def test_a_shadow_of_another_checkout_is_found_by_its_name(broker: Broker, tmp_path: Path) -> None:
    made = platform_in(tmp_path, broker)
    topic = made.feed.create("values")
    values = session(5)
    live = wrong(made.feed, made.runs)
    read_in_batches(made.feed, live, topic, values)
    fix = tmp_path / "fix" / "assets"
    fix.mkdir(parents=True)
    source = f'from tests.support.adding_stream import adding\n\nstream = adding(r"{made.feed.pattern}")\n'
    (fix / "adding.py").write_text(source)
    begun = made.call("shadow", "begin", "adding", "--code", str(fix.parent), "--from", "1", "--why", "a fix")
    assert begun.exit_code == 0, begun.output
    assert "adding_shadow: started" in begun.stdout
    shadow_of(made.runs).run()
    assert made.call("verify", NAME).exit_code == 0
    page = tmp_path / "diff.html"
    said = made.call("shadow", "diff", "adding", NAME, "--html", str(page))
    assert said.exit_code == 1, said.output
    assert "rows differ" in page.read_text()
    planned = made.call("shadow", "promote", "adding", NAME, "--plan", "--json")
    found = msgspec.json.decode(planned.stdout)
    assert (found["to_batch"], found["obstacles"]) == (1, [])
    assert made.call("shadow", "promote", "adding", NAME, "--why", "right", "--yes").exit_code == 0
    assert made.call("verify", "adding").exit_code == 0
    listed = msgspec.json.decode(made.call("shadow", "list", "adding", "--json").stdout)
    assert [(each["name"], each["code"]) for each in listed] == [(NAME, str(fix.parent))]
    head = head_of(shadow_of(made.runs))
    assert head.origin is not None
    entry = make_entry_path(shadow_of(made.runs).folders.table, head.batch_version)
    entry.write_text(entry.read_text().replace(head.origin.code_digest, "0" * 64))
    assert "differs from its code at the start" in made.call("verify", NAME).output
    dropped = made.call("shadow", "drop", "adding", "--yes")
    assert dropped.exit_code == 0, dropped.output
    assert "has no shadow" in made.call("shadow", "list", "adding").stdout


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_promotion_that_is_killed_has_happened_or_not(feed: Feed, runs: LocalRuns, moment: str) -> None:
    topic = feed.create("values")
    values = session(7)
    live = wrong(feed, runs)
    read_in_batches(feed, live, topic, values[:6])
    before = live.rows(topic)
    begin(runs, "1")
    shadow_of(runs).run()
    arguments = (feed.bootstrap_servers, str(runs.root), feed.pattern, NAME, moment)
    died = subprocess.run(
        [sys.executable, "-m", "tests.features.history.killed_promotion", *arguments], cwd=ROOT, check=False
    )
    assert died.returncode == -signal.SIGKILL
    happened = moment in AFTER
    kept = [row for row in before if int(str(row[0])) < 2]
    assert runs.rows(topic) == ([*kept, *expected(values[:6], since=2)] if happened else before)
    if not happened:
        promote(runs)
    feed.send(topic, values[6:])
    runs.run()
    assert runs.rows(topic) == [*kept, *expected(values, since=2)]
    prove(runs)
    assert ConsumerGroup(runs.settings.kafka, "adding").published([TopicNamePartition(topic, 0)])[
        TopicNamePartition(topic, 0)
    ] == len(values)


@pytest.mark.parametrize("moment", ["open_tables", "commit_first_batch"])
def test_a_shadow_whose_beginning_failed_can_be_dropped_and_nothing_of_it_is_left(
    feed: Feed, runs: LocalRuns, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """An erasure would not find the sessions in its copy of the state."""
    read_in_batches(feed, runs, feed.create("values"), session(3))
    with monkeypatch.context() as full:
        full.setattr(operation, moment, fail_on_a_full_disk)
        with pytest.raises(OSError, match="No space left"):
            begin(runs, "1")
    folder = shadow_of(runs).folders.table.parent
    assert [path.suffix for path in folder.glob("state/*")] == [".state"] * (moment == "commit_first_batch")
    request = EraseRequest(session="s", drop_state=True, drop_savepoints=True)
    with pytest.raises(Refused, match=rf"shadows keep .*: {NAME}") as refused:
        erase_session(runs.folders, request, EraseContext(), who="ann", why="request 4711")
    assert f"shadow drop adding --name {NAME}" in refused.value.next_step
    assert drop_shadow("adding", NAME, runs.settings, who="ann").batch == 0
    assert (folder.exists(), head_of(runs).savepoints) == (False, ())
    erase_session(runs.folders, request, EraseContext(), who="ann", why="request 4711")
    with pytest.raises(NotAShadow):
        drop_shadow("adding", NAME, runs.settings, who="ann")


def test_a_deletion_that_ends_before_the_savepoint_is_deleted_is_finished_by_the_same_command(
    feed: Feed, runs: LocalRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_in_batches(feed, runs, feed.create("values"), session(3))
    begin(runs, "1")
    with monkeypatch.context() as full:
        full.setattr(operation, "release_pin", fail_on_a_full_disk)
        with pytest.raises(OSError, match="No space left"):
            drop_shadow("adding", NAME, runs.settings, who="ann")
    assert [each.name for each in head_of(runs).savepoints] == [make_pin(NAME)]
    drop_shadow("adding", NAME, runs.settings, who="ann")
    assert head_of(runs).savepoints == ()


def test_what_the_shadow_reads_during_its_promotion_is_not_promoted(
    feed: Feed, runs: LocalRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its rows would be stored twice: by the copy, and by the next run that reads these messages again."""
    topic = feed.create("values")
    values = session(9)
    read_in_batches(feed, runs, topic, values[:4])
    begin(runs, "1")
    shadow = shadow_of(runs)
    shadow.run()
    feed.send(topic, values[4:])
    copy = promotion._copy_positions  # noqa: SLF001  # between plan and copy

    def run_first(*arguments: Any) -> Any:
        monkeypatch.setattr(promotion, "_copy_positions", copy)
        shadow.run()
        assert shadow.rows(topic) == expected(values, since=2)
        return copy(*arguments)

    monkeypatch.setattr(promotion, "_copy_positions", run_first)
    promote(runs)
    assert runs.rows(topic) == expected(values[:4])
    runs.run()
    assert runs.rows(topic) == expected(values)
    prove(runs)


@pytest.mark.parametrize("step", first_usual(1, ["commit_promotion", "_open_shadow", "_copy_side"]))
def test_a_promotion_on_a_full_disk_does_not_keep_it_full(
    feed: Feed, runs: LocalRuns, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """It fails after the copy of the state, after the copy of the rows, or at its commit."""
    topic = feed.create("values")
    values = session(5)
    read_in_batches(feed, runs, topic, values)
    begin(runs, "1")
    shadow_of(runs).run()
    before = every_file(runs)
    with monkeypatch.context() as full:
        if step == "_open_shadow":
            full.setattr(promotion, step, fail_when_read_again(promotion._open_shadow))  # noqa: SLF001
        else:
            full.setattr(promotion, step, fail_on_a_full_disk if step == "_copy_side" else refuse_on_a_full_disk)
        with pytest.raises((OSError, NotCommitted), match="No space left"):
            promote(runs)
    assert every_file(runs) == before
    promote(runs)
    assert runs.rows(topic) == expected(values)


def refuse_on_a_full_disk(*_: Any) -> None:
    raise NotCommitted("No space left on device", next_step="free some")


def fail_when_read_again(call: Callable[..., Any]) -> Callable[..., Any]:
    """Fail at the second call: the plan makes the first call, and the commit the second after all copies."""
    calls = list[object]()

    def called(*arguments: Any) -> Any:
        calls.append(arguments)
        return call(*arguments) if len(calls) == 1 else fail_on_a_full_disk()

    return called


def test_what_a_promotion_left_that_was_killed_before_its_commit_is_deleted(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    values = session(9)
    read_in_batches(feed, runs, topic, values[:4])
    begin(runs, "1")
    shadow_of(runs).run()
    before = every_file(runs)
    arguments = (feed.bootstrap_servers, str(runs.root), feed.pattern, NAME, "before the commit")
    died = subprocess.run(
        [sys.executable, "-m", "tests.features.history.killed_promotion", *arguments], cwd=ROOT, check=False
    )
    assert died.returncode == -signal.SIGKILL
    left = every_file(runs) - before
    assert {path.parts[-2].partition("=")[0] for path in left} == {"commit_hour", "ledger", "state"}

    def clean_up() -> set[Path]:
        compact_ledger(runs.folders, head_of(runs))
        run_housekeeping(runs.folders, retention_seconds=0)
        return left & every_file(runs)

    assert clean_up() == left  # the promotion may be about to commit
    for path in left:
        os.utime(path, (0, 0))
    assert {path.parts[-2] for path in left - clean_up()} == {"ledger"}  # only these are deleted by age
    read_in_batches(feed, runs, topic, values[4:])
    assert clean_up() == set()
    prove(runs)


def fail_on_a_full_disk(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def every_file(runs: LocalRuns) -> set[Path]:
    return {path for path in runs.folders.table.parent.rglob("*.*") if path.is_file()}


def test_a_partition_that_a_topic_got_since_and_whose_messages_expired_refuses_the_shadow(
    feed: Feed, runs: LocalRuns
) -> None:
    ordered = runs.of(adding(feed.pattern, Ordered()))
    topic = read_grown_topic(feed, ordered)
    assert prepare_shadow(ordered.handle, NAME, "2").plan.to_read == 2 + 4
    feed.expire(topic, 2, 1)
    plan = prepare_shadow(ordered.handle, NAME, "2").plan
    assert [(each.partition, each.begins_at, each.position, each.expired) for each in plan.partitions] == [
        (0, 4, 6, 0),
        (1, 0, 4, 2),
    ]
    assert [each.kind for each in plan.obstacles] == [RewindReason.EXPIRED]
    with pytest.raises(
        Refused, match=f"neither Kafka nor the archive has 2 of the offsets .* most of {topic}/1: 2 from 0 on"
    ):
        begin(ordered, "2")


@pytest.mark.parametrize("is_forgotten", [False, True], ids=["gone", "forgotten"])
def test_a_topic_that_is_deleted_refuses_a_shadow_that_would_read_it(
    feed: Feed, runs: LocalRuns, *, is_forgotten: bool
) -> None:
    """A shadow starts if it excludes the topic or starts after its last message."""
    runs = runs.of(adding(feed.pattern, Ordered())).tuned(forget_seconds=0.0)
    topic = feed.create("gone")
    feed.send(feed.create("kept"), session(1))
    read_in_batches(feed, runs, topic, session(3))
    if is_forgotten:
        forget(feed, runs, topic)
    else:
        feed.delete(topic)
    problem = f"neither Kafka nor the archive has 2 of the offsets .* most of {topic}/0: 2 from 2 on"
    if is_forgotten:
        problem = f"2 of the offsets .* are of topics that were deleted or re-created: {topic}"
    with pytest.raises(Refused, match=problem):
        begin(runs, "1")
    accepted = prepare_shadow(runs.handle, NAME, "1", accept_deleted=True).plan.obstacles
    assert [each.kind for each in accepted] == ([] if is_forgotten else [RewindReason.EXPIRED])
    assert prepare_shadow(runs.handle, NAME, "2").plan.obstacles == ()
    of_others = dataclasses.replace(runs.stream, topics=Topics(pattern=feed.pattern, exclude=re.escape(topic)))
    assert prepare_shadow(runs.of(of_others).handle, NAME, "1").plan.obstacles == ()


def test_what_expired_of_a_topic_that_was_retired_then_and_read_again_since_refuses_a_shadow(
    feed: Feed, runs: LocalRuns
) -> None:
    topic = feed.create("values")
    read_in_batches(feed, runs, topic, session(1))
    retire_topic(runs.handle, topic, who="ann", why="no longer sent")
    assert prepare_shadow(runs.handle, NAME, "2").plan.partitions == ()
    read_in_batches(feed, runs, topic, [update(3, a=1), update(4, a=1)])
    assert prepare_shadow(runs.handle, NAME, "2").plan.to_read == 2
    feed.expire(topic, 3)
    with pytest.raises(
        Refused, match=f"neither Kafka nor the archive has 1 of the offsets .* most of {topic}/0: 1 from 2 on"
    ):
        begin(runs, "2")


def test_a_shadow_that_is_begun_again_from_another_batch_keeps_that_one(feed: Feed, runs: LocalRuns) -> None:
    read_in_batches(feed, runs, feed.create("values"), session(7))
    make_savepoint(runs.folders, make_pin(NAME), who="ann", why="a beginning that was killed", at="1")
    begin(runs, "3")
    assert [(each.name, each.batch) for each in head_of(runs).savepoints] == [(make_pin(NAME), 3)]


def test_shadows_with_long_names_have_savepoints_of_their_own() -> None:
    names = [f"{'s' * 60}{digit}" for digit in "ab"]
    pins = {make_pin(name) for name in names}
    assert len(pins) == len(names)
    assert all(SAVEPOINT_NAME.fullmatch(pin) and pin.startswith("shadow-sss") for pin in pins)
    assert {make_pin(pin.removeprefix(PIN)) for pin in pins} == pins
    assert make_pin(NAME) == f"shadow-{NAME}"


@pytest.mark.slow
@pytest.mark.parametrize("moment", BEGINNINGS)
def test_a_shadow_whose_beginning_is_killed_is_begun_again(feed: Feed, runs: LocalRuns, moment: str) -> None:
    topic = feed.create("values")
    values = session(5)
    read_in_batches(feed, runs, topic, values)
    arguments = (feed.bootstrap_servers, str(runs.root), feed.pattern, NAME, moment)
    died = subprocess.run(
        [sys.executable, "-m", "tests.features.history.killed_promotion", *arguments], cwd=ROOT, check=False
    )
    assert died.returncode == -signal.SIGKILL
    if list_shadows("adding", runs.folders.root) == ():
        begin(runs, "1")
    shadow = shadow_of(runs)
    shadow.run()
    assert shadow.rows(topic) == expected(values, since=2)
    prove(shadow)
