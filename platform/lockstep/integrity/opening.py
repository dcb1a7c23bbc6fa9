"""Unknown sessions: gates around the gate of a class. Pure.

`OpeningAtFirst`, for sessions that need no snapshot: an update of an unknown session is judged as the snapshot that
starts it, unless it is late: it would restart a session of the past. If messages wait for their order, the
first message waits, too, and the first released message starts the session. An END of an unknown session ends nothing:
it is accepted and leaves no state, unless it carries a message count and messages are missing. A session that another
class has left keeps its state: only its numbering restarts, with its next message, which may be late or wait, too.

`JoinedLog`, for a log that was joined in the middle, where sessions may have started before: messages before the first
snapshot of a session are skipped, and the message count of an END is not compared.
"""

from __future__ import annotations

from typing import Final, Generic

import msgspec
from typing_extensions import override

from lockstep.integrity.gate_states import GateState, M, Renumbered
from lockstep.integrity.verdict import ACCEPT, UNKNOWN_SESSION, Gate, Judgement, Verdict, WrappingGate
from lockstep.model.record import Envelope, Kind, Record


class OpeningAtFirst(Gate[M | Renumbered], Generic[M]):
    """See the module."""

    def __init__(self, inner: Gate[M]) -> None:
        self._inner = inner

    @override
    def check(
        self, state: M | Renumbered | None, envelope: Envelope, record: Record
    ) -> tuple[M | Renumbered | None, Verdict]:
        if type(state) is Renumbered:  # isinstance costs three times as much when it is not
            return self._go_on(state, envelope, record)
        after, verdict = self._inner.check(state, envelope, record)
        if verdict is ACCEPT or verdict.cause != UNKNOWN_SESSION:
            return after, verdict
        deferred = self._begin_later(None, envelope, record)
        if deferred is not None:
            return deferred
        opened, begins = self._begin(envelope, record)
        if envelope.kind is Kind.END and begins.judgement is Judgement.ACCEPT:
            return None, ACCEPT
        return opened, begins

    @override
    def migrate_state(self, state: GateState) -> M | Renumbered:
        if isinstance(state, Renumbered):
            return _RENUMBERED
        migrated = self._inner.migrate_state(state)
        return _RENUMBERED if migrated is None else migrated

    @override
    def buffered_offsets(self, state: M | Renumbered | None) -> tuple[int, ...]:
        if isinstance(state, Renumbered):
            return ()
        return self._inner.buffered_offsets(state)

    @override
    def due_us(self, state: M | Renumbered | None) -> int | None:
        if isinstance(state, Renumbered):
            return None
        return self._inner.due_us(state)

    @override
    def release_due(self, state: M | Renumbered | None, until_us: int) -> tuple[M | Renumbered | None, Verdict]:
        if isinstance(state, Renumbered):
            return state, ACCEPT
        return self._inner.release_due(state, until_us)

    def _go_on(self, state: Renumbered, envelope: Envelope, record: Record) -> tuple[M | Renumbered | None, Verdict]:
        """The first message of a session since another class judged it: its evidence starts with it."""
        opened, begins = self._begin(envelope, record)
        if begins.judgement is not Judgement.ACCEPT:
            return state, begins
        return self._begin_later(state, envelope, record) or (opened, begins)

    def _begin_later(
        self, state: Renumbered | None, envelope: Envelope, record: Record
    ) -> tuple[M | Renumbered | None, Verdict] | None:
        """The memory and the verdict of an update that is late, or waits for its order; None if neither."""
        if envelope.kind is not Kind.UPDATE:
            return None
        late = self._inner.find_late(envelope, record)
        if late is not None:
            return state, late
        return self._inner.buffer_first(envelope, record)

    def _begin(self, envelope: Envelope, record: Record) -> tuple[M | None, Verdict]:
        return self._inner.check(None, msgspec.structs.replace(envelope, kind=Kind.SNAPSHOT), record)


_RENUMBERED: Final = Renumbered()


class JoinedLog(WrappingGate[M]):
    """See the module."""

    def __init__(self, inner: Gate[M], *, skips: bool) -> None:
        """Wrap a gate.

        Args:
            inner: The gate of the class.
            skips: Skip what precedes the first snapshot of a session; otherwise the class takes it.
        """
        super().__init__(inner)
        self._skips = skips

    @override
    def check(self, state: M | None, envelope: Envelope, record: Record) -> tuple[M | None, Verdict]:
        if state is None and self._skips and envelope.kind in _FOLLOWS:
            return None, _SKIPPED
        counted = envelope if envelope.count is None else msgspec.structs.replace(envelope, count=None)
        return self._inner.check(state, counted, record)


_FOLLOWS = (Kind.UPDATE, Kind.END)
_SKIPPED = Verdict(Judgement.SKIP, "before the first snapshot", "a snapshot of the session")
