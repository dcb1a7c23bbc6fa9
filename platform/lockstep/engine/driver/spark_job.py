"""Runs bins as a Spark job, with a deadline and without waiting for stragglers.

Spark removes an executor without heartbeats after half a minute. It waits forever for one whose Python process is
stopped or hangs in a file system, and keeps assigning tasks to it. Here, neither delays the tasks of other executors
by more than some seconds, and an executor with late tasks twice in a row is replaced. No commit references the files
that a cancelled task still writes.
"""

from __future__ import annotations

import logging
import math
import os
import pickle
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

import msgspec

from lockstep.engine.driver.executors import (
    ExecutorPresence,
    ExecutorsGone,
    count_executors,
    explain_foreign_end,
    explain_idle,
    find_cause_line,
    find_message,
    find_python_problem,
    find_remedy,
    list_busy_executors,
    renew_executor,
)
from lockstep.engine.driver.planner import BatchPlan
from lockstep.engine.driver.shared_spark import EMPTY, SURPLUS, JobClock, StreamJobs
from lockstep.engine.executor.task import run_tasks
from lockstep.engine.protocol import JobSpec, TaskFailure, TaskResult, TaskSpec
from lockstep.errors import EnvironmentProblem, LockstepError
from lockstep.model.tuning import Tuning
from lockstep.spark.session import is_local
from lockstep.spark.surplus_worker import end_after_task

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.accumulators import Accumulator, AccumulatorParam


T = TypeVar("T")

R = TypeVar("R")
LOG = logging.getLogger("lockstep")

PATIENCE_FACTOR = 3
"""10 s, then 30 s as Spark itself for a silent executor, then 90 s: the deadline of a batch is 300 s."""

POLL_SECONDS = 0.1
"""Interval at which the deadline and the stragglers of a running job are checked; a check costs microseconds."""


