"""Side tables: committed right after the output table, from the files that its head names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.exceptions import DeltaError, TableNotFoundError

from lockstep.errors import CommitUnknown, TableError
from lockstep.table import delta_log
from lockstep.table.checkpoint import write_checkpoint_if_due
from lockstep.table.commit import OutputLog
from lockstep.table.delta_log import Head, SideFile
from lockstep.table.foreign_commits import TableReplaced, refresh, refuse_foreign
from lockstep.table.layout import StreamFolders
from lockstep.table.parquet import DataFile

MOST_ATTEMPTS = 20
_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


class SideLog:
    """A side table that stays open: opening one reads every entry since its last checkpoint, a CPU ms each."""

    def __init__(self, side: Path) -> None:
        """Nothing is opened before it is needed, nor on another thread than the one that needs it."""
        self._side, self._own = side, 0
        self._handle: DeltaTable | None = None

    def forward(self, files: Sequence[SideFile], batch: int, *, after: int) -> bool:
        """Bring the table up to a batch; True when something was missing.

        Only the last addition can be missing, because a batch is not committed before the side tables
        contain the previous one's. Safe to call by several processes at once, not by several threads.

        Args:
            files: The batch's additions.
            batch: Number of the batch.
            after: The previous batch that added to the table.

        Raises:
            ForeignCommit: It has a foreign commit.
            TableReplaced: Its folder was moved, deleted or restored since the last read.
            TableError: More than the last addition is missing, a file is gone, or it is ahead.
        """
        problem: Exception | None = None
        handle = self._handle = self._handle or _opened(self._side)
        for _ in range(MOST_ATTEMPTS):
            self._look(handle)
            held = handle.transaction_version(delta_log.BATCH) or 0
            if held == batch:
                return False
            if held != after:
                raise _apart(self._side, held, batch)
            for file in files:
                _check(self._side, file)
            problem = _write(handle, self._side, files, batch)
            if problem is None:
                self._own = handle.version() + 1
                return True
        step = "fix the cause; start again"
        raise CommitUnknown(f"{self._side}: batch {batch}: {problem}", next_step=step) from problem

    def _look(self, handle: DeltaTable) -> None:
        refresh(handle, self._side)
        if handle.version() != self._own:  # otherwise the newest entry was written here
            refuse_foreign(self._side, handle.version())
            self._own = handle.version()

    def checkpoint_if_due(self) -> None:
        """Write a log checkpoint if that costs less than reading the log since the last one."""
        if self._handle is not None:
            write_checkpoint_if_due(self._side, self._handle.version())


class SideLogs:
    """The side tables of a stream, kept open."""

    def __init__(self, folders: StreamFolders) -> None:
        self._ledger, self._quarantine = SideLog(folders.ledger), SideLog(folders.quarantine)
        self._late = SideLog(folders.late)

    def forward(self, head: Head) -> bool:
        """Bring all of them up to a head; True when something was missing. Raises as `SideLog.forward` does."""
        missing = head.ledger is not None and self._ledger.forward((head.ledger,), head.batch, after=head.batch - 1)
        for side, added in ((self._quarantine, head.quarantine), (self._late, head.late)):
            if added is not None:
                missing = side.forward(added.files, added.batch, after=added.after) or missing
        return missing

    def checkpoint_if_due(self) -> None:
        """Write the log checkpoints that are due."""
        for side in (self._ledger, self._quarantine, self._late):
            side.checkpoint_if_due()


def catch_up_beside_writer(folders: StreamFolders, head: Head) -> None:
    """Bring the side tables of a stream up to a head, or to a newer one where batches were committed meanwhile.

    Raises:
        TableError: As `SideLog.forward`, even though no batch was committed since the head was read.
    """
    for _ in range(MOST_ATTEMPTS):
        try:
            SideLogs(folders).forward(head)
        except TableError:
            newest = OutputLog(folders.table).base().head
            if newest.batch == head.batch:
                raise
            head = newest
        else:
            return
    raise CommitUnknown(f"{folders.ledger}: batches overtook {MOST_ATTEMPTS} looks", next_step="try again")


def _opened(side: Path) -> DeltaTable:
    try:
        return DeltaTable(side)
    except TableNotFoundError as error:
        raise TableReplaced(side, "there is no log") from error


def _write(handle: DeltaTable, side: Path, files: Sequence[SideFile], batch: int) -> Exception | None:
    version = handle.version() + 1
    try:
        handle.create_write_transaction(
            [DataFile(file.path, file.size, file.rows, file.statistics).action() for file in files],
            mode="append",
            schema=handle.schema(),
            commit_properties=CommitProperties(
                custom_metadata={delta_log.KIND: "side"},
                max_commit_retries=0,
                app_transactions=[Transaction(delta_log.BATCH, batch)],
            ),
            post_commithook_properties=_NO_HOOKS,
        )
    except (DeltaError, OSError) as error:
        # The winner wrote the same file for the same batch, or the next check reports the difference.
        return error
    delta_log.sync_path(delta_log.make_entry_path(side, version))
    delta_log.sync_path(side / "_delta_log")
    return None


def _check(side: Path, file: SideFile) -> None:
    path = side / file.path
    if not path.exists() or path.stat().st_size != file.size:
        raise TableError(
            f"{path} is named by the last batch but is missing or has another size",
            next_step="restore the file from a copy; the output table itself is whole",
        )


def _apart(side: Path, held: int, batch: int) -> TableError:
    return TableError(
        f"{side} holds batch {held}, the output table batch {batch}: they differ by more than the last addition",
        next_step="restore the side table; nothing is written until both agree",
    )
