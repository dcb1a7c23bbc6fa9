"""The consequences of a failed job: the errors that end a run and when, and the message blamed for a death."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from lockstep.engine.driver.executors import JobCancelled, SparkStopped, find_foreign_end, find_python_problem
from lockstep.engine.driver.lookup_pins import LookupPins
from lockstep.engine.driver.planner import BatchPlan
from lockstep.engine.driver.retries import FAILURES_MAX, RetryingRunner
from lockstep.engine.executor.limits import EngineLimit, LimitKind
from lockstep.engine.protocol import BatchIdentity, PlannedRange, RangeResult, TaskResult
from lockstep.errors import EnvironmentProblem, LockstepError, TableError
from lockstep.model.message_counts import MessageCounts
from lockstep.model.position import Position

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

BATCH = BatchIdentity(generation=1, epoch=1, number=1, commit_hour="2026-01-01T00")
JOBS_MAX = 200


class Died(Exception):
    """The end of a worker without a stated cause."""


def plan_of(*ranges: PlannedRange) -> BatchPlan:
    return BatchPlan(batch=BATCH, bins=(ranges,) if ranges else (), unavailable=(), backlog=0)


def unread(partition: int = 0, start: int = 0, until: int = 4) -> PlannedRange:
    return PlannedRange(Position(topic="t", topic_id="t", partition=partition, next_offset=start), until)


def read(item: PlannedRange) -> RangeResult:
    return RangeResult(
        range=item,
        reached=msgspec.structs.replace(item.position, next_offset=item.until),
        counts=MessageCounts(),
        rows=0,
        holes=(),
        first_event_time_us=None,
        last_event_time_us=None,
        newest_timestamp_ms=None,
        state_bytes=0,
        cpu_seconds=0.0,
    )


def run_whole(plan: BatchPlan) -> Sequence[TaskResult]:
    """Read the ranges of every task to their ends."""
    return [TaskResult(ranges=tuple(map(read, group)), files=(), cpu_seconds=0.0) for group in plan.bins]


def retrying(
    runner: Callable[[BatchPlan], Sequence[TaskResult]], root: Path, stop: threading.Event | None = None
) -> RetryingRunner:
    return RetryingRunner(runner, LookupPins((), root), stop or threading.Event())


def failing(errors: list[Exception | None]) -> Callable[[BatchPlan], Sequence[TaskResult]]:
    """Return a runner that raises these errors, one a job; None is a job that works."""
    left = iter(errors)

    def run(plan: BatchPlan) -> Sequence[TaskResult]:
        error = next(left)
        if error is not None:
            raise error
        return run_whole(plan)

    return run


def test_problems_of_the_environment_end_a_run_when_they_come_too_often_in_a_row(tmp_path: Path) -> None:
    problem = EnvironmentProblem("no connection", next_step="wait")
    runner = retrying(failing([problem, problem, None, *[problem] * FAILURES_MAX]), tmp_path)
    assert [runner.run(plan_of(unread())) is None for _ in range(5)] == [True, True, False, True, True]
    with pytest.raises(EnvironmentProblem):
        runner.run(plan_of(unread()))


def test_an_error_that_no_retry_can_fix_is_raised_at_once(tmp_path: Path) -> None:
    with pytest.raises(LockstepError, match="damaged"):
        retrying(failing([TableError("damaged", next_step="repair")]), tmp_path).run(plan_of(unread()))


def test_a_run_that_is_to_end_raises_any_failure(tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(Died):
        retrying(failing([Died()]), tmp_path, stop).run(plan_of(unread()))


def test_a_plan_without_tasks_runs_no_job_and_has_results(tmp_path: Path) -> None:
    runner = retrying(failing([]), tmp_path)
    assert runner.pin_lookups(plan_of()) == plan_of()
    assert runner.run(plan_of()) == ()


@given(some.integers(1, 40), some.integers(1, 40), some.sets(some.integers(0, 39), max_size=3))
def test_exactly_the_messages_that_kill_their_worker_are_left_out(
    tmp_path_factory: pytest.TempPathFactory, messages: int, others: int, deadly: set[int]
) -> None:
    """Each partition is read to its end, with any other contents of its job."""
    left_out: set[int] = set()

    def run(plan: BatchPlan) -> Sequence[TaskResult]:
        for item in (each for group in plan.bins for each in group if each.position.partition == 0):
            if deadly & set(range(item.position.next_offset, item.until)) - set(item.killing):
                raise Died
        return run_whole(plan)

    runner = retrying(run, tmp_path_factory.getbasetemp())
    starts = [0, 0]
    ends = [messages, others]
    for _ in range(JOBS_MAX):
        if starts == ends:
            break
        plan = plan_of(*(unread(n, starts[n], ends[n]) for n in range(2) if starts[n] < ends[n]))
        for item in (each for group in runner.run(plan) or () for each in group.ranges):
            assert starts[item.range.position.partition] == item.range.position.next_offset
            starts[item.range.position.partition] = item.reached.next_offset
            left_out |= set(item.range.killing)
    assert starts == ends
    assert left_out == {offset for offset in deadly if offset < messages}
    assert not runner.is_searching(plan_of(unread(0, messages, messages + 1)))


@pytest.mark.fault("F11")
@given(some.lists(some.integers(1, 40), min_size=2, max_size=6), some.data())
def test_a_limit_of_all_tasks_together_blames_no_message_and_all_are_read(
    tmp_path_factory: pytest.TempPathFactory, ends: list[int], data: some.DataObject
) -> None:
    together_max = data.draw(some.integers(1, len(ends)), "partitions that the machine bears at once")
    left_out: set[int] = set()

    def run(plan: BatchPlan) -> Sequence[TaskResult]:
        ranges = [item for group in plan.bins for item in group]
        left_out.update(offset for item in ranges for offset in item.killing)
        if len(ranges) > together_max:
            raise EngineLimit(LimitKind.MEMORY, "MemoryError: ")
        return run_whole(plan)

    runner = retrying(run, tmp_path_factory.getbasetemp())
    starts = [0] * len(ends)
    for _ in range(JOBS_MAX):
        if starts == ends:
            break
        plan = plan_of(*(unread(n, start, ends[n]) for n, start in enumerate(starts) if start < ends[n]))
        for item in (each for group in runner.run(plan) or () for each in group.ranges):
            starts[item.range.position.partition] = item.reached.next_offset
    assert starts == ends
    assert not left_out


def test_a_limit_that_a_partition_reaches_in_a_job_of_its_own_ends_the_run(tmp_path: Path) -> None:
    jobs: list[BatchPlan] = []

    def run(plan: BatchPlan) -> Sequence[TaskResult]:
        jobs.append(plan)
        if any(item.position.partition == 1 for group in plan.bins for item in group):
            raise EngineLimit(LimitKind.HANDLES, "OSError: Too many open files", alone="t/1@0")
        return run_whole(plan)

    runner = retrying(run, tmp_path)
    plan = plan_of(unread(0), unread(1))
    assert [runner.run(plan), runner.run(plan)] == [None, None]
    with pytest.raises(EngineLimit, match="t/1@0: a task of this message alone lacks file handles: OSError: Too many"):
        runner.run(plan)
    assert not any(item.killing for job in jobs for group in job.bins for item in group)


NO_PACKAGE = """Job aborted due to stage failure: Task 0 in stage 93.0 failed 4 times, most recent failure: Lost task \
0.3 in stage 93.0 (TID 509) (10.0.0.7 executor 1): org.apache.spark.SparkException:
Error from python worker:
  ModuleNotFoundError: No module named 'lockstep'
