"""A live batch includes arrivals between its plan and its read: no offset is lost, repeated or unexplained."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from lockstep import AvailableNow, Every, Limits
from lockstep.control.live_report import find_newest_epoch, read_live_report
from lockstep.integrity.resume_options import IntegrityLost
from lockstep.verify.report import InvariantStatus
from lockstep.verify.verify import verify_stream
from tests.faults.matrix.drivers import wait_until
from tests.support.feed import folded, send_within, session, update
from tests.support.plain_reader import read_table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lockstep.declare.options import Trigger
    from lockstep.engine.driver.planner import BatchPlan
    from lockstep.engine.driver.spark_job import Runner
    from lockstep.engine.protocol import TaskResult
    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns

LIVE = Every(seconds=0.05)
OPENING = session(4)
LATER = [update(n, a=n) for n in (6, 7, 8)]


def run_once(runs: LocalRuns, between: Callable[[], None], trigger: Trigger = LIVE) -> None:
    """Run one batch and call `between` after its plan, before its tasks."""
    stop = threading.Event()

    def around(runner: Runner) -> Runner:
        def run(plan: BatchPlan) -> Sequence[TaskResult]:
            between()
            stop.set()
            return runner(plan)

        return run

    runs.run(trigger=trigger, stop=stop, around=around)


def ranges(runs: LocalRuns, topic: str, partition: int = 0) -> list[tuple[int, int]]:
    """Return each batch's offset range of a partition."""
    rows = [
        row
        for row in read_table(runs.folders.ledger).to_pylist()
        if (row["topic"], row["partition"]) == (topic, partition) and row["messages"]
    ]
    assert all(row["until"] <= row["stable_end"] <= row["high_watermark"] for row in rows)
    return [(row["start"], row["until"]) for row in rows]


def prove(runs: LocalRuns, topic: str, held: Sequence[bytes]) -> None:
    """Assert that the rows are those of a plain fold and that the proof holds."""
    assert folded([(offset, "s", value) for offset, value in enumerate(held)]) == runs.rows(topic)
    assert verify_stream(runs.stream, runs.folders, runs.settings.kafka).status is InvariantStatus.PROVEN


def test_a_run_is_settled_by_its_first_batch_or_when_nothing_is_to_be_read(feed: Feed, runs: LocalRuns) -> None:
    """Its host then starts the next stream."""
    topic = feed.create("values")
    feed.send(topic, OPENING)
    run_once(runs, lambda: None)
    assert runs.settled == [1]
    stop = threading.Event()
    with ThreadPoolExecutor(1) as executor:
        run = executor.submit(runs.run, trigger=LIVE, stop=stop)
        try:
            wait_until(lambda: len(runs.settled) == 2 or run.done(), "a second run without a batch")
        finally:
            stop.set()
        run.result()
    assert (runs.settled, len(runs.reports)) == ([1, 1], 1)
    feed.send(topic, LATER)
    run_once(runs, lambda: None)
    assert runs.settled == [1, 1, 2]


def test_what_comes_after_the_plan_is_in_the_batch(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    feed.send(topic, OPENING)
    run_once(runs, lambda: feed.send(topic, LATER))
    assert ranges(runs, topic) == [(0, 8)]
    prove(runs, topic, OPENING + LATER)


def test_every_partition_of_a_bin_goes_on_beyond_its_end(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values", partitions=3)
    for partition in range(3):
        feed.send(topic, OPENING, partition=partition)

    def between() -> None:
        for partition in range(3):
            feed.send(topic, LATER, partition=partition)

    run_once(runs, between)
    runs.run()
    for partition in range(3):
        values, (_, reached) = enumerate(OPENING + LATER), ranges(runs, topic, partition)[0]
        assert reached >= len(OPENING)
        key = f"s{partition}" if partition else "s"
        assert folded([(offset, key, value) for offset, value in values]) == runs.rows(topic, partition)
    assert verify_stream(runs.stream, runs.folders, runs.settings.kafka).status is InvariantStatus.PROVEN


def test_a_batch_grows_to_its_limit_and_no_further(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    feed.send(topic, OPENING)
    runs = runs.with_limits(Limits(batch_messages=6))
    run_once(runs, lambda: feed.send(topic, LATER))
    runs.run()
    assert ranges(runs, topic) == [(0, 6), (6, 8)]
    prove(runs, topic, OPENING + LATER)


def test_a_bounded_run_reads_what_was_there_at_its_start(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    feed.send(topic, OPENING)
    run_once(runs, lambda: feed.send(topic, LATER), AvailableNow())
    assert ranges(runs, topic) == [(0, 5)]
    runs.run()
    prove(runs, topic, OPENING + LATER)


def test_transactions_beyond_the_end_are_explained(feed: Feed, runs: LocalRuns) -> None:
    """Offsets 5 to 7 committed, 8 marker, 9 aborted, 10 marker, 11 committed, 12 marker."""
    topic = feed.create("values")
    producer = feed.transactional()
    last = update(9, a=1)

    def between() -> None:
        for values, commits in ((LATER, True), ([last], False), ([last], True)):
            producer.begin_transaction()
            send_within(producer, topic, values)
            feed.end_transaction(producer, topic, commits=commits)

    feed.send(topic, OPENING)
    run_once(runs, between)
    assert ranges(runs, topic) == [(0, 12)]  # no message follows the last marker to show it
    runs.run()
    held = [*enumerate(OPENING + LATER), (11, last)]
    assert folded([(offset, "s", value) for offset, value in held]) == runs.rows(topic)
    assert verify_stream(runs.stream, runs.folders, runs.settings.kafka).status is InvariantStatus.PROVEN


def test_a_violation_beyond_the_end_halts_there(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    feed.send(topic, OPENING)
    with pytest.raises(IntegrityLost) as lost:
        run_once(runs, lambda: feed.send(topic, [LATER[0], update(9, a=1)]))
    assert [finding.offset for finding in lost.value.findings] == [6]
    assert ranges(runs, topic) == [(0, 6)]
    assert folded([(offset, "s", value) for offset, value in enumerate([*OPENING, LATER[0]])]) == runs.rows(topic)


def test_the_live_report_agrees_with_the_ledger(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values", partitions=2)
    feed.send(topic, OPENING)
    feed.send(topic, OPENING, partition=1)
    runs.run()
    epoch = find_newest_epoch(runs.folders.control)
    assert epoch is not None
    report = read_live_report(runs.folders.control, epoch)
    assert report is not None
    assert [(each.topic, each.partitions, each.lag_messages) for each in report.topics] == [(topic, (0, 1), (0, 0))]
    rows = [row for row in read_table(runs.folders.ledger).to_pylist() if row["messages"]]
    assert sum(each.messages for each in report.batches) == sum(row["messages"] for row in rows)
    assert sum(each.rows for each in report.batches) == sum(row["rows"] for row in rows)
    newest_ms = {row["partition"]: int(row["newest_timestamp"].timestamp() * 1000) for row in rows}
    assert dict(zip(report.topics[0].partitions, report.topics[0].newest_ms, strict=True)) == newest_ms
    assert all(each.task_seconds > 0 and each.plan_seconds > 0 and each.commit_seconds > 0 for each in report.batches)
