"""The kinds of commit, and what each of them means for the rows of its table."""

from __future__ import annotations

from enum import Enum


class RowChange(Enum):
    """What a commit does to the rows that readers have read before it."""

    NONE = "none"
    DROPPED = "dropped"
    REPLACED = "replaced"


class CommitKind(Enum):
    """The kinds of commit that lockstep makes to the tables of a stream."""

    CREATE = "create"
    CLAIM = "claim"
    BATCH = "batch"
    HALT = "halt"
    RESUME = "resume"
    CLOSE = "close"
    DESIRE = "desire"
    COMPACTION = "compaction"
    SCHEMA = "schema"
    FLOOR = "floor"
    RETENTION = "retention"
    QUARANTINE_RETENTION = "quarantine retention"
    REWIND = "rewind"
    SAVEPOINT = "savepoint"
    ERASE = "erase"
    ERASE_END = "erase end"
    SHADOW = "shadow"
    PROMOTE = "promote"
    IMPORT = "import"
    ACCEPT = "accept loss"
    MARK = "mark"
    SIDE = "side"
    SIDE_COMPACTION = "side compaction"
    SIDE_REDACTION = "side redaction"
    SIDE_RETENTION = "side retention"
    SIDE_UNDO = "side undo"

    @property
    def changes_data(self) -> bool:
        """`dataChange` of each file of such a commit (Delta's protocol, "Add File and Remove File").

        False only where the rows stay the same and only their files change.
        """
        return self not in {CommitKind.COMPACTION, CommitKind.SIDE_COMPACTION}

    @property
    def row_change(self) -> RowChange:
        """What it does to rows that were there before.

        Some are dropped: the oldest, or those of a commit that was lost, whose messages are read again. Or any may be
        gone, or others come back.
        """
        if self in {CommitKind.RETENTION, CommitKind.SIDE_RETENTION, CommitKind.SIDE_UNDO}:
            return RowChange.DROPPED
        replaces = {CommitKind.REWIND, CommitKind.PROMOTE, CommitKind.ERASE, CommitKind.SIDE_REDACTION}
        return RowChange.REPLACED if self in replaces else RowChange.NONE
