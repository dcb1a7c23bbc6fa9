"""Runs bins as a Spark job: deadline, retry, poison-message search.

Spark gives up a silent executor after half a minute. It waits forever for one that lives while its Python process is
stopped or hangs in a file system, and goes on giving it tasks. Neither holds up the tasks of others for longer than
some seconds, and an executor that does so twice is replaced. Files that a cancelled task still writes are referenced
by no commit.

A dead worker does not report its offset. Its batch is planned again unchanged, once: most deaths have external causes.
From the second failure on each partition of the batch is processed by itself, so that the others commit, and the
failing part is halved until it is one message. Then jobs without it and with it alternate: if a job fails without it
too, no message is to blame and the error is raised; if it works with it, the cause was temporary. Only a message with
which a job fails each time, while it works without it each time in between, is left out. Nothing of this outlives
the run.
"""

from __future__ import annotations

import logging
import math
import os
import pickle
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

import msgspec

from lockstep.engine.driver.planner import BatchPlan
from lockstep.engine.executor.task import run_tasks
from lockstep.engine.protocol import JobSpec, PlannedRange, TaskFailure, TaskResult, TaskSpec
from lockstep.errors import EnvironmentProblem, LockstepError
from lockstep.model.position import Key
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
"""Interval at which a running job is judged: microseconds each."""
EMPTY = b""
"""An empty task, which holds a place, and its result."""
SURPLUS = b"surplus"
"""An empty task that ends its worker."""
PLACES_MAX = 4
"""An empty task costs some milliseconds of CPU time: of more of them than this minus one, a batch would cost more."""
SURPLUS_BATCHES = 20
"""Workers that no batch of so many in a row needed are ended; a new one is forked in some 10 ms."""
WHOLE_FAILURES_MAX = 2
"""Failures of a whole batch that count as bad luck."""
CONTROLS = 3
"""Jobs that must work without a message, each after one that failed with it, before the message is blamed.
Once is not enough: an outage may end in between. Each costs two jobs of one message."""


class BatchTimeout(LockstepError):
    """A batch exceeded its deadline; nothing of it is committed.

    Attributes:
        seconds: The deadline.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"the batch timed out after {seconds:g} s and was cancelled; nothing of it is committed",
            next_step="look for an executor that hangs; where the fold is that slow, declare "
            "Limits(batch_messages=...) lower or Limits(batch_seconds=...) higher",
        )
        self.seconds = seconds


def run_cancellable(context: SparkContext, find_reason: Callable[[], R | None], work: Callable[[], T]) -> T | R:
    """The result of `work`, which runs Spark jobs on this thread; the reason if they were cancelled for one.

    Args:
        context: Runs the jobs.
        find_reason: Asked ten times a second, on another thread; the jobs are cancelled once it gives a reason.
        work: Raises when its jobs are cancelled.
    """
    tag, over, reasons = f"lockstep-{uuid.uuid4().hex}", threading.Event(), list[R]()

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
    STRAGGLERS = "some tasks are far behind the others"


def has_stragglers(finished: Sequence[float], tasks: int, elapsed_seconds: float, patience_seconds: float) -> bool:
    """Whether the unfinished tasks of a batch are to be given up, so that the finished ones can be committed.

    Args:
        finished: Seconds from the start of the job to the end of each finished task.
        tasks: Number of tasks.
        elapsed_seconds: Seconds since the start of the job.
        patience_seconds: Least time to wait after the last one that finished. Where tasks take longer than that, or
            take turns on too few cores, twice the time of the slowest one counts.
    """
    if not 0 < len(finished) < tasks:
        return False
    slowest = max(finished)
    return elapsed_seconds - slowest > max(patience_seconds, 2 * slowest)


class StragglerHistory(msgspec.Struct, frozen=True):
    """What was given up lately.

    Attributes:
        count: How often in a row, each time within the rest after the one before.
        at: When, by the monotonic clock.
        executors: The executors that had the late tasks of the last time.
    """

    count: int = 0
    at: float = -math.inf
    executors: frozenset[str] = frozenset()

    def compute_patience_seconds(self, tuning: Tuning, now: float) -> float:
        """How long the next late tasks are waited for: longer each time, so that a task that is only slow ends."""
        return tuning.straggler_task_seconds * math.pow(
            PATIENCE_FACTOR, self.count if self._is_recent(tuning, now) else 0
        )

    def add(self, executors: frozenset[str], tuning: Tuning, now: float) -> StragglerHistory:
        """After one more, with the executors that have the late tasks."""
        return StragglerHistory(self.count + 1 if self._is_recent(tuning, now) else 1, now, executors)

    def find_repeated(self, executors: frozenset[str], tuning: Tuning, now: float) -> frozenset[str]:
        """Executors that were late the last time, and are again: those to replace."""
        return executors & self.executors if self._is_recent(tuning, now) else frozenset()

    def _is_recent(self, tuning: Tuning, now: float) -> bool:
        return now - self.at < tuning.straggler_rest_seconds


def list_busy_executors(context: SparkContext) -> frozenset[str]:
    """Ids of the executors that have tasks now; none where this Spark does not tell: then none is replaced."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # has none; only runs need it

    try:
        shown = context._jsc.sc().taskScheduler().runningTasksByExecutors().mkString(",")  # noqa: SLF001  # see above
    except Py4JError:
        return frozenset()
    pairs = (each.split(" -> ") for each in str(shown).split(",") if each)
    return frozenset(name for name, count in pairs if count != "0")


