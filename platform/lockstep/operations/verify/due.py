"""What is due in one partition by its watermark: messages that wait no longer, timers, sessions that fell silent."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

import msgspec

from lockstep.declare.place import Place
from lockstep.declare.record import Record
from lockstep.operations.verify.applying import Applying, Session
from lockstep.operations.verify.aside import Aside, PastViolation
from lockstep.operations.verify.declared import Declared
from lockstep.operations.verify.row_values import Source
from lockstep.operations.verify.second_gate.contract import Rules
from lockstep.operations.verify.second_gate.moment import Moment, happened
from lockstep.operations.verify.second_gate.parts import held_of, is_on_its_way
from lockstep.operations.verify.second_gate.reorder import due_at
from lockstep.operations.verify.second_gate.sessions import is_waiting
from lockstep.operations.verify.waiting import NOT_OF_THE_MESSAGE, Waiting

NEVER = 2**63 - 1
Agenda = tuple[dict[str, int], list[tuple[int, str]], int]
"""When something is due for each session, the same in order, and the watermark."""


class Due:
    """See the module.

    Attributes:
        moment: The watermark.
        arms: Whether anything may become due at all.
        is_timed: Whether anything depends on the watermark.
    """

    def __init__(
        self, declared: Declared, rules: Rules, moment: Moment, applying: Applying, waiting: Waiting, aside: Aside
    ) -> None:
        self._declared, self._rules, self.moment = declared, rules, moment
        self._applying, self._waiting, self._aside = applying, waiting, aside
        self.arms = (declared.deadline, declared.idle_us, rules.release) != (None, None, None)
        self.is_timed = self.arms or rules.by_time or declared.watermark is not None
        self._at: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []

    def see(self, place: Place, body: object, record: Record) -> None:
        """Move the watermark to what a message says."""
        if self._declared.watermark is None:
            self.moment.see(happened(place, record))
        elif (said := self._declared.watermark(body, record)) is not None:
            self.moment.see(said)

    @property
    def is_due(self) -> bool:
        """Whether the watermark has passed something."""
        return bool(self._heap) and self._heap[0][0] <= self.moment.at_us

    def touch(self, place: Place, record: Record) -> None:
        """A message of a session was applied, or held back."""
        held = self._applying.sessions.get(place.session)
        if held is None or not self.arms:
            return
        if not self.moment.is_absurd(at_us := happened(place, record)):
            held.seen_us = max(held.seen_us, at_us)
        held.at = record.offset
        self.note(place.session, held)

    def note(self, session: str, held: Session) -> None:
        """Note when something is due for a session."""
        due_us = self.due_us(held)
        if due_us == NEVER:
            self._at.pop(session, None)
        elif self._at.get(session) != due_us:
            self._at[session] = due_us
            heappush(self._heap, (due_us, session))

    def due_us(self, held: Session) -> int:
        """The watermark at which something is due for a session; `NEVER` without anything."""
        return min(self._release_us(held), self._timer_us(held), self._silent_us(held))

    def fire(self, at: int, waits_before: Callable[[str], int]) -> None:
        """Do all that is due, in the order of (when it is due, session), while an offset is worked on.

        Args:
            at: The offset.
            waits_before: The offset before which a session began that waits for its next snapshot.

        Raises:
            PastViolation: A timer raises, which stops a stream under every class.
        """
        while self.is_due:
            due_us, session = heappop(self._heap)
            held = self._applying.sessions.get(session)
            if self._at.get(session) != due_us:
                continue
            del self._at[session]
            if held is not None and not is_waiting(held.known, waits_before(session)):
                self._wake(session, held, due_us, at)

    def copied(self) -> Agenda:
        """All that it remembers."""
        return dict(self._at), list(self._heap), self.moment.at_us

    def back(self, copied: Agenda) -> None:
        """Go back to what it remembered."""
        self._at, self._heap, self.moment.at_us = copied

    def _wake(self, session: str, held: Session, due_us: int, at: int) -> None:
        if self._release_us(held) <= due_us and self._rules.release is not None:
            ruling = self._rules.release(held.known.memory)
            held.known = held.known._replace(memory=ruling.memory)
            self._applying.touched.add(session)
            self._aside.counts["gaps"] += ruling.cause == "gap"
            self._waiting.release(session, ruling.after, at)
            if session not in self._applying.sessions or held.known.waits:
                return
        try:
            if self._timer_us(held) <= due_us:
                self._run_timer(session, held, at)
            if self._silent_us(held) <= due_us:
                self._end(session, held, at)
                return
        except NOT_OF_THE_MESSAGE:
            raise
        except Exception as error:
            raise PastViolation("timer raised") from error
        self.note(session, held)

    def _run_timer(self, session: str, held: Session, at: int) -> None:
        due_us = self._timer_us(held)
        rows: list[msgspec.Struct] = []
        if self._declared.on_timer is not None:
            rows = self._applying.beside(session, self._declared.on_timer(held.state, due_us), held)
        if self._timer_us(held) <= due_us:
            raise ValueError("the timer did not move on")
        self._emit(session, held, due_us, at, rows)

    def _end(self, session: str, held: Session, at: int) -> None:
        due_us, waiting = self._silent_us(held), held_of(held.known.memory)
        rows = self._applying.end(session)
        self._waiting.free(waiting)
        self._emit(session, held, due_us, at, rows)

    def _emit(self, session: str, held: Session, due_us: int, at: int, rows: list[msgspec.Struct]) -> None:
        self._aside.counts["timer_rows"] += bool(rows)
        self._applying.emit(Source(held.at, session, None, due_us), at, rows)

    def _release_us(self, held: Session) -> int:
        waits_for_more = is_on_its_way(held.known.memory)
        due_us = None if waits_for_more or self._rules.release is None else due_at(held.known.memory)
        return NEVER if due_us is None else due_us

    def _timer_us(self, held: Session) -> int:
        if self._declared.deadline is None or held.state is None:
            return NEVER
        due_us = self._declared.deadline(held.state)
        return NEVER if due_us is None else due_us

    def _silent_us(self, held: Session) -> int:
        return NEVER if self._declared.idle_us is None else held.seen_us + self._declared.idle_us
