"""The kinds of commit of compaction: the rows stay the same, their files change."""

from __future__ import annotations

from lockstep.table.commit_kinds import OF_SIDE_TABLE, CommitKind

COMPACTION = CommitKind(name="compaction", event="compacted", changes_data=False)
SIDE_COMPACTION = CommitKind(name="side compaction", changes_data=False, transactions=OF_SIDE_TABLE)
