"""Rule, Ruling, sessions, multipart snapshots, watermark.

Memory of an open snapshot: {"p": buffered offsets, "g": memory of the class}.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from hashlib import blake2b
from typing import Any, NamedTuple, NoReturn, TypeGuard

import msgspec

from lockstep.model.record import Envelope, Kind, Record

Memory = int | bool | list[int] | dict[str, Any] | None
"""A class's memory of a session; None for an unknown session. Its stored form: stored.py."""


class GateAnswer(Enum):
    """A class's answer to a message that cannot be applied, or to lost offsets."""

    STOP = "stop"
    SUSPEND = "suspend"
    QUARANTINE = "quarantine"
    COUNT = "count"


class Action(Enum):
    """A rule's decision on one message."""

    ACCEPT = "accept"
    DROP = "drop"
    WAIT = "wait"
    """Quarantined, and the session is suspended, for any policy."""
    REFUSE = "refuse"
    """The promise is broken: the policy decides."""
    HOLD = "hold"
    """Buffered in the state."""
    LATE = "late"
    """Into the late table; no other effect."""
    ASIDE = "aside"
    """Quarantined; no other effect."""
    SKIP = "skip"
    """Counted; no other effect."""


class Ruling(NamedTuple):
    """A rule's decision, with the memory of the session if the message is accepted or buffered.

    Attributes:
        what: The decision.
        memory: The memory after it.
        cause: The reason; empty without a remark.
        before: Offsets of buffered messages that are applied before it, in order.
        after: Offsets of those that are applied after it.
        freed: Offsets of those that will not be applied.
        stale: Offsets of those that a snapshot covers: dropped and counted.
    """

    what: Action
    memory: Memory = None
    cause: str = ""
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    freed: tuple[int, ...] = ()
    stale: tuple[int, ...] = ()


GateRule = Callable[[Memory, Envelope, Record], Ruling]
"""From memory, envelope and record to a ruling."""


class GateRules(msgspec.Struct, frozen=True, kw_only=True):
    """The independent gate of an integrity class.

    Attributes:
        rule: The decision on one message.
        undecodable: The answer to an undecodable message.
        raised: The answer to a message on which the transform raises.
        hole: The answer to an unexplained offset gap.
        expired: The answer to offsets that expired unread.
        grew: The answer to a new partition of a topic.
        tolerates_violations: Whether a broken promise suspends the session instead of stopping the stream.
        passes_unknown: Whether an update of an unknown session opens it.
        of_one_partition: Whether a session in two partitions has lost its order.
        release: Releases buffered messages by the watermark; None for a class without such a buffer.
        tolerates_all: Whether no content of a message breaks the promise.
        by_time: Whether messages are compared with the watermark.
        at_first: Whether any update starts an unknown or suspended session.
        is_late: Whether a message is beyond the bound of its class; None for others.
        begins_later: The ruling that buffers the first message of a session without snapshots; None for a class
            whose sessions start with it.
    """

    rule: GateRule
    undecodable: GateAnswer
    raised: GateAnswer
    hole: GateAnswer
    expired: GateAnswer
    grew: GateAnswer
    tolerates_violations: bool
    passes_unknown: bool = False
    of_one_partition: bool = True
    release: Callable[[Memory, int], Ruling] | None = None
    tolerates_all: bool = False
    by_time: bool = False
    at_first: bool = False
    is_late: Callable[[Envelope, Record], bool] | None = None
    begins_later: Callable[[Envelope, Record], Ruling | None] | None = None

    @property
    def suspends(self) -> bool:
        """Whether sessions may be suspended: then the offset that opened each is stored with its memory."""
        return GateAnswer.SUSPEND in (self.undecodable, self.raised, self.hole, self.expired, self.grew)

    @property
    def needs_no_snapshot(self) -> bool:
        """Whether sessions are never suspended: each may start with any message."""
        return self.passes_unknown and not self.suspends


