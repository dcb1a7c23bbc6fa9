"""Runs a stream in this process, attended by a person or a process manager."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from lockstep.declare.triggers import AvailableNow
from lockstep.engine.attended import AttendedRun
from lockstep.engine.hands import AnyStream
from lockstep.engine.loop import Outcome
from lockstep.engine.progress import BatchReport
from lockstep.engine.run import import_roots, run_stream
from lockstep.settings import Settings
from lockstep.spark.session import start_context

if TYPE_CHECKING:
    from pyspark import SparkContext

ATTEND_SECONDS = 0.2


def run_attended(
    stream: AnyStream, settings: Settings, *, available_now: bool, until: threading.Event, say: Callable[[str], None]
) -> Outcome:
    """Run a stream until it ends or `until` is set.

    Args:
        stream: The declaration.
        settings: Where Kafka and the tables are.
        available_now: End when all that is there now is committed.
        until: Set to end the run at its next batch boundary.
        say: Gets a line a batch.

    Raises:
        LockstepError: Whatever ended the run.
    """
    contexts: list[SparkContext] = []

    def spark() -> SparkContext:
        contexts.append(start_context(settings.spark, f"lockstep {stream.name}", import_roots=import_roots(stream)))
        return contexts[-1]

    def work(stop: threading.Event) -> Outcome:
        trigger = AvailableNow() if available_now else None
        return run_stream(
            stream, settings, spark=spark, stop=stop, trigger=trigger, report=lambda batch: say(line_of(batch))
        )

    attended = AttendedRun(work, abandon=lambda: _cancel(contexts))
    attended.start()
    try:
        while not attended.wait(ATTEND_SECONDS):
            if until.is_set() and not attended.end(stream.limits.stop_timeout_seconds):
                break
        return attended.outcome()
    finally:
        for context in contexts:
            context.stop()


def line_of(batch: BatchReport) -> str:
    """One batch as a line for people."""
    return (
        f"batch {batch.batch}: {batch.messages} messages, {batch.rows} rows, lag {batch.lag_messages}, "
        f"{batch.batch_seconds:.2f} s"
    )


def _cancel(contexts: list[SparkContext]) -> None:
    for context in contexts:
        context.cancelAllJobs()
