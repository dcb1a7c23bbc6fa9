"""Sequences of ordinary events around timers and silence: the rows are correct, and the proof confirms them."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec
import pytest

from lockstep import Envelope, EventTime, Every, FuzzyWindow, NoIntegrity, Once, Ordered, Topics
from lockstep.integrity.resume_options import IntegrityLost, SkipSession
from lockstep.operations.resume import resume_stream
from lockstep.verify.verify import verify_stream
from tests.support.local_runs import LocalRuns
from tests.support.meter_stream import Close, Message, Meter, Meters, Read, Start, Total, meters
from tests.support.minute_stream import FIRST, LATENESS, Totals, Value, totals
from tests.support.minute_stream import Minute as State
from tests.support.minute_stream import Window as Row
from tests.support.odd_numbers import FloatNumbers, FloatTimes, FloatWatermark, RaisingDeadline
from tests.support.plain_reader import read_table, rows_of
from tests.support.proven import PROVEN_OR_LOST

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from lockstep import Record
    from lockstep.declare.stream import AnyStream
    from lockstep.engine.driver.planner import BatchPlan
    from lockstep.engine.driver.spark_job import Runner
    from lockstep.engine.protocol import TaskResult
    from lockstep.integrity.base import IntegrityClass
    from tests.support.feed import Feed

NEVER, SOON, LATER = (EventTime(session_idle=each) for each in (None, timedelta(seconds=100), timedelta(seconds=500)))


class Ending(Totals):
    """Emits a row when a session ends."""

    def on_end(self, state: State) -> Iterable[Row]:
        yield Row("end", None, state.total)


class Late(Ending):
    """Also emits a row for each late message."""

    def on_late(self, state: State, message: Value, record: Record) -> Iterable[Row]:
        yield Row("late", None, message.v)


class Raising(Meters):
    """Its timers raise, and so does each update from a `Start` message."""

    def on_timer(self, state: Meter, deadline_us: int) -> Iterable[Total]:
        raise ValueError("a bug")

    def on_update(self, state: Meter, message: Message, record: Record) -> Iterable[Total]:
        if isinstance(message, Start):
            raise TypeError("a bug")
        return super().on_update(state, message, record)


class Restarting(Meters):
    """A reading of 7 restarts the numbers of a meter."""

    def envelope(self, message: Message, record: Record) -> Envelope:
        again = isinstance(message, Read) and message.value == 7
        envelope = super().envelope(message, record)
        return msgspec.structs.replace(envelope, restarts_sequence=True) if again else envelope


def runs_of(feed: Feed, root: Path, stream: AnyStream) -> LocalRuns:
    return LocalRuns(replace(stream, topics=Topics(pattern=feed.pattern)), feed.bootstrap_servers, root)


def send(feed: Feed, topic: str, key: str, *messages: Message | Value) -> None:
    feed.send(topic, map(msgspec.json.encode, messages), key=key)


def assert_proven(runs: LocalRuns) -> None:
    report = verify_stream(runs.stream, runs.folders, runs.settings.kafka)
    assert report.violations == ()
    assert report.status in PROVEN_OR_LOST, report.notes


def ends(runs: LocalRuns, topic: str) -> list[tuple[object, ...]]:
    rows = rows_of(read_table(runs.folders.table), topic, ("_session", "what", "_emit_offset"))
    return [row for row in rows if row[1] in {"end", "late"}]


@pytest.mark.parametrize("before", [NEVER, LATER])
def test_silence_that_is_declared_shorter_counts_from_the_next_message_of_a_session_on(
    feed: Feed, tmp_path: Path, before: EventTime
) -> None:
    """The proof uses the agenda stored at that time, not the agenda of today's declaration."""
    stream = totals("values", Once(keep_ids=9), Ending())
    topic = feed.create("values")
    old, new = (runs_of(feed, tmp_path, replace(stream, event_time=each)) for each in (before, SOON))
    for key in ("a", "b"):
        send(feed, topic, key, Value(0, 1, 1))
    old.run()
    send(feed, topic, "b", Value(50, 1, 2))
    new.run()
    for number, second in enumerate((140, 160), start=1):
        send(feed, topic, "c", Value(second, 1, number))
        new.run()
    send(feed, topic, "a", Value(161, 1, 2))
    new.run()
    assert ends(new, topic) == [("b", "end", 4)]
    feed.expire(topic, 3)
    assert_proven(new)


