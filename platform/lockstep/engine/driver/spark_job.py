"""Runs bins as a Spark job: deadline, retry, poison-message search.

Spark gives up a silent executor. It waits forever for one that lives while its Python process is stopped or hangs in
a file system. Files that a cancelled task still writes are referenced by no commit.

A dead worker does not report its offset. Its batch is planned again unchanged, once: most deaths have external causes.
From the second failure on each partition of the batch is processed by itself, so that the others commit, and the
failing part is halved until it is one message. Then jobs without it and with it alternate: if a job fails without it
too, no message is to blame and the error is raised; if it works with it, the cause was temporary. Only a message with
which a job fails each time, while it works without it each time in between, is left out. Nothing of this outlives
the run.
"""

from __future__ import annotations

import os
import pickle
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

import msgspec

from lockstep.engine.driver.planner import BatchPlan
from lockstep.engine.executor.task import run_tasks
from lockstep.engine.protocol import JobSpec, PlannedRange, TaskFailure, TaskResult, TaskSpec
from lockstep.errors import LockstepError
from lockstep.model.position import Key
from lockstep.spark.session import is_local

if TYPE_CHECKING:
    from pyspark import SparkContext


T = TypeVar("T")

AGAIN_SECONDS = 0.5


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


def run_with_deadline(context: SparkContext, seconds: float | None, work: Callable[[], T]) -> T:
    """The result of `work`, which runs Spark jobs on this thread; they are cancelled past the deadline.

    Args:
        context: Runs the jobs.
        seconds: The deadline; None for none.
        work: Raises when its jobs are cancelled.

    Raises:
        BatchOverdue: The deadline passed.
    """
    if seconds is None:
        return work()
    tag, over, overdue = f"lockstep-{uuid.uuid4().hex}", threading.Event(), threading.Event()

    def watch() -> None:
        if over.wait(seconds):
            return
        overdue.set()
        while not over.is_set():  # again: a job that is only now being submitted is not there to be cancelled
            context.cancelJobsWithTag(tag)
            over.wait(AGAIN_SECONDS)

    context.addJobTag(tag)
    threading.Thread(target=watch, name="deadline", daemon=True).start()
    try:
        return work()
    except Exception as error:
        if overdue.is_set():
            raise BatchTimeout(seconds) from error
        raise
    finally:
        over.set()
        context.removeJobTag(tag)


Runner = Callable[[BatchPlan], Sequence[TaskResult]]
"""Runs all bins of a plan and returns their results, in the order of the bins."""


def make_spark_runner(context: SparkContext, job: JobSpec, *, seconds_max: float | None = None) -> Runner:
    """Bins as tasks of a Spark job, which retries them and spreads them over executors.

    Args:
        context: Runs the jobs; each on the thread that calls the runner.
        job: What the tasks share.
        seconds_max: Hard deadline of a batch, past which the runner raises `BatchTimeout`; None for none.
    """
    work = partial(run_tasks if is_local(str(context.master)) else run_tasks_remote, job)

    def run(plan: BatchPlan) -> Sequence[TaskResult]:
        tasks = [msgspec.msgpack.encode(task) for task in make_tasks(plan)]
        bins = context.parallelize(tasks, len(tasks)).mapPartitions(work)
        facts = run_with_deadline(context, seconds_max, bins.collect)
        return [_facts(encoded) for encoded in facts]

    return run


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
    return run_tasks(msgspec.structs.replace(job, hot=Path(root) / job.hot.name) if root else job, tasks)


def _facts(encoded: bytes) -> TaskResult:
    outcome = _OUTCOMES.decode(encoded)
    if isinstance(outcome, TaskFailure):
        raise cast("LockstepError", pickle.loads(outcome.error))  # noqa: S301  # our own task's
    return outcome


_OUTCOMES: msgspec.msgpack.Decoder[TaskResult | TaskFailure] = msgspec.msgpack.Decoder(TaskResult | TaskFailure)


def make_tasks(plan: BatchPlan) -> list[TaskSpec]:
    """The tasks of a plan."""
    return [TaskSpec(plan.batch, ranges) for ranges in plan.bins]


WHOLE_FAILURES_MAX = 2
"""Failures of a whole batch that count as bad luck."""
CONTROLS = 3
"""Jobs that must work without a message, each after one that failed with it, before the message is blamed.
Once is not enough: an outage may end in between. Each costs two jobs of one message."""


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
        return msgspec.structs.replace(item, until=until, killing=killing, single_batches=True)


def _narrow_suspect(item: PlannedRange, controls: int) -> dict[Key, Suspect]:
    """A suspect after its own job failed: try without its one message next, or try half of it."""
    if item.messages == 1:
        return {item.position.key: Suspect(item.until, 1, item.position.next_offset, controls)}
    return {item.position.key: Suspect(item.until, _half(item))}


def _half(item: PlannedRange) -> int:
    return max(1, item.messages // 2)


def _ranges(part: BatchPlan) -> list[PlannedRange]:
    return [item for group in part.bins for item in group]
