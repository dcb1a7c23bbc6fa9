"""When unfinished tasks of a batch are abandoned, by the times of the finished tasks alone."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # has none

from lockstep.engine.driver.executors import ExecutorPresence, list_busy_executors, renew_executor
from lockstep.engine.driver.spark_job import StragglerHistory, has_stragglers
from lockstep.model.tuning import Tuning

if TYPE_CHECKING:
    from typing import NoReturn

    from pyspark import SparkContext

PATIENCE = 10.0
TUNING = Tuning(straggler_task_seconds=PATIENCE, straggler_rest_seconds=300.0)


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


def test_late_tasks_are_waited_for_longer_each_time_and_as_at_first_after_a_rest() -> None:
    before = StragglerHistory()
    patience = []
    for at in (1_000.0, 1_020.0, 1_060.0):
        patience.append(before.compute_patience_seconds(TUNING, at))
        before = before.add(TUNING, at)
    assert patience == [10.0, 30.0, 90.0]
    assert before.compute_patience_seconds(TUNING, 1_359.0) == 270.0
    assert before.compute_patience_seconds(TUNING, 1_360.0) == 10.0
    assert before.add(TUNING, 1_360.0).count == 1


def refuse() -> NoReturn:
    raise Py4JError("Method runningTasksByExecutors([]) does not exist")


def test_a_spark_that_does_not_say_which_executors_are_busy_has_none_replaced() -> None:
    """The thread that watches the deadline of a batch asks Spark."""
    context = cast("SparkContext", SimpleNamespace(_jsc=SimpleNamespace(sc=refuse)))
    assert list_busy_executors(context) == frozenset()
    assert not renew_executor(context, "1")


def test_a_job_is_without_executors_for_too_long_only_where_none_came_meanwhile() -> None:
    """Spark itself waits forever: a stream that fills files has no deadline, and would stop silently."""
    presence = ExecutorPresence(100.0, seconds_max=30.0)
    seen = {104.0: True, 120.0: False, 125.0: True, 154.0: False, 155.0: False}
    missed = [presence.is_missed(at, partial(bool, there)) for at, there in seen.items()]
    assert missed == [False, False, False, False, True]


def test_a_job_is_asked_for_its_executors_once_a_second() -> None:
    presence = ExecutorPresence(100.0, seconds_max=30.0)
    asked = list[float]()

    def ask(now: float) -> bool:
        asked.append(now)
        return True

    for now in (100.5, 101.0, 101.5, 102.0, 102.9):
        presence.is_missed(now, partial(ask, now))
    assert asked == [101.0, 102.0]
