"""The kinds of commit of rewinds, savepoints and shadows."""

from __future__ import annotations

from lockstep.table.commit_kinds import OF_CLAIMED_BATCH, CommitKind, RowChange

REWIND = CommitKind(name="rewind", event="rewound", row_change=RowChange.REPLACED, transactions=OF_CLAIMED_BATCH)
SAVEPOINT = CommitKind(name="savepoint", event="savepoint")
SHADOW = CommitKind(name="shadow", event="shadow begun", transactions=OF_CLAIMED_BATCH)
PROMOTE = CommitKind(
    name="promote",
    event="shadow promoted",
    row_change=RowChange.REPLACED,
    transactions=OF_CLAIMED_BATCH,
    skips_batches=True,
)
