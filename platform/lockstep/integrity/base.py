"""IntegrityClass, Fault, policies Halt and Suspend, watermark."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import cached_property
from typing import ClassVar, Final

from lockstep.integrity.buffering import drop_buffer
from lockstep.integrity.gate_states import GateState
from lockstep.integrity.multipart import MultipartGate
from lockstep.integrity.opening import JoinedLog, OpeningAtFirst
from lockstep.integrity.suspension import SkipGate, SuspensionGate, migrate_gate_state
from lockstep.integrity.verdict import AnyGate, Judgement, Verdict
from lockstep.model.declaration import Declaration
from lockstep.model.fault import Fault
from lockstep.model.position import SuspendedSession
from lockstep.model.readable_times import EARLIEST_US, VALUE_NOT_STORABLE
from lockstep.model.readable_times import LATEST_US as READABLE_UNTIL_US
from lockstep.model.record import Envelope, Record

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)
LATEST_US: Final = (datetime(9999, 1, 1, tzinfo=UTC) - EPOCH) // MICROSECOND
"""Bound of `PartitionTime.latest_us`, a year before the last date of Python."""
LONGEST: Final = timedelta(days=36_525)
"""A century: the sum with a time must be a time that a state can hold."""
BEGINNING: Final = -(2**63)
"""The watermark of a partition without any event time yet."""


class PartitionTime:
    """The watermark of one partition while a range is folded.

    Attributes:
        watermark_us: Event time up to which the partition is complete, in microseconds since 1970 (UTC).
        latest_us: Later event times are absurd: planning time of the batch plus the allowed skew, in the calendar.
    """

    __slots__ = ("latest_us", "watermark_us")

    def __init__(self, watermark_us: int | None = None, latest_us: int = 2**63 - 1) -> None:
        self.watermark_us = BEGINNING if watermark_us is None else watermark_us
        self.latest_us = min(latest_us, LATEST_US)

    @property
    def known(self) -> int | None:
        """The watermark; None before the first event time."""
        return None if self.watermark_us == BEGINNING else self.watermark_us

    def is_implausible(self, time_us: int) -> bool:
        """Whether no producer with a clock can mean it: before 1970, or further ahead than clocks differ."""
        return not 0 <= time_us <= self.latest_us

    def advance(self, time_us: int) -> None:
        """Advance the watermark to an event time; absurd ones are ignored."""
        if self.watermark_us < time_us <= self.latest_us and time_us >= 0:
            self.watermark_us = time_us


def find_event_time(envelope: Envelope, record: Record) -> int:
    """The event time of a message: its own, else Kafka's timestamp; microseconds since 1970 (UTC).

    Raises:
        TypeError: The message's own time is not an int: a float could not be loaded again with the state.
    """
    time_us = envelope.event_time_us
    if time_us is None:
        return record.timestamp_ms * 1000
    if type(time_us) is not int:
        raise TypeError(f"Envelope.event_time_us = {time_us!r} is of type {type(time_us).__name__}, not int")
    return time_us


def to_microseconds(duration: timedelta) -> int:
    """A duration in microseconds."""
    return duration // MICROSECOND


def report_implausible_time(envelope: Envelope, happened_us: int) -> Verdict:
    """The verdict on an implausible event time; under every class it has one cause if readers could not return it."""
    is_storable = envelope.event_time_us is None or EARLIEST_US <= happened_us <= READABLE_UNTIL_US
    cause = "absurd event time" if is_storable else VALUE_NOT_STORABLE
    return Verdict(Judgement.QUARANTINE, cause, "since 1970, not in the far future", str(happened_us))


def report_late(happened_us: int, floor_us: int) -> Verdict:
    """The verdict on a late message."""
    return Verdict(Judgement.LATE, "late", f"event time {floor_us} or later", str(happened_us))


_OF_NO_SESSION = (Fault.TOPIC_DELETED, Fault.SESSION_SPLIT)
"""Violations that cannot suspend a session: the messages are gone, or the session's partition
is unknown."""


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
"""Answers of classes that preserve order but tolerate loss: losses are counted, affected sessions suspended."""


class Policy(Declaration):
    """The reaction of the stream to a violation."""


class HaltScope(Enum):
    """How much a violation halts."""

    STREAM = "stream"
    """The whole stream."""
    TOPIC = "topic"
    """The topic of the violation: it stays at its position, and all other topics continue."""


@dataclass(frozen=True)
class Halt(Policy):
    """Commit everything before the violation, commit the halt with its findings, and wait for an operator.

    Example: `Halt(HaltScope.TOPIC)`

    Attributes:
        scope: The extent of the halt.
    """

    scope: HaltScope = HaltScope.STREAM


@dataclass(frozen=True)
class Suspend(Policy):
    """Quarantine the session's messages until its next snapshot; the rest of the stream continues.

    Example: `Suspend(accept_loss=True)`

    Attributes:
        accept_loss: With that snapshot, record in the ledger that the loss is accepted.
    """

    accept_loss: bool = False


class OnGrowth(Enum):
    """The effect of new partitions of a topic: its sessions may have moved, out of their order."""

    VIOLATION = "violation"
    RESTART_SESSIONS = "restart sessions"
    """All sessions of the topic are suspended until their next snapshot."""


class SessionStart(Enum):
    """The message that starts a session."""

    SNAPSHOT = "snapshot"
    """A snapshot. Under `Once` and `NoIntegrity` the first message of an unknown session starts it, too."""
    FIRST_MESSAGE = "first message"
    """The first message, of any kind: for feeds without snapshots (telemetry, events). The next message of an unknown
    or suspended session starts it: `Transform.on_snapshot` makes its state.
    """


@dataclass(frozen=True, kw_only=True)
class IntegrityClass(Declaration):
    """A promise about the messages of a stream.

    Attributes:
        on_violation: The reaction to a violation of the promise.
        session_start: Which message starts a session: a snapshot, or the first message of any kind.
    """

    on_violation: Policy = Halt()  # a frozen value without parts
    session_start: SessionStart = SessionStart.SNAPSHOT

    fault_policy: ClassVar[Mapping[Fault, Judgement]]
    """The class's answer to each fault: violation, suspend, quarantine, or gap (counted, the stream continues)."""
    passes_unknown_sessions: ClassVar[bool] = False
    """Whether an update of an unknown session opens it."""
    tolerates_all: ClassVar[bool] = False
    """Whether no content of a message is a violation."""
    keeps_late: ClassVar[bool] = False
    """Whether late messages go to the late table instead of being dropped."""

    @property
    def opens_at_first(self) -> bool:
        """Whether a session may start at its first message, of any kind."""
        return self.session_start is SessionStart.FIRST_MESSAGE

    @property
    def replaces_states(self) -> bool:
        """Whether a session may restart without a snapshot: its previous state is then lost."""
        return self.opens_at_first or self.passes_unknown_sessions

    @property
    def halts_topics(self) -> bool:
        """Whether a violation halts its topic alone."""
        return isinstance(self.on_violation, Halt) and self.on_violation.scope is HaltScope.TOPIC

    @property
    def accepts_loss(self) -> bool:
        """Whether the declaration accepts that states are lost."""
        return isinstance(self.on_violation, Suspend) and self.on_violation.accept_loss

    def judge(self, fault: Fault) -> Judgement:
        """The verdict on a fault, with the policy applied."""
        verdict = self.fault_policy[fault]
        if fault is Fault.UNDECODABLE and verdict is Judgement.SUSPEND and self.opens_at_first:
            return Judgement.QUARANTINE  # a lost message is tolerated, and no snapshot would repair more than that
        if fault is Fault.PARTITIONS_ADDED and getattr(self, "on_growth", None) is OnGrowth.RESTART_SESSIONS:
            return Judgement.SUSPEND
        if verdict is Judgement.VIOLATION and isinstance(self.on_violation, Suspend) and fault not in _OF_NO_SESSION:
            return Judgement.SUSPEND
        return verdict

    @cached_property
    def suspends(self) -> bool:
        """Whether sessions of this stream may be suspended."""
        return Judgement.SUSPEND in {self.judge(fault) for fault in Fault}

    def __getstate__(self) -> dict[str, object]:
        """Exclude values computed from the fields."""
        return {name: value for name, value in self.__dict__.items() if name != "suspends"}

    @property
    def is_timed(self) -> bool:
        """Whether the gate compares messages with the watermark."""
        return False

    @property
    def unordered_because(self) -> str:
        """Why the numbers of a session may fall or repeat in the table; empty if they do so only at a restart.

        They restart with a snapshot and with the first message of a session, in every class.
        """
        return "the class applies messages in any order"

    @property
    def buffers_messages(self) -> bool:
        """Whether messages are buffered until the watermark passes."""
        return False

    @property
    def buffer(self) -> str:
        """The declaration by which messages wait in the state, for example "reorder=True"; empty if none do."""
        return ""

    @property
    def waits_for_snapshot(self) -> bool:
        """Whether updates of an unknown session are buffered until its snapshot."""
        return False

    def gate_for(
        self,
        suspended_from: int,
        time: PartitionTime,
        skipped: Collection[SuspendedSession] = (),
        *,
        spread: bool = False,
        joined: bool = False,
    ) -> AnyGate:
        """The gate of one partition.

        A class that halts also has suspended sessions, after an operator accepted a loss.

        Args:
            suspended_from: Sessions that started before this offset are suspended.
            time: The partition's watermark.
            skipped: Sessions that an operator skips.
            spread: Snapshots may consist of several messages.
            joined: The log was joined in the middle: sessions may have started before the first message read.
        """
        at_first = self.opens_at_first
        takes_unknown = at_first or self.passes_unknown_sessions or self.waits_for_snapshot
        # From the inside to the outside: each gate judges before those in it.
        gate = self.gate(time)
        if joined:
            gate = JoinedLog(gate, skips=not takes_unknown)
        if at_first and not self.passes_unknown_sessions:
            gate = OpeningAtFirst(gate)
        if spread:
            gate = MultipartGate(gate, tolerates_all=self.tolerates_all)
        if not self.may_suspend(suspended_from, skipped):
            if suspended_from > 0 or skipped:
                gate = SkipGate(gate, suspended_from, skipped)
            return gate
        return SuspensionGate(
            gate,
            suspended_from,
            skipped,
            tolerates_violations=isinstance(self.on_violation, Suspend),
            accepts_loss=self.accepts_loss,
            opens_at_first=at_first,
        )

    def make_state_adapter(
        self, suspended_from: int, skipped: Collection[SuspendedSession] = ()
    ) -> Callable[[GateState], GateState]:
        """Adapts a stored gate state to the current declaration: class and policy may change between runs."""
        gate = self.gate(PartitionTime())
        if self.opens_at_first and not self.passes_unknown_sessions:
            gate = OpeningAtFirst(gate)
        suspends = self.may_suspend(suspended_from, skipped)
        inner = MultipartGate(gate)
        before = 0 if self.passes_unknown_sessions else suspended_from
        if self.waits_for_snapshot:
            return lambda state: migrate_gate_state(state, before, suspends=suspends, inner=inner)
        return lambda state: migrate_gate_state(drop_buffer(state), before, suspends=suspends, inner=inner)

    def may_suspend(self, suspended_from: int, skipped: Collection[SuspendedSession]) -> bool:
        """Whether sessions of a partition may be suspended: by the declaration, or by an operator's decision.

        Sessions of a class without snapshots have none to wait for: an operator's decision lets them continue.
        """
        return self.suspends or (bool(suspended_from or skipped) and not self.passes_unknown_sessions)

    @abstractmethod
    def gate(self, time: PartitionTime) -> AnyGate:
        """The gate of this class for one partition."""

    @abstractmethod
    def guarantee(self) -> str:
        """The promise in one sentence, with its evidence, for people."""
