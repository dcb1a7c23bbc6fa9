"""The kinds of commit of an erasure."""

from __future__ import annotations

from lockstep.table.commit_kinds import OF_CLAIMED_BATCH, OF_SIDE_TABLE, CommitKind, RowChange

ERASE = CommitKind(
    name="erase",
    event="session erased",
    row_change=RowChange.REPLACED,
    transactions=OF_CLAIMED_BATCH,
    explained_by="erasure",
)
ERASE_END = CommitKind(name="erase end", event="erasure finished", explained_by="erasure")
SIDE_REDACTION = CommitKind(name="side redaction", row_change=RowChange.REPLACED, transactions=OF_SIDE_TABLE)
