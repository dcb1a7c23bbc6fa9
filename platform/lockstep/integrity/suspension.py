"""Suspends sessions instead of stopping the stream: a gate around the gate of a class. Pure.

A suspended session's messages are quarantined until its next snapshot, which restarts it. A whole
partition is suspended where the affected sessions are unknown: then each session resumes at
its own snapshot. Where sessions begin at their first message, the next message is that snapshot.

A suspension is an offset: sessions that began before it are suspended. There is one for the partition, and one for
each session that an operator skips. An operator may set it beyond unread messages: those are all quarantined.

The state of a session is {"o": offset of the snapshot that began it, "g": state of the inner gate}; "g" False means
suspended, since the offset "s". Where a multipart snapshot was open ("b"), its remaining parts are no snapshot: the
message that completes it is quarantined, too, and the next snapshot restarts the session. With "d" the user's state of
the session is discarded, and counted as lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NotRequired, TypedDict, cast

import msgspec
from typing_extensions import override

from lockstep.integrity.multipart import is_spread
from lockstep.integrity.verdict import Gate, GateState, Judgement, Verdict
from lockstep.model.position import SuspendedSession
from lockstep.model.record import Envelope, Kind, Record

LOSS_ACCEPTED = "loss accepted"
"""The cause of a snapshot that ends a suspension whose loss the declaration accepts; expected is the first lost
offset."""

_BEGINS = (Kind.SNAPSHOT, Kind.SNAPSHOT_PART)
_KEPT = (Judgement.ACCEPT, Judgement.BUFFER)
_DROPPED = (Judgement.DUPLICATE, Judgement.LATE, Judgement.QUARANTINE, Judgement.SKIP)


class Opened(TypedDict):
    """Memory of a session."""

    o: int
    g: GateState
    s: NotRequired[int]
    b: NotRequired[bool]
    d: NotRequired[bool]


class SuspensionGate(Gate):
    """See the module.

    Attributes:
        suspended_from: Sessions that began before this offset are suspended.
    """

    def __init__(
        self,
        inner: Gate,
        suspended_from: int,
        skipped: Iterable[SuspendedSession] = (),
        *,
        tolerates_violations: bool,
        accepts_loss: bool = False,
        opens_at_first: bool = False,
    ) -> None:
        self._inner, self.suspended_from = inner, suspended_from
        self._skipped = {each.session: each.before for each in skipped}
        self._tolerates_violations, self._accepts_loss = tolerates_violations, accepts_loss
        self._opens_at_first = opens_at_first

    def check(self, state: GateState, envelope: Envelope, record: Record) -> tuple[GateState, Verdict]:
        """See `Gate.check`. The state is also kept with the verdicts suspend and quarantine."""
        known = cast("Opened | None", state)  # adapted when it was loaded
        before = (
            max(self.suspended_from, self._skipped.get(envelope.session, 0)) if self._skipped else self.suspended_from
        )
        suspended = known is not None and (known["g"] is False or known["o"] < before)
        at_first = self._opens_at_first and envelope.kind is Kind.UPDATE and (known is None or suspended)
        if (at_first or envelope.kind in _BEGINS) and record.offset >= before:
            return self._snapshot(known, envelope, record, suspended=suspended)
        if suspended or record.offset < before or (known is None and self._skipped.get(envelope.session)):
            return self._waiting(known, envelope, before, suspended=suspended)
        inner, verdict = self._inner.check(known["g"] if known is not None else None, envelope, record)
        if verdict.judgement in _KEPT:
            return _opened(record.offset if known is None else known["o"], inner), verdict
        if known is None and self.suspended_from and verdict.judgement is Judgement.VIOLATION:
            # It may have begun before: suspended like the others.
            return None, msgspec.structs.replace(verdict, judgement=Judgement.QUARANTINE)
        return self._refused(known, verdict, envelope, record)

    @override
    def adapt(self, state: GateState) -> GateState:
        return migrate_gate_state(state, self.suspended_from, suspends=True, inner=self._inner)

    @override
    def held(self, state: GateState) -> tuple[int, ...]:
        known = cast("Opened | None", state)
        return () if known is None or known["g"] is False else self._inner.held(known["g"])

    def due_us(self, state: GateState) -> int | None:
        """See `Gate.due_us`; called only for sessions that are not suspended."""
        known = cast("Opened | None", state)
        return None if known is None or known["g"] is False else self._inner.due_us(known["g"])

    @override
    def due(self, state: GateState, until_us: int) -> tuple[GateState, Verdict]:
        known = cast("Opened", state)
        inner, verdict = self._inner.due(known["g"], until_us)
        return _opened(known["o"], inner), verdict

    def _waiting(
        self, known: Opened | None, envelope: Envelope, before: int, *, suspended: bool
    ) -> tuple[GateState, Verdict]:
        """A message of a suspended session; the first one frees the session's buffered messages."""
        gate = cast("GateState", known)
        outcome = Verdict(Judgement.QUARANTINE, "suspended", "a snapshot of the session", envelope.kind.value)
        if known is None or not suspended:
            return gate, outcome
        broken = _is_broken(known)
        if known["g"] is False and broken is _stays_broken(envelope, broken=broken):
            return gate, outcome
        outcome = msgspec.structs.replace(outcome, judgement=Judgement.SUSPEND, freed=self.held(gate))
        return mark_suspended(gate, before, broken=_stays_broken(envelope, broken=broken)), outcome

    def _snapshot(
        self, known: Opened | None, envelope: Envelope, record: Record, *, suspended: bool
    ) -> tuple[GateState, Verdict]:
        """A snapshot restarts its session, unless the class forbids even that and the stream halts."""
        if known is not None and suspended and not envelope.restarts_sequence and _is_broken(known):
            return self._waiting(known, envelope, known.get("s", record.offset), suspended=True)
        before = None if known is None or suspended else known["g"]
        inner, verdict = self._inner.check(before, envelope, record)
        if verdict.judgement in _KEPT:
            return _opened(record.offset, inner), self._ending(known, verdict, envelope, record, suspended=suspended)
        if before is None or not self._tolerates_violations or verdict.judgement in _DROPPED:
            return self._refused(known, verdict, envelope, record)
        if is_spread(before) and not envelope.restarts_sequence:
            return self._refused(known, verdict, envelope, record)
        inner, fresh = self._inner.check(None, envelope, record)
        if fresh.judgement not in _KEPT:
            return self._refused(known, fresh, envelope, record)
        outcome = msgspec.structs.replace(verdict, judgement=fresh.judgement, freed=self._inner.held(before))
        return _opened(record.offset, inner), outcome

    def _ending(
        self, known: Opened | None, verdict: Verdict, envelope: Envelope, record: Record, *, suspended: bool
    ) -> Verdict:
        """The verdict on a snapshot that may end a suspension."""
        if known is None or not suspended:
            return verdict
        freed = self.held(cast("GateState", known))
        verdict = msgspec.structs.replace(verdict, freed=freed, begins=envelope.kind is Kind.UPDATE)
        if not self._accepts_loss:
            return verdict
        since = known.get("s", known["o"]) if known["g"] is False else max(known["o"], self.suspended_from)
        return msgspec.structs.replace(verdict, cause=LOSS_ACCEPTED, expected=str(since), found=str(record.offset))

    def _refused(
        self, known: Opened | None, verdict: Verdict, envelope: Envelope, record: Record
    ) -> tuple[GateState, Verdict]:
        """A message that is not applied: dropped, or suspending its session until the next snapshot."""
        if verdict.judgement in _DROPPED:
            return cast("GateState", known), verdict
        if verdict.judgement is Judgement.VIOLATION and not self._tolerates_violations:
            return cast("GateState", known), verdict
        if known is None:
            return None, msgspec.structs.replace(verdict, judgement=Judgement.QUARANTINE)
        freed = self.held(cast("GateState", known))
        outcome = msgspec.structs.replace(verdict, judgement=Judgement.SUSPEND, freed=freed)
        broken = _stays_broken(envelope, broken=_is_broken(known))
        return mark_suspended(cast("GateState", known), record.offset, broken=broken), outcome


