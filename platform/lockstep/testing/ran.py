"""What came of the messages of a test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, Self

from lockstep.declare.place import Place
from lockstep.declare.transform import R, S
from lockstep.errors import IntegrityLost
from lockstep.integrity.finding import Finding
from lockstep.integrity.verdict import Verdict


@dataclass(frozen=True)
class Folded(Generic[R]):
    """One message that was read.

    Attributes:
        offset: Its place among the messages of the test, from 0.
        place: What the transform said of it; None when it could not be decoded or placed.
        verdict: What became of it. A message of kind SKIP is accepted with the cause "skip".
        rows: The rows that it emitted, in order.
    """

    offset: int
    place: Place | None
    verdict: Verdict
    rows: tuple[R, ...]


@dataclass(frozen=True)
class Ran(Generic[S, R]):
    """What came of all messages: up to the first violation, which is the last one that was read.

    Attributes:
        stream: Name of the stream.
        folded: The messages that were read, in order.
        emitted: All rows, in the order of the table: messages held back emit theirs when they are released.
        states: The state of each open session, as it would be saved and recovered.
        finding: The violation, as it would be committed with the halt; None without one.
    """

    stream: str
    folded: tuple[Folded[R], ...]
    states: Mapping[str, S]
    finding: Finding | None
    emitted: tuple[R, ...] = ()

    @property
    def rows(self) -> list[R]:
        """All rows, in the order of the table."""
        return list(self.emitted)

    @property
    def verdicts(self) -> list[Verdict]:
        """The verdict on each message that was read."""
        return [message.verdict for message in self.folded]

    def or_raise(self) -> Self:
        """The same, for tests that expect no violation.

        Raises:
            IntegrityLost: There was one; as the run of a stream would end.
        """
        if self.finding is not None:
            raise IntegrityLost(self.stream, (self.finding,))
        return self
