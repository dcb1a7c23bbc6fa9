"""Unknown sessions: gates around the gate of a class. Pure.

`OpeningAtFirst`, for sessions that need no snapshot: an update of an unknown session is judged as the snapshot that
begins it, unless it is late: it would begin a session of the past again. Where messages wait for their order, the
first one does, too, and the first that is released begins the session. An END of an unknown session ends nothing: it
is accepted and leaves no state, unless it carries a message count and messages are missing. A session that another
class has left keeps its state: only its numbering restarts, with its next message, which may be late or wait, too.

`JoinedLog`, for a log that was joined in the middle, where sessions may have begun before: what precedes the first
snapshot of a session is skipped, and the message count of an END is not compared.
"""

from __future__ import annotations

from typing import Final

import msgspec
from typing_extensions import override

from lockstep.integrity.verdict import ACCEPT, UNKNOWN_SESSION, Gate, GateState, Judgement, Verdict
from lockstep.model.record import Envelope, Kind, Record


class OpeningAtFirst(Gate):
    """See the module."""

    def __init__(self, inner: Gate) -> None:
        self._inner = inner
        self.due = inner.due  # type: ignore[method-assign]  # as it is

    @override
    def check(self, state: GateState, envelope: Envelope, record: Record) -> tuple[GateState, Verdict]:
        if _is_renumbered(state):
            return self._go_on(state, envelope, record)
        after, verdict = self._inner.check(state, envelope, record)
        if verdict is ACCEPT or verdict.cause != UNKNOWN_SESSION:
            return after, verdict
        if (begins_later := self._begin_later(None, envelope, record)) is not None:
            return begins_later
        opened, begins = self._begin(envelope, record)
        if envelope.kind is Kind.END and begins.judgement is Judgement.ACCEPT:
            return None, ACCEPT
        return opened, begins

    @override
    def adapt(self, state: GateState) -> GateState:
        kept = state if _is_renumbered(state) else self._inner.adapt(state)
        return _RENUMBERED if kept is None else kept

    @override
    def held(self, state: GateState) -> tuple[int, ...]:
        return () if _is_renumbered(state) else self._inner.held(state)

    @override
    def due_us(self, state: GateState) -> int | None:
        return None if _is_renumbered(state) else self._inner.due_us(state)

    def _go_on(self, state: GateState, envelope: Envelope, record: Record) -> tuple[GateState, Verdict]:
        """The first message of a session since another class judged it: its evidence begins with it."""
        opened, begins = self._begin(envelope, record)
        if begins.judgement is not Judgement.ACCEPT:
            return state, begins
        return self._begin_later(state, envelope, record) or (opened, begins)

    def _begin_later(self, state: GateState, envelope: Envelope, record: Record) -> tuple[GateState, Verdict] | None:
        """The memory and the verdict of an update that is late, or waits for its order; None where it is neither."""
        if envelope.kind is not Kind.UPDATE:
            return None
        late = self._inner.find_late(envelope, record)
        return self._inner.buffer_first(envelope, record) if late is None else (state, late)

    def _begin(self, envelope: Envelope, record: Record) -> tuple[GateState, Verdict]:
        return self._inner.check(None, msgspec.structs.replace(envelope, kind=Kind.SNAPSHOT), record)


_RENUMBERED: Final[GateState] = {"f": True}


def _is_renumbered(state: GateState) -> bool:
    return isinstance(state, dict) and "f" in state


class JoinedLog(Gate):
    """See the module."""

    def __init__(self, inner: Gate, *, skips: bool) -> None:
        """Wrap a gate.

        Args:
            inner: The gate of the class.
            skips: Skip what precedes the first snapshot of a session; otherwise the class takes it.
        """
        self._inner, self._skips = inner, skips
        self.adapt, self.held, self.due_us, self.due = inner.adapt, inner.held, inner.due_us, inner.due  # type: ignore[method-assign]  # as they are
        self.find_late, self.buffer_first = inner.find_late, inner.buffer_first  # type: ignore[method-assign]  # as they are

    @override
    def check(self, state: GateState, envelope: Envelope, record: Record) -> tuple[GateState, Verdict]:
        if state is None and self._skips and envelope.kind in _FOLLOWS:
            return None, _SKIPPED
        counted = envelope if envelope.count is None else msgspec.structs.replace(envelope, count=None)
        return self._inner.check(state, counted, record)


_FOLLOWS = (Kind.UPDATE, Kind.END)
_SKIPPED = Verdict(Judgement.SKIP, "before the first snapshot", "a snapshot of the session")