class SkipGate(Gate):
    """For classes whose sessions need no snapshots: only what an operator has given up is quarantined."""

    def __init__(self, inner: Gate, before: int, skipped: Iterable[SuspendedSession]) -> None:
        self._inner, self._before = inner, before
        self._skipped = {each.session: each.before for each in skipped}
        self.adapt, self.held, self.due_us, self.due = inner.adapt, inner.held, inner.due_us, inner.due  # type: ignore[method-assign]  # as they are

    @override
    def check(self, state: GateState, envelope: Envelope, record: Record) -> tuple[GateState, Verdict]:
        if record.offset < max(self._before, self._skipped.get(envelope.session, 0)):
            return state, Verdict(Judgement.QUARANTINE, "given up", "nothing: an operator decided", envelope.kind.value)
        return self._inner.check(state, envelope, record)


def migrate_gate_state(state: GateState, suspended_from: int, *, suspends: bool, inner: Gate) -> GateState:
    """See `IntegrityClass.make_state_adapter`.

    A session of a stream that used to halt is assumed to have begun at the start of its partition. A session
    that is suspended when the policy changes to halt is unknown until its next snapshot; so is one whose
    stored state the current class cannot use.
    """
    if state is None:
        return None
    if not suspends and not isinstance(state, dict):  # each session that is loaded: without an object of its own
        return None if state is False or suspended_from > 0 else inner.adapt(state)
    known = cast("Opened", state) if isinstance(state, dict) and "o" in state else Opened(o=0, g=state)
    if not suspends:
        return None if known["g"] is False or known["o"] < suspended_from else inner.adapt(known["g"])
    if known["g"] is False:
        return cast("GateState", known)
    kept = inner.adapt(known["g"])
    return mark_suspended(cast("GateState", known), suspended_from) if kept is None else _opened(known["o"], kept)


