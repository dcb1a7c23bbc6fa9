"""Snapshots spread over several messages: invisible before they are complete. Pure.

A gate around the gate of a class. Every message of a session between the first part of its snapshot and
the message that completes it is buffered; the completing one releases them, in order.

While a snapshot is open the state is {"p": buffered offsets, "g": state of the inner gate};
before and after it is the state of the inner gate.
"""

from __future__ import annotations

from copy import deepcopy
from typing import TypedDict, cast

import msgspec
from typing_extensions import override

from lockstep.integrity.verdict import Gate, GateState, Judgement, Verdict, report_violation
from lockstep.model.record import Envelope, Kind, Record

_OF_SNAPSHOT = (Kind.SNAPSHOT_PART, Kind.SNAPSHOT)
_LEFT_OUT = (Judgement.LATE, Judgement.QUARANTINE)

PARTS_MAX = 10_000
"""A snapshot of more messages is considered endless."""


class OpenMultipart(TypedDict):
    """An open snapshot."""

    p: list[int]
    g: GateState


class MultipartGate(Gate):
    """See the module."""

    def __init__(self, inner: Gate, *, tolerates_all: bool = False) -> None:
        """Wrap a gate.

        Args:
            inner: The gate of the class.
            tolerates_all: An incomplete snapshot is given up, without a violation.
        """
        self._inner, self._tolerates_all = inner, tolerates_all

    @override
    def check(self, state: GateState, envelope: Envelope, record: Record) -> tuple[GateState, Verdict]:
        if is_spread(state):
            return self._goes_on(cast("OpenMultipart", state), envelope, record)
        if envelope.kind is Kind.SNAPSHOT_PART:
            return self._goes_on(OpenMultipart(p=[], g=state), envelope, record)
        return self._inner.check(state, envelope, record)

    def _goes_on(self, parts: OpenMultipart, envelope: Envelope, record: Record) -> tuple[GateState, Verdict]:
        """A message of a session whose snapshot is open, or is opened by it."""
        before = cast("GateState", parts) if parts["p"] else parts["g"]
        goes_on = envelope.kind is Kind.SNAPSHOT_PART and not envelope.restarts_sequence and len(parts["p"]) < PARTS_MAX
        # A gate may change its state in place; where the message may be refused all the same, that one stays.
        known = parts["g"] if goes_on else deepcopy(parts["g"])
        inner, verdict = self._inner.check(known, _as_snapshot(envelope), record)
        freed: tuple[int, ...] = ()
        if (refused := _refused(parts, envelope, verdict)) is not None:
            if not self._tolerates_all:
                return before, refused
            freed, parts = tuple(parts["p"]), OpenMultipart(p=[], g=parts["g"])
            verdict = msgspec.structs.replace(refused, judgement=Judgement.ACCEPT, freed=freed)
        if envelope.kind is Kind.END or (freed and envelope.kind is Kind.UPDATE):
            return inner, verdict
        if envelope.kind is Kind.SNAPSHOT:
            return inner, msgspec.structs.replace(verdict, before=tuple(parts["p"]))
        held = OpenMultipart(p=[*parts["p"], record.offset], g=inner)
        return cast("GateState", held), msgspec.structs.replace(verdict, judgement=Judgement.BUFFER)

    @override
    def adapt(self, state: GateState) -> GateState:
        if not is_spread(state):
            return self._inner.adapt(state)
        parts = cast("OpenMultipart", state)
        inner = self._inner.adapt(parts["g"])
        return None if inner is None else cast("GateState", OpenMultipart(p=parts["p"], g=inner))

    def held(self, state: GateState) -> tuple[int, ...]:
        """See `Gate.held`: messages buffered by the inner gate before the snapshot began are included."""
        if not is_spread(state):
            return self._inner.held(state)
        parts = cast("OpenMultipart", state)
        return (*parts["p"], *self._inner.held(parts["g"]))

    def due_us(self, state: GateState) -> int | None:
        """See `Gate.due_us`: an open snapshot has no deadline."""
        return None if is_spread(state) else self._inner.due_us(state)

    @override
    def due(self, state: GateState, until_us: int) -> tuple[GateState, Verdict]:
        return self._inner.due(state, until_us)


def is_spread(state: GateState) -> bool:
    """Whether a snapshot is open."""
    return isinstance(state, dict) and "p" in state


def _refused(parts: OpenMultipart, envelope: Envelope, verdict: Verdict) -> Verdict | None:
    """Why a message cannot be part of the open snapshot; None when it can."""
    if parts["p"] and (found := _find_interruption(envelope, verdict)):
        return report_violation("snapshot not complete", "the rest of the snapshot", found)
    if verdict.judgement is Judgement.BUFFER or verdict.after or verdict.before or verdict.stale:
        return report_violation("snapshot out of order", "its messages one after the other", verdict.found)
    if verdict.judgement is not Judgement.ACCEPT:
        return verdict
    if len(parts["p"]) >= PARTS_MAX:
        return report_violation("snapshot too long", f"at most {PARTS_MAX} messages", len(parts["p"]) + 1)
    return None


def _find_interruption(envelope: Envelope, verdict: Verdict) -> str:
    """What a message is instead of the rest of an open snapshot; empty where it is none of this."""
    if envelope.restarts_sequence:  # the producer restarts: compare with the state before it
        return "another one that begins"
    if envelope.kind is Kind.END:
        return "the end of the session"
    is_left_out = envelope.kind in _OF_SNAPSHOT and verdict.judgement in _LEFT_OUT
    return f"a message of it left out: {verdict.cause}" if is_left_out else ""


def _as_snapshot(envelope: Envelope) -> Envelope:
    return msgspec.structs.replace(envelope, kind=Kind.SNAPSHOT) if envelope.kind is Kind.SNAPSHOT_PART else envelope
