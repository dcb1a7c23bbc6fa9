"""IntegrityClass, Fault, policies Halt and Suspend, watermark."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import ClassVar, Final

from lockstep.integrity.buffering import drop_buffer
from lockstep.integrity.multipart import MultipartGate
from lockstep.integrity.opening import OpeningAtFirst
from lockstep.integrity.suspension import SkipGate, SuspendedSession, SuspensionGate, migrate_gate_state
from lockstep.integrity.verdict import Gate, GateState, Judgement, Verdict
from lockstep.model.record import Envelope, Record

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)
BEGINNING: Final = -(2**63)
"""The watermark of a partition that has seen no time."""


class PartitionTime:
    """The watermark of one partition while a range is folded.

    Attributes:
        watermark_us: Event time up to which the partition has come, in microseconds since 1970 (UTC).
        latest_us: Event times beyond it are absurd: when the batch was planned, and the allowed skew.
    """

    __slots__ = ("latest_us", "watermark_us")

    def __init__(self, watermark_us: int | None = None, latest_us: int = 2**63 - 1) -> None:
        self.watermark_us = BEGINNING if watermark_us is None else watermark_us
        self.latest_us = latest_us

    @property
    def known(self) -> int | None:
        """The watermark; None as long as no time was seen."""
        return None if self.watermark_us == BEGINNING else self.watermark_us

    def is_absurd(self, time_us: int) -> bool:
        """Whether no producer with a clock can mean it: before 1970, or further ahead than clocks differ."""
        return not 0 <= time_us <= self.latest_us

    def see(self, time_us: int) -> None:
        """Move the watermark up to a time; absurd ones move nothing."""
        if self.watermark_us < time_us <= self.latest_us and time_us >= 0:
            self.watermark_us = time_us


def find_event_time(place: Envelope, record: Record) -> int:
    """When a message happened: as it says, else Kafka's timestamp; microseconds since 1970 (UTC)."""
    return record.timestamp_ms * 1000 if place.event_time_us is None else place.event_time_us


def to_microseconds(duration: timedelta) -> int:
    """A duration in microseconds."""
    return duration // MICROSECOND


def is_implausible(happened_us: int) -> Verdict:
    """The verdict on a time that no clock shows."""
    return Verdict(Judgement.QUARANTINE, "absurd event time", "since 1970, not in the far future", str(happened_us))


def is_late(happened_us: int, floor_us: int) -> Verdict:
    """The verdict on a message beyond the bound of lateness."""
    return Verdict(Judgement.LATE, "late", f"event time {floor_us} or later", str(happened_us))


class Fault(Enum):
    """What can go wrong beside the messages that a gate judges."""

    UNDECODABLE = "undecodable"
    TRANSFORM_FAILED = "transform raised"
    HOLE = "hole"
    EXPIRED = "expired unread"
    TRUNCATED = "log truncated"
    RECREATED = "topic re-created"
    TOPIC_DELETED = "topic gone"
    PARTITIONS_ADDED = "partitions grew"
    SESSION_SPLIT = "session in two partitions"


_OF_NO_SESSION = (Fault.TOPIC_DELETED, Fault.SESSION_SPLIT)
"""Violations for which nothing can be suspended: the messages are gone, or nobody knows in which partition they
belong to their session."""


MAY_SKIP: Mapping[Fault, Judgement] = {
    Fault.UNDECODABLE: Judgement.SUSPEND,
    Fault.TRANSFORM_FAILED: Judgement.SUSPEND,
    Fault.HOLE: Judgement.GAP,
    Fault.EXPIRED: Judgement.SUSPEND,
    Fault.TRUNCATED: Judgement.SUSPEND,
    Fault.RECREATED: Judgement.GAP,
    Fault.TOPIC_DELETED: Judgement.GAP,
    Fault.PARTITIONS_ADDED: Judgement.VIOLATION,
    Fault.SESSION_SPLIT: Judgement.VIOLATION,
}
"""What classes answer that keep an order and may skip: what is missing is counted, what may be wrong suspended."""


class Policy:
    """What happens to the stream on a violation."""


@dataclass(frozen=True)
class Halt(Policy):
    """Commit what came before, commit the halt with its evidence, end, and wait for an operator."""


@dataclass(frozen=True)
class Suspend(Policy):
    """Send the session's messages to quarantine until its next snapshot; the rest of the stream goes on.

    Attributes:
        accept_loss: When the snapshot has come, write in the ledger that what was lost is accepted.
    """

    accept_loss: bool = False


class OnGrowth(Enum):
    """What the growth of a topic by partitions does: its sessions may have moved, out of their order."""

    VIOLATION = "violation"
    RESTART_SESSIONS = "restart sessions"
    """All sessions of the topic are suspended until their next snapshot."""


