"""When unfinished tasks of a batch are given up: by the times of the finished ones alone."""

from __future__ import annotations

import pytest

from lockstep.engine.driver.spark_job import has_stragglers

PATIENCE = 10.0


@pytest.mark.parametrize(
    ("finished", "tasks", "elapsed", "expected"),
    [
        ([], 2, 1_000.0, False),  # none has finished: the deadline of the batch decides
        ([1.0, 1.0], 2, 1_000.0, False),  # all have
        ([0.5], 1, 1_000.0, False),
        ([1.0], 2, 11.0, False),
        ([1.0], 2, 11.1, True),
        ([1.0, 10.0], 3, 20.1, False),  # the second turn of tasks that take ten seconds
        ([1.0, 10.0], 3, 30.1, True),
        ([100.0], 4, 299.0, False),
        ([100.0], 4, 301.0, True),
    ],
)
def test_tasks_are_given_up_that_are_far_behind_the_slowest_finished_one(
    finished: list[float],
    tasks: int,
    elapsed: float,
    expected: bool,  # noqa: FBT001
) -> None:
    assert has_stragglers(finished, tasks, elapsed, PATIENCE) is expected
