"""The kind of commit of the archive's retention."""

from __future__ import annotations

from lockstep.table.commit_kinds import OF_SIDE_TABLE, CommitKind, RowChange
from lockstep.table.transactions import DROPPED

ARCHIVE_RETENTION = CommitKind(
    name="archive retention", row_change=RowChange.DROPPED, transactions=OF_SIDE_TABLE | {DROPPED}
)