def renew_executor(context: SparkContext, executor: str) -> bool:
    """Let the cluster manager kill an executor and start another one in its place; gives whether it accepted that."""
    from py4j.protocol import Py4JError  # only runs need it

    try:
        return bool(context._jsc.sc().killAndReplaceExecutor(executor))  # noqa: SLF001  # pyspark has no such call
    except Py4JError:  # the cluster manager does not answer; the executors that there are go on
        return False


Arrived = tuple[int, int, bytes]
"""Number of a job, number of a bin, and the encoded result of its task."""


class WorkerPlaces:
    """The order in which the tasks of a batch are started.

    A bin is started in the place in which it ended the last time: Spark gives its tasks, in their order, to the Python
    workers in the order in which these became free. So a bin meets the worker that has its sessions decoded. Where a
    batch has fewer bins than one before, empty tasks take the places of the others: else workers would take turns. A
    worker that no batch needs for a while is ended: which of two is free first is a race now and then.
    """

    def __init__(self, cores: int) -> None:
        """No worker is known yet.

        Args:
            cores: Tasks that run at once.
        """
        self._cores, self._places, self._bins = cores, 0, deque[int](maxlen=SURPLUS_BATCHES)

    def arrange(self, tasks: Sequence[bytes], ended: Sequence[int]) -> list[tuple[int, bytes]]:
        """The tasks, each with the number of its bin, and empty ones, in the order in which they are started.

        Args:
            tasks: The bins.
            ended: The numbers of the batch before, in the order in which their tasks ended.
        """
        self._bins.append(min(len(tasks), self._cores))
        busiest = max(self._bins)
        kept = busiest if len(self._bins) == SURPLUS_BATCHES else max(self._places, busiest)
        surplus, self._places = max(0, self._places - kept), kept
        empty = max(0, kept - len(tasks)) if kept <= PLACES_MAX else 0
        place_of = {number: place for place, number in enumerate(ended)}
        every = enumerate([*tasks, *[EMPTY] * empty, *[SURPLUS] * surplus])
        return sorted(every, key=lambda task: place_of.get(task[0], len(place_of)))


class _Concatenation:
    """An `AccumulatorParam`; Spark asks for no more than its methods, and the commands start without Spark."""

    def zero(self, _: list[Arrived]) -> list[Arrived]:
        return []

    def addInPlace(self, found: list[Arrived], more: list[Arrived]) -> list[Arrived]:  # noqa: N802  # Spark's name
        found.extend(more)
        return found


Runner = Callable[[BatchPlan], Sequence[TaskResult]]
"""Runs the bins of a plan and returns the results of those that ended."""


