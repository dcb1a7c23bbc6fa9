"""Opens the output table of a stream, or reads its head."""

from __future__ import annotations

from pathlib import Path

from lockstep.errors import LockstepError
from lockstep.table import delta_log
from lockstep.table.commit import OutputLog
from lockstep.table.create import INCOMING, INCOMING_STEP, is_incoming
from lockstep.table.head import Head
from lockstep.table.layout import StreamFolders, require_root


class NoTable(LockstepError):
    """The stream has never run with this table root.

    Attributes:
        stream: The stream.
        root: The table root.
    """

    def __init__(self, stream: str, root: Path, *, incoming: bool = False) -> None:
        problem = f"stream {stream} has no table yet in {root}"
        step = f"lockstep start {stream} (in Dagster) or lockstep run {stream} (here)"
        if incoming:
            problem = f"{problem}: {INCOMING}"
            step = INCOMING_STEP
        super().__init__(problem, next_step=step)
        self.stream = stream
        self.root = root


def has_table(folders: StreamFolders) -> bool:
    """Whether the stream has a table; false while it has never run.

    Raises:
        TableRootMissing: The table root was named in the settings, and does not exist.
    """
    if delta_log.has_log(folders.table):
        return True
    require_root(folders.root)
    return False


def has_claimed_table(folders: StreamFolders) -> bool:
    """Whether a run has claimed the stream's table: a table that is just created has no id in its head yet.

    Raises:
        TableRootMissing: As `has_table`.
        TableError: The log is damaged.
    """
    return has_table(folders) and bool(open_table(folders).base().head.table_id)


def open_table(folders: StreamFolders) -> OutputLog:
    """The log of a stream's table.

    Raises:
        NoTable: The stream has none yet.
        TableRootMissing: The table root does not exist.
    """
    if not has_table(folders):
        raise NoTable(folders.stream, folders.root, incoming=is_incoming(folders))
    return OutputLog(folders.table)


def try_read_head(folders: StreamFolders) -> Head | None:
    """The head of a stream's table; None while it has none.

    Raises:
        TableError: The table does not match its head.
    """
    if delta_log.has_log(folders.table):
        return open_table(folders).base().head
    return None
