"""What came of the messages of a test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, Self

from lockstep.declare.transform import R, S
from lockstep.integrity.resume_options import IntegrityLost
from lockstep.integrity.verdict import Verdict
from lockstep.model.finding import Finding
from lockstep.model.record import Envelope


@dataclass(frozen=True)
class MessageResult(Generic[R]):
    """One message that was read.

    Attributes:
        offset: Its place among the messages of its topic, from 0.
        place: What the transform said of it; None when it could not be decoded or placed.
        verdict: What became of it. A message of kind SKIP is accepted with the cause "skip".
        rows: The rows that it emitted, in order.
        topic: Its topic.
    """

    offset: int
    place: Envelope | None
    verdict: Verdict
    rows: tuple[R, ...]
    topic: str = "testing"


@dataclass(frozen=True)
class RowWithOrigin(Generic[R]):
    """A row with its proof, as the table holds it.

    Attributes:
        row: What the transform emitted.
        topic: Name of the topic.
        offset: The message that the row comes from; of a timer's row, the session's last message.
        emit_offset: The offset that was being worked on when it was emitted.
        number: Which of the rows of that offset, from 0.
        session: Its session.
        sequence: The producer's number of the message; None for rows of timers.
        event_time_us: When it happened, in microseconds since 1970 (UTC).
    """

    row: R
    topic: str
    offset: int
    emit_offset: int
    number: int
    session: str
    sequence: int | None
    event_time_us: int | None


@dataclass(frozen=True)
class RejectedMessage:
    """A message that was not applied, and lies in the quarantine or in the late table.

    Attributes:
        topic: Name of the topic.
        offset: Its offset.
        session: Its session, where that is known.
        cause: Why, in a few words.
        expected: What would have been accepted.
        found: What came.
    """

    topic: str
    offset: int
    session: str | None
    cause: str
    expected: str | None
    found: str | None


@dataclass(frozen=True)
class RunResult(Generic[S, R]):
    """What came of all messages: up to the first violation, which is the last one that was read.

    Two results are equal when all of this is: so `run(...) == run(..., split=7)` is a test.

    Attributes:
        stream: Name of the stream.
        folded: The messages that were read, in order.
        states: The state of each open session, as it was saved and recovered. Sessions of a topic that a test
            began later stand as "topic: session".
        finding: The violation, as it would be committed with the halt; None without one.
        proven: All rows with their proof, in the order of the table: messages held back emit theirs when they are
            released.
        quarantine: What went to the quarantine, in order.
        late: What went to the late table, in order.
    """

    stream: str
    folded: tuple[MessageResult[R], ...]
    states: Mapping[str, S]
    finding: Finding | None
    proven: tuple[RowWithOrigin[R], ...] = ()
    quarantine: tuple[RejectedMessage, ...] = ()
    late: tuple[RejectedMessage, ...] = ()

    @property
    def rows(self) -> list[R]:
        """All rows, in the order of the table."""
        return [each.row for each in self.proven]

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
