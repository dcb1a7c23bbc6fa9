"""Buffered messages, timers, session end; event-time timers."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import cast

import msgspec

from lockstep.declare.transform import InitialState
from lockstep.engine.executor.compiled_stream import CompiledStream
from lockstep.engine.executor.difference import NO_ROWS
from lockstep.engine.executor.limits import is_of_machine
from lockstep.engine.executor.losses import END_RAISED, LossCounter, name_error
from lockstep.engine.executor.rejects import Exclusions, VerdictHandler
from lockstep.engine.executor.row_buffer import RowBuffer, make_origin
from lockstep.engine.executor.sessions import Sessions
from lockstep.engine.executor.state_checks import StateChecks
from lockstep.integrity.base import PartitionTime, find_event_time, to_microseconds
from lockstep.integrity.suspension import mark_suspended
from lockstep.integrity.verdict import AnyGate, Judgement
from lockstep.model.fault import Fault
from lockstep.model.position import Position
from lockstep.model.readable_times import EARLIEST_US, describe_unreadable
from lockstep.model.record import Envelope, Kind, Record
from lockstep.model.row_cause import RowCause
from lockstep.state.decoded_sessions import SessionEntry
from lockstep.state.store import PartitionState
from lockstep.state.timers import CLOCK, NEVER, TimerQueue
from lockstep.table.row_encoder import RowRejected

UNSEEN_US = -1
"""The newest event time of a session without a message since its clock runs."""


class SessionClock(msgspec.Struct, array_like=True):
    """Event-time state of a session.

    Attributes:
        armed_us: The deadline under which the session is in the timer queue.
        seen_us: Event time of its newest message; the watermark at a message whose own time is implausible.
        offset: Offset of its last applied message.
    """

    armed_us: int = NEVER
    seen_us: int = UNSEEN_US
    offset: int = 0


_ENCODER = msgspec.msgpack.Encoder()
_CLOCKS = msgspec.msgpack.Decoder(SessionClock)


class EventTimers:
    """Event time of a partition: watermark and session timers.

    Attributes:
        time: The partition's watermark.
    """

    def __init__(self, compiled: CompiledStream, time: PartitionTime, state: PartitionState[object]) -> None:
        self.time = time
        self._watermark = compiled.hooks.watermark
        self._deadline = compiled.hooks.deadline
        idle = compiled.event_time.session_idle
        self._idle_us: int | None = None
        if idle is not None:
            self._idle_us = to_microseconds(idle)
        self._arms = compiled.arms_timers
        self._reserved = state.reserved
        self._agenda = TimerQueue(state.reserved) if self._arms else None
        self._clocks: dict[str, SessionClock] = {}

    def advance(self, message: object, envelope: Envelope, record: Record) -> bool:
        """Advance the watermark to a message's; returns whether a timer has expired.

        Raises:
            TypeError: The transform's `watermark` is not an int: the ledger would have another value.
        """
        if self._watermark is None:
            self.time.advance(find_event_time(envelope, record))
        elif (watermark_us := self._watermark(message, record)) is not None:
            if type(watermark_us) is not int:  # bool would pass isinstance
                raise TypeError(f"watermark gave {watermark_us!r}: microseconds since 1970 (UTC) as an int, or None")
            self.time.advance(watermark_us)
        return self.is_due

    @property
    def next_us(self) -> int:
        """The first deadline; `NEVER` without any."""
        return NEVER if self._agenda is None else self._agenda.next_us

    @property
    def is_due(self) -> bool:
        """Whether the watermark has passed a timer or a buffered message."""
        return self._agenda is not None and self._agenda.next_us <= self.time.watermark_us

    def take(self) -> list[tuple[int, str]]:
        """The first expired timers: (deadline, session), all of one deadline; empty without any."""
        return [] if self._agenda is None else self._agenda.take(self.time.watermark_us)

    def note_message(
        self, session: str, entry: SessionEntry[object], gate: AnyGate, envelope: Envelope, record: Record
    ) -> None:
        """Record a message of a session and the session's next deadline."""
        if self._arms:
            clock = self.clock(session)
            seen_us = find_event_time(envelope, record)
            if self.time.is_implausible(seen_us):  # a time far ahead would keep the session from becoming idle
                seen_us = self.time.watermark_us
            clock.seen_us = max(clock.seen_us, seen_us)
            clock.offset = record.offset
            self._arm(session, clock, self.due_us(session, entry, gate))

    def arm_earlier(self, session: str, entry: SessionEntry[object], gate: AnyGate) -> None:
        """Record the session's next deadline after a late message, which may have moved it forward."""
        if self._arms:
            self._arm(session, self.clock(session), self.due_us(session, entry, gate))

    def reschedule(self, session: str, entry: SessionEntry[object], gate: AnyGate) -> None:
        """Record the session's next deadline after a timer ran."""
        self.cancel(session)
        self._arm(session, self.clock(session), self.due_us(session, entry, gate))

    def cancel(self, session: str) -> None:
        """Disarm a session until its next message."""
        self.clock(session).armed_us = NEVER

    def due_us(self, session: str, entry: SessionEntry[object], gate: AnyGate) -> int:
        """The next deadline of a session; `NEVER` without one."""
        release_us = gate.due_us(entry.gate)
        if release_us is None:
            release_us = NEVER
        return min(release_us, self.timer_us(entry), self.idle_deadline_us(session))

    def timer_us(self, entry: SessionEntry[object]) -> int:
        """Deadline of the session's own timer; `NEVER` without one."""
        if self._deadline is None or entry.state is None:
            return NEVER
        deadline = self._deadline(entry.state)
        if deadline is None:
            return NEVER
        if type(deadline) is not int:
            raise TypeError(f"deadline gave {deadline!r}: microseconds since 1970 (UTC) as an int, or None")
        if deadline < EARLIEST_US:  # the event time of its rows; a time after 9999 is never reached
            raise ValueError(describe_unreadable(f"deadline = {deadline}"))
        return deadline

    def idle_deadline_us(self, session: str) -> int:
        """Deadline of the session's idle timeout; `NEVER` without one."""
        seen_us = self.clock(session).seen_us
        return NEVER if self._idle_us is None or seen_us == UNSEEN_US else seen_us + self._idle_us

    def clock(self, session: str) -> SessionClock:
        """Event-time state of a session."""
        clock = self._clocks.get(session)
        if clock is None:
            stored = self._reserved.get(_key(session))
            clock = SessionClock() if stored is None else _CLOCKS.decode(stored)
            self._clocks[session] = clock
        return clock

    def forget(self, session: str) -> None:
        """Forget an ended session."""
        if self._arms:
            self._clocks.pop(session, None)
            self._reserved.remove(_key(session))

    def save(self) -> None:
        """Write the event-time state of sessions to the state store. Call once, at the end of the range."""
        for session, clock in self._clocks.items():
            self._reserved.put(_key(session), _ENCODER.encode(clock))

    def _arm(self, session: str, clock: SessionClock, due_us: int) -> None:
        # Of a later deadline the earlier timer fires, finds nothing due and arms the session again.
        if self._agenda is not None and due_us < clock.armed_us:
            self._agenda.add(due_us, session)
            clock.armed_us = due_us


