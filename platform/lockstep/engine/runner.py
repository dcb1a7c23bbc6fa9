"""Runs the bins of a batch: as one small Spark job, or in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from lockstep.engine.facts import BinFacts, BinTask, Job, NoSchemas
from lockstep.engine.plan import BatchPlan
from lockstep.engine.task import run_bin, run_bins
from lockstep.errors import RegistryUnreachable

if TYPE_CHECKING:
    from pyspark import SparkContext

Runner = Callable[[BatchPlan], Sequence[BinFacts]]
"""Runs all bins of a plan and gives their facts, in the order of the bins."""


def spark_runner(context: SparkContext, job: Job) -> Runner:
    """Bins as tasks of a Spark job, which retries them and spreads them over executors."""
    work = partial(run_bins, job)

    def run(plan: BatchPlan) -> Sequence[BinFacts]:
        tasks = [msgspec.msgpack.encode(task) for task in bin_tasks(plan)]
        facts = context.parallelize(tasks, len(tasks)).mapPartitions(work).collect()
        return [_facts(encoded) for encoded in facts]

    return run


def local_runner(job: Job) -> Runner:
    """Bins one after another in this process, for tools that need no Spark."""

    def run(plan: BatchPlan) -> Sequence[BinFacts]:
        return [run_bin(job, task) for task in bin_tasks(plan)]

    return run


def _facts(encoded: bytes) -> BinFacts:
    outcome = _OUTCOMES.decode(encoded)
    if isinstance(outcome, NoSchemas):
        raise RegistryUnreachable(outcome.problem, next_step=outcome.next_step)
    return outcome


_OUTCOMES: msgspec.msgpack.Decoder[BinFacts | NoSchemas] = msgspec.msgpack.Decoder(BinFacts | NoSchemas)


def bin_tasks(plan: BatchPlan) -> list[BinTask]:
    """The tasks of a plan."""
    return [BinTask(generation=plan.generation, commit_hour=plan.commit_hour, ranges=ranges) for ranges in plan.bins]
