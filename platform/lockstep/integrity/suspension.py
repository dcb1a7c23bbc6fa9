"""Suspends sessions instead of stopping the stream: a gate around the gate of a class. Pure.

A suspended session's messages are quarantined until its next snapshot, which restarts it. A whole
partition is suspended if the affected sessions are unknown: then each session resumes at
its own snapshot. If sessions start at their first message, the next message acts as that snapshot.

A suspension is an offset: sessions that started before it are suspended. There is one for the partition, and one for
each session that an operator skips. An operator may set it beyond unread messages: those are all quarantined.

The state of a session is an `ActiveSession` around the state of the inner gate, or a `SuspensionMark`. An active
session from before the offset of a suspension is suspended, too. If a multipart snapshot was open, its remaining
parts are not a snapshot: the message that completes it is quarantined, too, and the next snapshot restarts the session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, cast

import msgspec
from typing_extensions import override

from lockstep.integrity.gate_states import ActiveSession, GateState, M, OpenSnapshot, SuspensionMark
from lockstep.integrity.verdict import ACCEPT, AnyGate, Gate, Judgement, Verdict, WrappingGate
from lockstep.model.position import SuspendedSession
from lockstep.model.record import Envelope, Kind, Record

LOSS_ACCEPTED = "loss accepted"
"""The cause of a snapshot that ends a suspension whose loss the declaration accepts; expected is the first lost
offset."""

_BEGINS = (Kind.SNAPSHOT, Kind.SNAPSHOT_PART)
_KEPT = (Judgement.ACCEPT, Judgement.BUFFER)
_DROPPED = (Judgement.DUPLICATE, Judgement.LATE, Judgement.QUARANTINE, Judgement.SKIP)


class SuspensionGate(Gate[ActiveSession[M] | SuspensionMark], Generic[M]):
    """See the module.

    Attributes:
        suspended_from: Sessions that started before this offset are suspended.
    """

    def __init__(
        self,
        inner: Gate[M],
        suspended_from: int,
        skipped: Iterable[SuspendedSession] = (),
        *,
        tolerates_violations: bool,
        accepts_loss: bool = False,
        opens_at_first: bool = False,
    ) -> None:
        self._inner = inner
        self.suspended_from = suspended_from
        self._skipped = {each.session: each.before for each in skipped}
        self._tolerates_violations = tolerates_violations
        self._accepts_loss = accepts_loss
        self._opens_at_first = opens_at_first

    def check(
        self, state: ActiveSession[M] | SuspensionMark | None, envelope: Envelope, record: Record
    ) -> tuple[ActiveSession[M] | SuspensionMark | None, Verdict]:
        """See `Gate.check`. The state is also kept with the verdicts suspend and quarantine."""
        before = self.suspended_from
        if self._skipped:  # nearly always empty: every message runs through here
            before = max(before, self._skipped.get(envelope.session, 0))
        # A mark is a suspension at any offset; of an active session, the offset of its start decides.
        suspended = state is not None and (type(state) is SuspensionMark or state.began_at < before)
        at_first = self._opens_at_first and envelope.kind is Kind.UPDATE and (state is None or suspended)
        if (at_first or envelope.kind in _BEGINS) and record.offset >= before:
            return self._snapshot(state, envelope, record, suspended=suspended)
        if suspended or record.offset < before or (state is None and self._skipped.get(envelope.session)):
            return self._waiting(state, envelope, before, suspended=suspended)
        active = state if isinstance(state, ActiveSession) else None
        inner_state = None if active is None else active.inner
        inner, verdict = self._inner.check(inner_state, envelope, record)
        if verdict.judgement in _KEPT:
            began_at = record.offset if active is None else active.began_at
            return ActiveSession(began_at, inner), verdict
        if active is None and self.suspended_from and verdict.judgement is Judgement.VIOLATION:
            # It may have started before: suspended like the others.
            return None, msgspec.structs.replace(verdict, judgement=Judgement.QUARANTINE)
        return self._refused(state, verdict, envelope, record)

    @override
    def migrate_state(self, state: GateState) -> ActiveSession[M] | SuspensionMark | None:
        return _migrate_session(state, self.suspended_from, self._inner)

    @override
    def buffered_offsets(self, state: ActiveSession[M] | SuspensionMark | None) -> tuple[int, ...]:
        if not isinstance(state, ActiveSession):
            return ()
        return self._inner.buffered_offsets(state.inner)

    def due_us(self, state: ActiveSession[M] | SuspensionMark | None) -> int | None:
        """See `Gate.due_us`; called only for sessions that are not suspended."""
        if not isinstance(state, ActiveSession):
            return None
        return self._inner.due_us(state.inner)

    @override
    def release_due(
        self, state: ActiveSession[M] | SuspensionMark | None, until_us: int
    ) -> tuple[ActiveSession[M] | SuspensionMark | None, Verdict]:
        if not isinstance(state, ActiveSession):
            return state, ACCEPT
        inner, verdict = self._inner.release_due(state.inner, until_us)
        return ActiveSession(state.began_at, inner), verdict

    def _waiting(
        self, known: ActiveSession[M] | SuspensionMark | None, envelope: Envelope, before: int, *, suspended: bool
    ) -> tuple[ActiveSession[M] | SuspensionMark | None, Verdict]:
        """A message of a suspended session; the first message frees the session's buffered messages."""
        outcome = Verdict(Judgement.QUARANTINE, "suspended", "a snapshot of the session", envelope.kind.value)
        if known is None or not suspended:
            return known, outcome
        is_broken = _is_broken(known)
        stays_broken = _stays_broken(envelope, broken=is_broken)
        if isinstance(known, SuspensionMark) and is_broken is stays_broken:
            return known, outcome  # nothing changes: its buffered messages were freed by the first message
        outcome = msgspec.structs.replace(outcome, judgement=Judgement.SUSPEND, freed=self.buffered_offsets(known))
        return _mark(known, before, broken=stays_broken), outcome

    def _snapshot(
        self, known: ActiveSession[M] | SuspensionMark | None, envelope: Envelope, record: Record, *, suspended: bool
    ) -> tuple[ActiveSession[M] | SuspensionMark | None, Verdict]:
        """A snapshot restarts its session, unless the class forbids even that and the stream halts."""
        if known is not None and suspended and not envelope.restarts_sequence and _is_broken(known):
            # It may complete the snapshot that was open when the session was suspended.
            since = known.since if isinstance(known, SuspensionMark) else record.offset
            return self._waiting(known, envelope, since, suspended=True)
        current = known.inner if isinstance(known, ActiveSession) and not suspended else None
        inner, verdict = self._inner.check(current, envelope, record)
        if verdict.judgement in _KEPT:
            if suspended:
                verdict = self._end_suspension(known, verdict, envelope, record)
            return ActiveSession(record.offset, inner), verdict
        if current is None or not self._tolerates_violations or verdict.judgement in _DROPPED:
            return self._refused(known, verdict, envelope, record)
        if _is_open(current) and not envelope.restarts_sequence:
            return self._refused(known, verdict, envelope, record)
        # The snapshot contradicts the session: it restarts it, as if the session were unknown.
        inner, fresh = self._inner.check(None, envelope, record)
        if fresh.judgement not in _KEPT:
            return self._refused(known, fresh, envelope, record)
        freed = self._inner.buffered_offsets(current)
        outcome = msgspec.structs.replace(verdict, judgement=fresh.judgement, freed=freed)
        return ActiveSession(record.offset, inner), outcome

    def _end_suspension(
        self, known: ActiveSession[M] | SuspensionMark | None, verdict: Verdict, envelope: Envelope, record: Record
    ) -> Verdict:
        """The verdict on a snapshot that ends a suspension."""
        begins = envelope.kind is Kind.UPDATE
        verdict = msgspec.structs.replace(verdict, freed=self.buffered_offsets(known), begins=begins)
        if known is None or not self._accepts_loss:
            return verdict
        since = known.since if isinstance(known, SuspensionMark) else max(known.began_at, self.suspended_from)
        return msgspec.structs.replace(verdict, cause=LOSS_ACCEPTED, expected=str(since), found=str(record.offset))

    def _refused(
        self, known: ActiveSession[M] | SuspensionMark | None, verdict: Verdict, envelope: Envelope, record: Record
    ) -> tuple[ActiveSession[M] | SuspensionMark | None, Verdict]:
        """A message that is not applied: dropped, or suspending its session until the next snapshot."""
        if verdict.judgement in _DROPPED:
            return known, verdict
        if verdict.judgement is Judgement.VIOLATION and not self._tolerates_violations:
            return known, verdict
        if known is None:  # no state that could be suspended
            return None, msgspec.structs.replace(verdict, judgement=Judgement.QUARANTINE)
        outcome = msgspec.structs.replace(verdict, judgement=Judgement.SUSPEND, freed=self.buffered_offsets(known))
        broken = _stays_broken(envelope, broken=_is_broken(known))
        return _mark(known, record.offset, broken=broken), outcome


