"""Levels by side and price, with every optional part: current rows, archive, delivery, quarantine."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Annotated

import msgspec

from lockstep import DecimalType, Envelope, Kind, Ordered, Record, Stream, TableFold, Topics
from lockstep.delivery import Delivery, KafkaTopic
from lockstep.derived import Archive
from lockstep.rules import InRange, OnViolation

PRICE = DecimalType(12, 2)
read_price = PRICE.make_reader()


class Change(msgspec.Struct):
    """A message: levels as (side, price, quantity); quantity 0 removes the level."""

    number: int
    is_snapshot: bool
    levels: list[tuple[str, str, int]]


class LevelRow(msgspec.Struct, frozen=True):
    """A changed level; the quantity is null when the level is gone."""

    side: str
    price: Annotated[Decimal, PRICE]
    quantity: int | None


class Level(msgspec.Struct, frozen=True):
    """A level of a book."""

    quantity: int


class Book(TableFold[Change, tuple[str, Decimal], Level, LevelRow]):
    """Levels by (side, price)."""

    key = ("side", "price")
    removed = "quantity"

    def envelope(self, message: Change, record: Record) -> Envelope:
        """The key is the session."""
        kind = Kind.SNAPSHOT if message.is_snapshot else Kind.UPDATE
        return Envelope(record.key_text, kind, sequence=message.number)

    def changes(self, message: Change) -> Iterable[tuple[tuple[str, Decimal], Level | None]]:
        """In the order of the message."""
        for side, price, quantity in message.levels:
            yield (side, read_price(price)), Level(quantity) if quantity else None

    def emit(
        self, message: Change | None, key: tuple[str, Decimal], new: Level | None, previous: Level | None
    ) -> LevelRow:
        """One row for a level."""
        return LevelRow(*key, new.quantity if new else None)


levels = Stream(
    name="levels",
    topics=Topics(pattern=r"levels\..+"),
    transform=Book(),
    integrity=Ordered(),
    rules=(InRange("quantity", at_most=1_000, on_violation=OnViolation.QUARANTINE, nullable=True),),
    current=True,
    archive=Archive(),
    deliveries=(Delivery(name="levels_out", target=KafkaTopic(topic="out.levels")),),
)
