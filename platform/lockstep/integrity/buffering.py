"""Buffers the updates of a session until its first snapshot: a gate around an evidence of `Strict`. Pure.

A snapshot that is fetched separately from the stream (over REST) arrives after updates that it covers, and sometimes
after some that it does not. Updates before the snapshot are buffered. With the snapshot, the updates that it covers
(their numbers are not above its own) are stale: dropped and counted. The others are applied after it and judged by
the evidence. The same holds for messages after the snapshot, up to the first update that is not stale.

State of a buffering session: {"e": [[offset, number, first, previous], ...]}, as in the messages; from the snapshot
to the first update after it: {"q": number of the snapshot, "g": state of the evidence}; then the state of the
evidence.
"""

from __future__ import annotations

from typing import TypedDict, cast

from typing_extensions import override

from lockstep.integrity.sequence_numbers import LARGEST, check_range, unwrap_sequence
from lockstep.integrity.verdict import ACCEPT, Gate, GateState, Judgement, Verdict, report_violation
from lockstep.model.record import Envelope, Kind, Link, Record

WAITING_MAX = 10_000
"""Buffered updates of one session; a session with more is considered to have lost its snapshot. Each costs some
30 bytes in the state of its session, which is rewritten with every batch that touches it, besides its message."""

Early = list[int | None]
"""[offset, number, first, previous] of a buffered update."""


class _Waiting(TypedDict):
    e: list[Early]


class _Fresh(TypedDict):
    q: int
    g: GateState


