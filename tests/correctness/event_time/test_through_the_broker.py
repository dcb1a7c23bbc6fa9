"""Timers, ends, silence, spread snapshots, reordering, wraps and resets through broker and engine, in any batches.

The rows are those of the pure run, and the ledger adds up. Each case is read in two runs: the second continues from the
saved state of the first.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec
import pytest

from lockstep import EventTime, Every, Limits, LogOnly, Sequence, Strict, Topics
from lockstep.engine.driver.loop import RunOutcome
from lockstep.integrity.resume_options import IntegrityLost
from lockstep.operations.query import AsOf, query_sql
from lockstep.table.ledger import read_ledger
from lockstep.testing import SentMessage, run
from tests.support.feed import Feed
from tests.support.local_runs import LocalRuns
from tests.support.meter_stream import Close, Message, Read, Start, Total, meters, reordered
from tests.support.plain_reader import read_table, read_until, rows_of

if TYPE_CHECKING:
    from collections.abc import Sequence as Several
    from pathlib import Path

    from lockstep.declare.stream import AnyStream
    from lockstep.engine.driver.planner import BatchPlan
    from lockstep.engine.driver.spark_job import Runner
    from lockstep.engine.protocol import TaskResult
    from lockstep.features.localdev.broker import Broker
    from lockstep.table.ledger import LedgerRow


COLUMNS = ("what", "minute", "values")
Keyed = tuple[str, Message]


@dataclass(frozen=True)
class Case:
    """Messages by session, and the stream that reads them.

    Attributes:
        stream: The stream.
        messages: All messages, in order.
        expected: The rows.
        late: Offsets of the late messages.
        held: Whether messages are held back.
        timer_rows: How often a timer, or silence, emits rows.
    """

    stream: AnyStream
    messages: Several[Keyed]
    expected: Several[Total]
    late: tuple[int, ...] = ()
    held: bool = False
    timer_rows: int = 0


TIMERS = Case(
    meters,
    [
        ("a", Start(1, 0)),
        ("b", Start(1, 0)),
        ("a", Read(2, 5, 7)),
        ("b", Read(2, 6, 1)),
        ("a", Read(3, 50, 8)),
        ("a", Read(4, 61, 0)),
        ("b", Read(3, 62, 2)),
        ("a", Close(5, 63)),
        ("c", Start(1, 130)),
        ("d", Start(1, 800)),
    ],
    [
        Total("minute", 0, "7 8"),
        Total("minute", 0, "1"),
        Total("zero", 1, ""),
        Total("end", 1, "0"),
        Total("minute", 1, "2"),
        Total("end", None, ""),
        Total("end", None, ""),
    ],
    timer_rows=5,
)
SPREAD = Case(
    meters,
    [
        ("a", Start(1, 0, more=True)),
        ("b", Start(1, 1)),
        ("a", Start(2, 1, more=True)),
        ("b", Read(2, 2, 0)),
        ("a", Start(3, 2)),
        ("a", Read(4, 3, 5)),
        ("a", Start(5, 4, more=True)),
        ("a", Start(6, 5)),
        ("a", Read(7, 6, 0)),
    ],
    [Total("zero", 0, ""), Total("zero", 0, "")],
    held=True,
)
REORDERED = Case(
    reordered,
    [
        ("a", Start(1, 0)),
        ("a", Read(4, 3, 4)),
        ("b", Start(1, 3)),
        ("a", Read(3, 2, 3)),
        ("a", Read(2, 1, 0)),
        ("a", Read(6, 5, 6)),
        ("b", Read(3, 6, 0)),
        ("b", Read(4, 40, 9)),
        ("b", Read(2, 41, 2)),
        ("a", Read(5, 42, 5)),
        ("a", Read(7, 100, 7)),
    ],
    [
        Total("zero", 0, ""),
        Total("zero", 0, ""),
        Total("minute", 0, "0 3 4 6"),
        Total("minute", 0, "0 9"),
    ],
    late=(8, 9),
    held=True,
    timer_rows=2,
)
WRAPPED = Case(
    replace(meters, integrity=Strict(evidence=Sequence(wraps_at=8))),
    [("a", Start(6, 0)), *[("a", Read(number % 8, number, 0)) for number in range(7, 20)]],
    [Total("zero", 0, "")] * 13,
)
RESET = Case(
    meters,
    [
        ("a", Start(7, 0)),
        ("a", Read(8, 1, 0)),
        ("a", Start(1, 2, again=True)),
        ("a", Read(2, 3, 0)),
        ("a", Read(3, 4, 5)),
        ("a", Close(4, 5)),
    ],
    [Total("zero", 0, ""), Total("zero", 0, ""), Total("end", 0, "0 5")],
)
COUNTED = Case(
    replace(meters, integrity=Strict(evidence=LogOnly())),
    [("a", Start(1, 0)), ("a", Read(2, 1, 0)), ("b", Start(9, 2)), ("a", Close(3, 3, count=3)), ("b", Read(7, 4, 0))],
    [Total("zero", 0, ""), Total("end", 0, "0"), Total("zero", 0, "")],
)
CASES = {
    "timers, ends and silence": TIMERS,
    "snapshots over several messages": SPREAD,
    "reordered": REORDERED,
    "numbers that wrap around": WRAPPED,
    "numbers that begin anew": RESET,
    "counts at the end": COUNTED,
}


def read(broker: Broker, family: str, root: Path, case: Case, limit: int) -> tuple[LocalRuns, str]:
    """Read a case in two runs, in batches of at most `limit` messages; return the runs and the topic."""
    feed = Feed(broker.bootstrap_servers, family)
    topic = feed.create("meters")
    stream = replace(case.stream, topics=Topics(pattern=feed.pattern), limits=Limits(batch_messages=limit))
    runs = LocalRuns(stream, feed.bootstrap_servers, root)
    half = len(case.messages) // 2
    for part in (case.messages[:half], case.messages[half:]):
        for key, message in part:
            feed.send(topic, [msgspec.json.encode(message)], key=key)
        assert runs.run() is RunOutcome.ENDED
    return runs, topic


@pytest.mark.parametrize(
    "limit", [pytest.param(1, marks=pytest.mark.slow), 5, pytest.param(100, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", CASES)
def test_any_batches_give_the_rows_of_the_pure_run(
    broker: Broker, topic_family: str, tmp_path: Path, name: str, limit: int
) -> None:
    case = CASES[name]
    pure: list[SentMessage[object]] = [SentMessage(value=message, key=key) for key, message in case.messages]
    assert run(case.stream, *pure).or_raise().rows == list(case.expected)
    runs, topic = read(broker, topic_family, tmp_path, case, limit)
    rows = rows_of(read_table(runs.folders.table), topic, COLUMNS)
    assert rows == [msgspec.structs.astuple(row) for row in case.expected]
    places = rows_of(read_table(runs.folders.table), topic, ("_emit_offset", "_row"))
    assert places == sorted(set(places))
    assert read_until(runs.folders.ledger, topic) == len(case.messages)
    assert_accounted(read_ledger(runs.folders.ledger), case)


def assert_accounted(ledger: Several[LedgerRow], case: Case) -> None:
    """Assert that each batch counts each message once, and that the watermark is the newest time."""
    for row in ledger:
        became = (row.with_rows or 0) + row.accepted_without_row + row.skipped + row.dropped
        assert row.messages + row.released == became + row.quarantined + row.late + row.buffered
    assert sum(row.messages for row in ledger) == len(case.messages)
    assert sum(row.buffered for row in ledger) == sum(row.released for row in ledger)
    assert (sum(row.buffered for row in ledger) > 0) is case.held
    assert sum(row.late for row in ledger) == len(case.late)
    assert sum(row.timer_rows for row in ledger) == case.timer_rows
    newest = max(message.second for _, message in case.messages)
    assert ledger[-1].watermark == datetime.fromtimestamp(newest, UTC)


def test_late_messages_are_in_a_table_that_can_be_asked(broker: Broker, topic_family: str, tmp_path: Path) -> None:
    runs, topic = read(broker, topic_family, tmp_path, REORDERED, 5)
    sql = 'SELECT topic, "offset", session, cause, expected, found FROM reordered_late ORDER BY "offset"'
    asked = query_sql(sql, ["reordered"], runs.folders.root, AsOf(), limit=None)
    assert asked.rows == [
        [topic, 8, "b", "late", "number 5 or later", "2"],
        [topic, 9, "a", "late", "number 7 or later", "5"],
    ]


def test_a_count_that_does_not_hold_halts(broker: Broker, topic_family: str, tmp_path: Path) -> None:
    wrong = replace(COUNTED, messages=[*COUNTED.messages[:3], ("a", Close(3, 3, count=4))])
    with pytest.raises(IntegrityLost, match=r"count at .*/0 offset 3, .* expected 4 messages in the session, found 3"):
        read(broker, topic_family, tmp_path, wrong, 2)


def test_a_silent_partition_goes_on_by_the_clock_where_the_stream_says_so(
    broker: Broker, topic_family: str, tmp_path: Path
) -> None:
    """Its timers fire and its sessions end in a batch without messages, which the ledger shows."""
    feed = Feed(broker.bootstrap_servers, topic_family)
    topic = feed.create("meters")
    stop = threading.Event()
    for message in (Start(1, 0), Read(2, 5, 7)):
        feed.send(topic, [msgspec.json.encode(message)], key="a")
    times = EventTime(session_idle=timedelta(minutes=10), idle_advance=timedelta(seconds=0.5))
    stream = replace(meters, topics=Topics(pattern=feed.pattern), event_time=times)
    runs = LocalRuns(stream, feed.bootstrap_servers, tmp_path)

    def around(runner: Runner) -> Runner:
        def work(plan: BatchPlan) -> Several[TaskResult]:
            if plan.messages == 0:
                stop.set()
            return runner(plan)

        return work

    runs.run(trigger=Every(seconds=0.2), stop=stop, around=around)
    expected = [Total("minute", 0, "7"), Total("end", None, "")]
    assert rows_of(read_table(runs.folders.table), topic, COLUMNS) == [msgspec.structs.astuple(row) for row in expected]
    places = rows_of(read_table(runs.folders.table), topic, ("_offset", "_emit_offset", "_row"))
    assert places == [(1, 2, 0), (1, 2, 1)]
    first, silent = read_ledger(runs.folders.ledger)
    assert (first.messages, silent.messages, silent.timer_rows, silent.rows_emitted) == (2, 0, 2, 2)
    assert silent.watermark is not None
    assert silent.watermark > datetime(2020, 1, 1, tzinfo=UTC)
    feed.send(topic, [msgspec.json.encode(Start(1, int(datetime.now(UTC).timestamp())))], key="a")
    assert runs.run() is RunOutcome.ENDED
    assert read_until(runs.folders.ledger, topic) == 3