class NotProvable(Exception):  # no error: the reason why a proof ends here
    """The class, or a part of it, has no independent gate: its decisions are not proven.

    Attributes:
        reason: The reason, in a sentence.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def refuse_proof(cause: str) -> Ruling:
    """The ruling of a broken promise."""
    return Ruling(Action.REFUSE, None, cause)


def raise_not_provable(what: str) -> NoReturn:
    """Raise `NotProvable`: this cannot be proven yet."""
    raise NotProvable(f"{what} cannot be proven yet: no second gate knows it")


PARTS_MAX = 10_000
"""A longer snapshot is considered endless."""


def make_ruling(rules: GateRules, memory: Memory, envelope: Envelope, record: Record) -> Ruling:
    """The ruling of a class on a message, where snapshots may consist of several.

    Everything between a snapshot's first part and the message that completes it is buffered, in order and without
    gaps; each part counts as a snapshot to the class. An interrupted snapshot breaks the promise; a class that
    tolerates everything abandons it and continues.
    """
    if envelope.kind is not Kind.SNAPSHOT_PART and not is_multipart_open(memory):
        return rules.rule(memory, envelope, record)
    parts: list[int] = []
    inner = memory
    if is_multipart_open(memory):
        parts = memory["p"]
        inner = memory["g"]
    # Each part counts as a snapshot to the class, and is buffered until the message that completes it.
    ruling = rules.rule(inner, _as_snapshot(envelope), record)
    cause = _unfit(parts, envelope, ruling)
    if cause is not None and not rules.tolerates_all:
        return refuse_proof(cause)
    if ruling.what is not Action.ACCEPT:
        return ruling
    if cause is not None:
        ruling = ruling._replace(cause=cause, freed=tuple(parts))
        parts = []
    if envelope.kind is Kind.SNAPSHOT_PART or parts:
        if envelope.kind is Kind.SNAPSHOT:
            return ruling._replace(before=tuple(parts))
        return ruling._replace(what=Action.HOLD, memory={"p": [*parts, record.offset], "g": ruling.memory})
    return ruling


def _as_snapshot(envelope: Envelope) -> Envelope:
    """The envelope of a part of a snapshot as that of a whole snapshot, which the rules of a class know."""
    if envelope.kind is Kind.SNAPSHOT_PART:
        return msgspec.structs.replace(envelope, kind=Kind.SNAPSHOT)
    return envelope


def _unfit(parts: list[int], envelope: Envelope, ruling: Ruling) -> str | None:
    """Why a message cannot be part of the open snapshot, for any ruling of the class."""
    if parts and (envelope.restarts_sequence or envelope.kind is Kind.END):
        return "snapshot not complete"
    is_left_out = ruling.what in {Action.LATE, Action.ASIDE} and envelope.kind in {Kind.SNAPSHOT, Kind.SNAPSHOT_PART}
    if parts and is_left_out:
        return "snapshot not complete"
    if ruling.what is Action.HOLD or ruling.after or ruling.before or ruling.stale:
        return "snapshot out of order"
    return "snapshot too long" if ruling.what is Action.ACCEPT and len(parts) >= PARTS_MAX else None


def is_multipart_open(memory: Memory) -> TypeGuard[dict[str, Any]]:
    """Whether a snapshot is open."""
    return isinstance(memory, dict) and "p" in memory


def find_buffered(memory: Memory) -> tuple[int, ...]:
    """Offsets of a session's buffered messages: for the rest of a snapshot, or for their order."""
    if not isinstance(memory, dict):
        return ()
    if "p" in memory:
        return (*memory["p"], *find_buffered(memory["g"]))
    if "r" in memory:
        return find_buffered(memory["g"])
    early = tuple(offset for offset, *_ in memory.get("e", ()))
    return early or tuple(offset for _, offset, _ in memory.get("h", ()))


class SessionMemory(NamedTuple):
    """A session.

    Attributes:
        opened_at: Offset of the snapshot that started it.
        memory: The class's memory of it.
        waits: It is suspended: its messages are quarantined until its next snapshot.
        broken: The next snapshot may be only the rest of a multipart snapshot, which is quarantined, too.
        lost: It is suspended, and its state counts as lost.
    """

    opened_at: int
    memory: Memory
    waits: bool = False
    broken: bool = False
    lost: bool = False


class SessionOutcome(NamedTuple):
    """The outcome of one message.

    Attributes:
        what: Applied, buffered, late, dropped, skipped, quarantined (WAIT, ASIDE), or the end of the stream (REFUSE).
        known: The session after it.
        cause: The reason; empty without a remark.
        before: Offsets of buffered messages that are applied before it, in order.
        after: Offsets of those that are applied after it.
        freed: Offsets of those that will not be applied: they are quarantined.
        stale: Offsets of those that a snapshot covers: dropped and counted.
        begins: The message is an update that restarts a suspended session.
    """

    what: Action
    known: SessionMemory | None
    cause: str = ""
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    freed: tuple[int, ...] = ()
    stale: tuple[int, ...] = ()
    begins: bool = False


