"""What the proof remembers of each session, and how a broken promise suspends it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from lockstep.declare.place import Kind, Place
from lockstep.operations.verify.second_gate.contract import Memory, Rules, What


class Known(NamedTuple):
    """A session.

    Attributes:
        opened_at: Offset of the snapshot that began it.
        memory: What the class remembers of it.
        waits: Its messages go to quarantine until its next snapshot.
    """

    opened_at: int
    memory: Memory
    waits: bool = False


class Fate(NamedTuple):
    """What becomes of one message.

    Attributes:
        what: Applied, dropped, kept in quarantine (WAIT), or the end of the stream (REFUSE).
        known: The session from now on.
        cause: Why; empty where nothing was remarked.
    """

    what: What
    known: Known | None
    cause: str = ""


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


def fate(rules: Rules, known: Known | None, place: Place, offset: int, suspension: Suspension) -> Fate:
    """What becomes of a message of a session.

    Args:
        rules: The class.
        known: The session; None where it is not known.
        place: The message's place.
        offset: Its offset.
        suspension: Who waits.
    """
    from_offset = 0 if rules.passes_unknown else suspension.of(place.session)
    waits = known is not None and (known.waits or known.opened_at < from_offset)
    is_snapshot = place.kind is Kind.SNAPSHOT and offset >= from_offset
    skipped = known is None and place.session in suspension.skipped
    if not is_snapshot and (waits or skipped or offset < from_offset):
        return Fate(What.WAIT, known, "suspended")
    before = None if known is None or waits else known.memory
    what, memory, cause = rules.rule(before, place, offset)
    if what is What.ACCEPT:
        opened_at = offset if known is None or is_snapshot else known.opened_at
        return Fate(what, Known(opened_at, memory), cause)
    if is_snapshot and before is not None and rules.bears:
        again, fresh, why = rules.rule(None, place, offset)
        if again is What.ACCEPT and not why:
            return Fate(What.ACCEPT, Known(offset, fresh), cause)
        what, cause = again, why
    may_have_begun_before = known is None and not is_snapshot and suspension.before > 0
    if what is What.DROP or (what is What.REFUSE and not rules.bears and not may_have_begun_before):
        return Fate(what, known, cause)
    return Fate(What.WAIT, known._replace(waits=True) if known is not None else None, cause)


def stored_form(known: Known, *, suspends: bool) -> object:
    """A session as a state file holds it."""
    if not suspends:
        return known.memory
    return {"o": known.opened_at, "g": False if known.waits else known.memory}


def from_stored(gate: object, suspended_from: int, *, suspends: bool) -> Known | None:
    """A session out of a state file, where a proof begins in the middle of a log.

    What was stored under a policy that suspended is unknown to one that does not, where it was suspended then.
    """
    if not isinstance(gate, dict):
        return Known(0, _memory(gate))
    opened_at, memory = int(gate["o"]), gate["g"]
    waits = memory is False
    if not suspends and (waits or opened_at < suspended_from):
        return None
    return Known(opened_at, None if waits else _memory(memory), waits)


def agree(gate: object, known: Known) -> bool:
    """Whether a stored gate says the same of a session as the proof does, under whatever policy it was stored."""
    if not isinstance(gate, dict):
        return not known.waits and _same(gate, known.memory)
    opened_at, memory = gate.get("o"), gate.get("g")
    began_alike = opened_at in {0, known.opened_at}  # 0: stored before the policy kept it
    return began_alike and (memory is False if known.waits else _same(memory, known.memory))


def _same(stored: object, memory: Memory) -> bool:
    return type(stored) is type(memory) and stored == memory


def _memory(gate: object) -> Memory:
    if gate is None or isinstance(gate, (int, bool)):
        return gate
    if isinstance(gate, list):
        return [int(number) for number in gate]
    raise TypeError(f"not what a class remembers of a session: {gate!r}")