class SparkRunner:
    """Bins as tasks of a Spark job, which retries them and spreads them over executors.

    Tasks send their results through an accumulator, so that those that have ended are known before the job ends: a
    task on a silent executor does not hold up the others. Its partitions are planned again. Spark adds the result of
    a task once, however often the task was tried, and before the job ends.
    """

    def __init__(self, context: SparkContext, job: JobSpec, *, seconds_max: float | None = None) -> None:
        """Runs nothing yet.

        Args:
            context: Runs the jobs; each on the thread that calls the runner.
            job: What the tasks share.
            seconds_max: Hard deadline of a batch; None for none.
        """
        self._context, self._seconds_max, self._tuning = context, seconds_max, job.tuning
        self._is_local = is_local(str(context.master))
        self._work = partial(run_tasks if self._is_local else run_tasks_remote, job)
        concatenation = cast("AccumulatorParam[list[Arrived]]", _Concatenation())
        self._arrived = context.accumulator(list[Arrived](), concatenation)
        self._job, self._given_up, self._late = 0, StragglerHistory(), frozenset[str]()
        self._places = WorkerPlaces(context.defaultParallelism)

    def __call__(self, plan: BatchPlan) -> Sequence[TaskResult]:
        """The results of the bins that ended, all of them in nearly every case.

        Raises:
            BatchTimeout: The deadline passed; no result counts.
            EnvironmentProblem: The job ended, but not every task's result arrived; none counts.
        """
        tasks = [msgspec.msgpack.encode(task) for task in make_tasks(plan)]
        placed = self._places.arrange(tasks, [number for _, number, _ in self._arrived.value])
        self._job, self._arrived.value = self._job + 1, []
        work = partial(_report, self._work, self._arrived, self._job)
        run = partial(self._context.parallelize(placed, len(placed)).foreachPartition, work)
        outcome = run_cancellable(self._context, self._watch(len(tasks)), run)
        if outcome is CancelReason.DEADLINE:
            raise BatchTimeout(self._seconds_max or 0.0)
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
                next_step="the batch is tried again; look in the log of the driver for what closed the connection",
            )
        return [_decode_result(encoded) for _, encoded in sorted(ended.items())]

    def _give_up(self) -> None:
        """Note which executors were late; replace those that were late the time before as well."""
        now = time.monotonic()
        for executor in sorted(self._given_up.find_repeated(self._late, self._tuning, now)):
            done = "it is replaced" if renew_executor(self._context, executor) else "it could not be replaced"
            LOG.warning("executor %s is behind for the second time: %s", executor, done)
        self._given_up = self._given_up.add(self._late, self._tuning, now)

    def _ended(self) -> dict[int, bytes]:
        """The results of this job's tasks so far, by the number of the bin."""
        return {number: result for job, number, result in self._arrived.value if job == self._job and result != EMPTY}

    def _watch(self, tasks: int) -> Callable[[], CancelReason | None]:
        """Judges the job that begins now."""
        began, finished = time.monotonic(), list[float]()
        patience_seconds = self._given_up.compute_patience_seconds(self._tuning, began)

        def find_reason() -> CancelReason | None:
            elapsed = time.monotonic() - began
            if self._seconds_max is not None and elapsed >= self._seconds_max:
                return CancelReason.DEADLINE
            finished.extend([elapsed] * (len(self._ended()) - len(finished)))
            if not has_stragglers(finished, tasks, elapsed, patience_seconds):
                return None
            # Before they are cancelled. A local master has its driver only, which nothing can replace.
            self._late = frozenset() if self._is_local else list_busy_executors(self._context)
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


def warm_up(context: SparkContext, stream: bytes) -> None:
    """Start one Python worker and load the stream's module in it, while the previous writer still writes.

    One is enough for the first batch of most streams; on many cores, one each would cost more than it saves.
    """
    context.parallelize([stream], 1).mapPartitions(_loaded).collect()


def _loaded(streams: Iterable[bytes]) -> Iterator[str]:
    """Runs on a worker; most of its effect is that this module was imported there."""
    for stream in streams:
        yield str(pickle.loads(stream).name)  # noqa: S301  # our own driver's


def run_tasks_remote(job: JobSpec, tasks: Iterable[bytes]) -> Iterator[bytes]:
    """`run_tasks` on another machine than the driver's: its own LOCKSTEP_LOCAL_ROOT takes precedence."""
    root = os.environ.get("LOCKSTEP_LOCAL_ROOT")
    return run_tasks(msgspec.structs.replace(job, local_root=Path(root) / job.local_root.name) if root else job, tasks)


def _decode_result(encoded: bytes) -> TaskResult:
    outcome = _OUTCOMES.decode(encoded)
    if isinstance(outcome, TaskFailure):
        raise cast("LockstepError", pickle.loads(outcome.error))  # noqa: S301  # our own task's
    return outcome


_OUTCOMES: msgspec.msgpack.Decoder[TaskResult | TaskFailure] = msgspec.msgpack.Decoder(TaskResult | TaskFailure)


