"""What a gate says of one message."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Protocol

import msgspec

from lockstep.declare.place import Place
from lockstep.declare.record import Record


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
    """

    judgement: Judgement
    cause: str = ""
    expected: str | None = None
    found: str | None = None


ACCEPT = Verdict(judgement=Judgement.ACCEPT)
"""The usual verdict. Compared by identity on the hot path."""

GateState = int | bool | list[int] | Mapping[str, object] | None
"""What a gate remembers of a session, saved with its state. None: the session is unknown."""


class Gate(Protocol):
    """Judges the messages of a session in order. Pure: no clock, no Kafka, no Spark."""

    def check(self, state: GateState, place: Place, record: Record) -> tuple[GateState, Verdict]:
        """Judge one message.

        Args:
            state: What the gate remembered of the session; None when it is unknown.
            place: What the transform said of the message.
            record: The Kafka record.

        Returns:
            What to remember if the message is accepted (or suspends its session), and the verdict.
        """
        ...


def violation(cause: str, expected: object, found: object) -> Verdict:
    """A verdict that breaks the promise."""
    return Verdict(judgement=Judgement.VIOLATION, cause=cause, expected=str(expected), found=str(found))


def noticed(cause: str, expected: object, found: object) -> Verdict:
    """Accepted, but counted under a cause: nobody gets silence."""
    return Verdict(judgement=Judgement.ACCEPT, cause=cause, expected=str(expected), found=str(found))
