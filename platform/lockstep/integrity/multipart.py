"""Snapshots spread over several messages: invisible before they are complete. Pure.

A gate around the gate of a class. Every message of a session between the first part of its snapshot and
the message that completes it is buffered; the completing one releases them, in order.

While a snapshot is open the state is an `OpenSnapshot`; before and after it is the state of the inner gate.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Generic, cast

import msgspec
from typing_extensions import override

from lockstep.integrity.gate_states import GateState, M, OpenSnapshot
from lockstep.integrity.verdict import ACCEPT, Gate, Judgement, Verdict, report_violation
from lockstep.model.record import Envelope, Kind, Record

_OF_SNAPSHOT = (Kind.SNAPSHOT_PART, Kind.SNAPSHOT)
_LEFT_OUT = (Judgement.LATE, Judgement.QUARANTINE)

PARTS_MAX = 10_000
"""A snapshot of more messages is considered endless."""


class MultipartGate(Gate[M | OpenSnapshot[M]], Generic[M]):
    """See the module."""

    def __init__(self, inner: Gate[M], *, tolerates_all: bool = False) -> None:
        """Wrap a gate.

        Args:
            inner: The gate of the class.
            tolerates_all: An incomplete snapshot is given up, without a violation.
        """
        self._inner = inner
        self._tolerates_all = tolerates_all

    @override
    def check(
        self, state: M | OpenSnapshot[M] | None, envelope: Envelope, record: Record
    ) -> tuple[M | OpenSnapshot[M] | None, Verdict]:
        if type(state) is OpenSnapshot:  # isinstance costs three times as much when it is not
            return self._check_part(cast("OpenSnapshot[M]", state), envelope, record)
        if envelope.kind is Kind.SNAPSHOT_PART:
            return self._check_part(OpenSnapshot([], state), envelope, record)
        return self._inner.check(state, envelope, record)

    def _check_part(
        self, parts: OpenSnapshot[M], envelope: Envelope, record: Record
    ) -> tuple[M | OpenSnapshot[M] | None, Verdict]:
        """A message of a session whose snapshot is open, or is opened by it."""
        unchanged = parts if parts.offsets else parts.inner
        is_part = envelope.kind is Kind.SNAPSHOT_PART
        continues = is_part and not envelope.restarts_sequence and len(parts.offsets) < PARTS_MAX
        inner_state = parts.inner
        if not continues:
            # A gate may change the memory in its state in place. A message that may be refused gets a copy of it.
            inner_state = deepcopy(parts.inner)
        inner, verdict = self._inner.check(inner_state, _as_snapshot(envelope), record)
        freed: tuple[int, ...] = ()
        if (refused := _refused(parts, envelope, verdict)) is not None:
            if not self._tolerates_all:
                return unchanged, refused
            freed = tuple(parts.offsets)
            parts = OpenSnapshot([], parts.inner)  # the incomplete snapshot is given up
            verdict = msgspec.structs.replace(refused, judgement=Judgement.ACCEPT, freed=freed)
        if envelope.kind is Kind.END or (freed and envelope.kind is Kind.UPDATE):
            return inner, verdict
        if envelope.kind is Kind.SNAPSHOT:
            return inner, msgspec.structs.replace(verdict, before=tuple(parts.offsets))
        after = OpenSnapshot([*parts.offsets, record.offset], inner)
        return after, msgspec.structs.replace(verdict, judgement=Judgement.BUFFER)

    @override
    def migrate_state(self, state: GateState) -> M | OpenSnapshot[M] | None:
        if not isinstance(state, OpenSnapshot):
            return self._inner.migrate_state(state)
        inner = self._inner.migrate_state(state.inner)
        if inner is None:
            return None
        return OpenSnapshot(state.offsets, inner)

    def buffered_offsets(self, state: M | OpenSnapshot[M] | None) -> tuple[int, ...]:
        """See `Gate.buffered_offsets`: messages that the inner gate buffered before the snapshot are included."""
        if not isinstance(state, OpenSnapshot):
            return self._inner.buffered_offsets(state)
        parts = cast("OpenSnapshot[M]", state)
        return (*parts.offsets, *self._inner.buffered_offsets(parts.inner))

    def due_us(self, state: M | OpenSnapshot[M] | None) -> int | None:
        """See `Gate.due_us`: an open snapshot has no deadline."""
        if isinstance(state, OpenSnapshot):
            return None
        return self._inner.due_us(state)

    @override
    def release_due(
        self, state: M | OpenSnapshot[M] | None, until_us: int
    ) -> tuple[M | OpenSnapshot[M] | None, Verdict]:
        if isinstance(state, OpenSnapshot):
            return cast("OpenSnapshot[M]", state), ACCEPT
        return self._inner.release_due(state, until_us)


def _refused(parts: OpenSnapshot[Any], envelope: Envelope, verdict: Verdict) -> Verdict | None:
    """Why a message cannot be part of the open snapshot; None when it can."""
    if parts.offsets and (interruption := _find_interruption(envelope, verdict)):
        return report_violation("snapshot not complete", "the rest of the snapshot", interruption)
    if verdict.judgement is Judgement.BUFFER or verdict.after or verdict.before or verdict.stale:
        return report_violation("snapshot out of order", "its messages one after the other", verdict.found)
    if verdict.judgement is not Judgement.ACCEPT:
        return verdict
    if len(parts.offsets) >= PARTS_MAX:
        return report_violation("snapshot too long", f"at most {PARTS_MAX} messages", len(parts.offsets) + 1)
    return None


def _find_interruption(envelope: Envelope, verdict: Verdict) -> str:
    """How a message interrupts an open snapshot; empty if it does not."""
    if envelope.restarts_sequence:  # the producer restarts: compare with the state before it
        return "another one that begins"
    if envelope.kind is Kind.END:
        return "the end of the session"
    if envelope.kind in _OF_SNAPSHOT and verdict.judgement in _LEFT_OUT:
        return f"a message of it left out: {verdict.cause}"
    return ""


def _as_snapshot(envelope: Envelope) -> Envelope:
    if envelope.kind is not Kind.SNAPSHOT_PART:
        return envelope
    return msgspec.structs.replace(envelope, kind=Kind.SNAPSHOT)
