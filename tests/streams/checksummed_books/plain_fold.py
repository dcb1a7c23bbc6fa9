"""The expected rows of a book with checksums, and the exchange's checksums of it, by the plainest fold.

It shares no code with the product and never imports it. A message is `[channel, part, name, pair]` with one part or
two. A snapshot's part has all levels of both sides (`as`, `bs`). An update's part has changed levels (`a`, `b`), and
its last part the checksum `c` of the book after it: the CRC32 of the ten best asks, then the ten best bids, each as
price and quantity without point and leading zeros.

The rule of a changed row is that of tests/streams/order_books/plain_fold.py: asks, then bids, as listed; a level with
an unchanged quantity emits nothing. A snapshot emits its difference from the book before: best levels first, then the
removed levels, in order of side and price. Levels deeper than 1000 are then removed, nearest first, each with a row.
"""

from __future__ import annotations

import heapq
import json
import zlib
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

DEPTH = 1000
SUMMED = 10

Change = tuple[str, str, "str | None", "str | None"]
"""Side, price, quantity, previous quantity."""


class Folded(NamedTuple):
    """A message's changes; for an update, also the computed checksum and the checksum in the message."""

    changes: list[Change]
    computed: str | None
    told: str | None


@dataclass
class Book:
    """Quantity by price, for each side."""

    asks: dict[str, str] = field(default_factory=dict)
    bids: dict[str, str] = field(default_factory=dict)

    def take(self, value: bytes) -> Folded:
        """Fold one raw message."""
        parts = json.loads(value)[1:-2]
        if "as" in parts[0]:
            before = self.levels()
            self.asks, self.bids = (
                {price: quantity for price, quantity, *_ in parts[0][side]} for side in ("as", "bs")
            )
            after = self.levels()
            rows: list[Change] = [
                (*level, quantity, before.get(level))
                for level, quantity in after.items()
                if quantity != before.get(level)
            ]
            rows += [(*level, None, before[level]) for level in sorted(before, key=_in_order) if level not in after]
            return Folded(rows, None, None)
        changes: list[Change] = []
        for part in parts:
            changes += _changed("ask", self.asks, part.get("a", []))
            changes += _changed("bid", self.bids, part.get("b", []))
        changes += _cut("ask", self.asks, 1) + _cut("bid", self.bids, -1)
        return Folded(changes, self.checksum(), parts[-1]["c"])

    def levels(self) -> dict[tuple[str, str], str]:
        """Return quantity by side and price, asks first, best first."""
        sides = (("ask", self.asks, 1), ("bid", self.bids, -1))
        return {
            (side, price): held[price] for side, held, sign in sides for price in _best_first(held, sign, len(held))
        }

    def checksum(self) -> str:
        """Return the checksum of the current book."""
        asks = [(price, self.asks[price]) for price in _best_first(self.asks, 1, SUMMED)]
        bids = [(price, self.bids[price]) for price in _best_first(self.bids, -1, SUMMED)]
        digits = [number.replace(".", "").lstrip("0") for level in asks + bids for number in level]
        return str(zlib.crc32("".join(digits).encode()))


def fold(values: Iterable[bytes]) -> Iterator[Folded]:
    """Fold all messages of one book."""
    book = Book()
    for value in values:
        yield book.take(value)


def expected_rows(values: Iterable[bytes]) -> list[tuple[object, ...]]:
    """Return the rows as (offset, number of the row in its message, *change), for messages from offset 0 on."""
    return [
        (offset, number, *change)
        for offset, folded in enumerate(fold(values))
        for number, change in enumerate(folded.changes)
    ]


def first_wrong(values: Iterable[bytes]) -> tuple[int, str | None, str | None] | None:
    """Return place, computed checksum and stated checksum of the first message whose checksums differ."""
    return next(
        (
            (at, folded.computed, folded.told)
            for at, folded in enumerate(fold(values))
            if folded.computed != folded.told
        ),
        None,
    )


def _changed(side: str, levels: dict[str, str], entries: list[list[str]]) -> list[Change]:
    changes: list[Change] = []
    for price, sent, *_ in entries:
        previous = levels.pop(price, None)
        quantity = sent if Decimal(sent) else None
        if quantity is not None:
            levels[price] = quantity
        if quantity != previous:
            changes.append((side, price, quantity, previous))
    return changes


def _in_order(level: tuple[str, str]) -> tuple[str, Decimal]:
    return level[0], Decimal(level[1])


def _cut(side: str, levels: dict[str, str], sign: int) -> list[Change]:
    if len(levels) <= DEPTH:
        return []
    return [(side, price, None, levels.pop(price)) for price in _best_first(levels, sign, len(levels))[DEPTH:]]


def _best_first(levels: dict[str, str], sign: int, count: int) -> list[str]:
    # Prices of a book have the same few digits, so floats order them as decimals do.
    return heapq.nsmallest(count, levels, key=lambda price: sign * float(price))
