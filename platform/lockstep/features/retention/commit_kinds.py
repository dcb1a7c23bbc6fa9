"""The kinds of commit of retention."""

from __future__ import annotations

from lockstep.table.commit_kinds import OF_SIDE_TABLE, CommitKind, RowChange
from lockstep.table.transactions import DROPPED

RETENTION = CommitKind(name="retention", event="rows dropped", row_change=RowChange.DROPPED, explained_by="retention")
QUARANTINE_RETENTION = CommitKind(
    name="quarantine retention", event="messages dropped", explained_by="quarantine_retention"
)
SIDE_RETENTION = CommitKind(name="side retention", row_change=RowChange.DROPPED, transactions=OF_SIDE_TABLE | {DROPPED})