class SessionStart(Enum):
    """Which message begins a session."""

    SNAPSHOT = "snapshot"
    """A snapshot. `Once` and `NoIntegrity` also let the first message of an unknown session begin it."""
    FIRST_MESSAGE = "first message"
    """The first message, whatever its kind: for feeds without snapshots (telemetry, events). Where a session is
    unknown or suspended, its next message begins it as a snapshot would: `Transform.on_snapshot` makes the state of it.
    An END of an unknown session changes nothing."""


@dataclass(frozen=True, kw_only=True)
class IntegrityClass(ABC):
    """A promise about the messages of a stream.

    Attributes:
        on_violation: What happens when the promise cannot be kept.
        session_start: Which message begins a session: a snapshot, or the first one whatever it is.
    """

    on_violation: Policy = Halt()  # a frozen value without parts
    session_start: SessionStart = SessionStart.SNAPSHOT

    answers: ClassVar[Mapping[Fault, Judgement]]
    """The class's verdict on each fault: violation, suspend, quarantine, or gap (counted, and gone on)."""
    passes_unknown_sessions: ClassVar[bool] = False
    """Whether an update of an unknown session opens it."""
    tolerates_all: ClassVar[bool] = False
    """Whether nothing that a message says of itself is a violation."""
    keeps_late: ClassVar[bool] = False
    """Whether late messages go to the late table instead of being dropped."""

    def answer(self, fault: Fault) -> Judgement:
        """The verdict on a fault, with the policy applied."""
        verdict = self.answers[fault]
        if fault is Fault.PARTITIONS_ADDED and getattr(self, "on_growth", None) is OnGrowth.RESTART_SESSIONS:
            return Judgement.SUSPEND
        if verdict is Judgement.VIOLATION and isinstance(self.on_violation, Suspend) and fault not in _OF_NO_SESSION:
            return Judgement.SUSPEND
        return verdict

    @property
    def suspends(self) -> bool:
        """Whether sessions of this stream may be suspended."""
        return Judgement.SUSPEND in {self.answer(fault) for fault in Fault}

    @property
    def is_timed(self) -> bool:
        """Whether the gate compares messages with the watermark."""
        return False

    @property
    def in_order(self) -> bool:
        """Whether the numbers of a session only rise in the table."""
        return False

    @property
    def buffers_messages(self) -> bool:
        """Whether messages are held back until the watermark passes."""
        return False

    @property
    def waits_for_snapshot(self) -> bool:
        """Whether updates of an unknown session wait for its snapshot."""
        return False

    def gate_for(
        self,
        suspended_from: int,
        time: PartitionTime,
        skipped: Collection[SuspendedSession] = (),
        *,
        spread: bool = False,
    ) -> Gate:
        """The gate of one partition.

        A class that halts has suspended sessions too, after an operator decided so.

        Args:
            suspended_from: Sessions that began before this offset are suspended.
            time: The partition's.
            skipped: Sessions that an operator skips.
            spread: Snapshots may lie over several messages.
        """
        at_first = self.session_start is SessionStart.FIRST_MESSAGE
        gate = OpeningAtFirst(self.gate(time)) if at_first and not self.passes_unknown_sessions else self.gate(time)
        gate = MultipartGate(gate, tolerates_all=self.tolerates_all) if spread else gate
        if not self.may_suspend(suspended_from, skipped):
            return SkipGate(gate, suspended_from, skipped) if suspended_from > 0 or skipped else gate
        policy = self.on_violation
        bears, accepts = isinstance(policy, Suspend), isinstance(policy, Suspend) and policy.accept_loss
        return SuspensionGate(
            gate, suspended_from, skipped, tolerates_violations=bears, accepts_loss=accepts, opens_at_first=at_first
        )

    def adapter(
        self, suspended_from: int, skipped: Collection[SuspendedSession] = ()
    ) -> Callable[[GateState], GateState]:
        """Makes of a stored state what the declaration of today keeps: class and policy may change between runs."""
        suspends, inner = self.may_suspend(suspended_from, skipped), MultipartGate(self.gate(PartitionTime()))
        before = 0 if self.passes_unknown_sessions else suspended_from
        if self.waits_for_snapshot:
            return lambda state: migrate_gate_state(state, before, suspends=suspends, inner=inner)
        return lambda state: migrate_gate_state(drop_buffer(state), before, suspends=suspends, inner=inner)

    def may_suspend(self, suspended_from: int, skipped: Collection[SuspendedSession]) -> bool:
        """Whether sessions of a partition may be suspended: by the declaration, or because an operator decided so.

        Sessions of a class that needs no snapshots have none to wait for: an operator's decision lets them go on.
        """
        return self.suspends or (bool(suspended_from or skipped) and not self.passes_unknown_sessions)

    @abstractmethod
    def gate(self, time: PartitionTime) -> Gate:
        """The gate that judges the messages of this class in one partition."""

    @abstractmethod
    def promise(self) -> str:
        """The promise in one sentence, with its evidence, for people."""