def mark_suspended(state: GateState, since: int, *, broken: bool = False) -> GateState:
    """The state of a session until its next snapshot; an unknown session stays unknown.

    Args:
        state: The state before.
        since: Its first lost offset; unchanged where the session was suspended already.
        broken: The remaining parts of an open snapshot are still to come.
    """
    if state is None:
        return None
    known = cast("Opened", state)
    suspended = Opened(o=known["o"], g=False, s=known.get("s", since) if known["g"] is False else since)
    if broken:
        suspended["b"] = True
    if is_lost(state):
        suspended["d"] = True
    return cast("GateState", suspended)


def has_mark(gate: object) -> bool:
    """Whether a session is suspended by its gate state, not only by an offset of its partition."""
    known = cast("Opened", gate)
    return isinstance(gate, dict) and known.get("g") is False and "o" in known


def is_lost(gate: object) -> bool:
    """Whether the state of a suspended session is counted as lost."""
    return has_mark(gate) and cast("Opened", gate).get("d", False)


def mark_lost(gate: GateState) -> GateState:
    """The gate state of a suspended session whose state is counted as lost."""
    return cast("GateState", {**cast("Opened", gate), "d": True}) if has_mark(gate) else gate


def _is_broken(known: Opened) -> bool:
    """Whether the next snapshot may only be the rest of an open one."""
    return known.get("b", False) if known["g"] is False else is_spread(known["g"])


def _stays_broken(envelope: Envelope, *, broken: bool) -> bool:
    """Whether more parts may follow a message: a snapshot completes it, and an end ends it."""
    return broken and envelope.kind in {Kind.UPDATE, Kind.SNAPSHOT_PART}


def list_skips_without_snapshot(
    skipped: Iterable[SuspendedSession], gate_of: Callable[[str], object]
) -> tuple[SuspendedSession, ...]:
    """The skipped sessions that no snapshot has restarted yet, by their gate state."""
    return tuple(each for each in skipped if each.before and not _begun(gate_of(each.session), each.before))


def list_unread_skips(skipped: Iterable[SuspendedSession], reached: int) -> tuple[SuspendedSession, ...]:
    """The same for a class without snapshots (`SkipGate`): sessions whose given-up messages are not all read yet."""
    return tuple(each for each in skipped if each.before > reached)


def _begun(state: object, before: int) -> bool:
    if state is None:
        return False
    known = cast("Opened", state)
    return known["g"] is not False and known["o"] >= before


def _opened(offset: int, inner: GateState) -> GateState:
    return {"o": offset, "g": inner}