def make_tasks(plan: BatchPlan) -> list[TaskSpec]:
    """The tasks of a plan."""
    return [TaskSpec(plan.batch, ranges) for ranges in plan.bins]


class Suspect(msgspec.Struct, frozen=True):
    """A partition whose range was part of a failed job.

    Attributes:
        until: End of the failed range; past it the partition is cleared.
        messages: Number of messages to try next.
        killing: Offset that the next job leaves out: the last one, with it alone, failed.
        controls: Jobs that worked without it, each after one that failed with it.
    """

    until: int
    messages: int
    killing: int | None = None
    controls: int = 0


class PoisonMessageSearch(msgspec.Struct, frozen=True):
    """State of the search after the failures so far.

    Attributes:
        failures: Whole batches that failed in a row.
        suspects: Partitions that run alone, by key.
    """

    failures: int = 0
    suspects: Mapping[Key, Suspect] = {}

    def parts(self, plan: BatchPlan) -> tuple[BatchPlan, ...]:
        """The jobs of a plan: all bins in one, but each suspect alone, cut to the part to be tried."""
        alone = [self._tried(item) for group in plan.bins for item in group if item.position.key in self.suspects]
        rest = [tuple(item for item in group if item.position.key not in self.suspects) for group in plan.bins]
        whole = msgspec.structs.replace(plan, bins=tuple(group for group in rest if group))
        parts = [msgspec.structs.replace(plan, bins=((item,),)) for item in alone]
        return ((whole, *parts) if whole.bins else tuple(parts)) or (plan,)

    def is_in(self, plan: BatchPlan) -> bool:
        """Whether a plan reads a suspect: one without a leader is searched when it has one again."""
        return any(item.position.key in self.suspects for item in _ranges(plan))

    def is_control(self, part: BatchPlan) -> bool:
        """Whether a job is only a control without the blamed message: its results do not count yet."""
        return any(item.killing and not self._is_proven(item) for item in _ranges(part))

    def worked(self, part: BatchPlan) -> PoisonMessageSearch:
        """After a successful job: a suspect's next one takes all that is left of the failed range.

        After a control it is the message again.
        """
        suspects = dict(self.suspects)
        for item in _ranges(part):
            suspect = suspects.pop(item.position.key, None)
            if suspect is not None and item.killing and not self._is_proven(item):
                suspects[item.position.key] = Suspect(suspect.until, 1, controls=suspect.controls + 1)
            elif suspect is not None and item.until < suspect.until:
                suspects[item.position.key] = Suspect(suspect.until, suspect.until - item.until)
        return PoisonMessageSearch(0, suspects)

    def failed(self, part: BatchPlan) -> PoisonMessageSearch | None:
        """After a failed job; None when it failed without the blamed message: no message is to blame."""
        ranges = _ranges(part)
        known = [item for item in ranges if item.position.key in self.suspects]
        if known:
            (item,) = known
            without_message = item.killing or not item.messages
            blamed = _narrow_suspect(item, self.suspects[item.position.key].controls)
            return None if without_message else PoisonMessageSearch(self.failures, {**self.suspects, **blamed})
        if self.failures + 1 < WHOLE_FAILURES_MAX:
            return msgspec.structs.replace(self, failures=self.failures + 1)
        halved = {item.position.key: Suspect(item.until, _half(item)) for item in ranges}
        return PoisonMessageSearch(0, {**self.suspects, **halved})

    def _is_proven(self, item: PlannedRange) -> bool:
        suspect = self.suspects.get(item.position.key)
        return suspect is not None and suspect.controls + 1 >= CONTROLS

    def _tried(self, item: PlannedRange) -> PlannedRange:
        suspect = self.suspects[item.position.key]
        until = min(item.until, item.position.next_offset + suspect.messages)
        killing = () if suspect.killing is None else (suspect.killing,)
        return msgspec.structs.replace(item, until=until, beyond=0, killing=killing, single_batches=True)


def _narrow_suspect(item: PlannedRange, controls: int) -> dict[Key, Suspect]:
    """A suspect after its own job failed: try without its one message next, or try half of it."""
    if item.messages == 1:
        return {item.position.key: Suspect(item.until, 1, item.position.next_offset, controls)}
    return {item.position.key: Suspect(item.until, _half(item))}


def _half(item: PlannedRange) -> int:
    return max(1, item.messages // 2)


def _ranges(part: BatchPlan) -> list[PlannedRange]:
    return [item for group in part.bins for item in group]
