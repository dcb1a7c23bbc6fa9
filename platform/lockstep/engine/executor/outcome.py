"""What becomes of one fold of a range, as a value."""

from __future__ import annotations

import msgspec

from lockstep.model.finding import Finding

NO_OFFSET = 2**63
"""After every offset."""


class FoldCompleted(msgspec.Struct, frozen=True):
    """All messages were folded."""

    @property
    def offset(self) -> int:
        """After every offset."""
        return NO_OFFSET


class FoldStopped(msgspec.Struct, frozen=True):
    """The fold stopped at a violation; the range ends before it."""

    finding: Finding

    @property
    def offset(self) -> int:
        """Offset of the violation."""
        return self.finding.offset


class MessageFailed(msgspec.Struct, frozen=True):
    """The transform failed at a message that may be left out; the range is folded again without it.

    Attributes:
        finding: The evidence.
        at: Offset that was being processed.
        is_buffered: It had been buffered, and is rejected when it is released.
    """

    finding: Finding
    at: int
    is_buffered: bool

    @property
    def offset(self) -> int:
        """Offset that was being processed: a buffered message is older, possibly than its range."""
        return self.at


class BufferFull(msgspec.Struct, frozen=True):
    """Rows, quarantine or late table are as large as they may be; the range ends after a whole message.

    Attributes:
        offset: First offset after the message.
        problem: The full resource.
    """

    offset: int
    problem: str = "quarantine or late table hold as much as one range may"


FoldOutcome = FoldCompleted | FoldStopped | MessageFailed | BufferFull
"""The outcome of one fold of a range. Each has the offset that it is about; the earliest counts."""


class StopFold(Exception):
    """The fold stops here.

    Attributes:
        outcome: What became of it.
    """

    def __init__(self, outcome: FoldStopped | BufferFull) -> None:
        super().__init__(outcome)
        self.outcome = outcome
