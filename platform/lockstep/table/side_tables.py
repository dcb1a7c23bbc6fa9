"""Side tables: committed right after the output table, from the files that its head names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from deltalake.exceptions import TableNotFoundError

from lockstep.errors import CommitUnknown, TableError
from lockstep.table import commit_kinds, delta_log, transactions
from lockstep.table.commit import OutputLog
from lockstep.table.delta_log import CreateEntry, NextEntry, RemoveAction
from lockstep.table.foreign_commits import TableReplaced, refuse_foreign
from lockstep.table.head import Head, SideFile
from lockstep.table.layout import StreamFolders
from lockstep.table.log_tail import LogTail
from lockstep.table.parquet import DataFile, find_wrong_files

LOOKS_MAX = 20
"""More batches than this are not committed while the side tables are brought up to one head."""


class SideLog:
    """The log of a side table."""

    def __init__(self, side: Path, create: CreateEntry = delta_log.create_entry) -> None:
        """Nothing is read before it is needed.

        Args:
            side: Folder of the table.
            create: Creates the file of an entry.
        """
        self._side = side
        self._create = create
        self._own = 0
        self._tail: LogTail | None = None

    def catch_up(self, files: Sequence[SideFile], batch: int, *, after: int) -> bool:
        """Bring the table up to a batch; True when something was missing.

        Only the last addition can be missing, because a batch is not committed before the side tables
        contain the previous batch. Safe to call by several processes at once, not by several threads.

        Args:
            files: The batch's additions.
            batch: Number of the batch.
            after: The previous batch that added to the table.

        Raises:
            ForeignCommit: It has a foreign commit.
            TableReplaced: Its folder was moved, deleted or restored since the last read.
            TableError: More than the last addition is missing, a file is gone, or it is ahead.
            CommitUnknown: It is unknown whether the additions were written, again and again.
        """
        tail = self._tail = self._tail or _opened(self._side)

        def next_entry() -> NextEntry | None:
            self._look(tail)
            newest = tail.find_number(transactions.BATCH)
            if newest == batch:
                return None
            # The writer commits no batch before the side tables have the previous one.
            if newest != after:
                raise _apart(self._side, newest, batch)
            _check(self._side, files)
            return NextEntry(
                version=tail.version + 1,
                kind=commit_kinds.SIDE,
                adds=[DataFile(file.path, file.size, file.rows, file.statistics).action() for file in files],
                transactions={transactions.BATCH: batch},
            )

        written = delta_log.append_entry(self._side, next_entry, finds_late=True, create=self._create)
        if written is None:
            return False
        tail.advance(written)
        self._own = written.version
        return True

    def _look(self, tail: LogTail) -> None:
        tail.refresh()
        if tail.version != self._own:  # otherwise the newest entry was written here
            refuse_foreign(self._side, tail.version)
            self._own = tail.version

    @property
    def newest(self) -> tuple[Path, int] | None:
        """The table and its newest version, as last read; None before."""
        return None if self._tail is None else (self._side, self._tail.version)


class SideLogs:
    """The side tables of a stream, kept open."""

    def __init__(self, folders: StreamFolders) -> None:
        self._ledger = SideLog(folders.ledger)
        self._quarantine = SideLog(folders.quarantine)
        self._late = SideLog(folders.late)
        self._archive = SideLog(folders.archive)

    def catch_up(self, head: Head) -> bool:
        """Bring all of them up to a head; True when something was missing. Raises as `SideLog.catch_up` does."""
        missing = head.ledger is not None and self._ledger.catch_up((head.ledger,), head.batch, after=head.batch_before)
        sides = ((self._quarantine, head.quarantine), (self._late, head.late), (self._archive, head.archive))
        for side, added in sides:
            if added is not None:
                missing = side.catch_up(added.files, added.batch, after=added.after) or missing
        return missing

    def list_versions(self) -> list[tuple[Path, int]]:
        """The tables that have been read, each with its newest version."""
        sides = (self._ledger, self._quarantine, self._late, self._archive)
        return [newest for side in sides if (newest := side.newest) is not None]


def take_back(side: Path, files: Sequence[RemoveAction], batch: int) -> None:
    """Take the additions of a batch that the output table has lost out of a side table.

    Args:
        side: Folder of the table.
        files: The files to remove.
        batch: The last batch that added to it before.

    Raises:
        ForeignCommit: It has a foreign commit.
        TableReplaced: Its folder was moved or deleted.
    """
    tail = _opened(side)

    def next_entry() -> NextEntry:
        tail.refresh()
        refuse_foreign(side, tail.version)
        return NextEntry(
            version=tail.version + 1,
            kind=commit_kinds.SIDE_UNDO,
            removes=files,
            transactions={transactions.BATCH: batch},
        )

    delta_log.append_entry(side, next_entry)


def catch_up_alongside_writer(folders: StreamFolders, head: Head) -> None:
    """Bring the side tables of a stream up to a head, or to a newer head if batches were committed meanwhile.

    Raises:
        TableError: As `SideLog.catch_up`, even though no batch was committed since the head was read.
    """
    for _ in range(LOOKS_MAX):
        try:
            SideLogs(folders).catch_up(head)
        except TableError:
            newest = OutputLog(folders.table).base().head
            if newest.batch == head.batch:
                raise
            head = newest
        else:
            return
    raise CommitUnknown(f"{folders.ledger}: batches overtook {LOOKS_MAX} attempts", next_step="try again")


def _opened(side: Path) -> LogTail:
    try:
        return LogTail(side)
    except TableNotFoundError as error:
        raise TableReplaced(side, "there is no log") from error


def _check(side: Path, files: Sequence[SideFile]) -> None:
    for path in find_wrong_files((side / file.path, file.size) for file in files):
        raise TableError(
            f"{path} is named by the last batch but is missing or has another size",
            next_step="restore the file from a copy; the output table itself is whole",
        )


def _apart(side: Path, held: int, batch: int) -> TableError:
    return TableError(
        f"{side} holds batch {held}, the output table batch {batch}: they differ by more than the last addition",
        next_step="restore the side table; nothing is written until both agree",
    )
