"""Watermark, timers, buffered messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

import msgspec

from lockstep.errors import EnvironmentProblem, StateError
from lockstep.model.record import Envelope, Kind, Record
from lockstep.verify.declaration import Declared
from lockstep.verify.gates.base import (
    GateAnswer,
    GateRules,
    ReplayWatermark,
    SessionMemory,
    find_buffered,
    find_event_time,
    is_multipart_open,
    is_waiting,
    mark_suspended,
    require_int,
)
from lockstep.verify.gates.window import find_due
from lockstep.verify.rows import Source
from lockstep.verify.sessions import END, NO_MESSAGE_US, TIMER, ReplaySessions, Session, read_deadline
from lockstep.verify.side_tables import Marked, ReadPastViolation, SideTableCheck

Held = tuple[Envelope, object, Record]
"""A message's envelope, body and record."""
NOT_OF_THE_MESSAGE = (EnvironmentProblem, StateError, ReadPastViolation)
"""Errors of this machine, the registry or the state, or the end of the proof: not about a message."""


class ReplayBuffer:
    """See the module.

    Attributes:
        held: Buffered messages, by offset.
        suspended: The memory of a session that is suspended now; counts its state if it is lost.
    """

    def __init__(self, rules: GateRules, applying: ReplaySessions, aside: SideTableCheck) -> None:
        self._rules = rules
        self._applying = applying
        self._aside = aside
        self.held: dict[int, Held] = {}
        self.suspended: Callable[[str, Session, SessionMemory], SessionMemory] = _leave_uncounted

    def use(self, rules: GateRules) -> None:
        """See `Replay.use`."""
        self._rules = rules

    def hold(self, message: Held) -> None:
        """Buffer a message."""
        self.held[message[2].offset] = message
        self._aside.counts["buffered"] += 1

    def discard(self, offsets: Iterable[int]) -> None:
        """Quarantine messages that will not be applied."""
        for offset in offsets:
            envelope, _, record = self._take_buffered(offset)
            self._aside.keep(record, "suspended", envelope.session)

    def drop(self, offsets: Iterable[int]) -> None:
        """Drop messages that a snapshot covers."""
        for offset in offsets:
            self._take_buffered(offset)
            self._aside.drop(offset)
            self._aside.counts["repeats"] += 1

    def release(self, session: str, offsets: Sequence[int], at: int) -> None:
        """Apply messages in order, while another offset is processed."""
        for number, offset in enumerate(offsets):
            if session not in self._applying.sessions:
                self.discard(offsets[number:])
                return
            message = self._take_buffered(offset)
            try:
                self.apply(message, at=at)
            except NOT_OF_THE_MESSAGE:
                raise
            except Exception as error:  # noqa: BLE001  # the user's code: an error of it is a verdict on the message
                self.refused(message[2], session, error)
                self.discard(offsets[number + 1 :])
                return

    def apply(self, message: Held, *, at: int) -> None:
        """Apply a message; one that ends its session frees the session's buffered messages."""
        envelope = message[0]
        entry = self._applying.sessions.get(envelope.session)
        self._applying.apply(message, at=at)
        if envelope.kind is Kind.END and entry is not None:
            self.discard(find_buffered(entry.known.memory))

    def complete(self, message: Held, parts: Sequence[int]) -> bool:
        """Apply a snapshot whose last part has arrived; False if the transform refused an earlier part.

        Raises:
            Exception: Of the transform, at the last part; nothing of the snapshot is applied.
        """
        session = message[0].session
        last_offset = message[2].offset
        saved = self._before(session)
        waiting = [self.held[offset] for offset in parts]
        replaced = self._applying.preserve_state(session)
        for number, part in enumerate([*waiting, message]):
            completes = part is message
            try:
                self._applying.apply_part(part, replaced, at=last_offset, opens=number == 0, completes=completes)
            except NOT_OF_THE_MESSAGE:
                raise
            except Exception as error:
                self._rollback(session, saved)
                if completes:  # judged as any other message on which the transform raises
                    raise
                self._incomplete(message, parts, part, error)
                return False
        for offset in parts:
            self._take_buffered(offset)
        return True

    def refused(self, record: Record, session: str, error: Exception) -> None:
        """A message on which the transform raised."""
        cause = str(getattr(error, "what", "transform raised"))
        if getattr(error, "halts", False):  # a rule that fails stops a stream of any class
            self._aside.judge(GateAnswer.STOP, record.offset, cause)
        answer = self._aside.judge(self._rules.raised, record.offset, cause)
        self._aside.keep(record, cause, session)
        if answer is not GateAnswer.QUARANTINE:
            self.suspend(session)
        self._forget_parts(session)

    def suspend(self, session: str) -> None:
        """Suspend a session until its next snapshot."""
        entry = self._applying.sessions.get(session)
        if entry is not None:
            waiting: Sequence[int] = ()
            if not entry.known.waits:
                waiting = find_buffered(entry.known.memory)
            entry.known = self.suspended(session, entry, mark_suspended(entry.known))
            self._applying.touched.add(session)
            self.discard([offset for offset in waiting if offset in self.held])

    def _take_buffered(self, offset: int) -> Held:
        self._aside.counts["released"] += 1
        return self.held.pop(offset)

    def _before(self, session: str) -> _Before:
        entry = self._applying.sessions[session]
        applying = self._applying
        copied = msgspec.structs.replace(entry, since=list(entry.since))
        return _Before(copied, len(applying.emitted.rows), applying.last_row, self._aside.savepoint())

    def _rollback(self, session: str, before: _Before) -> None:
        """Restore the session as of before a snapshot, whose first part may have changed the previous state."""
        applying = self._applying
        applying.sessions[session] = before.held
        applying.last_row = before.last_row
        applying.undo(before.held)
        applying.emitted.since(before.rows)
        self._aside.rollback(before.aside)

    def _incomplete(self, message: Held, parts: Sequence[int], failed: Held, error: Exception) -> None:
        """Quarantine a whole snapshot after the transform refused a part before the last."""
        session = message[0].session
        self._take_buffered(failed[2].offset)
        self._aside.keep(message[2], "suspended", session)
        self.refused(failed[2], session, error)
        self.discard([offset for offset in parts if offset in self.held])

    def _forget_parts(self, session: str) -> None:
        """In a class that never suspends, restore the session as before its snapshot: unknown, if it had no state."""
        entry = self._applying.sessions.get(session)
        if entry is None or not is_multipart_open(entry.known.memory):
            return
        self.discard([offset for offset in find_buffered(entry.known.memory) if offset in self.held])
        if entry.state is None:
            del self._applying.sessions[session]
        else:
            entry.known = entry.known._replace(memory=entry.known.memory["g"])
        self._applying.touched.add(session)


