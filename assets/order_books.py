"""Order books of an exchange: a snapshot of each market, then differences linked by the exchange's ids.

Every changed price level becomes a row with its new and its previous quantity. A level is known by the number of its
price, as the exchange may spell one price in several ways; its texts are columns too, and nothing is rounded.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from decimal import Decimal
from typing import Annotated

import msgspec

from lockstep import (
    DecimalType,
    Envelope,
    Kind,
    Limits,
    Link,
    Linked,
    NewTopics,
    Record,
    Stream,
    Strict,
    TableFold,
    Topics,
)
from lockstep.delivery import Delivery, FirstRows, KafkaTopic, PostgresTable, RowSource, Webhook
from lockstep.rules import InSet, Matches, Severity, Unique

PRICE = DecimalType(28, 12)
read_price = PRICE.make_reader()
read_quantity = DecimalType(38, 18).make_reader()
Level = tuple[str, str]
"""(price, quantity) as sent; quantity zero removes the level."""


class Difference(msgspec.Struct):
    """A depth update: ids `U` to `u`; futures also name the `u` of the update before as `pu`."""

    E: int
    U: int
    u: int
    b: list[Level]
    a: list[Level]
    pu: int | None = None


class BookMessage(msgspec.Struct):
    """A message about one market: a snapshot (`lastUpdateId`) or a difference (`data`)."""

    data: Difference | None = None
    lastUpdateId: int = 0  # noqa: N815  # the exchange's own name
    bids: list[Level] = []
    asks: list[Level] = []


class PriceLevel(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A level of a book, as the exchange wrote it.

    Attributes:
        price_text: Its price.
        quantity: Its quantity.
    """

    price_text: str
    quantity: str


class LevelChange(msgspec.Struct, frozen=True):
    """One changed price level; a quantity is null where there is no such level.

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


class OrderBook(TableFold[BookMessage, tuple[str, Decimal], PriceLevel, LevelChange]):
    """The book of one market: levels by (side, price)."""

    key = ("side", "price")
    removed = "quantity"

    def envelope(self, message: BookMessage, record: Record) -> Envelope:
        """The market is the key; snapshots are linked to differences by the exchange's ids."""
        session = record.key_text
        difference = message.data
        if difference is None:
            last = message.lastUpdateId
            return Envelope(session, Kind.SNAPSHOT, sequence=last, link=Link(last=last))
        link = Link(last=difference.u, first=difference.U, previous=difference.pu)
        return Envelope(session, sequence=difference.u, link=link, event_time_us=difference.E * 1000)

    def changes(self, message: BookMessage) -> Iterable[tuple[tuple[str, Decimal], PriceLevel | None]]:
        """Bids, then asks, in the order of the message."""
        book = message.data
        sides = {"bid": message.bids, "ask": message.asks}
        if book is not None:
            sides = {"bid": book.b, "ask": book.a}
        for side, levels in sides.items():
            for price, quantity in levels:
                level = None if is_zero(quantity) else PriceLevel(price, quantity)
                yield (side, read_price(price)), level

    def emit(
        self,
        message: BookMessage | None,
        key: tuple[str, Decimal],
        new: PriceLevel | None,
        previous: PriceLevel | None,
    ) -> LevelChange:
        """One row for a changed level."""
        side, price = key
        level = new or previous
        text = level.price_text if level else ""
        return LevelChange(side, price, text, new.quantity if new else None, previous.quantity if previous else None)


def is_zero(quantity: str) -> bool:
    """Whether a quantity is zero: 0.00, also -0 and 0E-8."""
    digits = quantity.replace(".", "", 1)
    return not (digits.strip("0") if digits.isdecimal() else read_quantity(quantity))


LARGE_VALUE = 250_000.0
ALARMING_VALUE = 1_000_000.0
"""Of a change of a level: its price times the change of its quantity, in the currency of the price."""


class Move(msgspec.Struct, frozen=True):
    """A large change of a level.

    Attributes:
        side: bid or ask.
        price: Price of the level.
        value: Value of the change in the currency of the price; negative if the quantity fell.
    """

    side: str
    price: Annotated[Decimal, PRICE]
    value: float


def find_move(row: LevelChange, _: RowSource) -> Move:
    """The value of a change."""
    change = float(row.quantity or 0) - float(row.previous_quantity or 0)
    return Move(row.side, row.price, change * float(row.price))


def is_large(row: LevelChange, origin: RowSource) -> bool:
    """Whether an update of a spot market changed a level by a large value; other markets count contracts."""
    is_spot = origin.topic.startswith("order_books.spot_") and origin.cause == "update"
    return is_spot and abs(find_move(row, origin).value) >= LARGE_VALUE


def is_alarming(row: LevelChange, origin: RowSource) -> bool:
    """Whether an update changed a level by a value of which a person is informed."""
    return is_large(row, origin) and abs(find_move(row, origin).value) >= ALARMING_VALUE


MARKET = "env:MARKET_DATABASE"
BOOKS = PostgresTable(
    table="market_books", connection=MARKET, key=("_topic", "_session", "side", "price"), removed="quantity"
)
OUTPUTS = (
    Delivery(name="market_books", target=BOOKS),
    Delivery(name="large_moves", target=KafkaTopic(topic="market.large_moves"), where=is_large, select=find_move),
    Delivery(
        name="move_alerts",
        target=Webhook(url="env:MARKET_ALERTS"),
        where=is_alarming,
        select=find_move,
        first_rows=FirstRows.NEW,
    ),
)
HAS_OUTPUTS = bool(os.environ.get("MARKET_DATABASE"))
"""Whether this installation has a database, a topic and a receiver for the rows, as that of `make up` does."""


order_books = Stream(
    name="order_books",
    topics=Topics(pattern=r"order_books\..+", new_topics=NewTopics.RESTART),
    transform=OrderBook(),
    integrity=Strict(evidence=Linked()),
    # A message changes some 15 levels: 1,500 of them make a batch of a second.
    limits=Limits(batch_messages=1_500),
    rules=[
        InSet("side", ["bid", "ask"], severity=Severity.CRITICAL),
        Matches(
            "quantity",
            r"\+?(\d*[1-9]\d*\.?\d*|\d*\.\d*[1-9]\d*)([eE][+-]?\d+)?",
            nullable=True,
            id="quantity_is_positive",
            severity=Severity.CRITICAL,
        ),
        Unique(("side", "price")),
    ],
    current=HAS_OUTPUTS,
    deliveries=OUTPUTS if HAS_OUTPUTS else (),
    description="Every change of every price level, from the exchange's own snapshots and differences.",
)
