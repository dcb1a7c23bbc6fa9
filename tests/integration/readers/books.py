"""A table of changed rows for the query of the current rows, with the columns that the page names."""

from __future__ import annotations

import random
from collections.abc import Iterable
from decimal import Decimal
from typing import Annotated, Any

import msgspec
from typing_extensions import override

from lockstep import DecimalType, Envelope, Kind, Ordered, Record, Stream, TableFold, Topics

Amount = Annotated[Decimal, DecimalType(18, 4)]
Key = tuple[str, Decimal]


class Level(msgspec.Struct):
    """A level of a message; without a quantity it is removed."""

    side: str
    price: Decimal
    quantity: Decimal | None = None


class Book(msgspec.Struct):
    """A message."""

    kind: str
    levels: list[Level] = []


class LevelChange(msgspec.Struct):
    """A row."""

    side: str
    price: Amount
    quantity: Amount | None


class Books(TableFold[Book, Key, Decimal, LevelChange]):
    """Quantity by side and price."""

    key = ("side", "price")
    removed = "quantity"

    @override
    def envelope(self, message: Book, record: Record) -> Envelope:
        return Envelope(record.key_text, Kind(message.kind))

    @override
    def changes(self, message: Book) -> Iterable[tuple[Key, Decimal | None]]:
        return [((level.side, level.price), level.quantity) for level in message.levels]

    @override
    def emit(self, message: Book | None, key: Key, new: Decimal | None, previous: Decimal | None) -> LevelChange:
        return LevelChange(*key, new)


def books() -> Stream[Book, dict[Key, Decimal], LevelChange]:
    """The stream."""
    return Stream(name="books", topics=Topics(pattern="books.*"), transform=Books(), integrity=Ordered())


def make_messages(rng: random.Random, count: int) -> list[tuple[str, bytes]]:
    """Return random snapshots that change, add and remove levels, updates, and ends of sessions."""
    return [(rng.choice("ab"), msgspec.json.encode(_make_message(rng))) for _ in range(count)]


def _make_message(rng: random.Random) -> Book:
    kind = rng.choices(["snapshot", "update", "end"], [3, 10, 1])[0]
    levels = [] if kind == "end" else [_make_level(rng) for _ in range(rng.randrange(6))]
    return Book(kind, levels)


def _make_level(rng: random.Random) -> Level:
    price = Decimal(rng.choice(("1", "1.0", "2.5", "3", "4", "5.75", "60")))
    quantity = Decimal(rng.randrange(9)) if rng.random() < 0.7 else None
    return Level(rng.choice(("bid", "ask")), price, quantity)


def fold_plainly(messages: Iterable[tuple[str, bytes]]) -> dict[tuple[str, str, Decimal], Decimal]:
    """Compute the quantities by session, side and price, without code of the product."""
    sessions: dict[str, dict[Key, Decimal]] = {}
    for session, value in messages:
        message: dict[str, Any] = msgspec.json.decode(value)
        if message["kind"] == "end":
            sessions.pop(session, None)
            continue
        if message["kind"] == "snapshot":
            sessions[session] = {}
        if session not in sessions:
            continue  # an update before the first snapshot
        for level in message.get("levels", ()):
            key = (level["side"], Decimal(level["price"]))
            if level.get("quantity") is None:
                sessions[session].pop(key, None)
            else:
                sessions[session][key] = Decimal(level["quantity"])
    return {(session, *key): quantity for session, levels in sessions.items() for key, quantity in levels.items()}
