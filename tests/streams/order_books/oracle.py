"""The exchange's best prices of its book: the tickers in the recordings.

After each difference, the last ticker whose `u` is not beyond the difference's must have the best bid and ask of the
rebuilt book, with their quantities.
"""

from __future__ import annotations

import heapq
import json
from bisect import bisect_right
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

from tests.streams.order_books.plain_fold import BID, Book, Change

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


@dataclass(frozen=True, slots=True)
class Best:
    """The best prices of a book and their quantities."""

    bid: str
    bid_quantity: str
    ask: str
    ask_quantity: str


@dataclass(frozen=True, slots=True)
class Compared:
    """A rebuilt book compared with the exchange's ticker, after one difference.

    Attributes:
        update_id: The `u` of the difference.
        ticker_id: The `u` of the compared ticker.
        rebuilt: The best prices of the rebuilt book.
        told: The best prices by the exchange.
    """

    update_id: int
    ticker_id: int
    rebuilt: Best
    told: Best


class Oracle:
    """The tickers of one book, by update id."""

    def __init__(self, tickers: Iterable[bytes]) -> None:
        told = sorted((json.loads(ticker)["data"] for ticker in tickers), key=lambda data: int(data["u"]))
        self._ids = [int(data["u"]) for data in told]
        self._best = [Best(data["b"], data["B"], data["a"], data["A"]) for data in told]

    def at(self, update_id: int) -> tuple[int, Best]:
        """Return the id and the best prices of the last ticker not beyond an update."""
        place = bisect_right(self._ids, update_id) - 1
        assert place >= 0, f"no ticker at or before update {update_id}"
        return self._ids[place], self._best[place]


class BestPrices:
    """Finds the best prices of a changing book without sorting it for each change."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._bids = [(-Decimal(price), price) for price in book.bids]
        self._asks = [(Decimal(price), price) for price in book.asks]
        heapq.heapify(self._bids)
        heapq.heapify(self._asks)

    def note(self, changes: Iterable[Change]) -> None:
        """Add the new prices of some changes; removed prices are dropped when they reach the top."""
        for change in changes:
            if change.previous is None:
                heap = self._bids if change.side == BID else self._asks
                sign = -1 if change.side == BID else 1
                heapq.heappush(heap, (sign * Decimal(change.price), change.price))

    def now(self) -> Best:
        """Return the current best prices of the book."""
        bid = _top(self._bids, self._book.bids)
        ask = _top(self._asks, self._book.asks)
        return Best(bid, self._book.bids[bid], ask, self._book.asks[ask])


def compare(values: Iterable[bytes], tickers: Iterable[bytes]) -> Iterator[Compared]:
    """Rebuild one book from its raw values, snapshot first, and compare it after each difference."""
    oracle = Oracle(tickers)
    remaining = iter(values)
    book = Book()
    book.take(next(remaining))
    prices = BestPrices(book)
    for value in remaining:
        prices.note(book.take(value))
        ticker_id, told = oracle.at(book.update_id)
        yield Compared(book.update_id, ticker_id, prices.now(), told)


def _top(heap: list[tuple[Decimal, str]], prices: dict[str, str]) -> str:
    while heap[0][1] not in prices:
        heapq.heappop(heap)
    return heap[0][1]
