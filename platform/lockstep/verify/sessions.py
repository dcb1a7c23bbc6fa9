"""Applies messages to the states of one partition's sessions, and undoes a failed message of the transform.

Where the transform raises, the session's state is restored from its last saved copy and the messages since.
The engine folds the whole range again instead; both must give the same result.
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
from lockstep.verify.rows import Emitted, Source, find_unfit, find_unfit_provenance
from lockstep.verify.side_tables import NOT_STORABLE, SideTableCheck

SAVED_AFTER_MESSAGES = 64
"""Messages that may have to be applied again after one on which the transform raises."""


NO_MESSAGE_US = -1
"""The newest event time of a session before a message of it has counted."""


class Session(msgspec.Struct):
    """One session.

    Attributes:
        known: The independent gate's memory.
        state: The user's state; None while its first snapshot is open.
        saved: A copy of the state; None where none is needed.
        since: Messages applied since the copy.
        seen_us: The newest event time of its messages; the watermark then, where that is implausible.
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
    """

    def __init__(self, declared: Declared, aside: SideTableCheck, *, undoes: bool) -> None:
        self._declared, self._aside, self._undoes = declared, aside, undoes
        self.sessions: dict[str, Session] = {}
        self.touched: set[str] = set()
        self.ended: set[str] = set()
        self.emitted = Emitted()
        self.last_row = (0, 0)

    def set_undoing(self, *, is_on: bool) -> None:
        """Set whether a message on which the transform raises is undone."""
        if is_on is not self._undoes:
            self._undoes = is_on
            for held in self.sessions.values():
                self.save(held)

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
            at: The processed offset: another one, where the message was buffered.
            known: The gate's memory after it, where that changes.
            opens: Whether it makes a new state; by default its kind decides.
        """
        envelope, body, record = message
        held = self.sessions.get(envelope.session)
        if envelope.kind is Kind.END:
            rows = self.end(envelope.session)
        elif held is None or (self._opens(held, envelope) if opens is None else opens):
            rows = self._opened(envelope, body, record, known)
        else:
            rows = self._updated(held, envelope, body, record)
            held.known = known or held.known
        self.touched.add(envelope.session)
        self._aside.expect_in_no_side_table(record.offset, with_rows=bool(rows))
        self._aside.counts["with_rows" if rows else "accepted_without_row"] += 1
        self._aside.note_time(envelope.event_time_us)
        self.emit(Source(record.offset, envelope.session, envelope.sequence, envelope.event_time_us), at, rows)

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

    def end(self, session: str) -> list[msgspec.Struct]:
        """End a session; returns its last rows."""
        held, rows = self.sessions.get(session), list[msgspec.Struct]()
        if held is not None and held.state is not None and self._declared.on_end is not None:
            rows = list(self._declared.on_end(held.state))
        self.sessions.pop(session, None)
        self.ended.add(session)
        self.touched.add(session)
        return rows

    def run_hook(
        self, session: str, work: Callable[[], Iterable[msgspec.Struct]], held: Session
    ) -> list[msgspec.Struct]:
        """The rows of a hook that may change the state; undone when it raises, when called or while it emits."""
        try:
            rows = list(work())
        except Exception:
            self._undo(held)
            raise
        self.touched.add(session)
        self.save(held)
        return rows

    def save(self, held: Session, encoded: bytes | None = None) -> None:
        """Save a copy of a session's state, which may have been encoded already."""
        if self._undoes and held.state is not None:
            usable = encoded if not self._declared.state.tables else None
            held.saved = usable or self._declared.saved(held.state)
        else:
            held.saved = None
        held.since = []

    @staticmethod
    def _opens(held: Session, envelope: Envelope) -> bool:
        return envelope.kind is not Kind.UPDATE or held.known.memory is None or held.state is None

    def _opened(
        self, envelope: Envelope, body: object, record: Record, known: SessionMemory | None
    ) -> list[msgspec.Struct]:
        state = self._declared.on_snapshot(body, record)
        rows: list[msgspec.Struct] = []
        if isinstance(state, InitialState):
            rows, state = list(state.rows), state.state
        self._refuse_unfit(rows, envelope, record)
        self._refuse_state(state, record)
        held = self.sessions.get(envelope.session)
        if held is None:
            held = self.sessions[envelope.session] = Session(known or SessionMemory(record.offset, None), state)
        held.known, held.state = known or held.known, state
        self.save(held)
        return rows

    def _updated(self, held: Session, envelope: Envelope, body: object, record: Record) -> list[msgspec.Struct]:
        try:
            rows = list(self._declared.on_update(held.state, body, record))
            self._refuse_unfit(rows, envelope, record)
            self._refuse_state(held.state, record)
        except Exception:
            self._undo(held)
            raise
        if self._undoes:
            held.since.append((body, record))
            if len(held.since) >= SAVED_AFTER_MESSAGES:
                self.save(held)
        return rows

    def _undo(self, held: Session) -> None:
        if held.saved is None:
            return
        held.state = self._declared.recovered(held.saved)
        for body, record in held.since:
            for _ in self._declared.on_update(held.state, body, record):
                pass

    def _refuse_unfit(self, rows: list[msgspec.Struct], envelope: Envelope, record: Record) -> None:
        """Treat rows that no table can hold as an error; checked in detail only where the stream refused them too."""
        if not rows or not self._aside.quarantine.holds(record.offset):
            return
        source = Source(record.offset, envelope.session, envelope.sequence, envelope.event_time_us)
        if find_unfit(rows, self._declared.row_type) or find_unfit_provenance(source):
            raise make_unfit_value("a row that its table cannot hold")

    def _refuse_state(self, state: object, record: Record) -> None:
        """Treat a state without a valid deadline, or that cannot be stored, as an error, where the stream did so.

        Elsewhere the stream did not have to store it: a later message of the batch made it one that it could.
        """
        if self._aside.quarantine.holds(record.offset):
            read_deadline(self._declared, state)
        if self._aside.quarantine.is_unstorable(record.offset) and not self._declared.is_storable(state):
            raise Violation("a state that can be stored", "another one", NOT_STORABLE)


def make_unfit_value(found: str) -> Violation:
    """The error of a message with a value that the columns of the table cannot hold."""
    return Violation("values that the table can hold", found, VALUE_NOT_STORABLE)


def read_deadline(declared: Declared, state: object) -> int | None:
    """When the timer of a state is due; None without one.

    Raises:
        TypeError: The time is not an integer.
        ValueError: It is too early to be the event time of a row.
    """
    due_us = None if declared.deadline is None or state is None else declared.deadline(state)
    if due_us is not None and require_int(due_us) < FIRST_TIME_US:
        raise ValueError(f"a deadline of {due_us} us, which readers could not return")
    return due_us
