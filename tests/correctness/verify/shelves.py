"""Streams of the ready folds for proofs without a broker, and a random producer for them."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import UNSET, UnsetType
from typing_extensions import override

from lockstep import (
    ColumnFold,
    DecimalType,
    Envelope,
    EventTime,
    Kind,
    Record,
    Stream,
    TableFields,
    TableFold,
    Topics,
    Transform,
)
from lockstep.integrity.base import IntegrityClass

SECOND = 1_000_000
BEGINNING_US = 1_700_000_000 * SECOND
POISON = 666
"""A place at which the transform fails."""
Price = Annotated[Decimal, DecimalType(20, 4)]


class Line(msgspec.Struct):
    """An item of a message; an item without a price is removed."""

    name: str
    place: int
    price: Decimal | None = None
    ratio: float = 0.5


class Change(msgspec.Struct):
    """A message.

    Attributes:
        kind: "snapshot", "part", "update" or "end".
        number: The producer's number.
        second: Event time, in seconds since the start.
        lines: The items.
    """

    kind: str
    number: int
    second: int
    lines: list[Line] = []


class Item(msgspec.Struct, frozen=True):
    """A row of the state."""

    price: Decimal
    ratio: float


class ItemRow(msgspec.Struct, frozen=True):
    """A row of the table."""

    name: str
    place: int
    price: Price | None
    ratio: float | None
    before: Price | None


class Shelves(TableFold[Change, tuple[str, int], Item, ItemRow]):
    """Items by name and place."""

    key = ("name", "place")
    removed = "price"

    @override
    def envelope(self, message: Change, record: Record) -> Envelope:
        """The session is the key."""
        time = BEGINNING_US + message.second * SECOND
        return Envelope(record.key_text, Kind(message.kind), sequence=message.number, event_time_us=time)

    @override
    def changes(self, message: Change) -> Iterable[tuple[tuple[str, int], Item | None]]:
        """Yield the items."""
        for line in message.lines:
            if line.place == POISON:
                raise ZeroDivisionError("poison")
            item = None if line.price is None else Item(line.price, line.ratio)
            yield (line.name, line.place), item

    @override
    def emit(self, message: Change | None, key: tuple[str, int], new: Item | None, previous: Item | None) -> ItemRow:
        """Return the new item, and the previous price."""
        before = None if previous is None else previous.price
        if new is None:
            return ItemRow(*key, None, None, before)
        return ItemRow(*key, new.price, new.ratio, before)


class GrowingShelves(Shelves):
    """Snapshots add to the previous table in place, before they may fail."""

    @override
    def on_snapshot(
        self, message: Change, record: Record, previous: dict[tuple[str, int], Item] | None
    ) -> dict[tuple[str, int], Item]:
        """Return the previous table with the items of the message."""
        table = {} if previous is None else previous
        for key, item in self.changes(message):
            if item is not None:
                table[key] = item
        return table


class Whole(msgspec.Struct):
    """A row of a snapshot."""

    name: str
    price: float
    count: int


class Part(msgspec.Struct):
    """A row of an update."""

    name: str
    price: float | UnsetType = UNSET
    count: int | UnsetType = UNSET


class Full(msgspec.Struct, tag="snapshot"):
    """A snapshot."""

    number: int
    time_us: int
    rows: list[Whole]


class Partial(msgspec.Struct, tag="update"):
    """An update."""

    number: int
    time_us: int
    rows: list[Part]


class Gone(msgspec.Struct, tag="end"):
    """The end of a session."""

    number: int
    time_us: int


class Stock(msgspec.Struct, frozen=True):
    """A row of the state."""

    price: float
    count: int


class StockRow(msgspec.Struct, frozen=True):
    """A row of the table."""

    name: str
    price: float | None
    count: int | None
    previous_count: int | None


class Stocks(ColumnFold[Full | Partial | Gone, str, Stock, StockRow]):
    """Stock by name."""

    fields: ClassVar[TableFields] = TableFields(
        snapshot=Full, rows="rows", key="name", sequence="number", event_time_us="time_us", end=Gone
    )


@dataclass
class Producer:
    """A random producer of one partition: mostly correct.

    Attributes:
        rng: Source of its choices.
        fold: The fold of the stream.
        parts: Whether snapshots may span several messages.
        faults: How often a message is wrong.
        numbers: The last number of each session.
        open_parts: How many messages of the open snapshot are missing, by session.
        second: Current event time.
    """

    rng: random.Random
    fold: Shelves | Stocks
    parts: bool = False
    faults: float = 0.0
    numbers: dict[str, int] = field(default_factory=dict)
    open_parts: dict[str, int] = field(default_factory=dict)
    second: int = 0

    def send(self, messages: int) -> list[tuple[str, bytes]]:
        """Return so many messages, as (key, value)."""
        return [self._next() for _ in range(messages)]

    def _next(self) -> tuple[str, bytes]:
        session = self.rng.choice("abc")
        self.second += self.rng.choice((0, 1, 1, 30))
        if self.rng.random() < self.faults:
            self.numbers[session] = self.numbers.get(session, 0) + self.rng.choice((-1, 0, 2))
        kind = self._choose_kind(session)
        self.numbers[session] = self.numbers.get(session, 0) + 1
        value = self._encode(kind, session)
        if kind == "end":
            self.numbers.pop(session)
        return session, value

    def _choose_kind(self, session: str) -> str:
        if self.open_parts.get(session):
            self.open_parts[session] -= 1
            return "part" if self.open_parts[session] else "snapshot"
        chance = self.rng.random()
        if session not in self.numbers or chance < 0.15:
            if self.parts and self.rng.random() < 0.5:
                self.open_parts[session] = self.rng.randrange(1, 4)
                return "part"
            return "snapshot"
        return "end" if chance < 0.22 else "update"

    def _encode(self, kind: str, session: str) -> bytes:
        number = self.numbers[session]
        wrong = self.rng.random() < self.faults / 2
        if isinstance(self.fold, Shelves):
            lines = [self._make_line(kind) for _ in range(self.rng.randrange(0, 5))]
            if wrong:
                lines.append(Line("z", POISON, Decimal(1)))
            return msgspec.json.encode(Change(kind, number, self.second, [] if kind == "end" else lines))
        time_us = BEGINNING_US + self.second * SECOND
        names = self.rng.sample("pqrst", self.rng.randrange(0, 5))
        if kind == "end":
            return msgspec.json.encode(Gone(number, time_us))
        if kind == "snapshot":
            return msgspec.json.encode(Full(number, time_us, [Whole(name, *self._make_stock()) for name in names]))
        price, count = self._make_stock()
        rows = [Part(name, self.rng.choice((UNSET, price)), self.rng.choice((UNSET, count))) for name in names]
        return msgspec.json.encode(Partial(number, time_us, rows))

    def _make_line(self, kind: str) -> Line:
        removes = self.rng.random() < (0.1 if kind in {"snapshot", "part"} else 0.3)
        price = Decimal(self.rng.choice(("1.0", "1.00", "2", "3.5", "-0.0", "0")))
        ratio = self.rng.choice((0.0, -0.0, 0.5, 1e300))
        return Line(self.rng.choice("pq"), self.rng.randrange(3), None if removes else price, ratio)

    def _make_stock(self) -> tuple[float, int]:
        return self.rng.choice((0.0, -0.0, 1.5)), self.rng.randrange(3)


IDLE = EventTime(session_idle=timedelta(seconds=40))


def shelf_stream(
    fold: Transform[Any, Any, Any], integrity: IntegrityClass, event_time: EventTime | None = None
) -> Stream[Any, Any, Any]:
    """Return a stream over the topic `t`."""
    return Stream(
        name="shelves",
        topics=Topics(pattern="t"),
        transform=fold,
        integrity=integrity,
        event_time=event_time or EventTime(),
    )
