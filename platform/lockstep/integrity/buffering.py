"""Buffers the updates of a session until its first snapshot: a gate around an evidence of `Strict`. Pure.

A snapshot that is fetched separately from the stream (over REST) arrives after updates that it covers, and sometimes
after some that it does not. Updates before the snapshot are buffered. With the snapshot, the updates that it covers
(their numbers are not above its own) are stale: dropped and counted. The others are applied after it and judged by
the evidence. The same holds for messages after the snapshot, up to the first update that is not stale.

The state of a session is `SnapshotAwaited`; from the snapshot to the first update after it `SnapshotApplied`; then
the state of the evidence.
"""

from __future__ import annotations

from typing import Generic, TypeVar, cast

import msgspec
from typing_extensions import override

from lockstep.integrity.gate_states import (
    ActiveSession,
    Deduplicated,
    EarlyUpdate,
    GateState,
    M,
    OpenSnapshot,
    SnapshotApplied,
    SnapshotAwaited,
)
from lockstep.integrity.sequence_numbers import LARGEST, check_range, unwrap_sequence
from lockstep.integrity.verdict import ACCEPT, Gate, Judgement, Verdict, report_violation
from lockstep.model.record import Envelope, Kind, Link, Record

S = TypeVar("S", bound=msgspec.Struct)

WAITING_MAX = 10_000
"""Buffered updates of one session; a session with more is considered to have lost its snapshot. Each costs some
30 bytes in the state of its session, which is rewritten with every batch that touches it, besides its message."""