class Suspension(NamedTuple):
    """Sessions that are suspended without a message of theirs.

    Attributes:
        before: Sessions that started before this offset; an operator may set it beyond unread messages.
        skipped: Sessions that an operator skips, each with its offset.
    """

    before: int = 0
    skipped: Mapping[str, int] = {}

    def of(self, session: str) -> int:
        """The first offset at which a session may restart."""
        return max(self.before, self.skipped.get(session, 0))


def decide_outcome(
    rules: GateRules, known: SessionMemory | None, envelope: Envelope, record: Record, suspension: Suspension
) -> SessionOutcome:
    """The outcome of a message of a session; see `_fate` for the arguments."""
    if rules.needs_no_snapshot:
        return _unless_given_up(rules, known, envelope, record, suspension.of(envelope.session))
    return _fate(rules, known, envelope, record, suspension)


def _fate(
    rules: GateRules, known: SessionMemory | None, envelope: Envelope, record: Record, suspension: Suspension
) -> SessionOutcome:
    """The outcome of a message of a session.

    Args:
        rules: The class.
        known: The session; None if unknown.
        envelope: The message's envelope.
        record: Its record.
        suspension: The suspended sessions.
    """
    offset = record.offset
    from_offset = suspension.of(envelope.session)
    waits = known is not None and is_waiting(known, from_offset)
    buffered = _list_waiting(known)
    at_first = rules.at_first and envelope.kind is Kind.UPDATE and (known is None or waits)
    begins = (at_first or envelope.kind in {Kind.SNAPSHOT, Kind.SNAPSHOT_PART}) and offset >= from_offset
    skipped = known is None and suspension.skipped.get(envelope.session, 0) > 0
    if known is not None and waits and (not begins or (_is_broken(known) and not envelope.restarts_sequence)):
        return SessionOutcome(Action.WAIT, mark_suspended(known, envelope), "suspended", freed=buffered)
    if not begins and (skipped or offset < from_offset):
        return SessionOutcome(Action.WAIT, known, "suspended")
    previous = None if known is None or waits else known.memory
    ruling = make_ruling(rules, previous, envelope, record)
    what = ruling.what
    cause = ruling.cause
    if what in _GOES_ON:
        opened_at = offset if known is None or begins else known.opened_at
        going_on = _going_on(SessionMemory(opened_at, ruling.memory), ruling, freed=buffered if waits else ())
        return going_on._replace(begins=at_first and waits)
    is_whole = envelope.restarts_sequence or not is_multipart_open(previous)
    if begins and what not in _NOTHING_ELSE and previous is not None and rules.tolerates_violations and is_whole:
        fresh = make_ruling(rules, None, envelope, record)
        if fresh.what in _GOES_ON and not fresh.cause:
            return SessionOutcome(fresh.what, SessionMemory(offset, fresh.memory), cause, freed=buffered)
        what = fresh.what
        cause = fresh.cause
    may_have_begun_before = known is None and not begins and suspension.before != 0
    if what in _NOTHING_ELSE or (
        what is Action.REFUSE and not rules.tolerates_violations and not may_have_begun_before
    ):
        return SessionOutcome(what, known, cause)
    suspended = None
    if known is not None:
        suspended = mark_suspended(known, envelope)
    return SessionOutcome(Action.WAIT, suspended, cause, freed=buffered)


_GOES_ON = (Action.ACCEPT, Action.HOLD)
_NOTHING_ELSE = (Action.DROP, Action.LATE, Action.ASIDE, Action.SKIP)


def is_waiting(known: SessionMemory, from_offset: int) -> bool:
    """Whether a session is suspended: by a message, or because it started before an offset."""
    return known.waits or known.opened_at < from_offset


def mark_suspended(known: SessionMemory, envelope: Envelope | None = None) -> SessionMemory:
    """A session suspended until its next snapshot.

    Args:
        known: The session.
        envelope: The quarantined message, after which the rest of a snapshot may follow; None if the
            transform refused one.
    """
    may_go_on = envelope is not None and envelope.kind in {Kind.UPDATE, Kind.SNAPSHOT_PART}
    return known._replace(memory=None, waits=True, broken=may_go_on and _is_broken(known))


def _list_waiting(known: SessionMemory | None) -> tuple[int, ...]:
    """The buffered messages of a session that is not suspended."""
    if known is None or known.waits:
        return ()
    return find_buffered(known.memory)


def _is_broken(known: SessionMemory) -> bool:
    if known.waits:
        return known.broken
    return is_multipart_open(known.memory)


