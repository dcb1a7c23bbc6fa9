"""Order books of an exchange with checksums: each update carries a checksum of the book after it.

A snapshot sets up to 1000 levels a side; updates change some of them. The checksum is the CRC32 of
the digits, as sent, of the ten best levels of both sides. So lost, repeated or altered messages
are refused by the update that makes the ten best differ, immediately or when a level rises there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from decimal import Decimal
from operator import itemgetter
from typing import Annotated
from zlib import crc32

import msgspec

from lockstep import (
    Checksum,
    DecimalType,
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

DEPTH = 1000
"""Levels a side that the exchange keeps."""
SUMMED = 10
"""Levels a side that its checksum covers."""


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


PRICE = DecimalType(28, 12)
read_price = PRICE.make_reader()
read_quantity = DecimalType(38, 18).make_reader()


class PriceLevel(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A level of a book, as the exchange wrote it.

    Attributes:
        price_text: Its price.
        quantity: Its quantity.
    """

    price_text: str
    quantity: str


Levels = dict[tuple[str, Decimal], PriceLevel]
"""Levels by (side, price)."""
Row = tuple[Decimal, PriceLevel, str]
"""(rank, level, digits): the rank is the price, negative for bids, so the best is lowest; the digits are the level's
part of the checksum, kept because each is used many times."""
rank_of = itemgetter(0)
digits_of = itemgetter(2)


class Book(msgspec.Struct):
    """The levels of both sides, best first."""

    ask: list[Row] = []
    bid: list[Row] = []

    def put(self, side: str, price: Decimal, level: Level) -> PriceLevel | None:
        """Set or remove a level; returns the level before, None when there was no such level."""
        rows = self.ask
        rank = price
        if side == "bid":
            rows = self.bid
            rank = price.copy_negate()
        at = bisect_left(rows, rank, key=rank_of)
        previous = None
        if at < len(rows) and rows[at][0] == rank:
            previous = rows.pop(at)[1]
        if not is_zero(level.quantity):
            summed = digits(level.price) + digits(level.quantity)
            rows.insert(at, (rank, PriceLevel(level.price, level.quantity), summed))
        return previous

    def levels(self) -> Iterable[tuple[tuple[str, Decimal], PriceLevel]]:
        """(side, price) and level."""
        for side, rows in (("ask", self.ask), ("bid", self.bid)):
            for rank, level, _ in rows:
                yield (side, rank.copy_abs()), level

    def checksum(self) -> str:
        """Checksum of the ten best asks, then bids: price and quantity of each."""
        return str(crc32("".join(map(digits_of, self.ask[:SUMMED] + self.bid[:SUMMED])).encode()))


def digits(number: str) -> str:
    """A number in its checksummed form: no point, no leading zeros; zero is empty."""
    return number.replace(".", "").lstrip("0")


def is_zero(quantity: str) -> bool:
    """Whether a quantity is zero: 0.00, also -0 and 0E-8."""
    number = digits(quantity)
    return not number or not (number.isdecimal() or read_quantity(quantity))


class LevelChange(msgspec.Struct, frozen=True):
    """One changed price level; a quantity is null where there is no such level in the book's depth.

    Attributes:
        side: bid or ask.
        price: Price of the level, the same number in all its spellings.
        price_text: Price of the level, as the exchange wrote it.
        quantity: Quantity after the message, as the exchange wrote it; null when the level is gone.
        previous_quantity: Quantity before the message; null when the level is new.
    """

    side: str
    price: Annotated[Decimal, PRICE]
    price_text: str
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
        book = Book()
        before: Levels = {}
        if previous is not None:
            before = dict(previous.levels())
        for side, level in message.levels():
            book.put(side, read_price(level.price), level)
        return InitialState(book, list(differences(before, dict(book.levels()))))

    def on_update(self, state: Book, message: BookMessage, record: Record) -> Iterable[LevelChange]:
        """Change levels, remove those below the book's depth, and compare the checksum."""
        rows: list[LevelChange] = []
        for side, level in message.levels():
            price = read_price(level.price)
            previous = state.put(side, price, level)
            new = None if is_zero(level.quantity) else PriceLevel(level.price, level.quantity)
            if new != previous:
                rows.append(make_change(side, price, new, previous))
        for side, kept in (("ask", state.ask), ("bid", state.bid)):
            rows += [make_change(side, rank.copy_abs(), None, level) for rank, level, _ in kept[DEPTH:]]
            del kept[DEPTH:]
        computed = state.checksum()
        sent = message.last().c
        if computed != sent:
            raise Violation(computed, sent)
        return rows

    def list_rows(self, state: Book) -> Iterable[tuple[tuple[str, Decimal], PriceLevel]]:
        """List the levels of a book, which the rows replay to."""
        return state.levels()


def differences(before: Levels, after: Levels) -> Iterable[LevelChange]:
    """Levels that are new or changed, in the order of the book, then those that are gone."""
    for (side, price), level in after.items():
        previous = before.get((side, price))
        if level != previous:
            yield make_change(side, price, level, previous)
    for side, price in sorted(before.keys() - after.keys()):
        yield make_change(side, price, None, before[side, price])


def make_change(side: str, price: Decimal, new: PriceLevel | None, previous: PriceLevel | None) -> LevelChange:
    """The row of a changed level."""
    level = new or previous
    text = level.price_text if level else ""
    return LevelChange(side, price, text, new.quantity if new else None, previous.quantity if previous else None)


checksummed_books = Stream(
    name="checksummed_books",
    topics=Topics(pattern=r"checksummed_books\..+"),
    transform=ChecksummedBook(),
    integrity=Strict(evidence=Checksum()),
    limits=Limits(batch_messages=20_000),
    description="Every change of every price level, each update proven by the exchange's own checksum.",
)
