"""Runs the bins of a batch: as one small Spark job, or in this process."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec

from lockstep.engine.deadline import worked_within
from lockstep.engine.facts import BinFacts, BinTask, Failed, Job
from lockstep.engine.plan import BatchPlan
from lockstep.engine.task import run_bin, run_bins
from lockstep.errors import LockstepError
from lockstep.spark.session import is_local

if TYPE_CHECKING:
    from pyspark import SparkContext

Runner = Callable[[BatchPlan], Sequence[BinFacts]]
"""Runs all bins of a plan and gives their facts, in the order of the bins."""


def spark_runner(context: SparkContext, job: Job, *, seconds_max: float | None = None) -> Runner:
    """Bins as tasks of a Spark job, which retries them and spreads them over executors.

    Args:
        context: Runs the jobs; each on the thread that calls the runner.
        job: What the tasks share.
        seconds_max: Hard deadline of a batch, past which the runner raises `BatchOverdue`; None for none.
    """
    work = partial(run_bins if is_local(str(context.master)) else run_bins_elsewhere, job)

    def run(plan: BatchPlan) -> Sequence[BinFacts]:
        tasks = [msgspec.msgpack.encode(task) for task in bin_tasks(plan)]
        bins = context.parallelize(tasks, len(tasks)).mapPartitions(work)
        facts = worked_within(context, seconds_max, bins.collect)
        return [_facts(encoded) for encoded in facts]

    return run


def warm_up(context: SparkContext, stream: bytes) -> None:
    """Start one Python worker and load the stream's module in it, while the writer before still writes.

    One is enough for the first batch of most streams; on many cores, one each would cost more than it saves.
    """
    context.parallelize([stream], 1).mapPartitions(_loaded).collect()


def _loaded(streams: Iterable[bytes]) -> Iterator[str]:
    """On a worker; that this module was loaded there is most of the work."""
    for stream in streams:
        yield str(pickle.loads(stream).name)  # noqa: S301  # our own driver's


def run_bins_elsewhere(job: Job, tasks: Iterable[bytes]) -> Iterator[bytes]:
    """As `run_bins`, on another machine than the driver's: its own LOCKSTEP_LOCAL_ROOT goes first."""
    root = os.environ.get("LOCKSTEP_LOCAL_ROOT")
    return run_bins(msgspec.structs.replace(job, hot=Path(root) / job.hot.name) if root else job, tasks)


def local_runner(job: Job) -> Runner:
    """Bins one after another in this process, for tools that need no Spark."""

    def run(plan: BatchPlan) -> Sequence[BinFacts]:
        return [run_bin(job, task) for task in bin_tasks(plan)]

    return run


def _facts(encoded: bytes) -> BinFacts:
    outcome = _OUTCOMES.decode(encoded)
    if isinstance(outcome, Failed):
        raise cast("LockstepError", pickle.loads(outcome.error))  # noqa: S301  # our own task's
    return outcome


_OUTCOMES: msgspec.msgpack.Decoder[BinFacts | Failed] = msgspec.msgpack.Decoder(BinFacts | Failed)


def bin_tasks(plan: BatchPlan) -> list[BinTask]:
    """The tasks of a plan."""
    return [
        BinTask(
            generation=plan.generation,
            epoch=plan.epoch,
            number=plan.number,
            commit_hour=plan.commit_hour,
            planned_at_us=plan.planned_at_us,
            ranges=ranges,
        )
        for ranges in plan.bins
    ]
