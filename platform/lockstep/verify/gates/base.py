"""Rule, Ruling, sessions, multipart snapshots, watermark.

While one is on its way, memory is {"p": offsets that are held back, "g": what the class remembers inside}.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from hashlib import blake2b
from typing import Any, NamedTuple, NoReturn, TypeGuard

import msgspec

from lockstep.model.record import Envelope, Kind, Record

Memory = int | bool | list[int] | dict[str, Any] | None
"""What a class remembers of a session, as it is stored; None for a session that is not known."""


class GateAnswer(Enum):
    """What a class does about a message that it cannot apply, or about offsets that are gone."""

    STOP = "stop"
    SUSPEND = "suspend"
    QUARANTINE = "quarantine"
    COUNT = "count"


class Action(Enum):
    """What a rule says of one message."""

    ACCEPT = "accept"
    DROP = "drop"
    WAIT = "wait"
    """Into quarantine, and the session waits for a snapshot, whatever the policy is."""
    REFUSE = "refuse"
    """The promise is broken: the policy says what follows."""
    HOLD = "hold"
    """Held back in the state until something else comes."""
    LATE = "late"
    """Into the late table, and nothing else happens."""
    ASIDE = "aside"
    """Into quarantine, and nothing else happens."""


class Ruling(NamedTuple):
    """What a rule says, with what is remembered of the session if the message is accepted or held back.

    Attributes:
        what: What becomes of the message.
        memory: What is remembered then.
        cause: Why; empty where nothing was remarked.
        before: Offsets of messages held back that are applied before it, in order.
        after: Offsets of those that are applied after it.
        freed: Offsets of those that will not be applied.
        stale: Offsets of those that a snapshot covers: dropped, and counted.
    """

    what: Action
    memory: Memory = None
    cause: str = ""
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    freed: tuple[int, ...] = ()
    stale: tuple[int, ...] = ()


GateRule = Callable[[Memory, Envelope, Record], Ruling]
"""From what is remembered, the message's place and its record to a ruling."""


class GateRules(msgspec.Struct, frozen=True, kw_only=True):
    """An integrity class, as its second gate sees it.

    Attributes:
        rule: What it says of one message.
        undecodable: What it does about a message that cannot be decoded.
        raised: What it does about one on which the transform raises.
        hole: What it does about a hole that nothing explains.
        expired: What it does about offsets that were gone before they were read.
        grew: What it does when a topic gets another partition.
        bears: Whether a broken promise suspends the session instead of stopping the stream.
        passes_unknown: Whether an update of an unknown session opens it.
        of_one_partition: Whether a session in two partitions has lost its order.
        release: What waits no longer, by the watermark; None for a class in which nothing waits for that.
        tolerates_all: Whether nothing that a message says of itself breaks the promise.
        by_time: Whether messages are compared with the watermark.
        at_first: Whether any update begins a session that is unknown or waits.
    """

    rule: GateRule
    undecodable: GateAnswer
    raised: GateAnswer
    hole: GateAnswer
    expired: GateAnswer
    grew: GateAnswer
    bears: bool
    passes_unknown: bool = False
    of_one_partition: bool = True
    release: Callable[[Memory], Ruling] | None = None
    tolerates_all: bool = False
    by_time: bool = False
    at_first: bool = False

    @property
    def suspends(self) -> bool:
        """Whether sessions may be suspended: then the offset that opened each is stored beside its memory."""
        return GateAnswer.SUSPEND in (self.undecodable, self.raised, self.hole, self.expired, self.grew)

    @property
    def needs_no_snapshot(self) -> bool:
        """Whether sessions never wait: each may begin with any message."""
        return self.passes_unknown and not self.suspends


