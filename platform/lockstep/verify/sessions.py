"""Applies messages to the states of one partition's sessions, and undoes a failed message of the transform.

If the transform raises, the session's state is restored from its last saved copy and the messages since.
The engine folds the whole range again instead; both must have the same result.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable

import msgspec

from lockstep.declare.transform import InitialState
from lockstep.errors import Violation
from lockstep.model.record import Envelope, Kind, Record
from lockstep.verify.declaration import Declared
from lockstep.verify.gates.base import FIRST_TIME_US, VALUE_NOT_STORABLE, SessionMemory, require_int
from lockstep.verify.losses import ReplayLosses
from lockstep.verify.rows import Emitted, Source, find_unfit, find_unfit_provenance
from lockstep.verify.side_tables import NOT_STORABLE, SideTableCheck

UPDATE = "update"
SNAPSHOT = "snapshot"
TIMER = "timer"
END = "end"
LATE = "late"
"""The values of the column `_cause`, by the hook that emitted the row."""
SAVED_AFTER_MESSAGES = 64
"""Messages that may have to be applied again after one on which the transform raises."""


NO_MESSAGE_US = -1
"""The newest event time of a session before a message of it has counted."""


class Session(msgspec.Struct):
    """One session.

    Attributes:
        known: The independent gate's memory.
        state: The user's state; None while its first snapshot is open.
        saved: A copy of the state; None if not needed.
        since: Messages applied since the copy.
        seen_us: The newest event time of its messages; the watermark at that time, if the event time is implausible.
        at: Offset of its last message that was applied or buffered.
    """

    known: SessionMemory
    state: object
    saved: object = None
    since: list[tuple[object, Record]] = msgspec.field(default_factory=list)
    seen_us: int = NO_MESSAGE_US
    at: int = 0

    def copied(self) -> Session:
        """A copy that is independent of the session."""
        return msgspec.structs.replace(self, state=copy.deepcopy(self.state), since=list(self.since))


class ReplaySessions:
    """The sessions of one partition.

    Attributes:
        sessions: All known sessions.
        touched: Those that may have changed since this was last cleared.
        ended: Those that have ended in this range.
        emitted: Rows that the table must hold, since they were last taken.
        last_row: The newest offset with rows, and the number of rows emitted at it.
        losses: States that were discarded.
    """

    def __init__(self, declared: Declared, aside: SideTableCheck, *, undoes: bool) -> None:
        self._declared = declared
        self._aside = aside
        self._undoes = undoes
        self.sessions: dict[str, Session] = {}
        self.touched: set[str] = set()
        self.ended: set[str] = set()
        self.emitted = Emitted()
        self.last_row = (0, 0)
        self.losses = ReplayLosses(aside.add_to_count, declared.pending)

    def set_undoing(self, *, is_on: bool) -> None:
        """Set whether a message on which the transform raises is undone."""
        if is_on is not self._undoes:
            self._undoes = is_on
            for entry in self.sessions.values():
                self.save(entry)

    def apply(
        self,
        message: tuple[Envelope, object, Record],
        *,
        at: int,
        known: SessionMemory | None = None,
        opens: bool | None = None,
    ) -> None:
        """Apply a message; nothing remains of one on which the transform raises.

        Args:
            message: Its envelope, its body and its record.
            at: The processed offset; it differs from the message's if the message was buffered.
            known: The gate's memory after it, if it changes.
            opens: Whether it makes a new state; by default its kind decides.
        """
        envelope, body, record = message
        entry = self.sessions.get(envelope.session)
        if opens is None:
            opens = entry is None or self._opens(entry, envelope)
        if envelope.kind is Kind.END:
            rows = self.end(envelope.session, body, (envelope, record))
            cause = END
        elif entry is None or opens:
            rows = self._opened(envelope, body, record, known)
            cause = SNAPSHOT
        else:
            rows = self._updated(entry, envelope, body, record)
            cause = UPDATE
            entry.known = known or entry.known
        self._applied(message, at, rows, cause)

    def preserve_state(self, session: str) -> object:
        """The state of a session before a snapshot of several messages, which may change it in place."""
        state = self.sessions[session].state
        difference = self._declared.difference
        if difference is None:
            return state
        return difference.copied(state)

    def apply_part(
        self, message: tuple[Envelope, object, Record], before: object, *, at: int, opens: bool, completes: bool
    ) -> None:
        """Apply one message of a snapshot of several.

        Args:
            message: Its envelope, its body and its record.
            before: The state before the snapshot.
            at: The processed offset.
            opens: It is the first part.
            completes: It is the last part.
        """
        envelope, body, record = message
        entry = self.sessions[envelope.session]
        difference = self._declared.difference
        if opens:
            rows = self._opened(envelope, body, record, None, is_part=True)
        elif difference is None:
            rows = self._updated(entry, envelope, body, record)
        else:
            rows = self._added(entry, body, record)
        if completes and difference is not None:
            # The snapshot as a whole makes the difference, at the message that completes it.
            rows = difference.list_rows(before, entry.state, body)
            self._refuse_unfit(rows, envelope, record)
        self._applied(message, at, rows, SNAPSHOT)

    def _applied(
        self, message: tuple[Envelope, object, Record], at: int, rows: list[msgspec.Struct], cause: str
    ) -> None:
        """Count a message that was applied, and expect its rows."""
        envelope, _, record = message
        self.touched.add(envelope.session)
        self._aside.expect_in_no_side_table(record.offset, with_rows=bool(rows))
        count = "with_rows" if rows else "accepted_without_row"
        self._aside.counts[count] += 1
        self._aside.note_time(envelope.event_time_us)
        self.emit(to_source(envelope, record, cause), at, rows)

    def emit(self, source: Source, at: int, rows: list[msgspec.Struct]) -> None:
        """Add rows that the table must hold."""
        if not rows:
            return
        self._aside.note_time(source.event_time_us)
        offset, number = self.last_row
        first = number if offset == at else 0
        self.last_row = (at, first + len(rows))
        self._aside.counts["rows"] += len(rows)
        self.emitted.add(source, at, first, rows)

    def end(
        self, session: str, body: object = None, origin: tuple[Envelope, Record] | None = None
    ) -> list[msgspec.Struct]:
        """End a session; returns its last rows.

        Args:
            session: The session.
            body: The message that ends it; None at its idle timeout.
            origin: The envelope and the record of that message.
        """
        entry = self.sessions.get(session)
        rows = list[msgspec.Struct]()
        if entry is not None and entry.state is not None:
            rows = self._list_last_rows(entry.state, body)
        if origin is not None:
            self._refuse_unfit(rows, *origin)
        if entry is not None and entry.state is not None and self._declared.on_end is None:
            self.losses.note_end(entry.state)
        self.remove(session)
        return rows

    def remove(self, session: str) -> None:
        """Remove a session, without rows."""
        self.sessions.pop(session, None)
        self.ended.add(session)
        self.touched.add(session)

    def run_hook(
        self, session: str, work: Callable[[], Iterable[msgspec.Struct]], entry: Session
    ) -> list[msgspec.Struct]:
        """The rows of a hook that may change the state; undone when it raises, when called or while it emits."""
        try:
            rows = list(work())
        except Exception:
            self.undo(entry)
            raise
        self.touched.add(session)
        self.save(entry)
        return rows

    def save(self, entry: Session, encoded: bytes | None = None) -> None:
        """Save a copy of a session's state, which may have been encoded already."""
        if self._undoes and entry.state is not None:
            # The stored form of a state with tables lacks their rows, which are separate entries.
            usable = encoded if not self._declared.whole.tables else None
            entry.saved = usable or self._declared.saved(entry.state)
        else:
            entry.saved = None
        entry.since = []

    @staticmethod
    def _opens(entry: Session, envelope: Envelope) -> bool:
        return envelope.kind is not Kind.UPDATE or entry.known.memory is None or entry.state is None

    def drop_state(self, entry: Session, message: tuple[Envelope, object, Record]) -> None:
        """Drop the state of a session that restarts with a buffered message, and remove the rows of a ready fold."""
        envelope, _, record = message
        difference = self._declared.difference
        rows = list[msgspec.Struct]()
        if difference is not None:
            rows = difference.list_rows(entry.state, None, None)
        self._refuse_unfit(rows, envelope, record)
        entry.state = None
        self.save(entry)
        self._aside.counts["timer_rows"] += bool(rows)
        source = to_source(envelope, record, SNAPSHOT)
        self.emit(source._replace(sequence=None), record.offset, rows)

    def undo(self, entry: Session) -> None:
        """Restore the state of a session that a failed message may have changed."""
        if entry.saved is None:
            return
        # The engine folds the range again instead: both must have the same result.
        entry.state = self._declared.recovered(entry.saved)
        for body, record in entry.since:
            for _ in self._declared.on_update_unchecked(entry.state, body, record):
                pass

    def _list_last_rows(self, state: object, body: object) -> list[msgspec.Struct]:
        """The rows of the end of a session, and the removals of a ready fold."""
        on_end = self._declared.on_end
        difference = self._declared.difference
        rows = list[msgspec.Struct]()
        if on_end is not None:
            rows = list(on_end(state))
        if difference is not None and difference.ends_remove:
            rows += difference.list_rows(state, None, body)
        return rows

    def _opened(
        self, envelope: Envelope, body: object, record: Record, known: SessionMemory | None, *, is_part: bool = False
    ) -> list[msgspec.Struct]:
        """Set the state of a session from a snapshot; of a part of one, the difference is taken at the end."""
        entry = self.sessions.get(envelope.session)
        previous = None if entry is None else entry.state
        try:
            rows, state = self._make_state(previous, body, record, is_part=is_part)
            self._refuse_unfit(rows, envelope, record)
            self._refuse_state(state, record)
        except Exception:
            if entry is not None:
                self.undo(entry)
            raise
        if entry is None:
            entry = self.sessions[envelope.session] = Session(known or SessionMemory(record.offset, None), state)
        entry.known = known or entry.known
        entry.state = state
        if self.losses.begun is not None:
            self.losses.begun.add(envelope.session)
        self.save(entry)
        return rows

    def _make_state(
        self, previous: object, body: object, record: Record, *, is_part: bool
    ) -> tuple[list[msgspec.Struct], object]:
        """The rows and the state of a snapshot."""
        difference = self._declared.difference
        old_state = previous
        if difference is not None:
            old_state = difference.copied(previous)  # the transform may change the previous state in place
        state = self._declared.on_snapshot(body, record, previous)
        rows: list[msgspec.Struct] = []
        if isinstance(state, InitialState):
            rows = list(state.rows)
            state = state.state
        if difference is not None and not is_part:
            rows += difference.list_rows(old_state, state, body)
        return rows, state

    def _added(self, entry: Session, body: object, record: Record) -> list[msgspec.Struct]:
        """Add a part to the table of a ready fold: its rows do not count."""
        for _ in self._declared.on_update_unchecked(entry.state, body, record):
            pass
        self._refuse_state(entry.state, record)
        self._note(entry, body, record)
        return []

    def _updated(self, entry: Session, envelope: Envelope, body: object, record: Record) -> list[msgspec.Struct]:
        try:
            rows = list(self._declared.on_update(entry.state, body, record))
            self._refuse_unfit(rows, envelope, record)
            self._refuse_state(entry.state, record)
        except Exception:
            self.undo(entry)
            raise
        self._note(entry, body, record)
        return rows

    def _note(self, entry: Session, body: object, record: Record) -> None:
        """Note a message that changed the state, to apply it again after one that fails."""
        if self._undoes:
            entry.since.append((body, record))
            # Not after each message: a copy of the state costs more than most messages.
            if len(entry.since) >= SAVED_AFTER_MESSAGES:
                self.save(entry)

    def _refuse_unfit(self, rows: list[msgspec.Struct], envelope: Envelope, record: Record) -> None:
        """Treat rows that no table can hold as an error; checked in detail only if the stream refused them too."""
        if not rows or not self._aside.may_hold(record.offset):
            return
        source = to_source(envelope, record, UPDATE)
        if find_unfit(rows, self._declared.row_type) or find_unfit_provenance(source):
            raise make_unfit_value("a row that its table cannot hold")

    def _refuse_state(self, state: object, record: Record) -> None:
        """Treat a state without a valid deadline, or that cannot be stored, as an error, if the stream did so."""
        if self._aside.may_hold(record.offset):
            read_deadline(self._declared, state)
        # Otherwise a later message of the batch made the state storable, and the stream did not notice.
        if self._aside.quarantine.is_unstorable(record.offset) and not self._declared.is_storable(state):
            raise Violation("a state that can be stored", "another one", NOT_STORABLE)


def make_unfit_value(found: str) -> Violation:
    """The error of a message with a value that the columns of the table cannot hold."""
    return Violation("values that the table can hold", found, VALUE_NOT_STORABLE)


def to_source(envelope: Envelope, record: Record, cause: str) -> Source:
    """The source of the rows of a message."""
    return Source(record.offset, envelope.session, envelope.sequence, envelope.event_time_us, cause)


def read_deadline(declared: Declared, state: object) -> int | None:
    """When the timer of a state is due; None without one.

    Raises:
        TypeError: The time is not an integer.
        ValueError: It is too early to be the event time of a row.
    """
    if declared.deadline is None or state is None:
        return None
    due_us = declared.deadline(state)
    if due_us is not None and require_int(due_us) < FIRST_TIME_US:
        raise ValueError(f"a deadline of {due_us} us, which readers could not return")
    return due_us
