"""A random producer of meters of one partition: late, out of order, in parts, silent, and at times wrong."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import msgspec

from tests.correctness.verify.meters import FATAL, POISON, Reading
from tests.correctness.verify.producing import Sent

FAULTS = ("garbage", "keyless", "poison", "fatal", "absurd", "again", "changed", "unknown", "back", "gap", "unnumbered")


@dataclass
class Metering:
    """The producer's side of one partition.

    Attributes:
        rng: Source of its choices.
        faults: Its possible faults.
        numbers: Whether it numbers its messages.
        parts: Whether snapshots may span several messages.
        shuffles: How far messages may be out of order.
        sessions: Their names.
        second: Current event time.
        at: The last number of each session.
        open_parts: How many parts of the open snapshot are missing, by session.
        pending: Messages that are sent late.
        last: The last message of each session.
    """

    rng: random.Random
    faults: tuple[str, ...]
    numbers: bool
    parts: bool
    shuffles: int
    sessions: tuple[str, ...]
    second: int = 0
    at: dict[str, int] = field(default_factory=dict)
    open_parts: dict[str, int] = field(default_factory=dict)
    pending: list[Sent] = field(default_factory=list)
    last: dict[str, Sent] = field(default_factory=dict)

    def some(self, number: int) -> list[Sent]:
        """Create so many messages; return them out of order, without the messages that stay pending."""
        sent: list[Sent] = self.pending
        sent += [self._next() for _ in range(number)]
        for at in range(len(sent)):
            if self.shuffles and self.rng.random() < 0.3:
                other = min(len(sent) - 1, at + self.rng.randrange(1, self.shuffles + 1))
                sent[at], sent[other] = sent[other], sent[at]
        keep = min(len(sent), self.rng.randrange(0, 4)) if self.shuffles else 0
        self.pending = sent[len(sent) - keep :]
        return sent[: len(sent) - keep]

    def _next(self) -> Sent:
        session = self.rng.choice(self.sessions)
        self.second += self.rng.choice((0, 0, 1, 1, 2, 3, 9)) if self.rng.random() < 0.97 else 60
        sent = self._fault(session) if self.faults and self.rng.random() < 0.1 else self._right(session)
        self.last[session] = sent
        return sent

    def _right(self, session: str) -> Sent:
        rng = self.rng
        if self.open_parts.get(session):
            return self._part(session)
        if session not in self.at or rng.random() < 0.06:
            return self._begun(session)
        chance = rng.random()
        if chance < 0.04:
            return Sent(session, msgspec.json.encode(Reading("skip")))
        if chance < 0.08:
            sent = self._sent(session, "end")
            del self.at[session]
            return sent
        return self._sent(session, "update")

    def _part(self, session: str) -> Sent:
        """Return the next part of an open snapshot, or an update or an end between the parts."""
        chance = self.rng.random()
        if chance < 0.15:
            return self._sent(session, "update")
        if chance < 0.2:
            del self.open_parts[session]
            return self._sent(session, "end")
        self.open_parts[session] -= 1
        return self._sent(session, "part" if self.open_parts[session] else "snapshot")

    def _begun(self, session: str) -> Sent:
        rng = self.rng
        if self.parts and rng.random() < 0.6:
            self.open_parts[session] = rng.randrange(1, 4)
            return self._sent(session, "part")
        restarts_sequence = session in self.at and rng.random() < 0.4
        if restarts_sequence:
            self.at[session] = rng.randrange(0, 5)
        return self._sent(session, "snapshot", restarts_sequence=restarts_sequence)

    def _sent(self, session: str, kind: str, value: int | None = None, *, restarts_sequence: bool = False) -> Sent:
        self.at[session] = self.at.get(session, 4) + 1
        value = self.rng.randrange(0, 6) if value is None else value
        number = self.at[session] if self.numbers else None
        late = self.rng.choice((0, 0, 0, 1, 2, 15)) if self.rng.random() < 0.5 else 0
        second = max(0, self.second - late)
        return Sent(session, msgspec.json.encode(Reading(kind, second, number, value, restarts_sequence)))

    def _fault(self, session: str) -> Sent:
        kind = self.rng.choice(self.faults)
        if kind == "garbage":
            return Sent(session, b"{")
        if kind == "keyless":
            return Sent(None, msgspec.json.encode(Reading("update", self.second)))
        if kind == "again" and session in self.last:
            return self.last[session]
        if kind in {"poison", "fatal"}:
            return self._sent(session, "update", POISON if kind == "poison" else FATAL)
        return self._misplaced(kind, session)

    def _misplaced(self, kind: str, session: str) -> Sent:
        """Return a message with a wrong number, time or session."""
        number = self.at.get(session, 4) + {"gap": 3, "back": -2, "unknown": 1, "absurd": 1}.get(kind, 0)
        if kind == "gap" and session in self.at:
            self.at[session] = number
        has_number = self.numbers is not (kind == "unnumbered")
        second = self.rng.choice((-BEFORE, 10**9)) if kind == "absurd" else self.second
        name = f"never {session}" if kind == "unknown" else session
        return Sent(name, msgspec.json.encode(Reading("update", second, number if has_number else None, 5)))


BEFORE = 2_000_000_000
"""So many seconds before `BEGINNING` is a time before 1970."""