class NotProvable(Exception):  # no error: the reason why a proof ends here
    """The class, or a part of it, has no second gate: what it decided is not proven.

    Attributes:
        reason: Why, in a sentence.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def refuse_proof(cause: str) -> Ruling:
    """The promise is broken."""
    return Ruling(Action.REFUSE, None, cause)


def raise_not_provable(what: str) -> NoReturn:
    """Say that a proof of something is not there yet."""
    raise NotProvable(f"{what} cannot be proven yet: no second gate knows it")


PARTS_MAX = 10_000
"""A longer snapshot is taken for one that never ends."""


def make_ruling(rules: GateRules, memory: Memory, place: Envelope, record: Record) -> Ruling:
    """What a class says of a message, where snapshots may lie over several.

    All that comes between a snapshot's first part and the message that completes it is held back, in order, without
    anything missing; each part counts as a snapshot to the class. One that is interrupted breaks the promise; a class
    that bears all gives it up and goes on.
    """
    if place.kind is not Kind.SNAPSHOT_PART and not is_multipart_open(memory):
        return rules.rule(memory, place, record)
    parts, inner = (memory["p"], memory["g"]) if is_multipart_open(memory) else ([], memory)
    as_snapshot = msgspec.structs.replace(place, kind=Kind.SNAPSHOT) if place.kind is Kind.SNAPSHOT_PART else place
    ruling = rules.rule(inner, as_snapshot, record)
    cause = _unfit(parts, place, ruling)
    if cause is not None and not rules.tolerates_all:
        return refuse_proof(cause)
    if ruling.what is not Action.ACCEPT:
        return ruling
    if cause is not None:
        ruling, parts = ruling._replace(cause=cause, freed=tuple(parts)), []
    if place.kind is Kind.SNAPSHOT_PART or parts:
        if place.kind is Kind.SNAPSHOT:
            return ruling._replace(before=tuple(parts))
        return ruling._replace(what=Action.HOLD, memory={"p": [*parts, record.offset], "g": ruling.memory})
    return ruling


def _unfit(parts: list[int], place: Envelope, ruling: Ruling) -> str | None:
    """Why a message cannot be part of the snapshot that is on its way, whatever the class says of it."""
    if parts and (place.restarts_sequence or place.kind is Kind.END):
        return "snapshot not complete"
    if ruling.what is Action.HOLD or ruling.after or ruling.before or ruling.stale:
        return "snapshot out of order"
    return "snapshot too long" if ruling.what is Action.ACCEPT and len(parts) >= PARTS_MAX else None


def is_multipart_open(memory: Memory) -> TypeGuard[dict[str, Any]]:
    """Whether a snapshot has begun and is not complete."""
    return isinstance(memory, dict) and "p" in memory


def find_buffered(memory: Memory) -> tuple[int, ...]:
    """Offsets of a session's messages that wait: for the rest of a snapshot, or for their turn."""
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
        opened_at: Offset of the snapshot that began it.
        memory: What the class remembers of it.
        waits: Its messages go to quarantine until its next snapshot.
        broken: That one may only be the rest of a snapshot in parts, which goes to quarantine, too.
    """

    opened_at: int
    memory: Memory
    waits: bool = False
    broken: bool = False


class SessionOutcome(NamedTuple):
    """What becomes of one message.

    Attributes:
        what: Applied, held back, late, dropped, kept in quarantine (WAIT, ASIDE), or the end of the stream (REFUSE).
        known: The session from now on.
        cause: Why; empty where nothing was remarked.
        before: Offsets of messages held back that are applied before it, in order.
        after: Offsets of those that are applied after it.
        freed: Offsets of those that will not be applied: they go to quarantine.
        stale: Offsets of those that a snapshot covers: dropped, and counted.
        begins: It is an update that begins a waiting session anew.
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
    """Who waits for a snapshot without having done anything.

    Attributes:
        before: Sessions that began before this offset; an operator may set it past messages that are not read yet.
        skipped: Sessions that an operator skips, each with such an offset of its own.
    """

    before: int = 0
    skipped: Mapping[str, int] = {}

    def of(self, session: str) -> int:
        """The offset from which on a session may begin again."""
        return max(self.before, self.skipped.get(session, 0))


def decide_outcome(
    rules: GateRules, known: SessionMemory | None, place: Envelope, record: Record, suspension: Suspension
) -> SessionOutcome:
    """What becomes of a message of a session; see `_fate` for what is given."""
    if rules.needs_no_snapshot:
        return _unless_given_up(rules, known, place, record, suspension.of(place.session))
    return _fate(rules, known, place, record, suspension)