class BatchTimeout(LockstepError):
    """A batch exceeded its deadline; nothing of it is committed.

    Attributes:
        seconds: The deadline.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"the batch timed out after {seconds:g} s and was cancelled; nothing of it is committed",
            next_step="find the executor that hangs; if the fold is that slow, declare "
            "Limits(batch_messages=...) lower or Limits(batch_seconds=...) higher",
        )
        self.seconds = seconds


def run_cancellable(context: SparkContext, find_reason: Callable[[], R | None], work: Callable[[], T]) -> T | R:
    """The result of `work`, which runs Spark jobs on this thread; the reason if they were cancelled for one.

    Args:
        context: Runs the jobs.
        find_reason: Asked ten times a second, on another thread; the jobs are cancelled once it returns a reason.
        work: Raises when its jobs are cancelled.
    """
    tag = f"lockstep-{uuid.uuid4().hex}"
    over = threading.Event()
    reasons = list[R]()

    def watch() -> None:
        while not over.wait(POLL_SECONDS):
            reason = reasons[0] if reasons else find_reason()
            if reason is not None:
                reasons[:] = [reason]
                context.cancelJobsWithTag(tag)  # each time: a job that is only now being submitted is not there before

    context.addJobTag(tag)
    threading.Thread(target=watch, name="job watch", daemon=True).start()
    try:
        return work()
    except Exception:
        if reasons:
            return reasons[0]
        raise
    finally:
        over.set()
        context.removeJobTag(tag)


class CancelReason(Enum):
    """Why the job of a batch was cancelled."""

    DEADLINE = "the batch is past its deadline"
    NO_EXECUTOR = "there is no executor left"
    STRAGGLERS = "some tasks are far behind the others"


def has_stragglers(finished: Sequence[float], tasks: int, elapsed_seconds: float, patience_seconds: float) -> bool:
    """Whether to cancel the unfinished tasks of a batch, so that the finished ones can be committed.

    Args:
        finished: Seconds from the start of the job to the end of each finished task.
        tasks: Number of tasks.
        elapsed_seconds: Seconds since the start of the job.
        patience_seconds: Least time to wait after the last task finished. If tasks take longer than that, or
            take turns on too few cores, twice the time of the slowest task counts.
    """
    if not 0 < len(finished) < tasks:
        return False
    slowest = max(finished)
    return elapsed_seconds - slowest > max(patience_seconds, 2 * slowest)


class StragglerHistory(msgspec.Struct, frozen=True):
    """Recent cancellations of late tasks.

    Attributes:
        count: Cancellations in a row, each within `straggler_rest_seconds` after the previous.
        at: Time of the last cancellation, by the monotonic clock.
    """

    count: int = 0
    at: float = -math.inf

    def compute_patience_seconds(self, tuning: Tuning, now: float) -> float:
        """Time to wait for the next late tasks: longer after each cancellation, so that merely slow tasks can end."""
        cancellations = self.count if self._is_recent(tuning, now) else 0
        return tuning.straggler_task_seconds * math.pow(PATIENCE_FACTOR, cancellations)

    def add(self, tuning: Tuning, now: float) -> StragglerHistory:
        """The history after one more cancellation."""
        count = self.count + 1 if self._is_recent(tuning, now) else 1
        return StragglerHistory(count, now)

    def _is_recent(self, tuning: Tuning, now: float) -> bool:
        return now - self.at < tuning.straggler_rest_seconds


Arrived = tuple[int, int, bytes]
"""Number of a job, number of a bin, and the encoded result of its task."""


class _Concatenation:
    """An `AccumulatorParam` by its methods only: the commands do not import Spark."""

    def zero(self, _: list[Arrived]) -> list[Arrived]:
        return []

    def addInPlace(self, found: list[Arrived], more: list[Arrived]) -> list[Arrived]:  # noqa: N802  # Spark's name
        found.extend(more)
        return found


Runner = Callable[[BatchPlan], Sequence[TaskResult]]
"""Runs the bins of a plan and returns the results of those that ended."""


class SparkRunner:
    """Runs bins as tasks of a Spark job, which retries them and distributes them over executors.

    Tasks send their results through an accumulator, so that the results of finished tasks are known before the job
    ends: a task on a silent executor does not delay the others. Its partitions are planned again. Spark adds the
    result of a task once, however many attempts it took, and before the job ends.
    """

    def __init__(self, jobs: StreamJobs, job: JobSpec, *, seconds_max: float | None = None) -> None:
        """Runs nothing yet.

        Args:
            jobs: The jobs of the stream; each runs on the thread that calls the runner.
            job: Settings that the tasks share.
            seconds_max: Hard deadline of a batch; None for none.
        """
        self._jobs = jobs
        self._context = jobs.context
        self._seconds_max = seconds_max
        self._tuning = job.tuning
        self._is_local = is_local(str(self._context.master))
        self._work = partial(run_tasks if self._is_local else run_tasks_remote, job)
        concatenation = cast("AccumulatorParam[list[Arrived]]", _Concatenation())
        self._arrived = self._context.accumulator(list[Arrived](), concatenation)
        self._job = 0
        self._given_up = StragglerHistory()
        self._late = frozenset[str]()

    def __call__(self, plan: BatchPlan) -> Sequence[TaskResult]:
        """The results of the bins whose tasks ended: of all bins, unless stragglers were cancelled.

        Raises:
            BatchTimeout: The deadline passed; all results are discarded.
            ExecutorsGone: No executor was present for long.
            SparkStopped: Somebody stopped Spark.
            EnvironmentProblem: An executor has no usable Python, somebody cancelled the job, or the job ended, but not
                every task's result arrived; all results are discarded.
        """
        tasks = [msgspec.msgpack.encode(task) for task in make_tasks(plan)]
        ended_before = [number for _, number, _ in self._arrived.value]
        placed = self._jobs.start(tasks, ended_before)
        self._job += 1  # late tasks of the job before still send their results
        self._arrived.value = []
        work = partial(_report, self._work, self._arrived, self._job)

        def run() -> None:
            self._context.parallelize(placed, len(placed)).foreachPartition(work)

        try:
            outcome = run_cancellable(self._context, self._watch(len(tasks)), run)
        except Exception as error:  # of Spark, which tells causes that are not of a message in its text only
            problem = explain_foreign_end(self._context, error) or find_python_problem(find_message(error))
            if problem is None:
                raise
            raise problem from error
        finally:
            self._jobs.end()
        if outcome is CancelReason.DEADLINE:
            raise BatchTimeout(self._seconds_max or 0.0)
        if outcome is CancelReason.NO_EXECUTOR:
            raise ExecutorsGone(str(self._context.master))
        ended = self._ended()
        if outcome is CancelReason.STRAGGLERS:
            where = f" (executors {', '.join(sorted(self._late))})" if self._late else ""
            behind = f"{len(tasks) - len(ended)} of {len(tasks)} tasks are behind{where}"
            LOG.warning("%s: their partitions are planned again", behind)
            self._give_up()
        elif len(ended) < len(tasks):
            raise EnvironmentProblem(
                f"{len(tasks) - len(ended)} of {len(tasks)} tasks ended without a result: Spark's connection for "
                "accumulators to this driver is broken",
                next_step="the batch is tried again; the log of the driver shows what closed the connection",
            )
        return [_decode_result(encoded) for _, encoded in sorted(ended.items())]

    def _give_up(self) -> None:
        """Note which executors had late tasks; replace those that had late tasks lately before."""
        now = time.monotonic()
        for executor in sorted(self._jobs.note_late(self._late, now, self._tuning.straggler_rest_seconds)):
            outcome = "it is replaced" if renew_executor(self._context, executor) else "it could not be replaced"
            LOG.warning("executor %s is behind for the second time: %s", executor, outcome)
        self._given_up = self._given_up.add(self._tuning, now)

    def _ended(self) -> dict[int, bytes]:
        """The results of this job's tasks so far, by the number of the bin."""
        return {number: result for job, number, result in self._arrived.value if job == self._job and result != EMPTY}

    def _has_executor(self) -> bool:
        """Whether the job has an executor; also if the JVM does not answer, which ends the job by itself."""
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # has none; only runs need it

        try:
            return self._is_local or count_executors(self._context) > 0
        except Py4JError:
            return True

    def _watch(self, tasks: int) -> Callable[[], CancelReason | None]:
        """A function that returns the reason to cancel the job that starts now."""
        began = time.monotonic()
        finished = list[float]()
        patience_seconds = self._given_up.compute_patience_seconds(self._tuning, began)
        presence = ExecutorPresence(began, self._tuning.executors_seconds_max)
        clock = JobClock(began, lambda: bool(self._ended()) or self._jobs.are_running(1))

        def find_reason() -> CancelReason | None:
            now = time.monotonic()
            elapsed = clock.read(now)
            if presence.is_missed(now, self._has_executor):
                return CancelReason.NO_EXECUTOR
            if self._seconds_max is not None and elapsed >= self._seconds_max and self._has_executor():
                return CancelReason.DEADLINE
            finished.extend([elapsed] * (len(self._ended()) - len(finished)))
            if not has_stragglers(finished, tasks, elapsed, patience_seconds):
                return None
            if not self._jobs.are_running(tasks - len(finished)):
                return None  # they wait for cores that tasks of other streams have
            # Ask before the tasks are cancelled. A local master has its driver only, which nothing can replace.
            if not self._is_local:
                self._late = list_busy_executors(self._context)
            return CancelReason.STRAGGLERS

        return find_reason


