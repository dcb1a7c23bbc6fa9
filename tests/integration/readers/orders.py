"""A stream whose rows have a column of every kind, importable by name as executors need it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated

import msgspec

from lockstep import DecimalType, Envelope, Kind, Limits, Record, Sequence, Stream, Strict, Topics, Transform

START = datetime(2026, 1, 1, tzinfo=UTC)
BATCH_MESSAGES = 10


class Side(Enum):
    BUY = "buy"
    SELL = "sell"


class Venue(msgspec.Struct):
    name: str
    floor: int | None
    opened: date


class Order(msgspec.Struct):
    """A message and its row."""

    number: int
    price: Annotated[Decimal, DecimalType(20, 4)]
    limit: Annotated[Decimal, DecimalType(38, 10)] | None
    at: datetime
    day: date | None
    side: Side
    venue: Venue
    tags: list[str]
    fills: list[Venue]
    counts: dict[str, int]
    value: float | None
    raw: bytes
    flag: bool | None


class Orders(Transform[Order, int, Order]):
    """Each message is a row; the state counts them."""

    def envelope(self, message: Order, record: Record) -> Envelope:
        kind = Kind.UPDATE if message.number % 100 else Kind.SNAPSHOT
        return Envelope(record.key_text, kind, sequence=message.number)

    def on_snapshot(self, message: Order, record: Record, previous: int | None) -> int:
        return 0

    def on_update(self, state: int, message: Order, record: Record) -> Iterable[Order]:
        yield message


def order(number: int) -> Order:
    """Return the order of a number; orders differ, with nulls, empty and repeated values."""
    venues = [Venue(f"v{n}", n if n % 2 else None, date(2020, 1, 1 + n)) for n in range(3)]
    return Order(
        number=number,
        price=Decimal(number) / 8 - 3,
        limit=None if number % 3 == 0 else Decimal("12345678901234567890.0123456789") + number,
        at=START + timedelta(microseconds=number * 999_983),
        day=None if number % 7 == 0 else date(1969, 12, 25) + timedelta(days=number),
        side=Side.BUY if number % 2 else Side.SELL,
        venue=venues[number % 3],
        tags=[f"t{n} ü" for n in range(number % 4)],
        fills=venues[: number % 4],
        counts={} if number % 2 else {"a": number, "b": -number},
        value=None if number % 5 == 0 else number / 3,
        raw=number.to_bytes(number % 5, "big") if number % 5 else b"",
        flag=(None, True, False)[number % 3],
    )


def orders(pattern: str) -> Stream[Order, int, Order]:
    """The stream over the topics of one test, in small batches."""
    return Stream(
        name="orders",
        topics=Topics(pattern=pattern),
        transform=Orders(),
        integrity=Strict(evidence=Sequence()),
        limits=Limits(batch_messages=BATCH_MESSAGES),
    )