def _fate(
    rules: GateRules, known: SessionMemory | None, place: Envelope, record: Record, suspension: Suspension
) -> SessionOutcome:
    """What becomes of a message of a session.

    Args:
        rules: The class.
        known: The session; None where it is not known.
        place: The message's place.
        record: Its record.
        suspension: Who waits.
    """
    offset, from_offset = record.offset, suspension.of(place.session)
    waits = known is not None and is_waiting(known, from_offset)
    held = () if known is None or known.waits else find_buffered(known.memory)
    at_first = rules.at_first and place.kind is Kind.UPDATE and (known is None or waits)
    begins = (at_first or place.kind in {Kind.SNAPSHOT, Kind.SNAPSHOT_PART}) and offset >= from_offset
    skipped = known is None and place.session in suspension.skipped
    if known is not None and waits and (not begins or (_is_broken(known) and not place.restarts_sequence)):
        return SessionOutcome(Action.WAIT, mark_suspended(known, place), "suspended", freed=held)
    if not begins and (skipped or offset < from_offset):
        return SessionOutcome(Action.WAIT, known, "suspended")
    before = None if known is None or waits else known.memory
    ruling = make_ruling(rules, before, place, record)
    what, cause = ruling.what, ruling.cause
    if what in _GOES_ON:
        opened_at = offset if known is None or begins else known.opened_at
        going_on = _going_on(SessionMemory(opened_at, ruling.memory), ruling, freed=held if waits else ())
        return going_on._replace(begins=at_first and waits)
    is_whole = place.restarts_sequence or not is_multipart_open(before)
    if begins and what not in _NOTHING_ELSE and before is not None and rules.bears and is_whole:
        anew = make_ruling(rules, None, place, record)
        if anew.what in _GOES_ON and not anew.cause:
            return SessionOutcome(anew.what, SessionMemory(offset, anew.memory), cause, freed=held)
        what, cause = anew.what, anew.cause
    may_have_begun_before = known is None and not begins and suspension.before != 0
    if what in _NOTHING_ELSE or (what is Action.REFUSE and not rules.bears and not may_have_begun_before):
        return SessionOutcome(what, known, cause)
    return SessionOutcome(Action.WAIT, mark_suspended(known, place) if known is not None else None, cause, freed=held)


_GOES_ON = (Action.ACCEPT, Action.HOLD)
_NOTHING_ELSE = (Action.DROP, Action.LATE, Action.ASIDE)


def is_waiting(known: SessionMemory, from_offset: int) -> bool:
    """Whether a session waits for its next snapshot: it was suspended, or began before an offset."""
    return known.waits or known.opened_at < from_offset


def mark_suspended(known: SessionMemory, place: Envelope | None = None) -> SessionMemory:
    """A session from now on until its next snapshot.

    Args:
        known: The session.
        place: The message that went to quarantine, which may leave the rest of a snapshot to come; None where the
            transform refused one.
    """
    may_go_on = place is not None and place.kind in {Kind.UPDATE, Kind.SNAPSHOT_PART}
    return known._replace(memory=None, waits=True, broken=may_go_on and _is_broken(known))


def _is_broken(known: SessionMemory) -> bool:
    return known.broken if known.waits else is_multipart_open(known.memory)


def _going_on(known: SessionMemory, ruling: Ruling, freed: tuple[int, ...]) -> SessionOutcome:
    freed = (*freed, *ruling.freed)
    return SessionOutcome(ruling.what, known, ruling.cause, ruling.before, ruling.after, freed, ruling.stale)


def _unless_given_up(
    rules: GateRules, known: SessionMemory | None, place: Envelope, record: Record, from_offset: int
) -> SessionOutcome:
    """Of a class whose sessions wait for no snapshot: what an operator gave up is put aside, no more."""
    if record.offset < from_offset:
        return SessionOutcome(Action.WAIT, known, "given up")
    ruling = make_ruling(rules, None if known is None else known.memory, place, record)
    if ruling.what not in _GOES_ON:
        return SessionOutcome(ruling.what, known, ruling.cause)
    opened_at = record.offset if known is None else known.opened_at
    return _going_on(SessionMemory(opened_at, ruling.memory), ruling, freed=())


