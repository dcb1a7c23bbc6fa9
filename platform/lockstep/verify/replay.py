"""Folds one partition's messages again, one by one, with the independent gate of its class."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, cast

import msgspec
from confluent_kafka import Message

from lockstep.model.record import Envelope, KafkaMessage, Kind, Record, read_headers
from lockstep.verify import report
from lockstep.verify.declaration import Declared
from lockstep.verify.event_time import NOT_OF_THE_MESSAGE, Agenda, Held, ReplayBuffer, ReplayTimers
from lockstep.verify.gates.base import (
    Action,
    GateAnswer,
    GateRules,
    ReplayWatermark,
    SessionMemory,
    SessionOutcome,
    Suspension,
    decide_outcome,
    is_multipart_open,
    is_readable_time,
    is_waiting,
)
from lockstep.verify.losses import LosingSession, ReplayLosses
from lockstep.verify.removed_sessions import NONE_REMOVED, RemovedSessions
from lockstep.verify.sessions import LATE, ReplaySessions, Session, make_unfit_value, to_source
from lockstep.verify.side_tables import Marked, SideTableCheck

NO_MESSAGE = (msgspec.MsgspecError, ValueError, TypeError, RecursionError)
"""Raised by decoders on a value that is not a message of the stream."""


class Replay:
    """The fold of one partition.

    Attributes:
        rules: Those it judges by.
        aside: Messages that are not applied, and all counts.
        applying: The sessions.
        waiting: The buffered messages.
        due: Timers and releases by the watermark.
        suspension: Sessions that are suspended without a message of theirs.
        removed: Removed sessions, which the ledger names by a mark.
    """

    removed: RemovedSessions = NONE_REMOVED

    def __init__(
        self,
        declared: Declared,
        rules: GateRules,
        moment: ReplayWatermark,
        place: report.ViolationPlace,
        aside: SideTableCheck,
    ) -> None:
        self._declared = declared
        self.rules = rules
        self._place = place
        self.aside = aside
        self.applying = ReplaySessions(declared, aside, undoes=rules.raised is not GateAnswer.STOP)
        self.waiting = ReplayBuffer(rules, self.applying, aside)
        self.due = ReplayTimers(declared, rules, moment, self.applying, self.waiting, aside)
        self.suspension = Suspension()
        self.waiting.suspended = self._suspended

    def use(self, rules: GateRules) -> None:
        """Judge by other rules of the same class from now on: its policy has changed."""
        self.rules = rules
        self.applying.set_undoing(is_on=rules.raised is not GateAnswer.STOP)
        self.waiting.use(rules)
        self.due.use(rules)

    @property
    def sessions(self) -> dict[str, Session]:
        """All known sessions."""
        return self.applying.sessions

    @property
    def suspends(self) -> bool:
        """Whether sessions are stored with the offset at which they started."""
        decided = bool(self.suspension.before or self.suspension.skipped) and not self.rules.needs_no_snapshot
        return self.rules.suspends or decided

    def waits_before(self, session: str) -> int:
        """The offset before which a suspended session started."""
        if self.rules.needs_no_snapshot:
            return 0
        return self.suspension.of(session)

    @property
    def discards(self) -> bool:
        """Whether a suspended session restarts without its state."""
        return self.rules.at_first and self.suspends

    @property
    def losses(self) -> ReplayLosses:
        """States that were discarded."""
        return self.applying.losses

    def set_suspension(self, offset: int) -> None:
        """Suspend all sessions that started before an offset; a batch counts the states that are lost later."""
        self.suspension = self.suspension._replace(before=offset)

    def suspend_before(self, offset: int) -> None:
        """Suspend all sessions that started before an offset, and count the states that are lost by it."""
        self.set_suspension(offset)
        self.count_suspended()

    def count_suspended(self) -> None:
        """Count the states that are lost by the suspension of the partition."""
        if self.discards:
            names = self.sessions if self.losses.begun is None else self.losses.begun
            self.losses.suspend_before(self.suspension.before, self._list_losing(names))

    def count_skipped(self, session: str, before: int) -> None:
        """Count the state of a session that an operator skips."""
        entry = self.sessions.get(session)
        if entry is None or not self.discards or entry.known.waits:
            return
        if self.suspension.before <= entry.known.opened_at < before:
            self.losses.note(entry.state)

    def end_topic(self, change: str, until: int, *, has_buffer: bool) -> None:
        """Count the states of a topic that has ended."""
        may_replace = self.rules.at_first or self.rules.passes_unknown
        counted_before = self.losses.before if self.suspends else 0
        if self.losses.before < until:
            sessions = self._list_losing(self.sessions)
            self.losses.end_topic(change, counted_before, sessions, may_replace=may_replace, has_buffer=has_buffer)
        self.losses.before = until

    def _list_losing(self, names: Iterable[str]) -> list[LosingSession]:
        losing = list[LosingSession]()
        for name in names:
            entry = self.sessions.get(name)
            if entry is not None:
                losing.append(LosingSession(entry.known, entry.state))
        return losing

    def _suspended(self, session: str, entry: Session, after: SessionMemory) -> SessionMemory:
        """The memory of a session that a message suspends; its state counts as lost if nothing uses it again."""
        if entry.known.waits or not self.discards:
            return after
        suspended_before = 0
        if not self.rules.needs_no_snapshot:
            suspended_before = self._in_force(session).of(session)
        if not is_waiting(entry.known, suspended_before):
            self.losses.note(entry.state)
        return after._replace(lost=True)

    def remove(self, session: str) -> None:
        """Forget a session and all that is buffered or due for it; uncounted, as the ledger does."""
        self.sessions.pop(session, None)
        self.applying.touched.add(session)
        buffered = [offset for offset, message in self.waiting.held.items() if message[0].session == session]
        for offset in buffered:
            del self.waiting.held[offset]
        self.due.forget(session)
        skipped = {name: before for name, before in self.suspension.skipped.items() if name != session}
        self.suspension = self.suspension._replace(skipped=skipped)

    def _in_force(self, session: str) -> Suspension:
        """The suspensions for a session: one that an operator skipped, and that ended again, is skipped no more."""
        if self.suspension.skipped and (mark := self.removed.find_mark(session)) in self.suspension.skipped:
            # An erasure replaced the name by a mark, which only the name itself reproduces.
            skipped = {session if name == mark else name: before for name, before in self.suspension.skipped.items()}
            self.suspension = self.suspension._replace(skipped=skipped)
        if session not in self.suspension.skipped or session not in self.applying.ended:
            return self.suspension
        return self.suspension._replace(skipped={**self.suspension.skipped, session: 0})

    def begun(self, session: str, before: int) -> bool:
        """Whether a session has restarted at or after an offset."""
        entry = self.sessions.get(session)
        return entry is not None and not entry.known.waits and entry.known.opened_at >= before

    def placed(self, record: Record) -> Held:
        """A buffered message, with the envelope it arrived with."""
        body = self._decoded(record)
        return self._declared.envelope(body, record), body, record

    def advance(self, watermark_us: int, at: int) -> None:
        """Advance the watermark of an idle partition."""
        self.due.moment.advance(watermark_us)
        self.due.fire_timers(at, self.waits_before)

    def take(self, message: Message, offset: int) -> None:
        """Fold the next message.

        Args:
            message: The message.
            offset: Its offset.

        Raises:
            PastViolation: The class forbids it, and the stream continued.
        """
        where = self._place
        record = Record(where.topic, where.topic_id, where.partition, offset, cast("KafkaMessage", message))
        self.aside.counts["messages"] += 1
        if self.aside.quarantine.is_undecoded(record):
            self._undecodable(record)  # as the stream found it
            return
        try:
            body = self._decoded(record)
        except NO_MESSAGE as error:
            if isinstance(error, NOT_OF_THE_MESSAGE):
                raise
            self._undecodable(record)
            return
        envelope = self._envelope_of(body, record)
        if envelope is None:
            return
        if envelope.kind is Kind.SKIP:
            self.aside.counts["skipped"] += 1
            self.aside.expect_in_no_side_table(record.offset)
        elif (problem := self._find_time_problem(envelope)) is not None:
            self.waiting.refused(record, envelope.session, problem)
        elif self.due.is_timed:
            self._judge_in_time((envelope, body, record))
        else:
            self._judge((envelope, body, record))

    def _find_time_problem(self, envelope: Envelope) -> Exception | None:
        """The error of an event time that no column holds; a gate that compares event times has its own answer."""
        time_us = envelope.event_time_us
        if time_us is None or self.rules.by_time:
            return None
        if type(time_us) is not int:
            return TypeError("an event time that is not an integer")
        if is_readable_time(time_us):
            return None
        return make_unfit_value(f"an event time of {time_us} us")

    def _envelope_of(self, body: object, record: Record) -> Envelope | None:
        """The envelope of a message; None if the message is refused without one."""
        try:
            envelope = self._declared.envelope(body, record)
            session = cast("object", envelope.session)
            kind = cast("object", envelope.kind)
        except Exception as error:  # noqa: BLE001  # the user's code: an error of it is a verdict on the message
            self._misplaced(record, error)
            return None
        if not isinstance(session, str):
            self._misplaced(record, TypeError("a session that is not text"))
        elif not isinstance(kind, Kind):
            self.waiting.refused(record, session, TypeError("a kind that is not a Kind"))
        else:
            return envelope
        return None

    def _decoded(self, record: Record) -> object:
        value = record.value
        if value is None and self._declared.takes_null:
            return None
        if value is None or len(value) > self._declared.message_bytes_max:
            raise ValueError("no value, or a larger one than the stream takes")
        if self._declared.reads_headers:
            return self._declared.decode(value, read_headers(record.source))
        return self._declared.decode(value)

    def _judge_in_time(self, message: Held) -> None:
        """Judge a message after everything due before it; a message that the transform refuses makes nothing due."""
        envelope, body, record = message
        # Restored if the transform refuses the message, which then advances nothing.
        watermark_us = self.due.moment.at_us
        try:
            self.due.advance(envelope, body, record)
        except Exception as error:  # noqa: BLE001  # see above
            self.waiting.refused(record, envelope.session, error)
            return
        copied = None
        if self.aside.may_hold(record.offset) and (self.due.is_due or self.waiting.held):
            copied = self._copied()  # only for a message that the stream refused: a copy of all states is slow
        self.due.fire_timers(record.offset, self.waits_before)
        # With a copy the refusal waits: first everything that fired because of the message is undone.
        raised = self._judge(message, refuses=copied is None)
        if raised is not None and copied is not None:
            self._rollback(copied)
            self.waiting.refused(record, envelope.session, raised)
        if raised is not None:
            self.due.moment.at_us = watermark_us

    def _judge(self, message: Held, *, refuses: bool = True) -> Exception | None:
        """Judge a message; returns the transform's error, if any.

        Args:
            message: Its envelope, body and record.
            refuses: Whether it is quarantined on an error.
        """
        envelope, _, record = message
        entry = self.sessions.get(envelope.session)
        memory = entry.known if entry is not None else None
        try:
            fated = decide_outcome(self.rules, memory, envelope, record, self._in_force(envelope.session))
            self.waiting.discard(fated.freed)
            self.waiting.drop(fated.stale)
            if self._done(fated, message, entry) and fated.what in _GOES_ON:
                self.due.note_message(envelope, record)
        except NOT_OF_THE_MESSAGE:
            raise
        except Exception as error:  # noqa: BLE001  # see above
            if refuses:
                self.waiting.refused(record, envelope.session, error)
            return error
        self._notice(fated)  # not of a message that the transform refuses; of one that completes a refused snapshot
        return None

    def _done(self, fated: SessionOutcome, message: Held, entry: Session | None) -> bool:
        """Carry out a ruling; False if it completes a snapshot that the transform refuses."""
        envelope, _, record = message
        if fated.what is Action.ACCEPT:
            return self._accept(fated, message)
        if fated.what is Action.HOLD:
            self._hold(fated, message)
        elif fated.what is Action.DROP:
            self.aside.drop(record.offset)
        elif fated.what is Action.SKIP:
            self.aside.counts["skipped"] += 1
            self.aside.counts["before_snapshot"] += 1
            self.aside.expect_in_no_side_table(record.offset)
        elif fated.what is Action.LATE:
            self._late(message)
        elif fated.what is Action.ASIDE:
            self.aside.keep(record, fated.cause, envelope.session)
        else:
            self._keep_out(fated, record, envelope.session, entry)
        return True

    def _accept(self, fated: SessionOutcome, message: Held) -> bool:
        envelope, _, record = message
        memory = cast("SessionMemory", fated.known)
        entry = self.sessions.get(envelope.session)
        if entry is not None and fated.before and is_multipart_open(entry.known.memory):
            if not self.waiting.complete(message, fated.before):
                return False
            self.sessions[envelope.session].known = memory
            return True
        if entry is not None and (fated.before or envelope.kind is Kind.END):
            entry.known = memory  # applied and freed messages are no longer buffered
            self.waiting.release(envelope.session, fated.before, record.offset)
        if envelope.kind is Kind.END:
            self.waiting.apply(message, at=record.offset)
            return True
        self._note_restart(fated, entry)
        opens = True if fated.begins else None  # None: by its kind
        self.applying.apply(message, at=record.offset, known=memory, opens=opens)
        self.waiting.release(envelope.session, fated.after, record.offset)
        return True

    def _hold(self, fated: SessionOutcome, message: Held) -> None:
        session = message[0].session
        memory = cast("SessionMemory", fated.known)
        entry = self.sessions.get(session)
        self._note_restart(fated, entry)
        if entry is None:
            self.sessions[session] = Session(memory, None)
        else:
            entry.known = memory
            if fated.begins:
                self.applying.drop_state(entry, message)
        self.applying.touched.add(session)
        self.waiting.hold(message)

    def _note_restart(self, fated: SessionOutcome, entry: Session | None) -> None:
        """Count the state of a session that restarts, if another class suspended it."""
        if fated.begins and entry is not None and entry.known.waits and not entry.known.lost:
            self.losses.note(entry.state)

    def _late(self, message: Held) -> None:
        envelope, body, record = message
        entry = self.sessions.get(envelope.session)
        on_late = self._declared.on_late
        if entry is not None and entry.state is not None and on_late is not None:
            rows = self.applying.run_hook(envelope.session, lambda: on_late(entry.state, body, record), entry)
            self.aside.counts["timer_rows"] += bool(rows)
            self.applying.emit(to_source(envelope, record, LATE), record.offset, rows)
            if self.due.arms:
                self.due.note(envelope.session, entry)
        self.aside.keep_late(record, envelope.session)

    def _keep_out(self, fated: SessionOutcome, record: Record, session: str, entry: Session | None) -> None:
        after = fated.known
        if fated.what is Action.REFUSE:  # a stop, unless another policy was in force then
            self.aside.stop_unless_quarantined(record.offset, fated.cause)
            after = None
            if entry is not None:
                after = entry.known._replace(waits=True)
        self.aside.keep(record, fated.cause, session)
        if entry is not None and after is not None and entry.known != after:
            if after.waits:
                after = self._suspended(session, entry, after)
            entry.known = after
            self.applying.touched.add(session)

    def _notice(self, fated: SessionOutcome) -> None:
        if fated.what is Action.HOLD:
            return
        if fated.cause == "gap":
            self.aside.counts["gaps"] += 1
        elif fated.what is Action.DROP or (fated.what is Action.ACCEPT and fated.cause):
            self.aside.counts["repeats"] += 1

    def _undecodable(self, record: Record) -> None:
        answer = self.aside.judge(self.rules.undecodable, record.offset, "undecodable")
        self.aside.keep(record, "undecodable", None)
        if answer is not GateAnswer.QUARANTINE:  # its session is unknown
            self.suspend_before(record.offset + 1)

    def _misplaced(self, record: Record, error: Exception) -> None:
        """A message whose envelope the transform cannot extract."""
        cause = str(getattr(error, "what", "transform raised"))
        answer = self.aside.judge(self.rules.undecodable, record.offset, cause)
        self.aside.keep(record, cause, None)
        if answer is not GateAnswer.QUARANTINE:
            self.suspend_before(record.offset + 1)

    def _copied(self) -> _Copied:
        """A copy of everything that a message may change."""
        applying = self.applying
        return _Copied(
            sessions={session: entry.copied() for session, entry in self.sessions.items()},
            held=dict(self.waiting.held),
            aside=self.aside.savepoint(),
            rows=len(applying.emitted.rows),
            last_row=applying.last_row,
            due=self.due.copied(),
            ended=set(applying.ended),
        )

    def _rollback(self, copied: _Copied) -> None:
        self.applying.sessions = copied.sessions
        self.waiting.held = copied.held
        self.aside.rollback(copied.aside)
        self.applying.emitted.since(copied.rows)
        self.applying.last_row = copied.last_row
        self.due.rollback(copied.due)
        self.applying.ended = copied.ended


class _Copied(NamedTuple):
    sessions: dict[str, Session]
    held: dict[int, Held]
    aside: Marked
    rows: int
    last_row: tuple[int, int]
    due: Agenda
    ended: set[str]


_GOES_ON = (Action.ACCEPT, Action.HOLD)
