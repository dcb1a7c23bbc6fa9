"""What the proof remembers of each session, and how a broken promise suspends it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeGuard

from lockstep.declare.place import Kind, Place
from lockstep.declare.record import Record
from lockstep.operations.verify.second_gate.contract import Memory, Rules, Ruling, What
from lockstep.operations.verify.second_gate.parts import held_of, is_on_its_way, ruled


class Known(NamedTuple):
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


class Fate(NamedTuple):
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

    what: What
    known: Known | None
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


def fate(rules: Rules, known: Known | None, place: Place, record: Record, suspension: Suspension) -> Fate:
    """What becomes of a message of a session; see `_fate` for what is given."""
    if rules.needs_no_snapshot:
        return _unless_given_up(rules, known, place, record, suspension.of(place.session))
    return _fate(rules, known, place, record, suspension)


def _fate(rules: Rules, known: Known | None, place: Place, record: Record, suspension: Suspension) -> Fate:
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
    held = () if known is None or known.waits else held_of(known.memory)
    at_first = rules.at_first and place.kind is Kind.UPDATE and (known is None or waits)
    begins = (at_first or place.kind in {Kind.SNAPSHOT, Kind.PART}) and offset >= from_offset
    skipped = known is None and place.session in suspension.skipped
    if known is not None and waits and (not begins or (_is_broken(known) and not place.resets)):
        return Fate(What.WAIT, suspended(known, place), "suspended", freed=held)
    if not begins and (skipped or offset < from_offset):
        return Fate(What.WAIT, known, "suspended")
    before = None if known is None or waits else known.memory
    ruling = ruled(rules, before, place, record)
    what, cause = ruling.what, ruling.cause
    if what in _GOES_ON:
        opened_at = offset if known is None or begins else known.opened_at
        going_on = _going_on(Known(opened_at, ruling.memory), ruling, freed=held if waits else ())
        return going_on._replace(begins=at_first and waits)
    is_whole = place.resets or not is_on_its_way(before)
    if begins and what not in _NOTHING_ELSE and before is not None and rules.bears and is_whole:
        anew = ruled(rules, None, place, record)
        if anew.what in _GOES_ON and not anew.cause:
            return Fate(anew.what, Known(offset, anew.memory), cause, freed=held)
        what, cause = anew.what, anew.cause
    may_have_begun_before = known is None and not begins and suspension.before != 0
    if what in _NOTHING_ELSE or (what is What.REFUSE and not rules.bears and not may_have_begun_before):
        return Fate(what, known, cause)
    return Fate(What.WAIT, suspended(known, place) if known is not None else None, cause, freed=held)


_GOES_ON = (What.ACCEPT, What.HOLD)
_NOTHING_ELSE = (What.DROP, What.LATE, What.ASIDE)


def is_waiting(known: Known, from_offset: int) -> bool:
    """Whether a session waits for its next snapshot: it was suspended, or began before an offset."""
    return known.waits or known.opened_at < from_offset


def suspended(known: Known, place: Place | None = None) -> Known:
    """A session from now on until its next snapshot.

    Args:
        known: The session.
        place: The message that went to quarantine, which may leave the rest of a snapshot to come; None where the
            transform refused one.
    """
    may_go_on = place is not None and place.kind in {Kind.UPDATE, Kind.PART}
    return known._replace(memory=None, waits=True, broken=may_go_on and _is_broken(known))


def _is_broken(known: Known) -> bool:
    return known.broken if known.waits else is_on_its_way(known.memory)


def _going_on(known: Known, ruling: Ruling, freed: tuple[int, ...]) -> Fate:
    freed = (*freed, *ruling.freed)
    return Fate(ruling.what, known, ruling.cause, ruling.before, ruling.after, freed, ruling.stale)


def _unless_given_up(rules: Rules, known: Known | None, place: Place, record: Record, from_offset: int) -> Fate:
    """Of a class whose sessions wait for no snapshot: what an operator gave up is put aside, no more."""
    if record.offset < from_offset:
        return Fate(What.WAIT, known, "given up")
    ruling = ruled(rules, None if known is None else known.memory, place, record)
    if ruling.what not in _GOES_ON:
        return Fate(ruling.what, known, ruling.cause)
    opened_at = record.offset if known is None else known.opened_at
    return _going_on(Known(opened_at, ruling.memory), ruling, freed=())


def stored_form(known: Known, *, suspends: bool) -> object:
    """A session as a state file holds it."""
    if not suspends:
        return known.memory
    return {"o": known.opened_at, "g": False if known.waits else known.memory}


def from_stored(gate: object, suspended_from: int, *, suspends: bool) -> Known | None:
    """A session out of a state file, where a proof begins in the middle of a log.

    What was stored under a policy that suspended is unknown to one that does not, where it was suspended then.
    """
    if not is_wrapped(gate):
        return Known(0, _memory(gate))
    opened_at, memory = int(gate["o"]), gate["g"]
    waits = memory is False
    if not suspends and (waits or opened_at < suspended_from):
        return None
    return Known(opened_at, None if waits else _memory(memory), waits, waits and bool(gate.get("b")))


def agree(gate: object, known: Known, before: int) -> bool:
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
