"""The kind of commit of an imported savepoint."""

from __future__ import annotations

from lockstep.table.commit_kinds import OF_CLAIMED_BATCH, CommitKind

IMPORT = CommitKind(name="import", event="savepoint imported", transactions=OF_CLAIMED_BATCH)
