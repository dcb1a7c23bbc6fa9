"""A batch that the side tables hold and the output table has lost: its newest entry was emptied by a power loss.

Files of a lost entry have the same names as those of attempts that were never committed. So the batch is
undone: its rows in the side tables are removed, and the next run reads its messages again from the positions before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pyarrow.parquet as pq

from lockstep.storage import find_storage
from lockstep.table import delta_log, side_tables
from lockstep.table.delta_log import RemoveAction
from lockstep.table.head import Head
from lockstep.table.layout import StreamFolders
from lockstep.table.side_files import LedgerFile, SideTableFile, list_live_files, list_message_tables, list_side_files


class LostBatch(msgspec.Struct, frozen=True):
    """A lost batch.

    Attributes:
        last: The batch; of a promotion the last batch.
        operation: The operation that it was, with its reason; empty for a batch of a run.
        files: Its files in each side table.
    """

    last: int
    operation: str
    files: Mapping[Path, Sequence[RemoveAction]]


def find_lost_batch(folders: StreamFolders, head: Head) -> LostBatch | None:
    """The batch after a head that the side tables hold; None if they hold none, or more than one."""
    added = [file for file in list_live_files(delta_log.open_delta_table(folders.ledger)) if _is_after(file, head)]
    if len(added) != 1 or added[0].name.first != head.batch + 1:
        return None
    files = {folders.ledger: [RemoveAction(added[0].path, added[0].size)]}
    for side in list_message_tables(folders):
        of_side = [file for file in list_side_files(delta_log.open_delta_table(side)) if _is_after(file, head)]
        if any(file.name.first <= head.batch for file in of_side):
            return None
        if of_side:
            files[side] = [RemoveAction(file.path, file.size) for file in of_side]
    return LostBatch(added[0].name.last, _find_operation(folders.ledger / added[0].path, head), files)


def _is_after(file: LedgerFile | SideTableFile, head: Head) -> bool:
    return file.name.last > head.batch


def _find_operation(path: Path, head: Head) -> str:
    """The operation in its ledger rows: they are of another epoch, as an operation claims and writes in one step."""
    rows = pq.ParquetFile(find_storage(path).open_source(path)).read(columns=["epoch", "restart_cause"]).to_pylist()
    # An operation claims and writes in one step, so its rows are of another epoch.
    of_others = [row for row in rows if row["epoch"] != head.epoch]
    causes = [row["restart_cause"] or f"that of epoch {row['epoch']}" for row in of_others]
    return causes[0] if causes else ""


def take_back(folders: StreamFolders, head: Head, lost: LostBatch) -> None:
    """Take a lost batch out of the side tables, the ledger last: until then it is found again."""
    additions = {folders.quarantine: head.quarantine, folders.late: head.late, folders.archive: head.archive}
    # The ledger last: as long as it holds the batch, the loss is found again.
    for side in sorted(lost.files, key=lambda side: side == folders.ledger):
        addition = additions.get(side)
        batch = 0 if addition is None else addition.batch
        if side == folders.ledger:  # it grows with every batch, the others only with some
            batch = head.batch
        side_tables.take_back(side, lost.files[side], batch)
