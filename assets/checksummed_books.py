"""Order books of an exchange with checksums: each update carries a checksum of the book after it.

A snapshot sets up to 1000 levels a side; updates change some of them. The checksum is the CRC32 of
the digits, as sent, of the ten best levels of both sides. So lost, repeated or altered messages
are refused by the update that makes the ten best differ, immediately or when a level rises there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from operator import itemgetter
from zlib import crc32

import msgspec

from lockstep import (
    Checksum,
    Envelope,
    InitialState,
    Kind,
    Limits,
    Record,
    Stream,
    Strict,
    Topics,
    Transform,
    Violation,
)

DEPTH, SUMMED = 1000, 10
"""Levels a side that the exchange keeps, and that its checksum covers."""


class Level(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A price level; quantity zero removes it. The flag "r" means that it was published before."""

    price: str
    quantity: str
    time: str
    flag: str = ""


class Part(msgspec.Struct, rename={"all_asks": "as", "all_bids": "bs"}, forbid_unknown_fields=True):
    """Both whole sides, or changed levels of one; the last part of an update has the checksum."""

    all_asks: list[Level] | None = None
    all_bids: list[Level] | None = None
    a: list[Level] = []
    b: list[Level] = []
    c: str | None = None


class BookMessage(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """`[channel, part, name, pair]`, or `[channel, part, part, name, pair]` when both sides change."""

    channel: int
    first: Part
    second: Part | str
    name_or_pair: str
    pair: str = ""

    def last(self) -> Part:
        """The last part."""
        return self.second if isinstance(self.second, Part) else self.first

    def levels(self) -> Iterable[tuple[str, Level]]:
        """All levels with their side, asks before bids, in the order of the message."""
        for part in (self.first, self.second):
            if isinstance(part, Part):
                for level in part.all_asks or part.a:
                    yield "ask", level
                for level in part.all_bids or part.b:
                    yield "bid", level


Quantities = dict[tuple[str, str], str]
"""Quantity by (side, price)."""
Row = tuple[int, str, str, str]
"""(rank, price, quantity, digits): the rank is the price in its last digit, negative for bids, so the best is
lowest; the digits are the level's part of the checksum, kept because each is used many times."""
rank_of, digits_of = itemgetter(0), itemgetter(3)


class Book(msgspec.Struct):
    """The levels of both sides, best first."""

    ask: list[Row] = []
    bid: list[Row] = []

    def put(self, side: str, level: Level) -> str | None:
        """Set or remove a level; returns the quantity before, None when there was no such level."""
        price, quantity = digits(level.price), digits(level.quantity)
        rows, rank = (self.ask, int(price)) if side == "ask" else (self.bid, -int(price))
        at, previous = bisect_left(rows, rank, key=rank_of), None
        if at < len(rows) and rows[at][0] == rank:
            previous = rows.pop(at)[2]
        if quantity:
            rows.insert(at, (rank, level.price, level.quantity, price + quantity))
        return previous

    def levels(self) -> Iterable[tuple[tuple[str, str], str]]:
        """(side, price) and quantity of each level."""
        for side, rows in (("ask", self.ask), ("bid", self.bid)):
            for _, price, quantity, _ in rows:
                yield (side, price), quantity

    def checksum(self) -> str:
        """Checksum of the ten best asks, then bids: price and quantity of each."""
        return str(crc32("".join(map(digits_of, self.ask[:SUMMED] + self.bid[:SUMMED])).encode()))


def digits(number: str) -> str:
    """A number in its checksummed form: no point, no leading zeros; zero is empty."""
    return number.replace(".", "").lstrip("0")


class LevelChange(msgspec.Struct, frozen=True):
    """One changed price level; a quantity is null where there is no such level in the book's depth.

    Attributes:
        side: bid or ask.
        price: Price of the level, as the exchange wrote it.
        quantity: Quantity after the message; null when the level is gone.
        previous_quantity: Quantity before the message; null when the level is new.
    """

    side: str
    price: str
    quantity: str | None
    previous_quantity: str | None


class ChecksummedBook(Transform[BookMessage, Book, LevelChange]):
    """The book of one pair."""

    key = ("side", "price")
    removed = "quantity"

    def envelope(self, message: BookMessage, record: Record) -> Envelope:
        """The pair is the key; the newest level has the event time."""
        kind = Kind.UPDATE if message.first.all_asks is None else Kind.SNAPSHOT
        newest = max((level.time for _, level in message.levels()), default=None)
        event_time_us = None if newest is None else int(newest.replace(".", ""))  # sent with six decimals
        return Envelope(record.key_text, kind, event_time_us=event_time_us)

    def on_snapshot(
        self, message: BookMessage, record: Record, previous: Book | None
    ) -> InitialState[Book, LevelChange]:
        """Set the book from a snapshot; emit the difference to the book before."""
        book, before = Book(), dict(previous.levels()) if previous is not None else {}
        for side, level in message.levels():
            book.put(side, level)
        return InitialState(book, list(differences(before, dict(book.levels()))))

    def on_update(self, state: Book, message: BookMessage, record: Record) -> Iterable[LevelChange]:
        """Change levels, remove those below the book's depth, and compare the checksum."""
        rows: list[LevelChange] = []
        for side, level in message.levels():
            previous, quantity = state.put(side, level), level.quantity if digits(level.quantity) else None
            if quantity != previous:
                rows.append(LevelChange(side, level.price, quantity, previous))
        for side, kept in (("ask", state.ask), ("bid", state.bid)):
            rows += [LevelChange(side, price, None, quantity) for _, price, quantity, _ in kept[DEPTH:]]
            del kept[DEPTH:]
        computed, sent = state.checksum(), message.last().c
        if computed != sent:
            raise Violation(computed, sent)
        return rows

    def list_rows(self, state: Book) -> Iterable[tuple[tuple[str, str], str]]:
        """List the levels of a book, which the rows replay to."""
        return state.levels()


def differences(before: Quantities, after: Quantities) -> Iterable[LevelChange]:
    """Levels that are new or changed, in the order of the book, then those that are gone."""
    for (side, price), quantity in after.items():
        previous = before.get((side, price))
        if quantity != previous:
            yield LevelChange(side, price, quantity, previous)
    for side, price in sorted(before.keys() - after.keys()):
        yield LevelChange(side, price, None, before[side, price])


checksummed_books = Stream(
    name="checksummed_books",
    topics=Topics(pattern=r"checksummed_books\..+"),
    transform=ChecksummedBook(),
    integrity=Strict(evidence=Checksum()),
    limits=Limits(batch_messages=20_000),
    description="Every change of every price level, each update proven by the exchange's own checksum.",
)
