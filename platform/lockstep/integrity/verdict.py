"""Verdict, Judgement and Gate: the decision on one message."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import Any, Generic

import msgspec
from typing_extensions import override

from lockstep.integrity.gate_states import GateState, M
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
        found: The value or state that was found.
        before: Offsets of buffered messages to be applied before this message, in order.
        after: Offsets of buffered messages to be applied after this message, in order.
        freed: Offsets of buffered messages that will not be applied: they are quarantined.
        stale: Offsets of buffered messages that a snapshot covers: they are dropped and counted.
        begins: The message is an update that restarts its suspended session, as a snapshot would.
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


class Gate(ABC, Generic[M]):
    """Judges the messages of a session in order. Pure: no clock, no Kafka, no Spark.

    Its type parameter is the type of its state, which is stored with the user's state. A state None is that of an
    unknown session. A gate that compares times is made for one partition (`IntegrityClass.gate`) and reads its
    watermark. The state given to `check` is consumed: it may be part of the returned one.
    """

    @abstractmethod
    def check(self, state: M | None, envelope: Envelope, record: Record) -> tuple[M | None, Verdict]:
        """Judge one message.

        Args:
            state: The gate's memory of the session; None when it is unknown.
            envelope: The envelope of the message.
            record: The Kafka record.

        Returns:
            The memory if the message is accepted, buffered, or suspends its session, and the verdict.
        """

    @abstractmethod
    def migrate_state(self, state: GateState) -> M | None:
        """A stored state as this gate's own; None if the state of another class or evidence is of no use to it."""

    def buffered_offsets(self, state: M | None) -> tuple[int, ...]:
        """Offsets of the session's buffered messages."""
        return ()

    def due_us(self, state: M | None) -> int | None:
        """The watermark at which buffered messages are released despite a gap; None without any."""
        return None

    def release_due(self, state: M | None, until_us: int) -> tuple[M | None, Verdict]:
        """Release the messages that are due at a watermark: the verdict's `after`."""
        return state, ACCEPT

    def find_late(self, envelope: Envelope, record: Record) -> Verdict | None:
        """The verdict on a message that is late for any session; None for a message that is not late."""
        return None

    def buffer_first(self, envelope: Envelope, record: Record) -> tuple[M | None, Verdict] | None:
        """Buffer the first message of a session that needs no snapshot; None if it starts the session immediately."""
        return None


class WrappingGate(Gate[M]):
    """A gate with the states of its inner gate; it decides on some messages by itself."""

    def __init__(self, inner: Gate[M]) -> None:
        self._inner = inner

    @override
    def check(self, state: M | None, envelope: Envelope, record: Record) -> tuple[M | None, Verdict]:
        return self._inner.check(state, envelope, record)

    @override
    def migrate_state(self, state: GateState) -> M | None:
        return self._inner.migrate_state(state)

    @override
    def buffered_offsets(self, state: M | None) -> tuple[int, ...]:
        return self._inner.buffered_offsets(state)

    @override
    def due_us(self, state: M | None) -> int | None:
        return self._inner.due_us(state)

    @override
    def release_due(self, state: M | None, until_us: int) -> tuple[M | None, Verdict]:
        return self._inner.release_due(state, until_us)

    @override
    def find_late(self, envelope: Envelope, record: Record) -> Verdict | None:
        return self._inner.find_late(envelope, record)

    @override
    def buffer_first(self, envelope: Envelope, record: Record) -> tuple[M | None, Verdict] | None:
        return self._inner.buffer_first(envelope, record)


AnyGate = Gate[Any]
"""A gate of any class: its states are its own, or from `migrate_state`."""


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
