"""The cause of an output row: the hook of the transform that emitted it."""

from __future__ import annotations

from enum import StrEnum


class RowCause(StrEnum):
    """The values of the provenance column `_cause`."""

    UPDATE = "update"
    """`on_update`, of a buffered message too."""
    SNAPSHOT = "snapshot"
    """`on_snapshot`: a snapshot, all parts of a multi-part snapshot, or the first message of a session."""
    TIMER = "timer"
    """`on_timer`."""
    END = "end"
    """`on_end`: a message of kind END, or the idle timeout."""
    LATE = "late"
    """`on_late`."""
