"""Tables of streams that are not declared any more: their writers continue, and no command would name them."""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
from deltalake.exceptions import DeltaError

from lockstep.control.heartbeat import WriterState, find_writer
from lockstep.declare.naming import NAME
from lockstep.errors import TableError
from lockstep.operations.stream_table import try_read_head
from lockstep.storage import find_storage
from lockstep.table.layout import StreamFolders

TABLES_AT_ONCE = 16
"""Threads: most of the time is spent on seeing whether the counter of a writer moves."""


class UndeclaredTable(msgspec.Struct, frozen=True):
    """The table of a stream that no imported file of assets/ declares, and that is not a shadow.

    Attributes:
        name: Name of the stream when it was declared: the folder below the table root.
        desired: Its desired state.
        epoch: The epoch that holds the table.
        writer: State of the writer of that epoch, as in `Status`.
    """

    name: str
    desired: str
    epoch: int
    writer: WriterState

    @property
    def is_live(self) -> bool:
        """Whether its writer is alive."""
        return self.writer.is_alive

    @property
    def problem(self) -> str:
        """The problem, in a sentence."""
        state = "it has no living writer"
        if self.is_live:
            state = f"its writer of epoch {self.epoch} is alive"
        return f"there is a table, and no declaration of its stream; {state}"

    @property
    def next_step(self) -> str:
        """The operator's options."""
        end = f"end it: lockstep stop {self.name}"
        if not self.is_live:
            end = "move its folder out of the table root"
        return f"declare {self.name} in assets/ again (a file that was left out may declare it), or {end}"


def find_undeclared_tables(declared: Collection[str], root: Path) -> tuple[UndeclaredTable, ...]:
    """The tables below a table root that belong to no declared stream and are not shadows, by name.

    Costs a listing of the root, and a head for each folder that is not declared.
    """
    names = [name for name in sorted(find_storage(root).list_names(root)) if name not in declared]
    # Threads: most of the time is spent on seeing whether the counter of a writer moves.
    with ThreadPoolExecutor(max_workers=TABLES_AT_ONCE, thread_name_prefix="undeclared") as pool:
        tables = pool.map(lambda name: find_undeclared_table(name, root), names)
        return tuple(table for table in tables if table is not None)


def find_undeclared_table(name: str, root: Path) -> UndeclaredTable | None:
    """The table of a stream that is not declared; None for a folder without a table of lockstep, and for a shadow."""
    if not NAME.fullmatch(name):
        return None
    folders = StreamFolders(name, root)
    try:
        head = try_read_head(folders)
    except (TableError, DeltaError, PermissionError):  # a table of somebody else
        return None
    if head is None or head.origin is not None:
        return None
    return UndeclaredTable(folders.stream, head.desired.value, head.epoch, find_writer(folders.control, head.epoch))