def _leave_uncounted(session: str, entry: Session, after: SessionMemory) -> SessionMemory:
    del session, entry
    return after


class _Before(NamedTuple):
    held: Session
    rows: int
    last_row: tuple[int, int]
    aside: Marked


NEVER = 2**63 - 1
Agenda = tuple[dict[str, int], list[tuple[int, str]], int]
"""Due time of each session, the same in order, and the watermark."""


class ReplayTimers:
    """See the module.

    Attributes:
        moment: The watermark.
        arms: Whether anything may become due at all.
        is_timed: Whether anything depends on the watermark.
    """

    def __init__(
        self,
        declared: Declared,
        rules: GateRules,
        moment: ReplayWatermark,
        applying: ReplaySessions,
        waiting: ReplayBuffer,
        aside: SideTableCheck,
    ) -> None:
        self._declared = declared
        self._rules = rules
        self.moment = moment
        self._applying = applying
        self._waiting = waiting
        self._aside = aside
        self.arms = (declared.deadline, declared.idle_us, rules.release) != (None, None, None)
        self.is_timed = self.arms or rules.by_time or declared.watermark is not None
        self._at: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []

    def use(self, rules: GateRules) -> None:
        """See `Replay.use`."""
        self._rules = rules

    def advance(self, envelope: Envelope, body: object, record: Record) -> None:
        """Advance the watermark by a message."""
        if self._declared.watermark is None:
            self.moment.advance(find_event_time(envelope, record))
            return
        watermark_us = self._declared.watermark(body, record)
        if watermark_us is not None:
            self.moment.advance(require_int(watermark_us))

    @property
    def is_due(self) -> bool:
        """Whether the watermark has passed a due time."""
        return bool(self._heap) and self._heap[0][0] <= self.moment.at_us

    def note_message(self, envelope: Envelope, record: Record) -> None:
        """Note that a message of a session was applied or buffered."""
        entry = self._applying.sessions.get(envelope.session)
        if entry is None or not self.arms:
            return
        at_us = find_event_time(envelope, record)
        if self.moment.is_implausible(at_us):  # a time far ahead would keep the session open
            at_us = self.moment.at_us
        entry.seen_us = max(entry.seen_us, at_us)
        entry.at = record.offset
        self.note(envelope.session, entry)

    def note(self, session: str, entry: Session) -> None:
        """Record the due time of a session."""
        self.note_at(session, self.due_us(entry))

    def note_at(self, session: str, due_us: int) -> None:
        """Record a due time of a session; `NEVER` for none."""
        if due_us == NEVER:
            self._at.pop(session, None)
        elif self._at.get(session) != due_us:
            self._at[session] = due_us
            heappush(self._heap, (due_us, session))

    def noted_us(self, session: str) -> int:
        """The due time that is recorded for a session; `NEVER` without one."""
        return self._at.get(session, NEVER)

    def forget(self, session: str) -> None:
        """Nothing is due for a session any more."""
        self._at.pop(session, None)

    def due_us(self, entry: Session) -> int:
        """The watermark at which a session has something due; `NEVER` without anything."""
        return min(self._release_us(entry), self._timer_us(entry), self._idle_deadline_us(entry))

    def fire_timers(self, at: int, waits_before: Callable[[str], int]) -> None:
        """Fire everything due, in the order of (due time, session), while an offset is processed.

        Args:
            at: The offset.
            waits_before: The offset before which a suspended session started.

        Raises:
            PastViolation: A timer raises, which stops a stream under every class.
        """
        while self.is_due:
            due_us, session = heappop(self._heap)
            entry = self._applying.sessions.get(session)
            if self._at.get(session) != due_us:  # the heap keeps due times that were replaced or forgotten
                continue
            del self._at[session]
            if entry is not None and not is_waiting(entry.known, waits_before(session)):
                self._fire_session(session, entry, due_us, at)

    def copied(self) -> Agenda:
        """A copy of all due times."""
        return dict(self._at), list(self._heap), self.moment.at_us

    def rollback(self, copied: Agenda) -> None:
        """Restore the copied due times."""
        self._at, self._heap, self.moment.at_us = copied

    def _fire_session(self, session: str, entry: Session, due_us: int, at: int) -> None:
        self._run_hook(lambda: self._run_timer(session, entry, due_us, at))
        if self._release_us(entry) <= due_us and self._rules.release is not None:
            ruling = self._rules.release(entry.known.memory, due_us)
            entry.known = entry.known._replace(memory=ruling.memory)
            self._applying.touched.add(session)
            self._aside.counts["gaps"] += ruling.cause == "gap"
            self._waiting.release(session, ruling.after, at)
            if session not in self._applying.sessions or entry.known.waits:
                return
            self._run_hook(lambda: self._run_timer(session, entry, due_us, at))
        if self._idle_deadline_us(entry) <= due_us:
            self._end(session, entry, at)
        else:
            self.note(session, entry)

    def _run_hook(self, act: Callable[[], None]) -> None:
        try:
            act()
        except NOT_OF_THE_MESSAGE:
            raise
        except Exception as error:
            raise ReadPastViolation("timer raised") from error

    def _run_timer(self, session: str, entry: Session, until_us: int, at: int) -> None:
        due_us = self._timer_us(entry)
        if due_us > until_us:
            return
        rows: list[msgspec.Struct] = []
        if self._declared.on_timer is not None:
            on_timer = self._declared.on_timer
            rows = self._applying.run_hook(session, lambda: on_timer(entry.state, due_us), entry)
        if self._timer_us(entry) <= due_us:
            raise ValueError("the timer did not move on")
        self._emit(session, entry, due_us, at, rows, TIMER)

    def _end(self, session: str, entry: Session, at: int) -> None:
        due_us = self._idle_deadline_us(entry)
        waiting = find_buffered(entry.known.memory)
        try:
            rows = self._applying.end(session)
        except NOT_OF_THE_MESSAGE:
            raise
        except Exception as error:  # the user's code: without a message to blame, the state is lost
            halts = self._rules.raised is GateAnswer.STOP or getattr(error, "halts", False)
            if halts and at >= self._aside.given_up:
                raise ReadPastViolation("timer raised") from error
            self._applying.losses.note(entry.state)
            self._applying.remove(session)
            rows = []
        self._waiting.discard(waiting)
        self._emit(session, entry, due_us, at, rows, END)

    def _emit(self, session: str, entry: Session, due_us: int, at: int, rows: list[msgspec.Struct], cause: str) -> None:
        self._aside.counts["timer_rows"] += bool(rows)
        self._applying.emit(Source(entry.at, session, None, due_us, cause), at, rows)

    def _release_us(self, entry: Session) -> int:
        if is_multipart_open(entry.known.memory) or self._rules.release is None:
            return NEVER
        due_us = find_due(entry.known.memory)
        return NEVER if due_us is None else due_us

    def _timer_us(self, entry: Session) -> int:
        due_us = read_deadline(self._declared, entry.state)
        return NEVER if due_us is None else due_us

    def _idle_deadline_us(self, entry: Session) -> int:
        if self._declared.idle_us is None or entry.seen_us == NO_MESSAGE_US:
            return NEVER
        return entry.seen_us + self._declared.idle_us
