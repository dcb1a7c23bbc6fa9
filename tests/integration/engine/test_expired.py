"""Messages that expired unread in a partition where nothing comes: written down once, and not forgotten."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from lockstep import Every, Ordered
from lockstep.engine.driver.loop import RunOutcome
from tests.support.adding_stream import adding
from tests.support.feed import folded, snapshot, update
from tests.support.plain_reader import read_table, read_until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstep.engine.driver.planner import BatchPlan
    from lockstep.engine.driver.spark_job import Runner
    from lockstep.engine.protocol import TaskResult
    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns

BEFORE, LOST, AFTER = [snapshot(1, a=1), update(2, a=1), update(3, a=1)], [update(4, a=1)] * 2, [snapshot(9, a=5)]


def holes(runs: LocalRuns, topic: str) -> list[tuple[int, int, str]]:
    rows = [row for row in read_table(runs.folders.ledger).to_pylist() if row["topic"] == topic]
    return [(hole["start"], hole["until"], hole["cause"]) for row in rows for hole in row["holes"]]


def test_they_are_in_the_ledger_once_however_late_the_next_message_comes(feed: Feed, runs: LocalRuns) -> None:
    """Its next message comes while the run goes on, which committed the loss with another topic's batch."""
    silent, other = feed.create("silent"), feed.create("other")
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
