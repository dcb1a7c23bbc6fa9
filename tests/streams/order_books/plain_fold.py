"""The expected rows of an order-book stream, by the plainest fold.

It shares no code with the product and never imports it: the two agree because both are right.

The rule of a changed row, the same for the product's table fold:

* A snapshot sets the whole book, and emits one row for each price whose quantity differs from the book before: bids,
  then asks, as listed, then the removed prices, in order of side and price.
* A difference is applied in its own order: its bids, then its asks, each as listed.
* An entry emits one row if the quantity at its price differs from the quantity before it; an absent quantity is None.
  Quantity 0 removes the price.
* An entry without a change emits nothing: the same quantity again, or the removal of an absent price. Such removals are
  normal: a snapshot has 1000 prices for each side, the exchange has more.

Prices and quantities are kept as the strings that the exchange sent, so nothing is rounded. The exchange writes all
numbers of a symbol with the same digits, so equal numbers are equal strings.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

BID = "bid"
ASK = "ask"


@dataclass(frozen=True, slots=True)
class Change:
    """A changed price of a difference; None is an absent price."""

    side: str
    price: str
    previous: str | None
    quantity: str | None


@dataclass(frozen=True, slots=True)
class Row:
    """A change and its origin.

    Attributes:
        message: The place of the difference among the values, from 0: its offset, if the values were produced into one
            new partition.
        row: The place of the change among the changes of its difference, from 0.
        update_id: The `u` of the difference.
        change: The change.
    """

    message: int
    row: int
    update_id: int
    change: Change


class Book:
    """An order book: quantity by price, for each side."""

    def __init__(self) -> None:
        self.bids: dict[str, str] = {}
        self.asks: dict[str, str] = {}
        self.update_id = 0

    def take(self, value: bytes) -> list[Change]:
        """Fold one raw message into the book and return the changes."""
        message = json.loads(value)
        if "lastUpdateId" in message:
            self.update_id = message["lastUpdateId"]
            before = {(BID, price): quantity for price, quantity in self.bids.items()}
            before |= {(ASK, price): quantity for price, quantity in self.asks.items()}
            self.bids, self.asks = dict(message["bids"]), dict(message["asks"])
            after = {(BID, price): quantity for price, quantity in self.bids.items()}
            after |= {(ASK, price): quantity for price, quantity in self.asks.items()}
            changes = [
                Change(*level, before.get(level), quantity)
                for level, quantity in after.items()
                if quantity != before.get(level)
            ]
            return changes + [Change(*level, before[level], None) for level in sorted(before) if level not in after]
        difference = message["data"]
        self.update_id = difference["u"]
        bids = _changes(BID, self.bids, difference["b"])
        return bids + _changes(ASK, self.asks, difference["a"])


def fold(values: Iterable[bytes]) -> Iterator[Row]:
    """Return every changed row of one book, from its raw values as a correct producer sends them."""
    book = Book()
    for number, value in enumerate(values):
        for place, change in enumerate(book.take(value)):
            yield Row(number, place, book.update_id, change)


def _changes(side: str, prices: dict[str, str], entries: list[list[str]]) -> list[Change]:
    changes = []
    for price, sent in entries:
        previous = prices.pop(price, None)
        quantity = sent if Decimal(sent) else None
        if quantity is not None:
            prices[price] = quantity
        if quantity != previous:
            changes.append(Change(side, price, previous, quantity))
    return changes