def test_clocks_do_not_run_on_from_before_a_release_without_silence(feed: Feed, tmp_path: Path) -> None:
    """Clocks from before that release must not count as current, or a session that received messages in it ends."""
    stream = totals("values", Once(keep_ids=9), Ending())
    topic = feed.create("values")
    on, off = (runs_of(feed, tmp_path, replace(stream, event_time=each)) for each in (SOON, NEVER))
    for key in ("a", "b", "b" * 600):
        send(feed, topic, key, Value(0, 1, 1))
    on.run()
    for key in ("a", "b" * 600):
        send(feed, topic, key, Value(95, 1, 2))
    off.run()
    assert_proven(runs_of(feed, tmp_path, off.stream))
    send(feed, topic, "c", Value(110, 1, 1))
    on.run()
    assert ends(on, topic) == []
    for key in ("a", "b" * 600):
        send(feed, topic, key, Value(120, 1, 3))
    send(feed, topic, "c", Value(230, 1, 2))
    on.run()
    assert ends(on, topic) == [("c", "end", 8), ("a", "end", 8), ("b" * 600, "end", 8)]
    feed.expire(topic, 5)
    assert_proven(on)


def test_a_late_message_does_not_end_a_session_from_before_silence_was_declared(feed: Feed, tmp_path: Path) -> None:
    window = FuzzyWindow(lateness=LATENESS, session_start=FIRST)
    stream = totals("values", window, Late())
    topic = feed.create("values")
    off, on = (runs_of(feed, tmp_path, replace(stream, event_time=each)) for each in (NEVER, SOON))
    send(feed, topic, "a", Value(1000, 1))
    send(feed, topic, "b", Value(1050, 1))
    off.run()
    send(feed, topic, "a", Value(1001, 1))
    send(feed, topic, "b", Value(1051, 1))
    on.run()
    assert ends(on, topic) == [("a", "late", 2)]
    feed.expire(topic, 2)
    assert_proven(on)


def test_a_session_whose_own_clock_is_wrong_does_not_end_while_it_sends(feed: Feed, tmp_path: Path) -> None:
    """Implausible times must not count as silence since 1970, which would end the session and halt the stream."""
    topic = feed.create("meters")
    runs = runs_of(feed, tmp_path, meters)
    now = int(datetime.now(UTC).timestamp())
    for number, second in enumerate((0, 60, 1_000), start=1):
        send(feed, topic, "b", Start(number, now - 2_000 + second))
        send(feed, topic, "a", Start(number, now + 10_000 + second))
        runs.run()
    assert rows_of(read_table(runs.folders.table), topic, ("_session", "what", "_emit_offset")) == [
        ("a", "end", 4),
        ("b", "end", 4),
    ]
    assert_proven(runs)


def test_a_timer_that_raises_where_a_partition_goes_on_by_the_clock_halts_the_stream(
    feed: Feed, tmp_path: Path
) -> None:
    """The partition has no message at that offset; the error must not end as a fold that is not deterministic."""
    topic = feed.create("meters")
    silent = EventTime(idle_advance=timedelta(seconds=0.5))
    runs = runs_of(feed, tmp_path, replace(meters, transform=Raising(), event_time=silent))
    send(feed, topic, "a", Start(1, 0), Read(2, 5, 7))
    with pytest.raises(IntegrityLost, match=r"timer raised at .*/0 offset 2, session .a. ") as lost:
        run_until_silent(runs)
    (finding,) = lost.value.findings
    assert (finding.offset, finding.until) == (2, 2)
    assert_proven(runs)
    resume_stream(runs.folders, why="a test", who="a test", accepted=(), suggested=True)
    send(feed, topic, "a", Read(3, 6, 1), Start(4, 7))
    run_until_silent(runs)
    assert_proven(runs)


def run_until_silent(runs: LocalRuns) -> None:
    """Run until messages are read and the partition has advanced by the clock once."""
    stop = threading.Event()
    read: list[BatchPlan] = []

    def around(runner: Runner) -> Runner:
        def run(plan: BatchPlan) -> Sequence[TaskResult]:
            results = runner(plan)
            read.extend([plan] if plan.messages else [])
            if read and not plan.messages:
                stop.set()
            return results

        return run

    runs.run(trigger=Every(seconds=0.2), stop=stop, around=around)


def test_an_update_that_gives_up_a_first_snapshot_begins_its_session(feed: Feed, tmp_path: Path) -> None:
    """The update must not be passed to `on_update` without a state, which would quarantine it."""
    topic = feed.create("meters")
    runs = runs_of(feed, tmp_path, replace(meters, integrity=NoIntegrity(), transform=Restarting()))
    send(feed, topic, "a", Start(1, 0, more=True), Read(1, 5, 7), Read(2, 6, 0))
    runs.run()
    assert rows_of(read_table(runs.folders.table), topic, ("what", "_emit_offset")) == [("zero", 2)]
    assert [report.counts.quarantined for report in runs.reports] == [1]
    assert_proven(runs)


