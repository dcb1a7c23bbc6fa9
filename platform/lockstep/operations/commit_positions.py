"""Commits an operator's decision on positions, as a batch without messages."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from lockstep.engine.driver.planner import make_batch_identity
from lockstep.table import ledger, side_tables
from lockstep.table.commit import BatchCommit, HourClosed, OutputLog, Proposal, Writer
from lockstep.table.head import Head
from lockstep.table.layout import StreamFolders
from lockstep.table.ledger import LedgerRow


def commit_positions(
    output: OutputLog,
    folders: StreamFolders,
    claimed: Head,
    rows: Sequence[LedgerRow],
    propose: Callable[[Writer, BatchCommit], Proposal],
) -> Head:
    """Commit a full set of positions; again, for a later hour, when its hour has been closed.

    Args:
        output: The stream's log.
        folders: Its folders.
        claimed: The head after the operator's claim.
        rows: The positions of the batch after the head's.
        propose: Makes the proposal from the writer that claimed and the batch.

    Returns:
        The head after the commit.

    Raises:
        Fenced: Another run claimed the table.
    """
    writer = Writer(epoch=claimed.epoch, generation=claimed.generation)
    planned = make_batch_identity(writer, claimed)
    batch = BatchCommit(
        number=planned.number,
        commit_hour=planned.commit_hour,
        ledger=ledger.write_ledger(folders.ledger, rows),
        full_ledger_at=time.time(),
    )
    try:
        landed = output.commit(propose(writer, batch)).head
    except HourClosed:
        later = make_batch_identity(writer, output.base().head).commit_hour
        landed = output.commit(propose(writer, msgspec.structs.replace(batch, commit_hour=later))).head
    side_tables.SideLogs(folders).catch_up(landed)
    return landed
