"""Suspends sessions instead of stopping the stream: a gate around the gate of a class. Pure.

A suspended session's messages go to quarantine until its next snapshot, which begins it anew. A whole
partition is suspended where it cannot be told which sessions suffer: then each session comes back at
its own snapshot.

The state of a session is {"o": offset of the snapshot that began it, "g": what the gate inside
remembers}; "g" False means suspended, since the offset "s".
"""

from __future__ import annotations

from typing import NotRequired, TypedDict, cast

import msgspec

from lockstep.declare.place import Kind, Place
from lockstep.declare.record import Record
from lockstep.integrity.verdict import Gate, GateState, Judgement, Verdict

LOSS_ACCEPTED = "loss accepted"
"""The cause of a snapshot that ends a suspension whose loss the declaration accepts."""

_BEGINS = (Kind.SNAPSHOT, Kind.PART)
_KEPT = (Judgement.ACCEPT, Judgement.BUFFER)
_DROPPED = (Judgement.DUPLICATE, Judgement.LATE, Judgement.QUARANTINE)


class Opened(TypedDict):
    """What is remembered of a session."""

    o: int
    g: GateState
    s: NotRequired[int]


class Suspending(Gate):
    """See the module.

    Attributes:
        suspended_from: Sessions that began before this offset are suspended.
    """

    def __init__(self, inner: Gate, suspended_from: int, *, bears_violations: bool, accepts_loss: bool = False) -> None:
        self._inner, self.suspended_from = inner, suspended_from
        self._bears_violations, self._accepts_loss = bears_violations, accepts_loss

    def check(self, state: GateState, place: Place, record: Record) -> tuple[GateState, Verdict]:
        """See `Gate.check`. With the verdicts suspend and quarantine too, the state is to be kept."""
        known = cast("Opened | None", state)  # adapted when it was loaded
        suspended = self._is_suspended(known)
        if place.kind in _BEGINS:
            return self._snapshot(known, place, record, suspended=suspended)
        if known is not None and suspended:
            return self._still(known), self._waiting(known, place)
        inner, verdict = self._inner.check(known["g"] if known is not None else None, place, record)
        if verdict.judgement in _KEPT:
            return _opened(record.offset if known is None else known["o"], inner), verdict
        return self._refused(known, verdict, record)

    def adapt(self, state: GateState) -> GateState:
        """See `Gate.adapt`."""
        return adapted(state, self.suspended_from, suspends=True, inner=self._inner)

    def held(self, state: GateState) -> tuple[int, ...]:
        """See `Gate.held`."""
        known = cast("Opened | None", state)
        return () if known is None or known["g"] is False else self._inner.held(known["g"])

    def due_us(self, state: GateState) -> int | None:
        """See `Gate.due_us`."""
        known = cast("Opened | None", state)
        return None if self._is_suspended(known) or known is None else self._inner.due_us(known["g"])

    def due(self, state: GateState) -> tuple[GateState, Verdict]:
        """See `Gate.due`."""
        known = cast("Opened", state)
        inner, verdict = self._inner.due(known["g"])
        return _opened(known["o"], inner), verdict

    def _is_suspended(self, known: Opened | None) -> bool:
        return known is not None and (known["g"] is False or known["o"] < self.suspended_from)

    def _still(self, known: Opened) -> GateState:
        """The state of a suspended session, also of one that its whole partition suspended."""
        gate = cast("GateState", known)
        return gate if known["g"] is False else suspended_state(gate, self.suspended_from)

    def _waiting(self, known: Opened, place: Place) -> Verdict:
        """The verdict on a message of a suspended session; what its session held back is freed with the first."""
        judgement = Judgement.QUARANTINE if known["g"] is False else Judgement.SUSPEND
        freed = self.held(cast("GateState", known))
        return Verdict(judgement, "suspended", "a snapshot of the session", place.kind.value, freed=freed)

    def _snapshot(
        self, known: Opened | None, place: Place, record: Record, *, suspended: bool
    ) -> tuple[GateState, Verdict]:
        """A snapshot begins its session anew, unless the class forbids even that and the stream halts."""
        before = None if known is None or suspended else known["g"]
        inner, verdict = self._inner.check(before, place, record)
        if verdict.judgement in _KEPT:
            return _opened(record.offset, inner), self._ending(known, verdict, record, suspended=suspended)
        if before is None or not self._bears_violations or verdict.judgement in _DROPPED:
            return self._refused(known, verdict, record)
        inner, anew = self._inner.check(None, place, record)
        if anew.judgement not in _KEPT:
            return self._refused(known, anew, record)
        told = msgspec.structs.replace(verdict, judgement=anew.judgement, freed=self._inner.held(before))
        return _opened(record.offset, inner), told

    def _ending(self, known: Opened | None, verdict: Verdict, record: Record, *, suspended: bool) -> Verdict:
        """The verdict on a snapshot that may end a suspension."""
        if known is None or not suspended:
            return verdict
        verdict = msgspec.structs.replace(verdict, freed=self.held(cast("GateState", known)))
        if not self._accepts_loss:
            return verdict
        since = known.get("s", known["o"]) if known["g"] is False else self.suspended_from
        lost = f"offsets {since} to {record.offset - 1}"
        return msgspec.structs.replace(verdict, cause=LOSS_ACCEPTED, expected=lost, found="the next snapshot")

    def _refused(self, known: Opened | None, verdict: Verdict, record: Record) -> tuple[GateState, Verdict]:
        """A message that is not applied: dropped, or the end of its session until the next snapshot."""
        if verdict.judgement in _DROPPED:
            return cast("GateState", known), verdict
        if verdict.judgement is Judgement.VIOLATION and not self._bears_violations:
            return cast("GateState", known), verdict
        if known is None:
            return None, msgspec.structs.replace(verdict, judgement=Judgement.QUARANTINE)
        freed = self._inner.held(known["g"])
        told = msgspec.structs.replace(verdict, judgement=Judgement.SUSPEND, freed=freed)
        return suspended_state(cast("GateState", known), record.offset), told


def adapted(state: GateState, suspended_from: int, *, suspends: bool, inner: Gate) -> GateState:
    """See `IntegrityClass.adapted`.

    A session of a stream that used to halt began, for all that is known, at the start of its partition. A session
    that is suspended when the policy becomes to halt is unknown until its next snapshot; so is one of which the
    class of then left nothing that today's can use.
    """
    if state is None:
        return None
    known = cast("Opened", state) if isinstance(state, dict) and "o" in state else Opened(o=0, g=state)
    if not suspends:
        return None if known["g"] is False or known["o"] < suspended_from else inner.adapt(known["g"])
    if known["g"] is False:
        return cast("GateState", known)
    kept = inner.adapt(known["g"])
    return suspended_state(cast("GateState", known), suspended_from) if kept is None else _opened(known["o"], kept)


def suspended_state(state: GateState, since: int) -> GateState:
    """The state of a session from now on until its next snapshot; an unknown session stays unknown."""
    return cast("GateState", {**cast("Opened", state), "g": False, "s": since}) if state is not None else None


def _opened(offset: int, inner: GateState) -> GateState:
    return {"o": offset, "g": inner}
