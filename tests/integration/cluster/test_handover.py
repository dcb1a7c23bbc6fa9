"""A handover needs free cores for the successor; without any core the first run continues."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.cluster.cluster_runs import wait_until
from tests.support.feed import folded, session, update
from tests.support.plain_reader import heads

if TYPE_CHECKING:
    from tests.integration.cluster.cluster_runs import ClusterRuns
    from tests.support.feed import Feed

pytestmark = pytest.mark.slow


def test_with_half_of_the_cores_each_a_second_run_takes_over(runs: ClusterRuns, feed: Feed) -> None:
    topic = feed.create("values")
    feed.send(topic, session(5))
    first = runs.start("--seconds", "1", cores_max="1")
    wait_until(lambda: first.batches > 0, "a batch of the first run")
    second = runs.start("--seconds", "1", cores_max="1")
    assert first.ended() == "handed over"
    feed.send(topic, [update(7, a=1)])
    wait_until(lambda: runs.read_until() == {(topic, 0): 7}, "a batch of the second run")
    second.stop()
    assert second.outcome == "stopped"
    values = [*session(5), update(7, a=1)]
    assert folded([(offset, "s", value) for offset, value in enumerate(values)]) == runs.rows(topic, 0)


def test_where_the_first_run_holds_all_cores_the_second_takes_nothing_over(runs: ClusterRuns, feed: Feed) -> None:
    topic = feed.create("values")
    feed.send(topic, session(5))
    first = runs.start("--seconds", "1")
    wait_until(lambda: first.batches > 0, "a batch of the first run")
    second = runs.start("--seconds", "1", "--patience", "5")
    assert second.ended() is None
    said = "\n".join(second.lines)
    assert f"{runs.cluster.master} did not give an executor within 5 s; nothing was taken over" in said
    assert '[spark.options] "spark.cores.max"' in said
    assert list(runs.folders.control.glob("handover-*")) == []
    feed.send(topic, [update(7, a=1)])
    wait_until(lambda: runs.read_until() == {(topic, 0): 7}, "a batch of the first run")
    assert {head["epoch"] for head in heads(runs.folders.table) if head.get("batch")} == {1}
    first.stop()
    assert first.outcome == "stopped"
