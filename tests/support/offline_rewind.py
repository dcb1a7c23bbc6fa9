"""A rewind of a stream without a broker."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from lockstep.engine.driver.planner import find_next_hour
from lockstep.features.history.rewind import read_rewound_rows
from lockstep.features.history.rewind_commit import RewindCommit, commit_rewind
from lockstep.operations.past_batches import read_head_of_batch
from lockstep.table import ledger, side_tables
from lockstep.table.commit import OutputLog
from lockstep.table.positions import LedgerStamp, make_kept_row, read_position
from lockstep.table.restore import commit_restored

if TYPE_CHECKING:
    from tests.support.offline_stream import Offline


def rewind(stream: Offline, batch: int) -> int:
    """Rewind to a batch, as the command does without Kafka; return the number of the rewind's batch."""
    folders = stream.folders
    output = OutputLog(folders.table)
    head = output.base().head
    target = read_head_of_batch(folders, head, batch)
    rows = read_rewound_rows(folders, head, target, ledger.read_positions(folders, head)).placed
    stamp = LedgerStamp(
        generation=head.generation + 1,
        batch=head.batch + 1,
        epoch=head.epoch + 1,
        committed_at=ledger.read_clock(),
        batch_seconds=0.0,
        restart_cause=None,
    )
    kept = [make_kept_row(stamp, read_position(row), retired=row.retired) for row in rows]
    planned = RewindCommit(
        table=folders.table,
        seen=head,
        target=target,
        commit_hour=find_next_hour(head),
        ledger=ledger.write_ledger(folders.ledger, kept),
        at=time.time(),
        cause="wrong rows (a test)",
    )
    landed = commit_restored(output, commit_rewind(planned), planned.commit_hour).head
    side_tables.SideLogs(folders).catch_up(landed)
    return landed.batch