class BufferingUntilSnapshot(Gate[M | SnapshotAwaited | SnapshotApplied[M]], Generic[M]):
    """See the module."""

    def __init__(self, evidence: Gate[M], wraps_at: int | None) -> None:
        self._evidence = evidence
        self._wraps_at = wraps_at

    @override
    def check(
        self, state: M | SnapshotAwaited | SnapshotApplied[M] | None, envelope: Envelope, record: Record
    ) -> tuple[M | SnapshotAwaited | SnapshotApplied[M] | None, Verdict]:
        number = _number(envelope)
        if number is None or envelope.kind is Kind.END:
            return self._check_evidence(state, envelope, record)
        return self._check_number(state, envelope, record, number)

    def _check_number(
        self, state: M | SnapshotAwaited | SnapshotApplied[M] | None, envelope: Envelope, record: Record, number: int
    ) -> tuple[M | SnapshotAwaited | SnapshotApplied[M] | None, Verdict]:
        is_snapshot = envelope.kind is Kind.SNAPSHOT
        if state is None or type(state) is SnapshotAwaited:
            if is_snapshot:
                return self._begin(state, envelope, record, number)
            return self._buffer(state, envelope, record, number)
        if is_snapshot:
            if envelope.restarts_sequence:
                return self._begin(state, envelope, record, number)
            return self._check_evidence(state, envelope, record)
        if type(state) is SnapshotApplied:
            return self._check_fresh(cast("SnapshotApplied[M]", state), envelope, record, number)
        return self._evidence.check(state, envelope, record)

    def _check_fresh(
        self, state: SnapshotApplied[M], envelope: Envelope, record: Record, number: int
    ) -> tuple[M | SnapshotApplied[M] | None, Verdict]:
        """Check an update directly after the snapshot, which may cover it."""
        if not self._is_after(number, state.number):
            return state, Verdict(Judgement.LATE, "stale", f"above {state.number}", str(number))
        after, verdict = self._evidence.check(state.evidence, envelope, record)
        if verdict.judgement is not Judgement.ACCEPT:
            return state, verdict
        return after, verdict  # from here on the state is that of the evidence: no later update is covered

    @override
    def migrate_state(self, state: GateState) -> M | SnapshotAwaited | SnapshotApplied[M] | None:
        if state is None or isinstance(state, SnapshotAwaited):
            return state
        if not isinstance(state, SnapshotApplied):
            return self._evidence.migrate_state(state)
        inner = self._evidence.migrate_state(state.evidence)
        return None if inner is None else SnapshotApplied(state.number, inner)

    @override
    def buffered_offsets(self, state: M | SnapshotAwaited | SnapshotApplied[M] | None) -> tuple[int, ...]:
        if not isinstance(state, SnapshotAwaited):
            return ()
        return _offsets(state.updates)

    def _check_evidence(
        self, state: M | SnapshotAwaited | SnapshotApplied[M] | None, envelope: Envelope, record: Record
    ) -> tuple[M | SnapshotAwaited | SnapshotApplied[M] | None, Verdict]:
        """The evidence's judgement; a session before its snapshot is unknown to the evidence."""
        if type(state) is SnapshotApplied:
            return self._check_snapshot(cast("SnapshotApplied[M]", state), envelope, record)
        inner = None if type(state) is SnapshotAwaited else state
        after, verdict = self._evidence.check(inner, envelope, record)
        if verdict.judgement is not Judgement.ACCEPT:
            return state, verdict
        return after, verdict

    def _check_snapshot(
        self, state: SnapshotApplied[M], envelope: Envelope, record: Record
    ) -> tuple[M | SnapshotApplied[M] | None, Verdict]:
        """Check another snapshot, an end or a message without a number, directly after the snapshot."""
        after, verdict = self._evidence.check(state.evidence, envelope, record)
        if verdict.judgement is not Judgement.ACCEPT:
            return state, verdict
        number = _number(envelope)
        if envelope.kind is Kind.SNAPSHOT and number is not None:
            return SnapshotApplied(number, after), verdict
        return after, verdict

    def _begin(
        self, state: M | SnapshotAwaited | SnapshotApplied[M] | None, envelope: Envelope, record: Record, number: int
    ) -> tuple[M | SnapshotAwaited | SnapshotApplied[M] | None, Verdict]:
        """The snapshot that starts a session, with its buffered updates."""
        after, verdict = self._evidence.check(None, envelope, record)
        if verdict.judgement is not Judgement.ACCEPT:
            return state, verdict
        waiting = state.updates if isinstance(state, SnapshotAwaited) else []
        stale = [update for update in waiting if not self._is_after(update.number, number)]
        applied = [update for update in waiting if update not in stale]
        for update in applied:
            after, verdict = self._evidence.check(after, _make_envelope(update, envelope), record)
            if verdict.judgement is not Judgement.ACCEPT:
                return state, verdict
        outcome = ACCEPT
        if waiting:
            outcome = Verdict(Judgement.ACCEPT, stale=_offsets(stale), after=_offsets(applied))
        if applied:
            return after, outcome
        return SnapshotApplied(number, after), outcome  # the next update may still be covered by the snapshot

    def _is_after(self, number: int, other: int) -> bool:
        return unwrap_sequence(number, other, self._wraps_at) > other

    def _buffer(
        self, state: SnapshotAwaited | None, envelope: Envelope, record: Record, number: int
    ) -> tuple[SnapshotAwaited | None, Verdict]:
        waiting = [] if state is None else state.updates
        link = envelope.link or Link(number)
        early = EarlyUpdate(record.offset, number, link.first, link.previous)
        refused = self._refused(waiting, early)
        if refused is not None:
            return state, refused
        verdict = Verdict(Judgement.BUFFER, "buffered", "a snapshot first", str(number))
        return SnapshotAwaited([*waiting, early]), verdict

    def _refused(self, waiting: list[EarlyUpdate], early: EarlyUpdate) -> Verdict | None:
        """Why an update cannot be buffered behind the others; gaps between them show with the snapshot."""
        number = early.number
        for stored in (number, early.first, early.previous):
            if stored is not None and abs(stored) > LARGEST:
                return report_violation("number out of range", "a number of 64 bits", number)
        refused = check_range(number, self._wraps_at)
        if refused is not None:
            return refused
        if waiting and self._wraps_at is not None:
            # Of numbers that wrap around, more than half a round ahead is behind.
            ahead = (number - waiting[0].number) % self._wraps_at
            half = self._wraps_at // 2
            if ahead >= half:
                right = f"one within half a round, {half} numbers, because of wraps_at={self._wraps_at}"
                return report_violation("no snapshot", right, f"{number}, {ahead} after {waiting[0].number}")
        if len(waiting) >= WAITING_MAX:
            return report_violation("no snapshot", f"one before more than {WAITING_MAX} updates", WAITING_MAX + 1)
        last = waiting[-1].number if waiting else None
        if last is None or self._is_after(number, last):
            return None
        return report_violation("repeat" if number == last else "sequence goes back", f"above {last}", number)


def drop_buffer(state: GateState) -> GateState:
    """A stored state for a class without buffering: a buffering session is unknown to it."""
    match state:
        case SnapshotAwaited():
            return None
        case SnapshotApplied():
            return state.evidence
        case ActiveSession() | OpenSnapshot():
            return _replace_inner(state, state.inner, drop_buffer(state.inner), "inner")
        case Deduplicated():
            return _replace_inner(state, state.evidence, drop_buffer(state.evidence), "evidence")
        case _:
            return state


def _replace_inner(state: S, inner: GateState, reduced: GateState, field: str) -> S | None:
    """A state around its reduced inner state; None if nothing of the inner state is left."""
    if reduced is inner:
        return state
    if reduced is None:
        return None
    return msgspec.structs.replace(state, **{field: reduced})


def _number(envelope: Envelope) -> int | None:
    return envelope.sequence if envelope.link is None else envelope.link.last


def _make_envelope(early: EarlyUpdate, snapshot: Envelope) -> Envelope:
    """The envelope of a buffered update, as far as the evidence reads it."""
    if snapshot.link is None:
        return Envelope(snapshot.session, sequence=early.number)
    return Envelope(snapshot.session, link=Link(early.number, first=early.first, previous=early.previous))


def _offsets(waiting: list[EarlyUpdate]) -> tuple[int, ...]:
    return tuple(update.offset for update in waiting)
