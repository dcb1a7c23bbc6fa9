"""The messages of one partition that are held back: until they are applied, or go to quarantine after all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from lockstep.declare.place import Kind, Place
from lockstep.declare.record import Record
from lockstep.errors import EnvironmentProblem, StateError
from lockstep.operations.verify.applying import Applying, Session
from lockstep.operations.verify.aside import Aside, Marked, PastViolation
from lockstep.operations.verify.second_gate.contract import Answer, Rules
from lockstep.operations.verify.second_gate.parts import held_of, is_on_its_way
from lockstep.operations.verify.second_gate.sessions import suspended

Held = tuple[Place, object, Record]
"""A message's place, its body and its record."""
NOT_OF_THE_MESSAGE = (EnvironmentProblem, StateError, PastViolation)
"""Of this machine, the registry or the state, or the end of the proof: they say nothing of a message."""


class Waiting:
    """See the module.

    Attributes:
        held: What waits, by offset.
    """

    def __init__(self, rules: Rules, applying: Applying, aside: Aside) -> None:
        self._rules, self._applying, self._aside = rules, applying, aside
        self.held: dict[int, Held] = {}

    def hold(self, message: Held) -> None:
        """Hold a message back."""
        self.held[message[2].offset] = message
        self._aside.counts["buffered"] += 1

    def free(self, offsets: Iterable[int]) -> None:
        """Messages that will not be applied."""
        for offset in offsets:
            place, _, record = self._taken(offset)
            self._aside.keep(record, "suspended", place.session)

    def drop(self, offsets: Iterable[int]) -> None:
        """Messages that a snapshot covers."""
        for offset in offsets:
            self._taken(offset)
            self._aside.drop(offset)
            self._aside.counts["repeats"] += 1

    def release(self, session: str, offsets: Sequence[int], at: int) -> None:
        """Apply messages in order, while another one is worked on."""
        for number, offset in enumerate(offsets):
            if session not in self._applying.sessions:
                self.free(offsets[number:])
                return
            message = self._taken(offset)
            try:
                self.apply(message, at=at)
            except NOT_OF_THE_MESSAGE:
                raise
            except Exception as error:  # noqa: BLE001  # the user's code: an error of it is a verdict on the message
                self.refused(message[2], session, error)
                self.free(offsets[number + 1 :])
                return

    def apply(self, message: Held, *, at: int) -> None:
        """Apply a message; one that ends its session frees what waits in it."""
        place = message[0]
        held = self._applying.sessions.get(place.session)
        self._applying.apply(message, at=at)
        if place.kind is Kind.END and held is not None:
            self.free(held_of(held.known.memory))

    def complete(self, message: Held, parts: Sequence[int]) -> bool:
        """Apply a snapshot whose last message has come; whether the transform took all of it."""
        session, at = message[0].session, message[2].offset
        before = self._before(session)
        waiting = [self.held[offset] for offset in parts]
        for number, each in enumerate([*waiting, message]):
            try:
                self._applying.apply(each, at=at, opens=number == 0)
            except NOT_OF_THE_MESSAGE:
                raise
            except Exception as error:  # noqa: BLE001  # see above
                self._back(session, before)
                self._incomplete(message, parts, each, error)
                return False
        for offset in parts:
            self._taken(offset)
        return True

    def refused(self, record: Record, session: str, error: Exception) -> None:
        """A message on which the transform raised."""
        cause = str(getattr(error, "what", "transform raised"))
        answer = self._aside.answer(self._rules.raised, record.offset, cause)
        self._aside.keep(record, cause, session)
        if answer is not Answer.QUARANTINE:
            self.suspend(session)

    def suspend(self, session: str) -> None:
        """Let a session wait for its next snapshot."""
        held = self._applying.sessions.get(session)
        if held is not None:
            waiting = () if held.known.waits else held_of(held.known.memory)
            held.known = suspended(held.known)
            self._applying.touched.add(session)
            self.free([offset for offset in waiting if offset in self.held])

    def _taken(self, offset: int) -> Held:
        self._aside.counts["released"] += 1
        return self.held.pop(offset)

    def _before(self, session: str) -> _Before:
        held, applying = self._applying.sessions[session], self._applying
        copied = msgspec.structs.replace(held, since=list(held.since))
        return _Before(copied, len(applying.emitted.rows), applying.last_row, self._aside.marked())

    def _back(self, session: str, before: _Before) -> None:
        """Go back to before a snapshot; what its parts changed was of their own state."""
        applying = self._applying
        applying.sessions[session], applying.last_row = before.held, before.last_row
        applying.emitted.since(before.rows)
        self._aside.back(before.aside)

    def _incomplete(self, message: Held, parts: Sequence[int], failed: Held, error: Exception) -> None:
        """A snapshot of which the transform refused a message goes to quarantine, whole."""
        session = message[0].session
        if failed is not message:
            self.held.pop(failed[2].offset)
            self._aside.counts["released"] += 1
            self._aside.keep(message[2], "suspended", session)
        self.refused(failed[2], session, error)
        self.free([offset for offset in parts if offset in self.held])
        self._forget_parts(session)

    def _forget_parts(self, session: str) -> None:
        """In a class that suspends nobody the session is what it was before: unknown, if it had no state."""
        held = self._applying.sessions.get(session)
        if held is None or not is_on_its_way(held.known.memory):
            return
        if held.state is None:
            del self._applying.sessions[session]
        else:
            held.known = held.known._replace(memory=held.known.memory["g"])
        self._applying.touched.add(session)


class _Before(NamedTuple):
    held: Session
    rows: int
    last_row: tuple[int, int]
    aside: Marked
