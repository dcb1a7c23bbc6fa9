"""Runs a stream in this process, for a terminal or a process manager."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from lockstep.declare.options import AvailableNow
from lockstep.declare.stream import AnyStream
from lockstep.engine.driver.context import RunReports
from lockstep.engine.driver.import_roots import find_import_roots
from lockstep.engine.driver.loop import RunOutcome
from lockstep.engine.driver.main_thread import StopSignal, run_off_main_thread
from lockstep.engine.driver.metrics import BatchReport
from lockstep.engine.driver.run import run_stream
from lockstep.engine.driver.startup import Launch
from lockstep.model.tuning import DEFAULT_TUNING, Tuning
from lockstep.operations.lifecycle import refuse_bounded_run
from lockstep.settings import Settings
from lockstep.spark.session import start_context
from lockstep.spark.shutdown import end_jobs, stop_context
from lockstep.table.layout import StreamFolders

if TYPE_CHECKING:
    from pyspark import SparkContext


def run_in_foreground(
    stream: AnyStream,
    settings: Settings,
    *,
    available_now: bool,
    report: Callable[[BatchReport], None],
    tuning: Tuning = DEFAULT_TUNING,
) -> RunOutcome:
    """Run a stream until it ends; Ctrl-C and SIGTERM end it at its next batch boundary.

    Args:
        stream: The declaration.
        settings: Addresses of Kafka and the tables.
        available_now: End when all messages available now are committed.
        report: Receives the report of each committed batch, on the run's thread.
        tuning: Intervals, attempts and sizes.

    Raises:
        LockstepError: The error that ended the run, or a bounded run was requested while a never-ending one writes.
    """
    if available_now:
        refuse_bounded_run(StreamFolders(stream.name, settings.table_root))
    contexts, stopping = list["SparkContext"](), StopSignal()
    launch = Launch(adopts_topics=True, tuning=tuning)

    def spark() -> SparkContext:
        roots = find_import_roots(stream)
        contexts.append(start_context(settings.spark, f"lockstep {stream.name}", import_roots=roots))
        return contexts[-1]

    def work() -> RunOutcome:
        return run_stream(
            stream,
            settings,
            spark=spark,
            stop=stopping.wanted,
            trigger=AvailableNow() if available_now else None,
            reports=RunReports(report),
            launch=launch,
        )

    try:
        patience = stream.limits.stop_timeout_seconds
        abandon = partial(_cancel, contexts, launch.run_id)
        return run_off_main_thread(work, stopping, patience_seconds=patience, tick=lambda: None, abandon=abandon)
    except Exception as error:  # the outermost edge: errors of a JVM that ends together with this process are none
        if not stopping.explains(error):
            raise
        return RunOutcome.STOPPED
    finally:
        for context in contexts:
            stop_context(context)


def _cancel(contexts: list[SparkContext], run_id: str) -> None:
    for context in contexts:
        end_jobs(context, run_id)


def format_report(batch: BatchReport) -> str:
    """One batch as a line of text."""
    return (
        f"batch {batch.batch}: {batch.counts.messages} messages, {batch.rows} rows, lag {batch.lag_messages}, "
        f"{batch.batch_seconds:.2f} s"
    )