@pytest.mark.parametrize(("second", "parts"), [(100, True), (99_999_999_999, True), (100, False)])
def test_a_snapshot_of_which_a_part_is_late_is_not_complete(
    feed: Feed, tmp_path: Path, second: int, *, parts: bool
) -> None:
    """It must not be applied without the late part, nor continue with the next snapshot if its last part is late."""
    topic = feed.create("meters")
    window = FuzzyWindow(lateness=timedelta(seconds=10))
    runs = runs_of(feed, tmp_path, replace(meters, integrity=window))
    send(feed, topic, "a", Start(1, 100, more=True))
    send(feed, topic, "b", Start(1, 200))
    rest = [Start(2, second, more=True), Start(3, 195)] if parts else [Start(3, 100)]
    send(feed, topic, "a", *rest, Read(4, 196, 0))
    runs.run()
    assert [report.counts.quarantined for report in runs.reports] == [2 + len(rest)]
    send(feed, topic, "a", Start(5, 197, more=True), Start(6, 198), Read(7, 199, 0))
    runs.run()
    assert rows_of(read_table(runs.folders.table), topic, ("what", "_sequence")) == [("zero", 7)]
    assert_proven(runs)


def test_a_first_snapshot_that_is_refused_leaves_no_clock(feed: Feed, tmp_path: Path) -> None:
    """Under a class that suspends nothing, its session becomes unknown and starts with its next message."""
    topic = feed.create("meters")
    runs = runs_of(feed, tmp_path, replace(meters, integrity=Once(keep_ids=9), transform=Raising(), event_time=SOON))
    send(feed, topic, "a", Start(1, 999, more=True), Start(2, 1_000), Start(3, 960))
    runs.run()
    for number, second in enumerate((1_070, 1_099), start=1):
        send(feed, topic, f"b{number}", Start(number, second))
        runs.run()
    assert rows_of(read_table(runs.folders.table), topic, ("_session", "what", "_emit_offset")) == [("a", "end", 3)]
    assert_proven(runs)


@pytest.mark.parametrize("batches", [1, 3])
def test_a_session_that_began_again_and_ended_is_skipped_no_more(feed: Feed, tmp_path: Path, batches: int) -> None:
    """It must not stay skipped within the batch of its snapshot: the result must not depend on batch boundaries."""
    topic = feed.create("meters")
    runs = runs_of(feed, tmp_path, meters)
    send(feed, topic, "a", Start(1, 0), Read(3, 1, 7))
    with pytest.raises(IntegrityLost, match="gap"):
        runs.run()
    resume_stream(runs.folders, why="a test", who="a test", accepted=[SkipSession(topic, 0, "a")])
    sent: list[Message] = [Start(1, 10), Close(2, 11), Read(3, 12, 0)]
    for message in sent:
        send(feed, topic, "a", message)
        if batches > 1 and message is not sent[-1]:
            runs.run()
    with pytest.raises(IntegrityLost, match=r"unknown session at .*/0 offset 4, session .a."):
        runs.run()
    assert_proven(runs)


ODD_CLASSES: dict[str, IntegrityClass] = {
    "once": Once(keep_ids=9),
    "ordered": Ordered(session_start=FIRST),
    "window": FuzzyWindow(lateness=LATENESS, session_start=FIRST),
    "reorder": FuzzyWindow(lateness=LATENESS, session_start=FIRST, reorder=True),
}
ODD = [
    *((RaisingDeadline(), name) for name in ODD_CLASSES),
    (FloatNumbers(), "ordered"),
    (FloatTimes(), "window"),
    (FloatWatermark(), "once"),
]


@pytest.mark.parametrize(("fold", "name"), ODD, ids=lambda each: each if isinstance(each, str) else type(each).__name__)
def test_the_proof_refuses_the_messages_of_odd_numbers_and_deadlines_that_the_stream_refused(
    feed: Feed, tmp_path: Path, fold: Totals, name: str
) -> None:
    """The proof must not end with the error of `deadline`, nor accept a float that the stream refused."""
    topic = feed.create("values")
    runs = runs_of(feed, tmp_path, totals("values", ODD_CLASSES[name], fold))
    batches = [Value(100, 1, 0), Value(101, 7, 1), Value(102, 1, 2)], [Value(103, 1, 3), Value(300, 1, 4)]
    for batch in batches:
        for key in ("a", "b"):
            send(feed, topic, key, *batch)
        runs.run()
    assert sum(report.counts.quarantined for report in runs.reports) > 0
    assert_proven(runs)