class SkipGate(WrappingGate[M]):
    """For classes whose sessions need no snapshots: only messages that an operator has given up are quarantined."""

    def __init__(self, inner: Gate[M], before: int, skipped: Iterable[SuspendedSession]) -> None:
        super().__init__(inner)
        self._before = before
        self._skipped = {each.session: each.before for each in skipped}

    @override
    def check(self, state: M | None, envelope: Envelope, record: Record) -> tuple[M | None, Verdict]:
        if record.offset < max(self._before, self._skipped.get(envelope.session, 0)):
            return state, Verdict(Judgement.QUARANTINE, "given up", "nothing: an operator decided", envelope.kind.value)
        return self._inner.check(state, envelope, record)


def migrate_gate_state(state: GateState, suspended_from: int, *, suspends: bool, inner: AnyGate) -> GateState:
    """See `IntegrityClass.make_state_adapter`.

    A session of a stream that used to halt is as old as its partition. A session
    that is suspended when the policy changes to halt is unknown until its next snapshot; so is one whose
    stored state the current class cannot use.
    """
    if state is None:
        return None
    if suspends:
        return _migrate_session(state, suspended_from, inner)
    if isinstance(state, SuspensionMark) or find_begin(state) < suspended_from:
        return None
    inner_state = state.inner if isinstance(state, ActiveSession) else state
    return cast("GateState", inner.migrate_state(inner_state))


