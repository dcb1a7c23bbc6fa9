"""Suspends sessions instead of stopping the stream: a gate around the gate of a class. Pure.

A suspended session's messages go to quarantine until its next snapshot, which begins it anew. A whole
partition is suspended where it cannot be told which sessions suffer: then each session comes back at
its own snapshot.

A suspension is an offset: sessions that began before it are suspended. There is one for the partition, and one for
each session that an operator skips. An operator may set it past messages that are not read yet: those go to
quarantine, whatever they are.

The state of a session is {"o": offset of the snapshot that began it, "g": what the gate inside
remembers}; "g" False means suspended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypedDict, cast

import msgspec

from lockstep.declare.place import Kind, Place
from lockstep.declare.record import Record
from lockstep.integrity.verdict import ACCEPT, Gate, GateState, Judgement, Verdict, noticed


class SuspendedSession(msgspec.Struct, frozen=True):
    """A session that an operator skips until its next snapshot.

    Attributes:
        session: The session.
        before: It is suspended where it began before this offset.
    """

    session: str
    before: int


class Opened(TypedDict):
    """What is remembered of a session."""

    o: int
    g: GateState


class Suspending:
    """See the module.

    Attributes:
        suspended_from: Sessions that began before this offset are suspended.
    """

    def __init__(
        self, inner: Gate, suspended_from: int, skipped: Iterable[SuspendedSession] = (), *, bears_violations: bool
    ) -> None:
        self._inner, self.suspended_from, self._bears_violations = inner, suspended_from, bears_violations
        self._skipped = {each.session: each.before for each in skipped}

    def check(self, state: GateState, place: Place, record: Record) -> tuple[GateState, Verdict]:
        """See `Gate.check`. With the verdicts suspend and quarantine too, the state is to be kept."""
        known = cast("Opened | None", state)  # adapted when it was loaded
        before = max(self.suspended_from, self._skipped.get(place.session, 0))
        suspended = known is not None and (known["g"] is False or known["o"] < before)
        if place.kind is Kind.SNAPSHOT and record.offset >= before:
            return self._snapshot(known, place, record, suspended=suspended)
        if suspended or record.offset < before or (known is None and place.session in self._skipped):
            return state, Verdict(Judgement.QUARANTINE, "suspended", "a snapshot of the session", place.kind.value)
        inner, verdict = self._inner.check(known["g"] if known is not None else None, place, record)
        if verdict.judgement is Judgement.ACCEPT:
            return _opened(record.offset if known is None else known["o"], inner), verdict
        if known is None and self.suspended_from and verdict.judgement is Judgement.VIOLATION:
            return None, _as(Judgement.QUARANTINE, verdict)  # it may have begun before: it waits like the others
        return self._refused(known, verdict)

    def _snapshot(
        self, known: Opened | None, place: Place, record: Record, *, suspended: bool
    ) -> tuple[GateState, Verdict]:
        """A snapshot begins its session anew, unless the class forbids even that and the stream halts."""
        before = None if known is None or suspended else known["g"]
        inner, verdict = self._inner.check(before, place, record)
        if verdict.judgement is Judgement.ACCEPT:
            return _opened(record.offset, inner), verdict
        if before is None or not self._bears_violations:
            return self._refused(known, verdict)
        inner, anew = self._inner.check(None, place, record)
        if anew is not ACCEPT:
            return self._refused(known, anew)
        return _opened(record.offset, inner), noticed(verdict.cause, verdict.expected, verdict.found)

    def _refused(self, known: Opened | None, verdict: Verdict) -> tuple[GateState, Verdict]:
        """A message that is not applied: dropped, or the end of its session until the next snapshot."""
        if verdict.judgement in _DROPPED:
            return cast("GateState", known), verdict
        if verdict.judgement is Judgement.VIOLATION and not self._bears_violations:
            return cast("GateState", known), verdict
        if known is None:
            return None, _as(Judgement.QUARANTINE, verdict)
        return suspended_state(cast("GateState", known)), _as(Judgement.SUSPEND, verdict)


_DROPPED = (Judgement.DUPLICATE, Judgement.LATE)


def adapted(state: GateState, suspended_from: int, *, suspends: bool) -> GateState:
    """See `IntegrityClass.adapted`.

    A session of a stream that used to halt began, for all that is known, at the start of its partition. A session
    that is suspended when the policy becomes to halt is unknown until its next snapshot.
    """
    wrapped = isinstance(state, dict)
    if state is None or wrapped is suspends:
        return state
    if suspends:
        return _opened(0, state)
    known = cast("Opened", state)
    return None if known["g"] is False or known["o"] < suspended_from else known["g"]


def suspended_state(state: GateState) -> GateState:
    """The state of a session from now on until its next snapshot; an unknown session stays unknown."""
    return cast("GateState", {**cast("Opened", state), "g": False}) if state is not None else None


def still_skipped(
    skipped: Iterable[SuspendedSession], gate_of: Callable[[str], object]
) -> tuple[SuspendedSession, ...]:
    """The skipped sessions that no snapshot has begun anew yet, by what the gate remembers of each."""
    return tuple(each for each in skipped if not _begun(gate_of(each.session), each.before))


def _begun(state: object, before: int) -> bool:
    return isinstance(state, dict) and state["g"] is not False and state["o"] >= before


def _opened(offset: int, inner: GateState) -> GateState:
    return cast("GateState", Opened(o=offset, g=inner))


def _as(judgement: Judgement, verdict: Verdict) -> Verdict:
    return msgspec.structs.replace(verdict, judgement=judgement)
