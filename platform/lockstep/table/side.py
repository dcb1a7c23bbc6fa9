"""Side tables: committed right after the output table, from the file that its head names."""

from __future__ import annotations

from pathlib import Path

from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.exceptions import DeltaError

from lockstep.errors import CommitUnknown, TableError
from lockstep.table import log
from lockstep.table.files import DataFile
from lockstep.table.head import SideFile

MOST_ATTEMPTS = 20
_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


class SideLog:
    """A side table that is kept open: opening one reads every entry since its last checkpoint, a CPU ms each."""

    def __init__(self, side: Path) -> None:
        """Nothing is opened before it is needed, nor on another thread than the one that needs it."""
        self._side = side
        self._handle: DeltaTable | None = None

    def forward(self, file: SideFile, batch: int) -> bool:
        """Bring the table up to a batch; True when something was missing.

        Only the last batch can be missing, because a batch is not committed before the side tables
        hold the one before it. Safe to call by several processes at once, not by several threads.

        Raises:
            TableError: When more than the last batch is missing, the file is gone, or it is ahead.
        """
        problem: Exception | None = None
        handle = self._handle = self._handle or DeltaTable(self._side)
        for _ in range(MOST_ATTEMPTS):
            handle.update_incremental()
            held = handle.transaction_version(log.BATCH) or 0
            if held == batch:
                return False
            if held != batch - 1:
                raise _apart(self._side, held, batch)
            _check(self._side, file)
            problem = _write(handle, self._side, file, batch)
            if problem is None:
                return True
        step = "mend the cause; start again"
        raise CommitUnknown(f"{self._side}: batch {batch}: {problem}", next_step=step) from problem


def forward(side: Path, file: SideFile | None, batch: int) -> bool:
    """Bring a side table up to a batch once, as `SideLog.forward` does; nothing to do without a file."""
    return file is not None and SideLog(side).forward(file, batch)


def _write(handle: DeltaTable, side: Path, file: SideFile, batch: int) -> Exception | None:
    version = handle.version() + 1
    try:
        handle.create_write_transaction(
            [DataFile(file.path, file.size, file.rows, file.statistics).action()],
            mode="append",
            schema=handle.schema(),
            commit_properties=CommitProperties(
                custom_metadata={log.KIND: "side"},
                max_commit_retries=0,
                app_transactions=[Transaction(log.BATCH, batch)],
            ),
            post_commithook_properties=_NO_HOOKS,
        )
    except (DeltaError, OSError) as error:
        # Whoever won wrote the same file for the same batch, or the next look says what is missing.
        return error
    log.sync(log.entry_path(side, version))
    log.sync(side / "_delta_log")
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
        f"{side} holds batch {held}, the output table batch {batch}: they differ by more than the last batch",
        next_step="restore the side table; nothing is written until both agree",
    )
