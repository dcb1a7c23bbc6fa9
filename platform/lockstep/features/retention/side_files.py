"""Drops the files of quarantine and late table whose messages are past their retention."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from lockstep.errors import TableError
from lockstep.features.retention.commit_kinds import SIDE_RETENTION
from lockstep.storage import find_storage
from lockstep.table.quarantine import KILLED_WORKER, NOT_STORABLE, UNKNOWN_SCHEMA
from lockstep.table.side_files import SideTableFile, drop_files, read_side_file


def _find_droppable(last_batch: int, files: Iterable[SideTableFile]) -> tuple[SideTableFile, ...]:
    return tuple(file for file in files if file.name.last <= last_batch)


def find_last_unrepeatable(side: Path, files: Sequence[SideTableFile]) -> int:
    """The last batch of some files with a message of which a fold does not find out again why it was quarantined.

    0 for none. For a file that is damaged or gone, its last batch.
    """
    return max(find_storage(side).map_files(partial(_find_last_unrepeatable, side), files), default=0)


def _find_last_unrepeatable(side: Path, file: SideTableFile) -> int:
    try:
        rows = read_side_file(side, file, ["batch", "cause", "found"]).to_pylist()
    except (FileNotFoundError, TableError):
        return file.name.last
    return max((row["batch"] for row in rows if _is_unrepeatable(row)), default=0)


def _is_unrepeatable(row: dict[str, Any]) -> bool:
    return row["cause"] == NOT_STORABLE or (row["found"] or "").startswith((KILLED_WORKER, UNKNOWN_SCHEMA))


def drop_side_files(side: Path, last_batch: int) -> tuple[SideTableFile, ...]:
    """Remove the files of all batches up to one from the quarantine or the late table; returns them.

    Safe while a writer, readers, a compaction and another retention run. A file that a compaction has merged with later
    batches stays until these are dropped, too. Safe to call again after a kill.

    Args:
        side: Folder of the table.
        last_batch: The last batch whose messages are dropped. A head with it is committed.

    Raises:
        ForeignCommit: The table has a foreign commit.
        TableReplaced: Its folder was moved or deleted.
        CommitUnknown: The store did not answer.
    """
    return drop_files(side, SIDE_RETENTION, partial(_find_droppable, last_batch), last_batch)
