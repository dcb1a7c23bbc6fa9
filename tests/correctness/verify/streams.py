"""A stream with all that a proof must follow: kinds, evidence, odd columns, and a transform that fails halfway."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated

import msgspec

from lockstep import DecimalType, Envelope, InitialState, Kind, Link, Record, Stream, Topics, Transform, Violation
from lockstep.integrity.base import IntegrityClass

POISON = 666
"""The transform fails at this value, after it has changed its state."""
UNFIT = 2**63
"""One above the maximum of a column."""


class Message(msgspec.Struct):
    """A message.

    Attributes:
        kind: "snapshot", "update", "end" or "skip".
        seq: The producer's number.
        add: Amounts by name.
        total: The sum of the amounts by the producer, if it states a sum.
        count: Of an end: how many messages the session had.
        restarts_sequence: Of a snapshot: the numbers restart.
    """

    kind: str
    seq: int | None = None
    add: dict[str, int] = {}
    total: int | None = None
    count: int | None = None
    restarts_sequence: bool = False


class Side(Enum):
    """The direction of an amount."""

    UP = "up"
    DOWN = "down"


class Step(msgspec.Struct):
    """A nested value."""

    amount: int
    share: float | None


class Account(msgspec.Struct):
    """The state of a session."""

    amounts: dict[str, int]
    steps: int = 0


class Booking(msgspec.Struct):
    """A changed amount."""

    name: str
    amount: int
    side: Side
    price: Annotated[Decimal, DecimalType(18, 4)]
    ratio: float
    at: datetime
    path: list[Step]
    held: dict[str, int]
    remark: str | None = None


class Bookings(Transform[Message, Account, Booking]):
    """Adds to amounts by name."""

    def envelope(self, message: Message, record: Record) -> Envelope:
        """The session is the key; a message without a key fails here."""
        if record.key is None:
            raise LookupError("a message without a key")
        link = None if message.seq is None else Link(last=message.seq, previous=message.seq - 1)
        time = None if message.seq is None else 1_700_000_000_000_000 + message.seq * 1_000_000
        return Envelope(
            record.key.decode(),
            Kind(message.kind),
            sequence=message.seq,
            link=link,
            event_time_us=time,
            id=message.seq,
            count=message.count,
            restarts_sequence=message.restarts_sequence,
        )

    def on_snapshot(
        self, message: Message, record: Record, previous: Account | None
    ) -> Account | InitialState[Account, Booking]:
        """Keep all amounts; a snapshot of a single amount has a row."""
        self._fail_at(message)
        state = Account(dict(message.add))
        if len(message.add) != 1:
            return state
        return InitialState(state, [self._booking(name, amount, state) for name, amount in message.add.items()])

    def on_update(self, state: Account, message: Message, record: Record) -> Iterable[Booking]:
        """Yield a row for each amount except zero."""
        for name, amount in message.add.items():
            state.amounts[name] = state.amounts.get(name, 0) + amount
            state.steps += 1
            if amount:
                yield self._booking(name, state.amounts[name], state)
        self._fail_at(message)
        if message.total not in {None, sum(state.amounts.values())}:
            raise Violation(sum(state.amounts.values()), message.total)

    def on_end(self, state: Account) -> Iterable[Booking]:
        """Return a row for each amount that is left."""
        return [self._booking(name, amount, state) for name, amount in state.amounts.items() if amount]

    def _fail_at(self, message: Message) -> None:
        if POISON in message.add.values():
            raise ZeroDivisionError("poison")

    def _booking(self, name: str, amount: int, state: Account) -> Booking:
        return Booking(
            name=name,
            amount=amount,
            side=Side.UP if amount >= 0 else Side.DOWN,
            price=Decimal(amount % 1_000_000) / 4,
            ratio=float("nan") if amount == 0 else 1 / amount,
            at=datetime(2024, 1, 1, tzinfo=UTC) + timedelta(microseconds=state.steps),
            path=[Step(amount % 7, None), Step(state.steps, 0.5)],
            held=dict(list(state.amounts.items())[:2]),
            remark=None if amount % 2 else f"even {name}",
        )


def bookings(pattern: str, integrity: IntegrityClass) -> Stream[Message, Account, Booking]:
    """Return the stream over the topics of one table."""
    return Stream(name="bookings", topics=Topics(pattern=pattern), transform=Bookings(), integrity=integrity)
