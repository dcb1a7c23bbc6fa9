"""A topic that gets partitions while it is read."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from lockstep import Every, OnGrowth, Ordered
from lockstep.integrity.resume_options import IntegrityLost
from tests.support.adding_stream import adding
from tests.support.feed import snapshot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstep.engine.driver.planner import BatchPlan
    from lockstep.engine.driver.spark_job import Runner
    from lockstep.engine.protocol import TaskResult
    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns


def test_a_session_that_begins_in_the_first_partition_after_growth_may_not_begin_in_another_as_well(
    feed: Feed, runs: LocalRuns
) -> None:
    """At the run's start the topic has one partition, so no session can be in two."""
    topic = feed.create("values")
    stop = threading.Event()
    feed.send(topic, [snapshot(1, a=1)])

    def grow() -> None:
        feed.grow(topic, partitions=2)
        feed.send(topic, [snapshot(1, b=1)], key="new", partition=1)

    steps = [
        (0, grow),
        (1, lambda: feed.send(topic, [snapshot(1, c=1)], key="moved", partition=0)),
        (0, lambda: feed.send(topic, [snapshot(1, c=1)], key="moved", partition=1)),
        (1, stop.set),
    ]

    def around(runner: Runner) -> Runner:
        def run(plan: BatchPlan) -> Sequence[TaskResult]:
            results = runner(plan)
            if steps and steps[0][0] in {item.position.partition for group in plan.bins for item in group}:
                steps.pop(0)[1]()
            return results

        return run

    runs = runs.of(adding(feed.pattern, Ordered(on_growth=OnGrowth.RESTART_SESSIONS)))
    with pytest.raises(IntegrityLost, match=rf"session in two partitions at {topic}/1"):
        runs.run(trigger=Every(seconds=0.05), stop=stop, around=around)
