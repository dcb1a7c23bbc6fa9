"""Ends the work of Spark, also if its JVM does not answer any more."""

from __future__ import annotations

import subprocess
import threading
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark import SparkContext

STOP_SECONDS = 3.0
"""A session stops in well under a second; past this time its JVM is killed."""


def end_jobs(context: SparkContext, group: str | None = None) -> None:
    """Cancel the jobs of a job group, by default all jobs; kills the JVM if it does not answer."""
    _call(context.cancelAllJobs if group is None else partial(context.cancelJobGroup, group))


def stop_context(context: SparkContext) -> None:
    """Stop Spark; kills the JVM if it does not answer. The JVM may be gone already."""
    _call(context.stop)


def is_context_alive(context: SparkContext) -> bool:
    """Whether Spark is not stopped, and its JVM lives."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # has none

    try:
        return not context._jsc.sc().isStopped()  # noqa: SLF001  # pyspark has no such call
    except (Py4JError, OSError, AttributeError):  # without a JVM `_jsc` is None
        return False


def _call(end: Callable[[], object]) -> None:
    """Call into the JVM from a thread that may hang there."""
    from py4j.protocol import Py4JError

    def call() -> None:
        with suppress(Py4JError, OSError):  # the JVM may be gone
            end()

    thread = threading.Thread(target=call, name="spark-end", daemon=True)
    thread.start()
    thread.join(STOP_SECONDS)
    if thread.is_alive():
        _kill_jvm()


def _kill_jvm() -> None:
    """End the JVM of this process; its Python workers end when it is gone."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway  # noqa: SLF001  # pyspark keeps its child process nowhere else
    process = getattr(gateway, "proc", None)
    if isinstance(process, subprocess.Popen):
        process.kill()