def _going_on(known: SessionMemory, ruling: Ruling, freed: tuple[int, ...]) -> SessionOutcome:
    freed = (*freed, *ruling.freed)
    return SessionOutcome(ruling.what, known, ruling.cause, ruling.before, ruling.after, freed, ruling.stale)


def _unless_given_up(
    rules: GateRules, known: SessionMemory | None, envelope: Envelope, record: Record, from_offset: int
) -> SessionOutcome:
    """For a class whose sessions need no snapshot: quarantine only the messages that an operator gave up."""
    if record.offset < from_offset:
        return SessionOutcome(Action.WAIT, known, "given up")
    memory = None if known is None else known.memory
    ruling = make_ruling(rules, memory, envelope, record)
    if ruling.what not in _GOES_ON:
        return SessionOutcome(ruling.what, known, ruling.cause)
    opened_at = record.offset if known is None else known.opened_at
    return _going_on(SessionMemory(opened_at, ruling.memory), ruling, freed=())


def is_same_memory(stored: Memory, memory: Memory) -> bool:
    """Whether a stored memory equals the proof's."""
    if stored is True and isinstance(memory, int | list):
        return True  # the session is known, no more: its messages were not counted then
    return type(stored) is type(memory) and stored == memory


UNKNOWN_US = -(2**63)
"""The watermark before the first event time."""
LATEST_US = 253_370_764_800_000_000
"""The year 9999: the ledger has no later watermark."""


class ReplayWatermark:
    """The watermark of a partition, and the limit of times that advance it.

    Attributes:
        at_us: The watermark, in microseconds since 1970 (UTC).
        latest_us: Times beyond it are absurd.
    """

    __slots__ = ("at_us", "latest_us")

    def __init__(self) -> None:
        self.at_us = UNKNOWN_US
        self.latest_us = LATEST_US

    def is_implausible(self, time_us: int) -> bool:
        """Whether no clock can have shown it."""
        return time_us < 0 or time_us > self.latest_us

    def advance(self, time_us: int) -> None:
        """Advance to a time: never back, and not to an absurd one."""
        if time_us > self.at_us and not self.is_implausible(time_us):
            self.at_us = time_us


def find_event_time(envelope: Envelope, record: Record) -> int:
    """Event time of a message: its own, else Kafka's. Raises TypeError for a value that is not an int."""
    time_us = envelope.event_time_us
    if time_us is None:
        time_us = record.timestamp_ms * 1000
    return require_int(time_us)


FIRST_TIME_US = -62_135_424_000_000_000
LAST_TIME_US = 253_402_300_799_999_999
"""0001-01-03 and the end of 9999 in UTC: not every reader of the table can return an earlier or later time."""
VALUE_NOT_STORABLE = "value not storable"
"""The quarantine's cause of a message with a value that the columns of the table cannot hold."""


def is_readable_time(time_us: int) -> bool:
    """Whether every reader of the table can return a time, in microseconds since 1970 (UTC)."""
    return FIRST_TIME_US <= time_us <= LAST_TIME_US


def name_absurd_time(envelope: Envelope) -> str:
    """The cause of an event time that no clock can have shown."""
    time_us = envelope.event_time_us
    return "absurd event time" if time_us is None or is_readable_time(time_us) else VALUE_NOT_STORABLE


def require_int(number: object) -> int:
    """Require an int: a state may return a float as another value, or as null."""
    if type(number) is not int:
        raise TypeError(f"a number or a time {number!r} that is not an int")
    return number


LARGEST = 2**63 - 1


def is_64_bit(number: int) -> bool:
    """Whether state and table can hold a producer's number. Raises TypeError for a value that is not an int."""
    return abs(require_int(number)) <= LARGEST


def may_be_sent(number: int, wraps_at: int | None) -> bool:
    """Whether a producer can have sent a number. Raises TypeError for a value that is not an int."""
    if wraps_at is None:
        return is_64_bit(number)
    return require_int(number) in range(wraps_at)


def count_on(number: int, last: int, wraps_at: int | None) -> int:
    """A number without its wrap-arounds: the candidate nearest to the last."""
    if wraps_at is None:
        return number
    ahead = (number - last) % wraps_at
    if ahead >= wraps_at - wraps_at // 2:  # nearer behind the last than ahead of it
        ahead -= wraps_at
    return last + ahead


def hash_content(record: Record) -> bytes:
    """The stored digest of a message's content."""
    return blake2b(record.value or b"", digest_size=8).digest()
