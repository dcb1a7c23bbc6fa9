"""Drops identical repeats before the evidence sees them: producers without idempotence send again. Pure.

The state of a session is {"r": content of the newest messages by number, "g": what the evidence remembers}.
"""

from __future__ import annotations

from enum import Enum
from typing import TypedDict, cast

from lockstep.declare.place import Place
from lockstep.declare.record import Record
from lockstep.integrity.numbers import digest
from lockstep.integrity.verdict import Gate, GateState, Judgement, Verdict

REMEMBERED = 64
"""What a producer sends again at once: its requests in flight (5) of a few messages of one session each. Costs
some 20 bytes each in the state of a session."""


_KEPT = (Judgement.ACCEPT, Judgement.BUFFER)


class Repeats(Enum):
    """What the strict class makes of a message that came before, with the same content."""

    VIOLATION = "violation"
    DROP = "drop"


class _Seen(TypedDict):
    """What is remembered of a session."""

    r: dict[int, bytes]
    g: GateState


class DroppingRepeats(Gate):
    """See the module."""

    def __init__(self, evidence: Gate) -> None:
        self._evidence = evidence

    def check(self, state: GateState, place: Place, record: Record) -> tuple[GateState, Verdict]:
        """See `Gate.check`."""
        seen = cast("_Seen", state) if state is not None else _Seen(r={}, g=None)
        number = place.link.last if place.link is not None else place.sequence
        content, recent = digest(record), seen["r"]
        if number is not None and recent.get(number) == content:
            return state, Verdict(Judgement.DUPLICATE, "repeat", "each message once", str(number))
        inner, verdict = self._evidence.check(seen["g"], place, record)
        if verdict.judgement not in _KEPT:
            return state, verdict
        if place.resets:
            recent = {}
        if number is not None:
            recent.pop(number, None)
            recent[number] = content
            if len(recent) > REMEMBERED:
                del recent[next(iter(recent))]
        return cast("GateState", _Seen(r=recent, g=inner)), verdict

    def adapt(self, state: GateState) -> GateState:
        """See `Gate.adapt`."""
        known = cast("_Seen", state) if is_seen(state) else _Seen(r={}, g=state)
        inner = self._evidence.adapt(known["g"])
        return None if inner is None else cast("GateState", _Seen(r=known["r"], g=inner))

    def held(self, state: GateState) -> tuple[int, ...]:
        """See `Gate.held`."""
        return () if state is None else self._evidence.held(cast("_Seen", state)["g"])


def is_seen(state: GateState) -> bool:
    """Whether a state is of this gate."""
    return isinstance(state, dict) and state.keys() == {"r", "g"}


def without_repeats(state: GateState) -> GateState:
    """What the evidence remembered."""
    return cast("_Seen", state)["g"] if is_seen(state) else state
