"""Checks a table from the command line, with a separate Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.features.quality.check import Checked, check_table
from lockstep.features.quality.report import write_report
from lockstep.operations.stream_table import open_table
from lockstep.spark.session import start_context

if TYPE_CHECKING:
    from lockstep.declare.stream import AnyStream
    from lockstep.settings import Settings
    from lockstep.table.layout import StreamFolders


def check(stream: AnyStream, settings: Settings, folders: StreamFolders, *, full: bool) -> Checked:
    """Check the additions to a table since the last check, or all of it, and write the report; also while it grows.

    Args:
        stream: The declaration, with its rules.
        settings: The master and memory of Spark.
        folders: The tables.
        full: Check the whole table.

    Raises:
        NoTable: The stream has never run.
        TableError: The tables do not belong together, or have a foreign writer.
    """
    from pyspark.sql import SparkSession

    open_table(folders)
    with start_context(settings.spark, f"lockstep check {stream.name}", tables=settings.table_root):
        checked = check_table(stream, SparkSession.builder.getOrCreate(), folders, full=full)
    write_report(folders, target_bytes=settings.target_file_bytes)
    return checked
