"""Messages that expired unread in an idle partition: the ledger states them exactly once."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from lockstep import Every, NoIntegrity, Once, OnGrowth, Ordered, Strict, Suspend
from lockstep import Sequence as Numbers
from lockstep.engine.driver.loop import RunOutcome
from lockstep.integrity.resume_options import AcceptLoss, FromSnapshot, IntegrityLost
from lockstep.operations.resume import resume_stream
from lockstep.verify.verify import verify_stream
from tests.support.adding_stream import adding
from tests.support.feed import ProducerRecord, folded, snapshot, update
from tests.support.plain_reader import read_table, read_until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstep.engine.driver.planner import BatchPlan
    from lockstep.engine.driver.spark_job import Runner
    from lockstep.engine.protocol import TaskResult
    from lockstep.integrity.base import IntegrityClass
    from lockstep.integrity.resume_options import Acceptance
    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns

BEFORE = [snapshot(1, a=1), update(2, a=1), update(3, a=1)]
LOST = [update(4, a=1)] * 2
AFTER = [snapshot(9, a=5)]


def holes(runs: LocalRuns, topic: str) -> list[tuple[int, int, str]]:
    rows = [row for row in read_table(runs.folders.ledger).to_pylist() if row["topic"] == topic]
    return [(hole["start"], hole["until"], hole["cause"]) for row in rows for hole in row["holes"]]


def test_they_are_in_the_ledger_once_however_late_the_next_message_comes(feed: Feed, runs: LocalRuns) -> None:
    """The next message arrives during the run that committed the loss with another topic's batch."""
    silent = feed.create("silent")
    other = feed.create("other")
    feed.send(silent, BEFORE)
    runs = runs.of(adding(feed.pattern, Ordered()))
    runs.run()
    feed.send(silent, LOST)
    feed.expire(silent, 5)
    feed.send(other, BEFORE)
    stop = threading.Event()

    def around(runner: Runner) -> Runner:
        def work(plan: BatchPlan) -> Sequence[TaskResult]:
            results = runner(plan)
            if any(item.position.topic == silent for group in plan.bins for item in group):
                stop.set()
            else:
                feed.send(silent, AFTER)
            return results

        return work

    assert runs.run(trigger=Every(seconds=0.2), stop=stop, around=around) is RunOutcome.STOPPED
    assert read_until(runs.folders.ledger, silent) == 6
    assert holes(runs, silent) == [(3, 5, "expired")]
    assert runs.rows(silent) == folded([(at, "s", value) for at, value in enumerate(BEFORE)])


def test_they_are_in_the_ledger_though_nothing_is_there_to_read(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("silent")
    feed.send(topic, BEFORE)
    runs = runs.of(adding(feed.pattern, Ordered()))
    runs.run()
    feed.send(topic, LOST)
    feed.expire(topic, 5)
    for _ in range(2):  # the second finds nothing new
        assert runs.run() is RunOutcome.ENDED
    assert read_until(runs.folders.ledger, topic) == 5
    assert holes(runs, topic) == [(3, 5, "expired")]
    assert len(runs.reports) == 2


IN_NEW = [snapshot(1, a=1), update(2, a=1), snapshot(9, a=5), update(10, a=1)]
"""A new partition's messages; the first two expire."""


def grown(feed: Feed, runs: LocalRuns) -> str:
    """Return a topic that was read, with a new partition whose first messages expired before any run."""
    topic = feed.create("values")
    feed.send(topic, BEFORE)
    runs.run()
    feed.grow(topic, 2)
    feed.append(topic, [ProducerRecord("p", value) for value in IN_NEW], 1)
    feed.expire(topic, 2, 1)
    return topic


def assert_proven(runs: LocalRuns) -> None:
    report = verify_stream(runs.stream, runs.folders, runs.settings.kafka)
    assert report.status.value == "proven", (report.violations, report.notes)


@pytest.mark.parametrize(
    "integrity", [NoIntegrity(), Ordered(on_violation=Suspend()), Once(keep_ids=9, on_violation=Suspend())]
)
def test_those_of_a_partition_that_a_topic_got_are_in_the_ledger(
    feed: Feed, runs: LocalRuns, integrity: IntegrityClass
) -> None:
    runs = runs.of(adding(feed.pattern, integrity))
    topic = grown(feed, runs)
    for _ in range(2):  # the second finds nothing new
        assert runs.run() is RunOutcome.ENDED
    assert holes(runs, topic) == [(0, 2, "expired")]
    assert runs.rows(topic, 1) == folded([(at, "p", IN_NEW[at]) for at in (2, 3)])
    assert_proven(runs)


@pytest.mark.parametrize("kind", [AcceptLoss, FromSnapshot])
def test_those_of_a_partition_that_a_topic_got_halt_a_class_that_reads_it_without_asking(
    feed: Feed, runs: LocalRuns, kind: type[AcceptLoss | FromSnapshot]
) -> None:
    runs = runs.of(adding(feed.pattern, Strict(evidence=Numbers(), on_growth=OnGrowth.RESTART_SESSIONS)))
    topic = grown(feed, runs)
    with pytest.raises(IntegrityLost, match=rf"expired unread at {topic}/1 offset 0"):
        runs.run()
    accepted: Acceptance = AcceptLoss(topic, 1, 0, 2) if kind is AcceptLoss else FromSnapshot(topic, 1)
    resume_stream(runs.folders, why="a test", who="ann", accepted=[accepted])
    assert runs.run() is RunOutcome.ENDED
    assert runs.rows(topic, 1) == folded([(at, "p", IN_NEW[at]) for at in (2, 3)])
    assert_proven(runs)
