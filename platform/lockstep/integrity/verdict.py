"""Verdict, Judgement and Gate: the decision on one message."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from enum import Enum

import msgspec

from lockstep.model.record import Envelope, Record


class Judgement(Enum):
    """The kinds of verdict."""

    ACCEPT = "accept"
    DUPLICATE = "duplicate"
    LATE = "late"
    SKIP = "skip"
    """Skipped: it precedes the first snapshot of its session, in a log that was joined in the middle."""
    GAP = "gap"
    BUFFER = "buffer"
    QUARANTINE = "quarantine"
    SUSPEND = "suspend"
    VIOLATION = "violation"


class Verdict(msgspec.Struct, frozen=True):
    """A judgement with its reason.

    Attributes:
        judgement: What happens to the message.
        cause: Why, in a few words; also the name under which it is counted.
        expected: What would have been accepted without a remark.
        found: What was found.
        before: Offsets of buffered messages to be applied before this one, in order.
        after: Offsets of buffered messages to be applied after this one, in order.
        freed: Offsets of buffered messages that will not be applied: they are quarantined.
        stale: Offsets of buffered messages that a snapshot covers: they are dropped and counted.
        begins: It is an update that restarts its suspended session, as a snapshot would.
    """

    judgement: Judgement
    cause: str = ""
    expected: str | None = None
    found: str | None = None
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    freed: tuple[int, ...] = ()
    stale: tuple[int, ...] = ()
    begins: bool = False


UNKNOWN_SESSION = "unknown session"
"""The cause of the verdict on an update of a session without snapshot."""
ACCEPT = Verdict(judgement=Judgement.ACCEPT)
"""The usual verdict. Compared by identity on the hot path."""

GateState = int | bool | Sequence[int] | Mapping[str, object] | None
"""The memory of a gate for one session, saved with its state. None: the session is unknown."""


class Gate(ABC):
    """Judges the messages of a session in order. Pure: no clock, no Kafka, no Spark.

    A gate that compares times is made for one partition (`IntegrityClass.gate`) and reads its watermark.
    The state given to `check` is consumed: it may be part of the returned one.
    """

    @abstractmethod
    def check(self, state: GateState, envelope: Envelope, record: Record) -> tuple[GateState, Verdict]:
        """Judge one message.

        Args:
            state: The gate's memory of the session; None when it is unknown.
            envelope: The envelope of the message.
            record: The Kafka record.

        Returns:
            The memory if the message is accepted, buffered, or suspends its session, and the verdict.
        """

    def adapt(self, state: GateState) -> GateState:
        """A stored state in this gate's form; None when the state of another class or evidence is of no use to it."""
        return state

    def held(self, state: GateState) -> tuple[int, ...]:
        """Offsets of the session's buffered messages."""
        return ()

    def due_us(self, state: GateState) -> int | None:
        """The watermark at which buffered messages are released regardless; None without any."""
        return None

    def due(self, state: GateState, until_us: int) -> tuple[GateState, Verdict]:
        """The messages that are released by a watermark: the verdict's `after`."""
        return state, ACCEPT

    def find_late(self, envelope: Envelope, record: Record) -> Verdict | None:
        """The verdict on a message that is late whatever is known of its session; None for one that is not."""
        return None

    def buffer_first(self, envelope: Envelope, record: Record) -> tuple[GateState, Verdict] | None:
        """Buffer the first message of a session that needs no snapshot; None where it begins the session at once."""
        return None


def report_violation(cause: str, expected: object, found: object) -> Verdict:
    """The verdict of a broken promise."""
    return Verdict(judgement=Judgement.VIOLATION, cause=cause, expected=str(expected), found=str(found))


def accept_with_remark(cause: str, expected: object, found: object) -> Verdict:
    """Accepted, but counted under a cause: nothing is silent."""
    return Verdict(judgement=Judgement.ACCEPT, cause=cause, expected=str(expected), found=str(found))


def report_unknown_session(envelope: Envelope, judgement: Judgement) -> Verdict:
    """The verdict on an update of a session without snapshot."""
    found = f"{envelope.kind.value} of a session without snapshot"
    return Verdict(judgement, UNKNOWN_SESSION, "a snapshot first", found)
