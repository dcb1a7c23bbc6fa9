"""The newest entry of a Delta log, followed by its number: a read costs the same for a log of any length."""

from __future__ import annotations

from pathlib import Path

from deltalake.exceptions import DeltaError, TableNotFoundError

from lockstep.errors import TableError
from lockstep.storage import FileStatus, find_storage
from lockstep.table import delta_log
from lockstep.table.delta_log import LogEntry
from lockstep.table.foreign_commits import TableReplaced


def make_unreadable(table: Path, version: int) -> TableError:
    """The error of an entry that is empty or cut; a run, `status` and `repair` find it by the same text."""
    problem = f"{delta_log.make_entry_path(table, version)} is empty or cut"
    return TableError(problem, next_step=f"lockstep repair {table.parent.name}")


class LogTail:
    """The newest version of a table, and its entry.

    Attributes:
        table: Folder of the table.
        version: The newest version, as last read.
        entry: Its entry; None if it cannot be read.
    """

    def __init__(self, table: Path) -> None:
        """Find the newest version: lists the log once.

        Raises:
            TableNotFoundError: The log is missing.
        """
        newest = delta_log.find_top_version(table)
        if newest is None:
            raise TableNotFoundError(f"{table} has no Delta log")
        self.table = table
        self.version = newest
        self.entry: LogEntry | None = delta_log.read_entry(table, newest)

    def refresh(self) -> None:
        """Read the entries that were added, and the newest again if it is not as it was.

        Raises:
            TableReplaced: The newest entry that was read is gone, and no later entry exists.
        """
        while True:
            following, newest = self._look(self.version + 1, self.version)
            if following is None:
                break
            entry = delta_log.read_entry(self.table, self.version + 1)
            self.version += 1
            self.entry = entry
        if newest is None:
            self._pass_deleted_entries()
        elif self.entry is None or newest.size != self.entry.size:  # it was torn, or is replaced from a copy
            self.entry = delta_log.read_entry(self.table, self.version)

    def advance(self, entry: LogEntry) -> None:
        """Advance to an entry that this process has written on top of the newest version: it need not be read."""
        self.version = entry.version
        self.entry = entry

    def _pass_deleted_entries(self) -> None:
        """Housekeeping deletes entries before a log checkpoint: of a quiet table the newest that was read, too."""
        newest = delta_log.find_top_version(self.table)
        if newest is None or newest <= self.version:
            raise TableReplaced(self.table, f"version {self.version} is gone")
        entry = delta_log.read_entry(self.table, newest)
        self.version = newest
        self.entry = entry

    def find_number(self, name: str) -> int:
        """The newest number of a name (an application's transaction); 0 without one.

        All entries of ours carry theirs, so that only a log with other entries on top is read further.

        Raises:
            TableReplaced: The log cannot be read.
            TableError: Its newest entry is there, and is cut or damaged.
        """
        if self.entry is not None and name in self.entry.transactions:
            return self.entry.transactions[name]
        if self.entry is None and self._look(self.version) != [None]:
            raise make_unreadable(self.table, self.version)
        try:
            handle = delta_log.open_delta_table(self.table, version=self.version)
        except DeltaError as error:
            raise TableReplaced(self.table, str(error).splitlines()[0]) from error
        return handle.transaction_version(name) or 0

    def _look(self, *versions: int) -> list[FileStatus | None]:
        paths = [delta_log.make_entry_path(self.table, version) for version in versions]
        return find_storage(self.table).get_statuses(paths)
