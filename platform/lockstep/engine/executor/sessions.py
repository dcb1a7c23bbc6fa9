"""The sessions of one range: stored state, and the gate that judges their messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import blake2b

from msgspec.structs import replace

from lockstep.engine.executor.compiled_stream import CompiledStream
from lockstep.integrity.base import PartitionTime
from lockstep.integrity.gate_states import GateState, OpenSnapshot
from lockstep.integrity.suspension import is_snapshot_open, is_suspended
from lockstep.integrity.verdict import AnyGate, Verdict
from lockstep.model.position import Position
from lockstep.model.record import Envelope, Record
from lockstep.state.decoded_sessions import SessionEntry
from lockstep.state.store import PartitionState
from lockstep.state.timers import MessageBuffer

DIGEST_BYTES = 8


class Sessions:
    """Sessions of one range, with their gate.

    Attributes:
        gate: Current gate of the partition.
        check: Check of the current gate; read again for each message, because any message may change it.
        migrate_state: Brings a stored gate state into the form of the current gate.
        suspended_from: Sessions that started before this offset are suspended.
        opened: Sessions that started in this range and did not end.
        closed: Sessions that ended in this range.
        skipped: Sessions that an operator skips; with 0 once they have ended again, so that the form of the states of
            the range stays as it is.
        held: Buffered messages.
    """

    gate: AnyGate
    check: Callable[[GateState, Envelope, Record], tuple[GateState, Verdict]]
    migrate_state: Callable[[GateState], GateState]
    suspended_from: int

    def __init__(
        self, compiled: CompiledStream, position: Position, state: PartitionState[object], time: PartitionTime
    ) -> None:
        self._compiled = compiled
        self._state = state
        self._time = time
        self.skipped = position.suspended_sessions
        self._skipped_before = {skip.session: skip.before for skip in position.suspended_sessions}
        self._spread = False
        self._joined = position.joined_at > 0
        self.opened: set[str] = set()
        self.closed: set[str] = set()
        self.held = MessageBuffer(state.reserved)
        self.suspend_before(position.suspended_from)

    @property
    def may_suspend(self) -> bool:
        """See `IntegrityClass.may_suspend`."""
        return self._compiled.integrity.may_suspend(self.suspended_from, self.skipped)

    def suspend_before(self, offset: int) -> None:
        """Suspend all sessions that started before an offset."""
        self.suspended_from = offset
        self.gate = self._compiled.gate_for(offset, self._time, self.skipped, spread=self._spread, joined=self._joined)
        self.check = self.gate.check
        self.migrate_state = self._compiled.integrity.make_state_adapter(offset, self.skipped)

    def enable_multipart(self) -> None:
        """Accept multi-part snapshots from now on; streams without them do not pay for it."""
        if not self._spread:
            self._spread = True
            self.suspend_before(self.suspended_from)

    def load(self, session: str) -> SessionEntry[object] | None:
        """The session's stored state, in the declared type.

        Raises:
            TypeError: The session is not text.
        """
        entry = self._state.load(check_session(session))
        if entry is not None:
            entry.gate = self.migrate_state(entry.gate)
            if is_snapshot_open(entry.gate):
                self.enable_multipart()
        return entry

    def find(self, session: str) -> SessionEntry[object] | None:
        """The session's state, if it has one."""
        return self._state.entries.get(session) or self.load(session)

    def add(self, session: str, entry: SessionEntry[object]) -> None:
        """Add a session, possibly new, to those that are saved."""
        if session not in self._state.entries:
            self._state.entries[session] = entry
            self.opened.add(session)
            self.closed.discard(session)

    def remove(self, session: str) -> None:
        """Remove an ended session. A session that an operator skips had restarted, so its skip ends."""
        self._state.remove(session)
        self.opened.discard(session)
        self.closed.add(session)
        if self._skipped_before.get(session) and self.may_suspend:
            self._skipped_before[session] = 0
            self.skipped = tuple(replace(skip, before=self._skipped_before[skip.session]) for skip in self.skipped)
            self.suspend_before(self.suspended_from)

    def give_up_snapshot(self, session: str, entry: SessionEntry[object]) -> None:
        """Give up an incomplete snapshot under a class that suspends nothing: the session is as before the snapshot."""
        if entry.state is None:
            self.remove(session)
        elif isinstance(entry.gate, OpenSnapshot):
            entry.gate = entry.gate.inner

    def is_suspended(self, session: str, entry: SessionEntry[object]) -> bool:
        """Whether a session waits for its next snapshot."""
        return is_suspended(entry.gate, max(self.suspended_from, self._skipped_before.get(session, 0)))


def check_session(session: object) -> str:
    """A session as the user's `envelope` gave it.

    Raises:
        TypeError: It is not text.
    """
    if not isinstance(session, str):
        raise TypeError(f"Envelope.session = {session!r} is of type {type(session).__name__}, not str")
    return session


def count_digests(sessions: Iterable[str]) -> tuple[bytes, ...]:
    """Digests with which the driver detects sessions in two partitions, without their names."""
    # Sorted: the order of a set differs from process to process, and a retried task must return the same.
    return tuple(sorted(blake2b(_text(session), digest_size=DIGEST_BYTES).digest() for session in sessions))


def _text(session: str) -> bytes:
    return session.encode("utf-8", "surrogatepass")