def _migrate_session(state: GateState, suspended_from: int, inner: Gate[M]) -> ActiveSession[M] | SuspensionMark | None:
    """A stored state as that of a class that suspends."""
    if state is None or isinstance(state, SuspensionMark):
        return state
    began_at = 0  # a session of a stream that used to halt is as old as its partition
    if isinstance(state, ActiveSession):
        began_at = state.began_at
        state = state.inner
    migrated = inner.migrate_state(state)
    if migrated is None:  # unusable by the current class: the next snapshot restarts the session
        return SuspensionMark(began_at, suspended_from)
    return ActiveSession(began_at, migrated)


def mark_suspended(state: GateState, since: int, *, broken: bool = False) -> SuspensionMark | None:
    """The state of a session until its next snapshot; an unknown session stays unknown.

    Args:
        state: The state before.
        since: Its first lost offset; unchanged if the session was suspended already.
        broken: The remaining parts of an open snapshot may still arrive.
    """
    if state is None:
        return None
    if isinstance(state, ActiveSession | SuspensionMark):
        return _mark(state, since, broken=broken)
    return SuspensionMark(0, since, broken)


def _mark(known: ActiveSession[Any] | SuspensionMark, since: int, *, broken: bool) -> SuspensionMark:
    if isinstance(known, SuspensionMark):  # keeps its first lost offset
        return msgspec.structs.replace(known, is_broken=broken)
    return SuspensionMark(known.began_at, since, broken)


def find_begin(state: GateState) -> int:
    """Return the offset of the first snapshot of a session; 0 if it is unknown."""
    return state.began_at if isinstance(state, ActiveSession | SuspensionMark) else 0


def is_suspended(state: GateState, before: int) -> bool:
    """Whether a session waits for its next snapshot: it is marked, or older than an offset."""
    return isinstance(state, SuspensionMark) or (isinstance(state, ActiveSession) and state.began_at < before)


def is_lost(state: GateState) -> bool:
    """Whether the user's state of a suspended session is counted as lost."""
    return isinstance(state, SuspensionMark) and state.is_lost


def mark_lost(state: GateState) -> GateState:
    """The gate state of a suspended session whose user's state is counted as lost."""
    return msgspec.structs.replace(state, is_lost=True) if isinstance(state, SuspensionMark) else state


def is_snapshot_open(state: GateState) -> bool:
    """Whether a snapshot of several messages of a session is incomplete, and the session is not suspended."""
    if isinstance(state, ActiveSession):
        return _is_open(state.inner)
    return _is_open(state)


def _is_open(state: object) -> bool:
    return isinstance(state, OpenSnapshot)


def _is_broken(known: ActiveSession[Any] | SuspensionMark) -> bool:
    """Whether the next snapshot may only be the rest of an open one."""
    return known.is_broken if isinstance(known, SuspensionMark) else _is_open(known.inner)


def _stays_broken(envelope: Envelope, *, broken: bool) -> bool:
    """Whether more parts may follow a message: a snapshot completes it, and an end ends it."""
    return broken and envelope.kind in {Kind.UPDATE, Kind.SNAPSHOT_PART}


def list_skips_without_snapshot(
    skipped: Iterable[SuspendedSession], gate_of: Callable[[str], GateState]
) -> tuple[SuspendedSession, ...]:
    """The skipped sessions that no snapshot has restarted yet, by their gate state."""
    waiting = list[SuspendedSession]()
    for session in skipped:
        if session.before and not _has_restarted(gate_of(session.session), session.before):
            waiting.append(session)
    return tuple(waiting)


def list_unread_skips(skipped: Iterable[SuspendedSession], reached: int) -> tuple[SuspendedSession, ...]:
    """The same for a class without snapshots (`SkipGate`): sessions whose given-up messages are not all read yet."""
    return tuple(session for session in skipped if session.before > reached)


def _has_restarted(state: GateState, before: int) -> bool:
    return isinstance(state, ActiveSession) and state.began_at >= before
