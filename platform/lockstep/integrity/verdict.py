"""What a gate says of one message."""

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
        expected: What would have been accepted without remark.
        found: What came.
        before: Offsets of messages held back, to be applied before this one, in order.
        after: Offsets of messages held back, to be applied after this one, in order.
        freed: Offsets of messages held back that will not be applied: they go to quarantine.
        stale: Offsets of messages held back that a snapshot covers: they are dropped, and counted.
        begins: It is an update, and begins its suspended session anew, as a snapshot would.
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
"""What a gate remembers of a session, saved with its state. None: the session is unknown."""


class Gate(ABC):
    """Judges the messages of a session in order. Pure: no clock, no Kafka, no Spark.

    A gate that compares times is made for one partition (`IntegrityClass.gate`) and reads its watermark.
    The state given to `check` is used up: it may be part of the one that comes back.
    """

    @abstractmethod
    def check(self, state: GateState, place: Envelope, record: Record) -> tuple[GateState, Verdict]:
        """Judge one message.

        Args:
            state: What the gate remembered of the session; None when it is unknown.
            place: What the transform said of the message.
            record: The Kafka record.

        Returns:
            What to remember if the message is accepted, held back, or suspends its session, and the verdict.
        """

    def adapt(self, state: GateState) -> GateState:
        """A stored state as this gate keeps it; None when another class or evidence left nothing that it can use."""
        return state

    def held(self, state: GateState) -> tuple[int, ...]:
        """Offsets of the session's messages that are held back."""
        return ()

    def due_us(self, state: GateState) -> int | None:
        """The watermark at which messages held back are not waited for any longer; None without any."""
        return None

    def due(self, state: GateState) -> tuple[GateState, Verdict]:
        """What is released now that the watermark has passed `due_us`: the verdict's `after`."""
        return state, ACCEPT


def report_violation(cause: str, expected: object, found: object) -> Verdict:
    """A verdict that breaks the promise."""
    return Verdict(judgement=Judgement.VIOLATION, cause=cause, expected=str(expected), found=str(found))


def accept_with_remark(cause: str, expected: object, found: object) -> Verdict:
    """Accepted, but counted under a cause: nobody gets silence."""
    return Verdict(judgement=Judgement.ACCEPT, cause=cause, expected=str(expected), found=str(found))


def report_unknown_session(place: Envelope, judgement: Judgement) -> Verdict:
    """The verdict on an update of a session without snapshot."""
    found = f"{place.kind.value} of a session without snapshot"
    return Verdict(judgement, UNKNOWN_SESSION, "a snapshot first", found)