def _report(
    work: Callable[[Iterable[bytes]], Iterator[bytes]],
    arrived: Accumulator[list[Arrived]],
    job: int,
    tasks: Iterable[tuple[int, bytes]],
) -> None:
    """Runs on a worker."""
    for number, task in tasks:
        if task == SURPLUS:
            end_after_task()
        if task in {EMPTY, SURPLUS}:
            arrived.add([(job, number, EMPTY)])
            continue
        for result in work([task]):
            arrived.add([(job, number, result)])


class WarmUpEnd(Enum):
    """Why the first job of a run was cancelled."""

    STOPPED = "the run is to end"
    LATE = "no executor has ended it in time"


def warm_up(context: SparkContext, stream: bytes, seconds_max: float, *, cancelled: Callable[[], bool]) -> None:
    """Start one Python worker and load the stream's module in it, while the previous writer still writes.

    One is enough for the first batch of most streams; one for each of many cores would cost more than it saves. It is
    also the wait for a first executor: with dynamic allocation Spark requests one only for a job.

    Raises:
        SparkStopped: Somebody stopped Spark.
        EnvironmentProblem: No executor starts in time or runs the task, the task fails, or somebody cancels it.
    """
    from py4j.protocol import Py4JError  # only runs need it
    from pyspark.errors import PySparkException

    deadline = time.monotonic() + seconds_max

    def find_reason() -> WarmUpEnd | None:
        if cancelled():
            return WarmUpEnd.STOPPED
        return WarmUpEnd.LATE if time.monotonic() > deadline else None

    def load() -> list[str]:
        return context.parallelize([stream], 1).mapPartitions(_loaded).collect()

    try:
        outcome = run_cancellable(context, find_reason, load)
    except (Py4JError, PySparkException) as error:
        if cancelled():
            return  # the JVM of a run that is stopped may end first
        ended = explain_foreign_end(context, error)
        if ended is not None:
            raise ended from error
        message = find_message(error)
        raise EnvironmentProblem(
            f"no executor of {context.master} could load the stream: {find_cause_line(message)}; "
            "nothing was taken over",
            next_step=find_remedy(message),
        ) from error
    if outcome is WarmUpEnd.LATE:
        raise explain_idle(context, seconds_max)


def _loaded(streams: Iterable[bytes]) -> Iterator[str]:
    """Runs on a worker; its purpose is that the worker imports the modules."""
    for stream in streams:
        yield str(pickle.loads(stream).name)  # noqa: S301  # our own driver's


def run_tasks_remote(job: JobSpec, tasks: Iterable[bytes]) -> Iterator[bytes]:
    """`run_tasks` on another machine than the driver's: its own LOCKSTEP_LOCAL_ROOT takes precedence."""
    root = os.environ.get("LOCKSTEP_LOCAL_ROOT")
    if root:
        job = msgspec.structs.replace(job, local_root=Path(root) / job.local_root.name)
    return run_tasks(job, tasks)


def _decode_result(encoded: bytes) -> TaskResult:
    outcome = _OUTCOMES.decode(encoded)
    if isinstance(outcome, TaskFailure):
        raise cast("LockstepError", pickle.loads(outcome.error))  # noqa: S301  # our own task's
    return outcome


_OUTCOMES: msgspec.msgpack.Decoder[TaskResult | TaskFailure] = msgspec.msgpack.Decoder(TaskResult | TaskFailure)


def make_tasks(plan: BatchPlan) -> list[TaskSpec]:
    """The tasks of a plan."""
    return [TaskSpec(plan.batch, ranges) for ranges in plan.bins]
