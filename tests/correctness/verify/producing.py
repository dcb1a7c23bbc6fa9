"""A random producer of one partition: mostly correct, at times with a fault that classes distinguish."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from tests.correctness.verify.streams import POISON, UNFIT, Message

if TYPE_CHECKING:
    from collections.abc import Mapping

FAULTS = (
    "garbage",
    "null",
    "keyless",
    "poison",
    "unfit",
    "gap",
    "repeat",
    "back",
    "unknown",
    "total",
    "unnumbered",
    "again",
)


@dataclass(frozen=True)
class Sent:
    """A message as it is sent."""

    key: str | None
    value: bytes | None


@dataclass
class Producing:
    """The producer's side of one partition, with the number of each session.

    Attributes:
        rng: Source of its choices.
        faults: Its possible faults.
        linked: Whether a snapshot inside a session carries its last number, as links know no other number.
        wraps_at: How many numbers there are; None if they do not wrap.
        sessions: Their names; each belongs to one partition.
        at: The last number of each session.
        counted: How many messages each session had.
        last: The last message of each session.
    """

    rng: random.Random
    faults: tuple[str, ...]
    linked: bool = False
    wraps_at: int | None = None
    sessions: tuple[str, ...] = ("a", "b", "c")
    at: dict[str, int] = field(default_factory=dict)
    counted: dict[str, int] = field(default_factory=dict)
    last: dict[str, Sent] = field(default_factory=dict)

    def next(self) -> Sent:
        """Return the next message: mostly correct, at times with a fault."""
        session = self.rng.choice(self.sessions)
        sent = self._next(session)
        self.last[session] = sent
        return sent

    def _next(self, session: str) -> Sent:
        if self.faults and self.rng.random() < 0.12:
            return self.fault(self.rng.choice(self.faults), session)
        if session not in self.at or self.rng.random() < 0.08:
            return self._snapshot(session)
        if self.rng.random() < 0.04:
            return Sent(session, encoded("skip", None))
        if self.rng.random() < 0.04:
            number = self._numbered(session)
            del self.at[session]
            count = self.counted.pop(session) if self.rng.random() < 0.5 else None
            return Sent(session, encoded("end", self._shown(number), count=count))
        amounts = {name: self.rng.randrange(-3, 4) for name in self.rng.sample("pqrs", self.rng.randrange(0, 4))}
        return Sent(session, encoded("update", self._shown(self._numbered(session)), amounts))

    def fault(self, kind: str, session: str) -> Sent:
        """Return a message that not every class tolerates."""
        number = self.at.get(session, 0)
        if kind == "again":
            return self.last.get(session) or self._snapshot(session)
        if kind in {"garbage", "null", "keyless"}:
            value = {"garbage": b"{", "null": None, "keyless": encoded("update", number + 1)}[kind]
            return Sent(None if kind == "keyless" else session, value)
        if kind == "unknown":
            return Sent(f"never {self.sessions[0]}", encoded("update", 7, {"p": 1}))
        if kind == "unnumbered":
            return Sent(session, encoded("update", None, {"p": 1}))
        if kind in {"poison", "unfit", "total"}:
            amounts = {"p": 1, "q": {"poison": POISON, "unfit": UNFIT, "total": 2}[kind]}
            value = encoded("update", number + 1, amounts, total=-(10**6) if kind == "total" else None)
            self.at[session] = number + 1 if session in self.at and self.rng.random() < 0.5 else number
            return Sent(session, value)
        step = {"gap": 3, "repeat": 0, "back": -2}[kind]
        if kind == "gap" and session in self.at:
            self.at[session] = number + step
        return Sent(session, encoded("update", number + step, {"p": 2}))

    def _snapshot(self, session: str) -> Sent:
        number = self.at.get(session)
        repeats = number is not None and (self.linked or self.rng.random() < 0.5)
        self.at[session] = self.rng.randrange(5, 9) if number is None else number if repeats else number + 1
        amounts = {name: self.rng.randrange(9) for name in self.rng.sample("pqrs", self.rng.randrange(0, 3))}
        restarts_sequence = number is not None and not repeats and self.rng.random() < 0.3
        if restarts_sequence:
            self.at[session] = 2
        self.counted[session] = 1 if number is None else self.counted.get(session, 0) + 1
        return Sent(
            session, encoded("snapshot", self._shown(self.at[session]), amounts, restarts_sequence=restarts_sequence)
        )

    def _numbered(self, session: str) -> int:
        self.at[session] += 1
        self.counted[session] = self.counted.get(session, 0) + 1
        return self.at[session]

    def _shown(self, number: int) -> int:
        return number if self.wraps_at is None else number % self.wraps_at


def encoded(
    kind: str,
    number: int | None,
    amounts: Mapping[str, int] | None = None,
    total: int | None = None,
    *,
    count: int | None = None,
    restarts_sequence: bool = False,
) -> bytes:
    return msgspec.json.encode(Message(kind, number, dict(amounts or {}), total, count, restarts_sequence))
