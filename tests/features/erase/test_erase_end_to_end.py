"""One session is erased on a real broker: removed and kept rows, refusals, and kills in between."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec
import pytest

from lockstep import Ordered, Suspend
from lockstep.control.heartbeat import Heartbeat
from lockstep.features.compaction.run import compact_stream
from lockstep.features.erase.erase import EraseReason, EraseRequest, erase_session, read_context
from lockstep.operations.inspect.history import read_history
from lockstep.operations.lifecycle import close_hour
from lockstep.operations.plan_frame import Refused
from lockstep.table.commit import OutputLog
from lockstep.table.delta_log import has_log
from lockstep.table.written_by import WrittenBy, read_written_by
from lockstep.verify.verify import verify_stream
from tests.integration.cli.conftest import platform_in
from tests.support.adding_stream import POISON, adding
from tests.support.delta_protocol import find_broken_rules
from tests.support.feed import folded, session, update
from tests.support.plain_reader import read_table

if TYPE_CHECKING:
    from pathlib import Path

    from lockstep.features.erase.erase import SessionErased
    from lockstep.features.localdev.broker import Broker
    from lockstep.table.head import Head
    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns

POISONED = update(7, a=POISON)
Sent = list[tuple[str, bytes]]


def erase(runs: LocalRuns, name: str, *, drop_state: bool = True, drop_savepoints: bool = False) -> SessionErased:
    request = EraseRequest(session=name, drop_state=drop_state, drop_savepoints=drop_savepoints)
    return erase_session(runs.folders, request, read_context(runs.handle), who="ann", why="request 4711")


def head_of(runs: LocalRuns) -> Head:
    return OutputLog(runs.folders.table).base().head


def assert_proven(runs: LocalRuns) -> None:
    tables = (runs.folders.table, runs.folders.ledger, runs.folders.quarantine, runs.folders.late)
    assert [problem for table in filter(has_log, tables) for problem in find_broken_rules(table)] == []
    report = verify_stream(runs.stream, runs.folders, runs.settings.kafka)
    assert report.status.value == "proven", (report.violations, report.notes)


def send_in_batches(feed: Feed, runs: LocalRuns, topic: str, sent: Sent, *, a_batch: int = 4) -> None:
    for at in range(0, len(sent), a_batch):
        for key, value in sent[at : at + a_batch]:
            feed.send(topic, [value], key=key)
        runs.run()


def interleaved(*names: str, updates: int = 5) -> Sent:
    """Return the messages of several sessions in turns."""
    turns = zip(*([(name, value) for value in session(updates)] for name in names), strict=True)
    return [message for turn in turns for message in turn]


def rows_without(sent: Sent, name: str) -> list[tuple[object, ...]]:
    good = [(offset, key, value) for offset, (key, value) in enumerate(sent) if value != POISONED]
    rows = folded(good)
    return [row for row in rows if row[2] != name]


@pytest.fixture
def runs(runs: LocalRuns, feed: Feed) -> LocalRuns:
    """A stream that quarantines inapplicable messages and continues."""
    return runs.of(adding(feed.pattern, Ordered(on_violation=Suspend())))


def test_a_session_is_gone_and_all_else_stays(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    sent = [*interleaved("ann", "bob", "cyd"), ("bob", POISONED), ("cyd", POISONED)]
    send_in_batches(feed, runs, topic, sent)
    close_hour(runs.folders)
    compact_stream(runs.folders)
    before = head_of(runs)
    done = erase(runs, "bob")
    assert (done.batch, done.plan.rows, done.messages) == (before.batch + 1, 10, 1)
    assert runs.rows(topic) == rows_without(sent, "bob")
    quarantined = read_table(runs.folders.quarantine).to_pylist()
    assert [(row["offset"], row["key"], row["value"], row["expected"]) for row in quarantined] == [
        (18, None, None, "erased with its session"),
        (19, b"cyd", POISONED, None),
    ]
    assert_proven(runs)
    more: Sent = [("ann", update(7, a=1)), ("bob", update(8, a=1))]
    send_in_batches(feed, runs, topic, more)
    assert runs.rows(topic) == rows_without([*sent, *more[:1]], "bob")
    assert_proven(runs)
    event = next(each for each in read_history(runs.folders, 50).events if each.event == "session erased")
    assert done.plan.digest in event.detail
    assert "request 4711 (ann)" in event.detail
    assert "bob" not in event.detail


def test_the_command_plans_refuses_and_erases_and_no_rewind_goes_back(broker: Broker, tmp_path: Path) -> None:
    made = platform_in(tmp_path, broker)
    topic = made.feed.create("values")
    sent = interleaved("ann", "bob")
    send_in_batches(made.feed, made.runs, topic, sent)
    made.feed.send(topic, [update(7, a=1)], key="ann")
    planned = msgspec.json.decode(made.call("erase", "adding", "--session", "bob", "--plan", "--json").stdout)
    (place,) = planned["partitions"]
    assert (planned["rows"], place["rows"], place["unread"]) == (10, 10, 1)
    assert [each["kind"] for each in planned["obstacles"]] == ["the session has state"]
    refused = made.call("erase", "adding", "--session", "bob", "--yes")
    assert (refused.exit_code, "--drop-state" in refused.output) == (1, True)
    done = made.call("erase", "adding", "--session", "bob", "--drop-state", "--why", "request 4711", "--yes")
    assert done.exit_code == 0, done.output
    assert re.search("rows that went +10", done.stdout)
    before = head_of(made.runs)
    assert made.call("rewind", "adding", "--to", str(before.batch - 1), "--why", "x", "--yes").exit_code == 1
    made.runs.run()
    assert sorted(made.runs.rows(topic)) == rows_without([*sent, ("ann", update(7, a=1))], "bob")
    assert made.call("housekeeping", "adding").exit_code == 0
    assert made.call("verify", "adding").exit_code == 0
    folders = made.runs.folders
    files = [*folders.state.glob("*.state"), *folders.table.glob("commit_hour=*/*.parquet")]
    written = {read_written_by(path.name) for path in files}
    assert written == {WrittenBy(1, before.epoch + more, before.batch + more) for more in (0, 1)}


def test_it_is_refused_beside_a_writer(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    send_in_batches(feed, runs, topic, interleaved("ann", "bob"), a_batch=12)
    with Heartbeat(runs.folders.control, head_of(runs).epoch), pytest.raises(Refused) as refused:
        erase(runs, "bob")
    assert [each.kind for each in refused.value.obstacles] == [EraseReason.WRITER]
