"""Folds one partition's messages again, one by one, with the second gate of its class.

Where the transform raises, the session's state goes back to what it was: it is made again from its last saved copy and
the messages since. The engine folds the whole range again instead; both must come to the same.
"""

from __future__ import annotations

from collections import Counter
from typing import cast

import msgspec
from confluent_kafka import Message

from lockstep.declare.place import Kind, Place
from lockstep.declare.record import KafkaMessage, Record
from lockstep.declare.transform import Opened
from lockstep.errors import EnvironmentProblem, StateError
from lockstep.operations.verify import proof
from lockstep.operations.verify.declared import Declared
from lockstep.operations.verify.kept import KeptMessages
from lockstep.operations.verify.row_values import Emitted, unfit
from lockstep.operations.verify.second_gate.contract import Answer, Rules, What, not_provable
from lockstep.operations.verify.second_gate.sessions import Known, Suspension, fate

SAVED_AFTER_MESSAGES = 64
"""Messages that may have to be applied again after one on which the transform raises."""
NO_MESSAGE = (msgspec.MsgspecError, ValueError, TypeError, RecursionError)
"""What decoders raise on a value that is none of the stream's messages."""


class Session(msgspec.Struct):
    """One session.

    Attributes:
        known: What the second gate remembers.
        state: The user's state.
        saved: An encoded copy of the state; None where none is needed.
        since: What was applied after the copy was made.
    """

    known: Known
    state: object
    saved: bytes | None = None
    since: list[tuple[object, Record]] = msgspec.field(default_factory=list)


class PastViolation(Exception):  # ends the fold of a partition: what the class forbids was read past
    """The log holds what the class forbids, and the stream went on.

    Attributes:
        cause: What.
    """

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause


class Folding:
    """The fold of one partition.

    Attributes:
        sessions: All that are known.
        touched: Those that may have changed since somebody last cleared this.
        counts: Messages of the current range, by the names of the ledger's columns.
        emitted: Rows that the table must hold, since somebody last took them.
        suspension: Which sessions wait for their next snapshot without having done anything.
        given_up: What lies before this offset is kept in quarantine, whatever it is.
    """

    def __init__(self, declared: Declared, rules: Rules, place: proof.Place, kept: KeptMessages) -> None:
        self._declared, self._rules, self._place, self._kept = declared, rules, place, kept
        self._undoes = rules.raised is not Answer.STOP
        self.sessions: dict[str, Session] = {}
        self.touched: set[str] = set()
        self.counts: Counter[str] = Counter()
        self.emitted = Emitted()
        self.suspension = Suspension()
        self.given_up = 0

    @property
    def suspends(self) -> bool:
        """Whether sessions are stored with the offset at which they began."""
        decided = bool(self.suspension.before or self.suspension.skipped) and not self._rules.needs_no_snapshot
        return self._rules.suspends or decided

    def waits_before(self, session: str) -> int:
        """The offset from which on a session that began earlier waits."""
        return 0 if self._rules.needs_no_snapshot else self.suspension.of(session)

    def suspend_before(self, offset: int) -> None:
        """Let all sessions that began before an offset wait."""
        self.suspension = self.suspension._replace(before=offset)

    def begun(self, session: str, before: int) -> bool:
        """Whether a session has begun anew from an offset on."""
        held = self.sessions.get(session)
        return held is not None and not held.known.waits and held.known.opened_at >= before

    def take(self, message: Message, offset: int) -> None:
        """Fold the next message.

        Args:
            message: The message.
            offset: Its offset.

        Raises:
            PastViolation: The class forbids it, and the stream went on.
        """
        where = self._place
        record = Record(where.topic, where.topic_id, where.partition, offset, cast("KafkaMessage", message))
        self.counts["messages"] += 1
        if self._kept.killed(record.offset):
            self._undecodable(record)  # as the stream found out: it ends whoever decodes it
            return
        try:
            body = self._decoded(record.value)
        except NO_MESSAGE as error:
            if isinstance(error, (EnvironmentProblem, StateError)):
                raise
            self._undecodable(record)
            return
        try:
            place = self._declared.place(body, record)
        except Exception as error:  # noqa: BLE001  # the user's code: an error of it is a verdict on the message
            self._raised(record, None, error)
            return
        if place.kind is Kind.SKIP:
            self.counts["skipped"] += 1
            self._kept.refuse(record.offset, with_rows=False)
        elif place.kind is Kind.PART:
            not_provable("a snapshot of several messages")
        else:
            self._judge(place, body, record)

    def save(self, session: str, state: bytes) -> None:
        """Keep a copy of a session's state that was encoded anyway."""
        held = self.sessions[session]
        held.saved, held.since = (state, []) if self._undoes else (None, [])

    def _decoded(self, value: bytes | None) -> object:
        if value is None or len(value) > self._declared.message_bytes_max:
            raise ValueError("no value, or a larger one than the stream takes")
        return self._declared.decode(value)

    def _judge(self, place: Place, body: object, record: Record) -> None:
        held = self.sessions.get(place.session)
        known = held.known if held is not None else None
        what, after, cause = fate(self._rules, known, place, record, self.suspension)
        if what is What.ACCEPT:  # what the transform refuses after all is not counted as noticed
            if self._apply(place, body, record, cast("Known", after)):
                self._notice(what, cause)
            return
        self._notice(what, cause)
        if what is What.DROP:
            self.counts["dropped"] += 1
            self._kept.refuse(record.offset, with_rows=False)
        else:
            if what is What.REFUSE:  # the stream should have stopped here, unless another policy was in force then
                self._stop_unless_kept(record.offset, cause)
                after = known._replace(waits=True) if known is not None else None
            self._keep(record, cause, place.session)
            if held is not None and after is not None and held.known != after:
                held.known = after
                self.touched.add(place.session)

    def _notice(self, what: What, cause: str) -> None:
        if cause == "gap":
            self.counts["gaps"] += 1
        elif what is What.DROP or (what is What.ACCEPT and cause):
            self.counts["repeats"] += 1

    def _apply(self, place: Place, body: object, record: Record, known: Known) -> bool:
        """Apply a message; False where the transform refused it."""
        held = self.sessions.get(place.session)
        try:
            if place.kind is Kind.END:
                rows = self._ended(held)
                self.sessions.pop(place.session, None)
            elif place.kind is Kind.UPDATE and held is not None and held.known.memory is not None:
                rows = self._updated(held, body, record)
                held.known = known
            else:
                rows = self._opened(place.session, body, record, known)
        except (EnvironmentProblem, StateError):
            raise
        except Exception as error:  # noqa: BLE001  # see above
            self._raised(record, place.session, error)
            return False
        self.touched.add(place.session)
        self._kept.refuse(record.offset, with_rows=bool(rows))
        self.counts["rows"] += len(rows)
        self.counts["accepted_without_row"] += not rows
        self.emitted.add(record.offset, place, rows)
        return True

    def _ended(self, held: Session | None) -> list[msgspec.Struct]:
        return [] if held is None or self._declared.on_end is None else list(self._declared.on_end(held.state))

    def _opened(self, session: str, body: object, record: Record, known: Known) -> list[msgspec.Struct]:
        state = self._declared.open(body, record)
        rows: list[msgspec.Struct] = []
        if isinstance(state, Opened):
            rows, state = list(state.rows), state.state
        self._refuse_unfit(rows, record)
        held = self.sessions[session] = Session(known, state)
        if self._undoes:
            held.saved = self._declared.state.encode(session, None, state)
        return rows

    def _updated(self, held: Session, body: object, record: Record) -> list[msgspec.Struct]:
        try:
            rows = list(self._declared.apply(held.state, body, record))
            self._refuse_unfit(rows, record)
        except Exception:
            self._undo(held)
            raise
        if self._undoes:
            held.since.append((body, record))
            if len(held.since) >= SAVED_AFTER_MESSAGES:
                held.saved, held.since = self._declared.state.encode("", None, held.state), []
        return rows

    def _undo(self, held: Session) -> None:
        if held.saved is None:
            return
        _, held.state = self._declared.state.decode("", held.saved)
        for body, record in held.since:
            for _ in self._declared.apply(held.state, body, record):
                pass

    def _refuse_unfit(self, rows: list[msgspec.Struct], record: Record) -> None:
        """Rows that no table can hold count as raised; looked at closely only where the stream said so too."""
        if rows and self._kept.holds(record.offset) and unfit(rows, self._declared.row_type):
            raise ValueError("a row that its table cannot hold")

    def _undecodable(self, record: Record) -> None:
        answer = Answer.QUARANTINE if record.offset < self.given_up else self._rules.undecodable
        if answer is Answer.COUNT:
            self.counts["dropped"] += 1
            self._kept.refuse(record.offset, with_rows=False)
            return
        if answer is Answer.STOP:
            self._stop_unless_kept(record.offset, "undecodable")
        self._keep(record, "undecodable", None)
        if answer is not Answer.QUARANTINE:  # whose message it was is not known
            self.suspend_before(record.offset + 1)

    def _raised(self, record: Record, session: str | None, error: Exception) -> None:
        cause = str(getattr(error, "what", "transform raised"))
        answer = Answer.QUARANTINE if record.offset < self.given_up else self._rules.raised
        if answer is Answer.STOP:
            self._stop_unless_kept(record.offset, cause)
        self._keep(record, cause, session)
        if answer is Answer.QUARANTINE:
            return
        if session is None:
            self.suspend_before(record.offset + 1)
        elif session in self.sessions:
            held = self.sessions[session]
            held.known = held.known._replace(waits=True)
            self.touched.add(session)

    def _keep(self, record: Record, cause: str, session: str | None) -> None:
        self.counts["quarantined"] += 1
        self._kept.expect(record, cause, session)

    def _stop_unless_kept(self, offset: int, cause: str) -> None:
        if not self._kept.holds(offset):
            raise PastViolation(cause)
