"""Drops the files of quarantine and late table whose messages are past their retention."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from lockstep.errors import TableError
from lockstep.features.retention.commit_kinds import SIDE_RETENTION
from lockstep.storage import find_storage
from lockstep.table import delta_log, transactions
from lockstep.table.delta_log import NextEntry, RemoveAction
from lockstep.table.foreign_commits import refresh, refuse_foreign
from lockstep.table.log_tail import LogTail
from lockstep.table.quarantine import KILLED_WORKER, NOT_STORABLE, UNKNOWN_SCHEMA
from lockstep.table.side_files import (
    SideTableFile,
    list_side_files,
    read_side_file,
)


def list_droppable_files(table: DeltaTable, last_batch: int) -> tuple[SideTableFile, ...]:
    """The live files whose messages are all of batches up to one."""
    return tuple(file for file in list_side_files(table) if file.name.last <= last_batch)


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
    table = delta_log.open_delta_table(side)
    tail = LogTail(side)
    dropped: tuple[SideTableFile, ...] = ()

    def next_entry() -> NextEntry | None:
        nonlocal dropped
        tail.refresh()
        refuse_foreign(side, tail.version)
        refresh(table, side)
        dropped = list_droppable_files(table, last_batch)
        if not dropped:
            return None
        return NextEntry(
            version=tail.version + 1,
            kind=SIDE_RETENTION,
            removes=[RemoveAction(file.path, file.size) for file in dropped],
            transactions={
                transactions.BATCH: tail.find_number(transactions.BATCH),
                transactions.DROPPED: max(last_batch, tail.find_number(transactions.DROPPED)),
            },
        )

    written = delta_log.append_entry(side, next_entry)
    return () if written is None else dropped