def to_stored_form(known: SessionMemory, *, suspends: bool) -> object:
    """A session as a state file holds it."""
    if not suspends:
        return known.memory
    return {"o": known.opened_at, "g": False if known.waits else known.memory}


def read_stored_form(gate: object, suspended_from: int, *, suspends: bool) -> SessionMemory | None:
    """A session out of a state file, where a proof begins in the middle of a log.

    What was stored under a policy that suspended is unknown to one that does not, where it was suspended then.
    """
    if not is_wrapped(gate):
        return SessionMemory(0, _memory(gate))
    opened_at, memory = int(gate["o"]), gate["g"]
    waits = memory is False
    if not suspends and (waits or opened_at < suspended_from):
        return None
    return SessionMemory(opened_at, None if waits else _memory(memory), waits, waits and bool(gate.get("b")))


def is_same_state(gate: object, known: SessionMemory, before: int) -> bool:
    """Whether a stored gate says the same of a session as the proof does, under whatever policy it was stored.

    Args:
        gate: What is stored.
        known: What the proof remembers.
        before: Sessions that began before this offset wait, whether that is noted of each or not.
    """
    waits = known.waits or known.opened_at < before
    if not is_wrapped(gate):
        return not waits and _same(gate, known.memory)
    opened_at, memory = gate["o"], gate["g"]
    began_alike = opened_at in {0, known.opened_at}  # 0: stored before the policy kept it
    if waits:
        if memory is False and known.waits and bool(gate.get("b")) is not known.broken:
            return False
        return began_alike and (memory is False or opened_at < before)
    return began_alike and _same(memory, known.memory)


def is_wrapped(gate: object) -> TypeGuard[dict[str, Any]]:
    """Whether a stored gate is that of a session that may be suspended."""
    return isinstance(gate, dict) and "o" in gate


def _same(stored: object, memory: Memory) -> bool:
    if stored is True and isinstance(memory, int):
        return True  # a session is known, and no more: how many messages it had was not counted then
    return type(stored) is type(memory) and stored == memory


def _memory(gate: object) -> Memory:
    if gate is None or isinstance(gate, (int, bool, dict)):
        return gate
    if isinstance(gate, list):
        return [int(number) for number in gate]
    raise TypeError(f"not what a class remembers of a session: {gate!r}")


UNKNOWN_US = -(2**63)
"""The watermark before any time was seen."""
NO_LIMIT_US = 2**63 - 1


class ReplayWatermark:
    """The watermark of a partition, and what is too far ahead to move it.

    Attributes:
        at_us: The watermark, in microseconds since 1970 (UTC).
        latest_us: Times beyond it are absurd.
    """

    __slots__ = ("at_us", "latest_us")

    def __init__(self) -> None:
        self.at_us, self.latest_us = UNKNOWN_US, NO_LIMIT_US

    def is_absurd(self, time_us: int) -> bool:
        """Whether nobody's clock can have shown it."""
        return time_us < 0 or time_us > self.latest_us

    def see(self, time_us: int) -> None:
        """Go on to a time: never back, and not to an absurd one."""
        if time_us > self.at_us and not self.is_absurd(time_us):
            self.at_us = time_us


def find_event_time(place: Envelope, record: Record) -> int:
    """Event time of a message: its own, else Kafka's."""
    return place.event_time_us if place.event_time_us is not None else record.timestamp_ms * 1000


LARGEST = 2**63 - 1


def is_64_bit(number: int) -> bool:
    """Whether state and table can hold a producer's number."""
    return abs(number) <= LARGEST


def may_be_sent(number: int, wraps_at: int | None) -> bool:
    """Whether it is one of the numbers that a producer has."""
    return is_64_bit(number) if wraps_at is None else number in range(wraps_at)


def count_on(number: int, last: int, wraps_at: int | None) -> int:
    """A number as if it had never wrapped around: of all that it may stand for, the nearest to the last."""
    if wraps_at is None:
        return number
    ahead = (number - last) % wraps_at
    return last + ahead - (wraps_at if ahead >= wraps_at - wraps_at // 2 else 0)


def hash_content(record: Record) -> bytes:
    """What tells the content of one message from another's, as it is stored."""
    return blake2b(record.value or b"", digest_size=8).digest()
