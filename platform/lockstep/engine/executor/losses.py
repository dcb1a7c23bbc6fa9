"""Counts the states that a range discards.

A suspended session that needs no snapshot restarts with its next message, without the state that it had. The state
is counted as lost when its session is suspended, because the next message may never arrive. A partition is suspended by
one offset: one scan of its state counts the sessions, and sessions that started since are known by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import PurePath
from traceback import extract_tb

from lockstep.engine.executor.compiled_stream import CompiledStream
from lockstep.engine.executor.limits import is_of_machine
from lockstep.engine.executor.sessions import Sessions
from lockstep.errors import StateError
from lockstep.integrity.gate_states import GateState, SuspensionMark
from lockstep.integrity.suspension import find_begin, is_lost, mark_lost
from lockstep.model.position import Position
from lockstep.model.state_loss import DECISIONS, ENDINGS, LIFE_ENDS, SKIP_SESSION, StateLoss
from lockstep.state.codec import MigrationFailed
from lockstep.state.decoded_sessions import SessionEntry
from lockstep.state.store import PartitionState

SESSION_ENDED = "session ended"
"""Cause of a loss with the end of a session whose transform has no `on_end`."""
END_RAISED = "on_end raised"
"""Cause of a loss with the end of an idle session."""
SUSPENDED = "suspended"
"""Cause of a loss by a suspension from before the class discarded states."""

Entry = SessionEntry[object]


class LossCounter:
    """The losses of one range.

    Attributes:
        discarded_by: See `Position.discarded_by`.
        lost_before: See `Position.lost_before`.
        uncounted_skips: See `Position.uncounted_skips`.
    """

    def __init__(
        self, compiled: CompiledStream, position: Position, state: PartitionState[object], sessions: Sessions
    ) -> None:
        self._integrity = compiled.integrity
        self._pending = compiled.hooks.pending
        self._position = position
        self._state = state
        self._sessions = sessions
        self.discarded_by = position.discarded_by
        self.lost_before = position.lost_before
        self.uncounted_skips = position.uncounted_skips
        self._found: dict[str, StateLoss] = {}
        self._begun: set[str] = set()
        self._is_scanned = False

    @property
    def losses(self) -> tuple[StateLoss, ...]:
        """The losses, by cause."""
        return tuple(self._found.values())

    @property
    def discards_suspended(self) -> bool:
        """Whether a suspended session restarts without its state."""
        return self._integrity.opens_at_first and self._sessions.may_suspend

    def count_decided(self) -> None:
        """Count the states that the driver or an operator discarded since the batch before."""
        start = self._position.next_offset
        cause = self.discarded_by
        if cause in LIFE_ENDS:
            self._count_all(cause, start)
            self.lost_before = start
            self.discarded_by = ""
        elif cause and self._integrity.opens_at_first:
            if self.discards_suspended:
                self._scan(cause, start, self._position.suspended_from)
            self.discarded_by = ""
        if self._integrity.opens_at_first:
            self._count_skipped()

    def note_begun(self, session: str) -> None:
        """Note a session that has a new state."""
        self._begun.add(session)

    def suspend_before(self, offset: int, cause: str) -> None:
        """Suspend all sessions that started before an offset, and count the states that are lost by it."""
        if not self.discards_suspended:
            self.discarded_by = cause  # a later class may discard them
        elif self._is_scanned:  # only sessions that started since the scan can be active: they are known by name
            self._count_begun(cause, offset)
        else:
            self._scan(cause, offset - 1, offset)
        self._sessions.suspend_before(offset)

    def suspend(self, cause: str, offset: int, session: str, entry: Entry, gate: GateState) -> None:
        """Suspend a session by its new gate state, and count its state if it is lost by it."""
        was_active = not self._sessions.is_suspended(session, entry)
        was_marked = isinstance(entry.gate, SuspensionMark)
        entry.gate = gate
        if self.discards_suspended and not was_marked:
            entry.gate = mark_lost(gate)  # now, or with its partition before
            if was_active:
                self.note(cause, offset, entry.state)

    def restart(self, offset: int, entry: Entry) -> None:
        """Count the state of a suspended session that restarts, unless its suspension has counted it."""
        if isinstance(entry.gate, SuspensionMark) and not is_lost(entry.gate):
            self.note(SUSPENDED, offset, entry.state)

    def end(self, offset: int, state: object) -> None:
        """Count the messages of a session that ends, and no `on_end` emits them."""
        if self._pending is not None:
            self.note(SESSION_ENDED, offset, state)

    def note(self, cause: str, offset: int, state: object, detail: str = "") -> None:
        """Count one state, if anything is lost with it."""
        if state is None:
            return
        messages, problem = self._count_pending(state)
        if messages != 0:
            self._add(cause, offset, 1, messages, detail or problem)

    def _scan(self, cause: str, offset: int, before: int) -> None:
        """Count the sessions that a suspension before an offset makes lose their states."""

        def is_discarded(entry: Entry) -> bool:
            gate = self._sessions.migrate_state(entry.gate)
            if gate is None or isinstance(gate, SuspensionMark):
                return False
            return self.lost_before <= find_begin(gate) < before

        self._count_sessions(cause, offset, is_discarded)
        self.lost_before = before
        self._is_scanned = True
        self._begun.clear()

    def _count_begun(self, cause: str, offset: int) -> None:
        for session in sorted(self._begun):
            entry = self._sessions.find(session)
            if entry is not None and not self._sessions.is_suspended(session, entry):
                self.note(cause, offset - 1, entry.state)
        self.lost_before = offset
        self._begun.clear()

    def _count_all(self, cause: str, offset: int) -> None:
        """Count the sessions of a partition whose topic has ended, with the messages that are buffered for them."""
        loses_states = self._pending is not None or (cause not in ENDINGS and self._integrity.replaces_states)
        if not loses_states and not self._integrity.buffer:
            return
        self._sessions.enable_multipart()

        def is_lost_now(entry: Entry) -> bool:
            gate = entry.gate
            if isinstance(gate, SuspensionMark):
                return loses_states and not is_lost(gate)
            return loses_states and (find_begin(gate) >= self.lost_before or not self._sessions.may_suspend)

        def count_buffered(entry: Entry) -> int:
            return len(self._sessions.gate.buffered_offsets(self._sessions.migrate_state(entry.gate)))

        try:
            self._count_sessions(cause, offset, is_lost_now, count_buffered)
        except StateError as error:  # nothing else needs this state: its damage must not stop the stream
            self._add(cause, offset, 1, None, error.problem)

    def _count_skipped(self) -> None:
        """Count the states of the sessions that an operator has skipped since the batch before."""
        for skipped in self._position.suspended_sessions:
            if skipped.session not in self.uncounted_skips:
                continue
            entry = self._sessions.find(skipped.session)
            if entry is None or isinstance(entry.gate, SuspensionMark) or not self.discards_suspended:
                continue
            if self._sessions.suspended_from <= find_begin(entry.gate) < skipped.before:
                self.note(SKIP_SESSION, self._position.next_offset, entry.state)
        self.uncounted_skips = ()

    def _count_sessions(
        self,
        cause: str,
        offset: int,
        is_discarded: Callable[[Entry], bool],
        count_buffered: Callable[[Entry], int] = lambda _: 0,
    ) -> None:
        """Count the states of the partition that are discarded; the figures are computed again for a damaged store."""

        def count(entries: Iterable[Entry | MigrationFailed]) -> tuple[int, int, str]:
            sessions = 0
            messages = 0
            detail = ""
            for entry in entries:
                number: int | None = 0
                problem = ""
                buffered = 0
                if isinstance(entry, MigrationFailed):
                    number = None
                    problem = entry.problem
                else:
                    buffered = count_buffered(entry)
                    if entry.state is not None and is_discarded(entry):
                        number, problem = self._count_pending(entry.state)
                sessions += number != 0 or buffered > 0
                messages += (number or 0) + buffered
                detail = detail or problem
            return sessions, messages, detail

        sessions, messages, detail = self._state.reduce_sessions(count)
        if sessions:
            # Without the hook the number of messages in a state is unknown.
            is_counted = messages > 0 or self._pending is not None
            self._add(cause, offset, sessions, messages if is_counted else None, detail)

    def _count_pending(self, state: object) -> tuple[int | None, str]:
        """Messages that are lost with a state, and why they are unknown; None without the hook, or if it raises."""
        if self._pending is None:
            return None, ""
        try:
            messages = self._pending(state)
        except Exception as error:
            if is_of_machine(error):
                raise
            return None, name_error("pending", error)
        if type(messages) is not int:
            return None, f"pending returned {type(messages).__name__}, expected int"
        if messages < 0:
            return None, "pending returned a negative number"
        return messages, ""

    def _add(self, cause: str, offset: int, sessions: int, messages: int | None, detail: str) -> None:
        loss = StateLoss(
            cause=cause,
            offset=offset,
            sessions=sessions,
            messages=messages,
            is_accepted=cause in DECISIONS or self._integrity.accepts_loss,
            detail=detail,
        )
        if cause in self._found:
            loss = self._found[cause] + loss
        self._found[cause] = loss


def name_error(hook: str, error: Exception) -> str:
    """The hook, the type of its error and the line; not the text of the error, which may quote a message.

    An erasure does not rewrite the ledger.
    """
    where = extract_tb(error.__traceback__)[-1]
    return f"{hook} raised {type(error).__name__} at {PurePath(where.filename).name}:{where.lineno}"
