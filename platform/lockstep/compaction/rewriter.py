"""Runs the rewriting of bins: as tasks of a Spark job, or in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from lockstep.compaction.rewrite import Refused, RewriteTask, Rewritten, rewrite_or_refuse

if TYPE_CHECKING:
    from pyspark import SparkContext

Outcome = Rewritten | Refused


class Rewriter(msgspec.Struct, frozen=True):
    """A way to rewrite bins.

    Attributes:
        rewrite: Rewrites all bins it is given; outcomes in the order of the tasks.
        at_once: Bins worth giving it at a time; each set is committed before the next begins.
    """

    rewrite: Callable[[Sequence[RewriteTask]], Sequence[Outcome]]
    at_once: int = 1


def in_process() -> Rewriter:
    """Bins one after another in this process, without Spark."""
    return Rewriter(lambda tasks: [rewrite_or_refuse(task) for task in tasks])


def on_spark(context: SparkContext) -> Rewriter:
    """Bins as tasks of Spark jobs, one core each."""

    def rewrite(tasks: Sequence[RewriteTask]) -> Sequence[Outcome]:
        return context.parallelize(tasks, len(tasks)).map(rewrite_or_refuse).collect()

    return Rewriter(rewrite, at_once=context.defaultParallelism)
