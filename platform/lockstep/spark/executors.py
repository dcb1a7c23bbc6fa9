"""Waits until a cluster has given the application an executor: a run that has none must not take a stream over."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from lockstep.errors import EnvironmentProblem
from lockstep.spark.session import is_local

if TYPE_CHECKING:
    from pyspark import SparkContext

EXECUTORS_SECONDS_MAX = 300.0
"""A cluster that has to start machines first takes some minutes; one that is merely full never gives any."""
LOOK_SECONDS = 0.2


def await_executor(context: SparkContext, *, cancelled: Callable[[], bool]) -> None:
    """Wait until there is an executor to work on, or the run is cancelled. Costs nothing on local masters.

    Raises:
        EnvironmentProblem: None came in time.
    """
    master, deadline = str(context.master), time.monotonic() + EXECUTORS_SECONDS_MAX
    while not is_local(master) and not _executors(context) and not cancelled():
        if time.monotonic() > deadline:
            raise EnvironmentProblem(
                f"{master} gave no executor within {EXECUTORS_SECONDS_MAX:.0f} s: its cores or its memory are taken, "
                "or no worker is large enough; nothing was taken over",
                next_step="look at the master's page; an application takes all free cores unless [spark.options] "
                '"spark.cores.max" says how many: leave a successor room beside the stream that it takes over '
                "(docs/cluster.md)",
            )
        time.sleep(LOOK_SECONDS)


def _executors(context: SparkContext) -> int:
    """Executors that can be given tasks; the driver, which Spark lists among them, left out."""
    return int(context._jsc.sc().getExecutorMemoryStatus().size()) - 1  # noqa: SLF001  # pyspark shows them nowhere