class BufferingUntilSnapshot(Gate):
    """See the module."""

    def __init__(self, evidence: Gate, wraps_at: int | None) -> None:
        self._evidence, self._wraps_at = evidence, wraps_at

    @override
    def check(self, state: GateState, envelope: Envelope, record: Record) -> tuple[GateState, Verdict]:
        number = _number(envelope)
        if number is None or envelope.kind is Kind.END:
            return self._usual(state, envelope, record)
        if envelope.kind is Kind.SNAPSHOT and (state is None or envelope.restarts_sequence or _is_waiting(state)):
            return self._begun(state, envelope, record, number)
        if state is None or _is_waiting(state):
            return self._held_back(cast("_Waiting | None", state), envelope, record, number)
        if _is_fresh(state) and envelope.kind is not Kind.SNAPSHOT:
            snapshot = cast("_Fresh", state)["q"]
            if not self._is_after(number, snapshot):
                return state, Verdict(Judgement.LATE, "stale", f"above {snapshot}", str(number))
        return self._usual(state, envelope, record)

    @override
    def adapt(self, state: GateState) -> GateState:
        if state is None or _is_waiting(state):
            return state
        if not _is_fresh(state):
            return self._evidence.adapt(state)
        fresh = cast("_Fresh", state)
        inner = self._evidence.adapt(fresh["g"])
        return None if inner is None else cast("GateState", _Fresh(q=fresh["q"], g=inner))

    @override
    def held(self, state: GateState) -> tuple[int, ...]:
        waiting = cast("_Waiting", state)["e"] if _is_waiting(state) else []
        return tuple(cast("int", each[0]) for each in waiting)

    def _usual(self, state: GateState, envelope: Envelope, record: Record) -> tuple[GateState, Verdict]:
        """The evidence's judgement; a buffering session is unknown to it."""
        fresh = _is_fresh(state)
        inner = cast("_Fresh", state)["g"] if fresh else None if _is_waiting(state) else state
        after, verdict = self._evidence.check(inner, envelope, record)
        if verdict.judgement is not Judgement.ACCEPT:
            return state, verdict
        if fresh and envelope.kind is Kind.SNAPSHOT:
            after = cast("GateState", _Fresh(q=cast("int", _number(envelope)), g=after))
        return after, verdict

    def _begun(self, state: GateState, envelope: Envelope, record: Record, number: int) -> tuple[GateState, Verdict]:
        """The snapshot that begins a session, with its buffered updates."""
        after, verdict = self._evidence.check(None, envelope, record)
        if verdict.judgement is not Judgement.ACCEPT:
            return state, verdict
        waiting = cast("_Waiting", state)["e"] if _is_waiting(state) else []
        stale = [each for each in waiting if not self._is_after(cast("int", each[1]), number)]
        applied = [each for each in waiting if each not in stale]
        for each in applied:
            after, verdict = self._evidence.check(after, _place_of(each, envelope), record)
            if verdict.judgement is not Judgement.ACCEPT:
                return state, verdict
        if not applied:
            after = cast("GateState", _Fresh(q=number, g=after))
        return after, Verdict(Judgement.ACCEPT, stale=_offsets(stale), after=_offsets(applied)) if waiting else ACCEPT

    def _is_after(self, number: int, other: int) -> bool:
        return unwrap_sequence(number, other, self._wraps_at) > other

    def _held_back(
        self, state: _Waiting | None, envelope: Envelope, record: Record, number: int
    ) -> tuple[GateState, Verdict]:
        waiting = [] if state is None else state["e"]
        link = envelope.link or Link(number)
        early: Early = [record.offset, number, link.first, link.previous]
        if (refused := self._refused(waiting, early)) is not None:
            return cast("GateState", state), refused
        verdict = Verdict(Judgement.BUFFER, "buffered", "a snapshot first", str(number))
        return cast("GateState", _Waiting(e=[*waiting, early])), verdict

    def _refused(self, waiting: list[Early], early: Early) -> Verdict | None:
        """Why an update cannot be buffered behind the others; gaps between them show with the snapshot."""
        number = cast("int", early[1])
        if any(each is not None and abs(each) > LARGEST for each in early):
            return report_violation("number out of range", "a number of 64 bits", number)
        if (refused := check_range(number, self._wraps_at)) is not None:
            return refused
        if waiting and self._wraps_at is not None:
            ahead, half = (number - cast("int", waiting[0][1])) % self._wraps_at, self._wraps_at // 2
            if ahead >= half:
                right = f"one within half a round, {half} numbers, because of wraps_at={self._wraps_at}"
                return report_violation("no snapshot", right, f"{number}, {ahead} after {waiting[0][1]}")
        if len(waiting) >= WAITING_MAX:
            return report_violation("no snapshot", f"one before more than {WAITING_MAX} updates", WAITING_MAX + 1)
        last = cast("int", waiting[-1][1]) if waiting else None
        if last is None or self._is_after(number, last):
            return None
        return report_violation("repeat" if number == last else "sequence goes back", f"above {last}", number)


def drop_buffer(state: GateState) -> GateState:
    """A stored state for a class without buffering: a buffering session is unknown to it."""
    if not isinstance(state, dict) or _is_waiting(state):
        return None if _is_waiting(state) else state
    if _is_fresh(state):
        return cast("_Fresh", state)["g"]
    inner = cast("GateState", state.get("g"))
    kept = drop_buffer(inner)
    if kept is inner:
        return state
    return None if kept is None else {**state, "g": kept}


def _is_waiting(state: GateState) -> bool:
    return isinstance(state, dict) and "e" in state


def _is_fresh(state: GateState) -> bool:
    return isinstance(state, dict) and "q" in state


def _number(envelope: Envelope) -> int | None:
    return envelope.sequence if envelope.link is None else envelope.link.last


def _place_of(early: Early, snapshot: Envelope) -> Envelope:
    """The envelope of a buffered update, as far as the evidence reads it."""
    _, number, first, previous = early
    if snapshot.link is None:
        return Envelope(snapshot.session, sequence=number)
    return Envelope(snapshot.session, link=Link(cast("int", number), first=first, previous=previous))


def _offsets(waiting: list[Early]) -> tuple[int, ...]:
    return tuple(cast("int", each[0]) for each in waiting)
