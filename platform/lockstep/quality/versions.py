"""Which versions of table and ledger belong together, while a writer goes on beside the check."""

from __future__ import annotations

import msgspec
from deltalake import DeltaTable

from lockstep.errors import TableError
from lockstep.table import log
from lockstep.table.commit import OutputLog
from lockstep.table.layout import StreamFolders


class Versions(msgspec.Struct, frozen=True):
    """One moment of a stream: what both tables held after one batch.

    Attributes:
        table: Version of the output table.
        ledger: Version of the ledger, which may hold later batches as well.
        batch: Number of the last batch that both hold; 0 before the first.
    """

    table: int
    ledger: int
    batch: int


def matching_versions(folders: StreamFolders) -> Versions:
    """The newest moment that both tables hold.

    The ledger follows the table, by one batch at most. Where that one is missing, the moment is
    the table's version before it; so nothing has to be waited for.

    Raises:
        TableError: The tables are further apart, or somebody else wrote the table.
    """
    base = OutputLog(folders.table).base()
    ledger = DeltaTable(folders.ledger)
    held = ledger.transaction_version(log.BATCH) or 0
    head = base.head
    if held >= head.batch:
        return Versions(table=base.version, ledger=ledger.version(), batch=head.batch)
    if held == head.batch - 1:
        return Versions(table=head.batch_version - 1, ledger=ledger.version(), batch=held)
    raise TableError(
        f"{folders.ledger} holds batch {held}, the output table batch {head.batch}: they differ by more than one batch",
        next_step="restore the ledger; nothing can be proved until both agree",
    )
