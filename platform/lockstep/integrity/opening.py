"""Sessions that need no snapshot: a gate around the gate of a class. Pure.

In an unknown session, an update is judged as the snapshot that begins it. An END of an unknown session ends nothing: it
is accepted and leaves no state, unless it carries a message count and messages are missing.
"""

from __future__ import annotations

import msgspec
from typing_extensions import override

from lockstep.integrity.verdict import ACCEPT, UNKNOWN_SESSION, Gate, GateState, Judgement, Verdict
from lockstep.model.record import Envelope, Kind, Record


class OpeningAtFirst(Gate):
    """See the module."""

    def __init__(self, inner: Gate) -> None:
        self._inner = inner
        self.adapt, self.held, self.due_us, self.due = inner.adapt, inner.held, inner.due_us, inner.due  # type: ignore[method-assign]  # as they are

    @override
    def check(self, state: GateState, place: Envelope, record: Record) -> tuple[GateState, Verdict]:
        after, verdict = self._inner.check(state, place, record)
        if verdict is ACCEPT or verdict.cause != UNKNOWN_SESSION:
            return after, verdict
        opened, begins = self._inner.check(None, msgspec.structs.replace(place, kind=Kind.SNAPSHOT), record)
        if place.kind is Kind.END and begins.judgement is Judgement.ACCEPT:
            return None, ACCEPT
        return opened, begins