PYTHONPATH was:
  /opt/spark/python/lib/pyspark.zip
org.apache.spark.SparkException: EOFException occurred while reading the port number from \
lockstep.spark.worker_daemon's stdout.
\tat org.apache.spark.api.python.PythonWorkerFactory.startDaemon(PythonWorkerFactory.scala:357)
"""


def test_an_executor_without_the_package_is_named_and_no_message_is_searched_for() -> None:
    """It fails most jobs immediately: a search would halve ranges in 84 jobs, and could blame a message."""
    problem = find_python_problem(NO_PACKAGE)
    assert problem is not None
    assert "the Python of 10.0.0.7 executor 1 cannot run tasks: ModuleNotFoundError: No module named 'lockstep'" in str(
        problem
    )


def test_a_worker_that_crashes_is_no_problem_of_its_python() -> None:
    crashed = "Lost task 0.3 (10.0.0.7 executor 1): SparkException: Python worker exited unexpectedly (crashed)"
    assert find_python_problem(crashed) is None


CANCELLED = "[SPARK_JOB_CANCELLED] Job 4 cancelled because Stage 4 was cancelled SQLSTATE: XXKDA"


@given(some.integers(1, 30), some.sets(some.integers(0, 29), max_size=2), some.lists(some.booleans(), max_size=60))
def test_jobs_that_somebody_cancels_at_any_time_blame_no_message_and_only_delay_the_search(
    tmp_path_factory: pytest.TempPathFactory, messages: int, deadly: set[int], cancels: list[bool]
) -> None:
    """There are fewer than `FAILURES_MAX` cancellations between two working jobs, as more would end the run."""
    left_out = set[int]()
    cancelled = iter([*cancels, *[False] * 4 * JOBS_MAX])
    in_a_row = 0

    def run(plan: BatchPlan) -> Sequence[TaskResult]:
        nonlocal in_a_row
        if in_a_row < FAILURES_MAX - 1 and next(cancelled):
            in_a_row += 1
            raise JobCancelled(CANCELLED)
        for item in (each for group in plan.bins for each in group):
            if deadly & set(range(item.position.next_offset, item.until)) - set(item.killing):
                raise Died
        in_a_row = 0
        return run_whole(plan)

    runner = retrying(run, tmp_path_factory.getbasetemp())
    start = 0
    for _ in range(3 * JOBS_MAX):
        if start == messages:
            break
        for item in (each for group in runner.run(plan_of(unread(0, start, messages))) or () for each in group.ranges):
            start = item.reached.next_offset
            left_out |= set(item.range.killing)
    assert start == messages
    assert left_out == {offset for offset in deadly if offset < messages}


def test_a_job_that_is_cancelled_each_time_ends_the_run_with_that_cause(tmp_path: Path) -> None:
    runner = retrying(failing([JobCancelled(CANCELLED)] * FAILURES_MAX), tmp_path)
    plan = plan_of(unread())
    assert [runner.run(plan) for _ in range(FAILURES_MAX - 1)] == [None, None]
    assert not runner.is_searching(plan)
    with pytest.raises(JobCancelled, match="cancelled from outside"):
        runner.run(plan)


def test_a_spark_that_somebody_stopped_ends_the_run_immediately(tmp_path: Path) -> None:
    with pytest.raises(SparkStopped):
        retrying(failing([SparkStopped("local[2,3]")]), tmp_path).run(plan_of(unread()))


@given(some.text(max_size=200))
def test_what_a_failed_task_quotes_is_no_cancellation(quoted: str) -> None:
    """The error of a worker quotes a Kafka message, whose sender could write Spark's own words into it."""
    failed = f"Job aborted due to stage failure: Task 0 in stage 9.0 failed 3 times: {quoted}"
    for said in (failed, f"{failed}\n{CANCELLED}", f"{failed} Job 1 cancelled because SparkContext was shut down"):
        assert find_foreign_end(said, "local[2,3]", stopped=False) is None


@given(some.text(max_size=200))
def test_whatever_a_job_of_a_stopped_spark_says_spark_was_stopped(said: str) -> None:
    """A stop during the submission of a job breaks any part of Spark, for example its broadcasts."""
    assert isinstance(find_foreign_end(said, "local[2,3]", stopped=True), SparkStopped)
