"""Finds the moment between the writing of a batch's files and its commit, by watching the files alone."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from lockstep.table import log
from lockstep.table.commit import OutputLog

LOOK_SECONDS = 0.001
PARQUET_END = b"PAR1"


def written_not_committed(table: Path, process: subprocess.Popen[bytes], *, after: int) -> str | None:
    """Wait for a finished data file that no entry of the log names yet.

    Args:
        table: The output table.
        process: The writer; None is returned when it ends first.
        after: Only look once so many batches are committed.

    Returns:
        The name of the file, at a moment at which it was not committed.
    """
    known: set[Path] | None = None
    while process.poll() is None:
        if known is None:
            if not log.exists(table) or OutputLog(table).base().head.batch < after:
                time.sleep(LOOK_SECONDS * 20)
                continue
            known = set(table.glob("commit_hour=*/*.parquet"))
        version = newest_version(table)
        for path in set(table.glob("commit_hour=*/*.parquet")) - known:
            if _finished(path) and newest_version(table) == version:
                return path.name
        if newest_version(table) != version:
            known = set(table.glob("commit_hour=*/*.parquet"))
        time.sleep(LOOK_SECONDS)
    return None


def newest_version(table: Path) -> int:
    """The newest version whose entry is in the log's folder."""
    return max(int(path.stem) for path in (table / "_delta_log").glob("*.json") if path.stem.isdigit())


def _finished(path: Path) -> bool:
    """Whether a Parquet file has its end."""
    try:
        with path.open("rb") as file:
            file.seek(-4, 2)
            return file.read(4) == PARQUET_END
    except OSError:
        return False
