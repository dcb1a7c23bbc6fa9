"""What every integrity class declares, and the policies on a violation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from lockstep.integrity.suspending import SuspendedSession, Suspending, adapted
from lockstep.integrity.verdict import Gate, GateState, Judgement


class Fault(Enum):
    """What can go wrong beside the messages that a gate judges."""

    UNDECODABLE = "undecodable"
    RAISED = "transform raised"
    HOLE = "hole"
    EXPIRED = "expired unread"
    TRUNCATED = "log truncated"
    RECREATED = "topic re-created"
    GONE = "topic gone"
    GREW = "partitions grew"


class Policy:
    """What happens to the stream on a violation."""


@dataclass(frozen=True)
class Halt(Policy):
    """Commit what came before, commit the halt with its evidence, end, and wait for an operator."""


@dataclass(frozen=True)
class Suspend(Policy):
    """Send the session's messages to quarantine until its next snapshot; the rest of the stream goes on."""


class OnGrowth(Enum):
    """What the growth of a topic by partitions does: its sessions may have moved, out of their order."""

    VIOLATION = "violation"
    RESTART_SESSIONS = "restart sessions"
    """All sessions of the topic are suspended until their next snapshot."""


@dataclass(frozen=True, kw_only=True)
class IntegrityClass(ABC):
    """A promise about the messages of a stream.

    Attributes:
        on_violation: What happens when the promise cannot be kept.
    """

    on_violation: Policy = Halt()  # a frozen value without parts

    answers: ClassVar[Mapping[Fault, Judgement]]
    """The class's verdict on each fault: violation, suspend, quarantine, or gap (counted, and gone on)."""
    passes_unknown_sessions: ClassVar[bool] = False
    """Whether an update of an unknown session opens it."""

    def answer(self, fault: Fault) -> Judgement:
        """The verdict on a fault, with the policy applied."""
        verdict = self.answers[fault]
        if fault is Fault.GREW and getattr(self, "on_growth", None) is OnGrowth.RESTART_SESSIONS:
            return Judgement.SUSPEND
        if verdict is Judgement.VIOLATION and isinstance(self.on_violation, Suspend) and fault is not Fault.GONE:
            return Judgement.SUSPEND
        return verdict

    @property
    def suspends(self) -> bool:
        """Whether sessions of this stream may be suspended."""
        return Judgement.SUSPEND in {self.answer(fault) for fault in Fault}

    def check_from(self, suspended_from: int, skipped: Collection[SuspendedSession] = ()) -> Gate:
        """The gate of a partition whose sessions are suspended where they began before an offset.

        A class that halts has suspended sessions too, after an operator decided so.
        """
        if not (self.suspends or suspended_from or skipped):
            return self.gate()
        bears = isinstance(self.on_violation, Suspend)
        return Suspending(self.gate(), suspended_from, skipped, bears_violations=bears)

    def adapted(self, state: GateState, suspended_from: int, skipped: Collection[SuspendedSession] = ()) -> GateState:
        """A stored state as the policy of today keeps it: policies may change between two runs."""
        return adapted(state, suspended_from, suspends=self.suspends or bool(suspended_from or skipped))

    @abstractmethod
    def gate(self) -> Gate:
        """The gate that judges the messages of this class."""

    @abstractmethod
    def promise(self) -> str:
        """The promise in one sentence, with its evidence, for people."""