def _key(session: str) -> bytes:
    return CLOCK + session.encode("utf-8", "surrogatepass")


class DeferredEvents:
    """Applies buffered messages and timers at an offset, in addition to or instead of the message there.

    Attributes:
        compiled: The stream.
        subject: The buffered message that is being applied, if any.
        timer_of: The session whose timer runs, if any.
    """

    def __init__(
        self,
        compiled: CompiledStream,
        position: Position,
        sessions: Sessions,
        judge: VerdictHandler,
        emission: RowBuffer,
        losses: LossCounter,
    ) -> None:
        self.compiled = compiled
        self._position = position
        self._sessions = sessions
        self._judge = judge
        self._emission = emission
        self._held = sessions.held
        self.timing: EventTimers | None = None
        self.losses = losses
        self.without = Exclusions()
        self.checks: StateChecks | None = None
        self.subject: Record | None = None
        self.timer_of: str | None = None

    @property
    def first_offset(self) -> int:
        """The position at the start of the range."""
        return self._position.next_offset

    def set_state(self, entry: SessionEntry[object], body: object, envelope: Envelope, record: Record, at: int) -> int:
        """Apply snapshots, first updates under a class that accepts them, and ends; emit the difference.

        Returns:
            The first of the rows of this message among those not yet encoded.
        """
        cause = RowCause.END if envelope.kind is Kind.END else RowCause.SNAPSHOT
        self._emission.begin(make_origin(envelope, record.offset, at), cause)
        if cause is RowCause.END:
            self._end(envelope.session, entry, body, record, at=at)
        else:
            replaced = self._make_state(entry, body, envelope, record)
            self._emit_replaced(replaced, entry.state, body, record)
        return self._emission.first

    def _make_state(self, entry: SessionEntry[object], body: object, envelope: Envelope, record: Record) -> object:
        """Set the state of a session from a message; returns the state that it replaces."""
        replaced = self._preserved(entry.state)  # a copy, if the transform may change the table in place
        state = self.compiled.on_snapshot(body, record, entry.state)
        if isinstance(state, InitialState):
            self._emission.emit(state.rows)
            state = state.state
        entry.state = state
        self._sessions.add(envelope.session, entry)
        self.losses.note_begun(envelope.session)
        return replaced

    def _emit_replaced(self, before: object, after: object, body: object, record: Record | None) -> None:
        """Emit the rows that differ between two tables of a ready fold."""
        if self.compiled.replacement is not None:
            self._emission.emit(self.compiled.replacement.difference(before, after, body, record))

    def drop_state(self, entry: SessionEntry[object], envelope: Envelope, record: Record) -> None:
        """Drop the state and the rows of a session that a buffered message will restart.

        The table and the state would differ until the message is released.
        """
        dropped = entry.state
        offset = record.offset
        entry.state = None
        self._emission.begin((offset, envelope.session, None, envelope.event_time_us, offset), RowCause.SNAPSHOT)
        self._emit_replaced(dropped, NO_ROWS, None, None)
        self._emission.end_extra()

    def apply_buffered(self, session: str, offsets: Sequence[int], at: int) -> None:
        """Apply buffered messages, in order, while the message at an offset is processed.

        Raises:
            StopFold: The fold stops here.
        """
        for number, offset in enumerate(offsets):
            entry = self._sessions.find(session)
            if entry is None or offset in self.without.failed_buffered:
                self._reject_buffered(session, entry, offsets[number:])
                return
            self._apply(entry, self._take_buffered(session, offset), at)

    def apply_multipart(
        self, entry: SessionEntry[object], envelope: Envelope, body: object, record: Record, parts: Sequence[int]
    ) -> bool:
        """Apply a complete multi-part snapshot: its parts, in order, and the message that completes it.

        Returns:
            Whether it was applied; False when the transform refused a part of it.

        Raises:
            StopFold: The fold stops here.
        """
        session = envelope.session
        if any(offset in self.without.failed_buffered for offset in parts):
            self._reject_buffered(session, entry, parts)
            finding = self._judge.finding("suspended", record.offset, session=session)
            self._judge.reject(Judgement.QUARANTINE, record, finding)
            return False
        replaced = self._preserved(entry.state)
        for number, offset in enumerate(parts):
            self._apply_part(entry, self._take_buffered(session, offset), record.offset, opens=number == 0)
        self._emission.begin(make_origin(envelope, record.offset, record.offset), RowCause.SNAPSHOT)
        self._add_part(entry.state, body, record)
        self._emit_replaced(replaced, entry.state, body, record)  # once for all parts: no row of a part alone is true
        self._emission.end()
        return True

    def _preserved(self, state: object) -> object:
        if self.compiled.replacement is None:
            return state
        return self.compiled.replacement.preserve(state)

    def _apply_part(self, entry: SessionEntry[object], record: Record, at: int, *, opens: bool) -> None:
        """Apply one part of a multi-part snapshot but the last."""
        self.subject = record
        body = self.compiled.decode_again(record.source)
        envelope = self.compiled.envelope(body, record)
        self._emission.begin(make_origin(envelope, record.offset, at), RowCause.SNAPSHOT)
        if opens:
            self._make_state(entry, body, envelope, record)
        else:
            self._add_part(entry.state, body, record)
        self._judge.counts.released += 1
        self._emission.end()
        self._finish_buffered(envelope)

    def _add_part(self, state: object, body: object, record: Record) -> None:
        """Add a part to the state of a snapshot; the rows of a ready fold are its difference as a whole."""
        if self.compiled.replacement is None:
            self._emission.emit(self.compiled.on_update(state, body, record))
        else:
            self.compiled.replacement.on_part(state, body, record)

    def discard(self, session: str, offsets: Sequence[int]) -> None:
        """Send buffered messages to quarantine."""
        for offset in offsets:
            self._judge.discard_buffered(self._take_buffered(session, offset), session)

    def suspend(self, session: str, entry: SessionEntry[object], since: int, cause: str) -> tuple[int, ...]:
        """Suspend one session; returns the offsets of its buffered messages. An unknown session gets no clock.

        Args:
            session: The session.
            entry: Its state.
            since: Offset of the message that the transform refused.
            cause: Cause of that refusal.
        """
        gate = entry.gate
        waiting = self._sessions.gate.buffered_offsets(gate)  # before the suspension replaces the gate's state
        if self._sessions.may_suspend:
            self.losses.suspend(cause, since, session, entry, mark_suspended(gate, since))
        else:
            self._sessions.give_up_snapshot(session, entry)
        if self.timing is not None and self._sessions.find(session) is None:
            self.timing.forget(session)
        return waiting

    def drop(self, session: str, offsets: Sequence[int]) -> None:
        """Drop buffered messages that a snapshot covers."""
        for offset in offsets:
            self._held.take(session, offset)
            self._judge.dropped_late()

    def fire_timers(self, at: int) -> None:
        """Run all timers that have expired by the watermark, in the order of (deadline, session).

        Raises:
            StopFold: The fold stops here.
        """
        timing = cast("EventTimers", self.timing)
        due = list[tuple[int, str]]()
        while due or timing.is_due:
            if not due or timing.next_us < due[0][0]:  # a fired timer may have set an earlier timer
                for timer in timing.take():
                    heappush(due, timer)
                continue
            deadline_us, session = heappop(due)
            entry = self._sessions.find(session)
            if entry is None:  # the session has ended since its timer was set
                timing.forget(session)
                continue
            self._fire_session(session, entry, deadline_us, at)
            if self._emission.is_full:
                self._emission.flush()

    def _fire_session(self, session: str, entry: SessionEntry[object], deadline_us: int, at: int) -> None:
        """Run the timers of a session at one deadline; possibly none: deadlines move on.

        Its own timer goes before the messages that are released at the same watermark, as it goes before a message
        that moves the watermark there; one that they set into the past follows them at once.
        """
        timing = cast("EventTimers", self.timing)
        gate = self._sessions.gate
        if self._sessions.is_suspended(session, entry):
            timing.cancel(session)
            return
        if timing.timer_us(entry) <= deadline_us:
            self._run_timer(session, entry, timing.timer_us(entry), at)
        due_us = gate.due_us(entry.gate)
        releases = due_us is not None and due_us <= deadline_us
        if releases:
            self._release(session, entry, deadline_us, at)
        if self._sessions.find(session) is None:
            return
        if self._sessions.is_suspended(session, entry):  # a released message could not be applied
            timing.cancel(session)
            return
        if releases and timing.timer_us(entry) <= deadline_us:  # set into the past by a released message
            self._run_timer(session, entry, timing.timer_us(entry), at)
        if timing.idle_deadline_us(session) <= deadline_us:
            self._expire_session(session, entry, timing.idle_deadline_us(session), at)
        else:
            timing.reschedule(session, entry, gate)

    def _release(self, session: str, entry: SessionEntry[object], until_us: int, at: int) -> None:
        entry.gate, verdict = self._sessions.gate.release_due(entry.gate, until_us)
        self._judge.counts.gaps += verdict.cause == "gap"
        self.apply_buffered(session, verdict.after, at)

    def _run_timer(self, session: str, entry: SessionEntry[object], due_us: int, at: int) -> None:
        self.timer_of = session
        timing = cast("EventTimers", self.timing)
        on_timer = self.compiled.hooks.on_timer
        if on_timer is not None:
            self._emission.begin((timing.clock(session).offset, session, None, due_us, at), RowCause.TIMER)
            self._emission.emit(on_timer(entry.state, due_us))
            self._emission.end_extra()
            self._check_storable(session)
        if timing.timer_us(entry) <= due_us:  # else it would fire endlessly at this watermark
            raise ValueError(f"on_timer left the deadline at {due_us}: change the state so that it is later, or None")
        self.timer_of = None

    def _expire_session(self, session: str, entry: SessionEntry[object], due_us: int, at: int) -> None:
        self.timer_of = session
        offset = cast("EventTimers", self.timing).clock(session).offset
        self._emission.begin((offset, session, None, due_us, at), RowCause.END)
        self._end(session, entry, None, None, at=at)
        self._emission.end_extra()
        self.timer_of = None

    def _end(self, session: str, entry: SessionEntry[object], body: object, record: Record | None, *, at: int) -> None:
        if entry.gate is not None and entry.state is not None:  # None: an incomplete snapshot
            self._emit_last_rows(entry, body, record, at=at)
        buffered = self._sessions.gate.buffered_offsets(entry.gate)
        self._sessions.remove(session)
        self.discard(session, buffered)
        if self.timing is not None:
            self.timing.forget(session)

    def _emit_last_rows(self, entry: SessionEntry[object], body: object, record: Record | None, *, at: int) -> None:
        """Emit the rows of the end of a session. Without them its state may be a loss.

        No message is to blame when an idle session ends: a class that tolerates an error of the transform loses
        the state, or the session would end again with every later message.
        """
        on_end = self.compiled.hooks.on_end
        replacement = self.compiled.replacement
        try:
            if on_end is not None:
                self._emission.emit(on_end(entry.state))
            if replacement is not None and replacement.ends_remove:
                self._emit_replaced(entry.state, NO_ROWS, body, record)
        except Exception as error:
            if record is not None or is_of_machine(error) or self._judge.judge_error(error, at) is Judgement.VIOLATION:
                raise
            if isinstance(error, RowRejected) or not self._emission.retract():
                raise  # a part of the rows is encoded already and cannot be removed
            self.losses.note(END_RAISED, at, entry.state, detail=name_error("on_end", error))
            return
        if on_end is None:
            self.losses.end(at, entry.state)

    def _apply(self, entry: SessionEntry[object], record: Record, at: int) -> None:
        """Apply one buffered message."""
        self.subject = record
        body = self.compiled.decode_again(record.source)
        envelope = self.compiled.envelope(body, record)
        if entry.state is None or envelope.kind in {Kind.SNAPSHOT, Kind.END}:
            self.set_state(entry, body, envelope, record, at)
        else:
            self._emission.begin(make_origin(envelope, record.offset, at))
            self._emission.emit(self.compiled.on_update(entry.state, body, record))
        self._judge.counts.released += 1
        self._emission.end()
        self._finish_buffered(envelope)

    def _finish_buffered(self, envelope: Envelope) -> None:
        """A buffered message is applied; those of a session may be many."""
        self._check_storable(envelope.session)
        self.subject = None
        if self._emission.is_full:
            self._emission.flush()

    def _check_storable(self, session: str) -> None:
        if self.checks is not None:
            self.checks.check(session)

    def _reject_buffered(self, session: str, entry: SessionEntry[object] | None, offsets: Sequence[int]) -> None:
        """Reject buffered messages that cannot be applied: a refused one, and those that follow it."""
        waiting: tuple[int, ...] = ()
        if entry is not None:
            waiting = self.suspend(session, entry, offsets[0], self._find_cause(offsets))
        for offset in offsets:
            if (refused := self.without.failed_buffered.get(offset)) is None:
                self.discard(session, (offset,))
                continue
            self._judge.counts.released += 1
            self._judge.counts.refused += 1
            record = self._take_buffered(session, offset)
            self._judge.reject(self._judge.judge(Fault.TRANSFORM_FAILED, offset), record, refused)
        self.discard(session, [offset for offset in waiting if offset not in offsets])

    def _find_cause(self, offsets: Sequence[int]) -> str:
        """The cause of the first of the buffered messages that an earlier fold of the range refused."""
        for offset in offsets:
            refused = self.without.failed_buffered.get(offset)
            if refused is not None:
                return refused.cause
        return Fault.TRANSFORM_FAILED  # an earlier part of the session is gone

    def _take_buffered(self, session: str, offset: int) -> Record:
        position = self._position
        message = self._held.take(session, offset)
        return Record(position.topic, position.topic_id, position.partition, offset, message)
