"""The expected rows of a betting market, and its book, by the plainest fold.

It shares no code with the product and never imports it. A message contains one market in `mc`; `img` replaces all
values of its runners. `rc` lists the changes of each runner: ladders of (price, size), where size 0 removes the price,
and figures, where "NaN" means none.

The rule of a changed row: an entry emits one row if the value differs from the previous value; an absent value is None.
An image emits its difference from the market before: the entries as listed, then the removed keys.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

LADDERS = {
    "atb": "available_to_back",
    "atl": "available_to_lay",
    "trd": "traded",
    "spb": "starting_price_back",
    "spl": "starting_price_lay",
}
FIGURES = {"ltp": "last_price", "tv": "traded_volume", "spn": "near_price", "spf": "far_price"}
BOOK = ("last_price", "available_to_back", "available_to_lay", "traded")
"""The parts of a runner in the peer's books."""

Key = tuple[int, Decimal, str, "Decimal | None"]
"""Runner, handicap, part, price."""


@dataclass
class Market:
    """Value by key, and the runners by their ids."""

    values: dict[Key, float] = field(default_factory=dict)
    runners: set[int] = field(default_factory=set)

    def take(self, value: bytes) -> list[tuple[object, ...]]:
        """Fold one raw message; return its rows as (runner, handicap, part, price, value, previous value)."""
        (market,) = json.loads(value)["mc"]
        self.runners.update(runner["id"] for runner in market.get("marketDefinition", {}).get("runners", []))
        before = dict(self.values)
        if market.get("img"):
            self.values.clear()
        rows: list[tuple[object, ...]] = []
        for runner in market.get("rc", []):
            rows += [row for entry in entries(runner) for row in self.changed(*entry)]
        if not market.get("img"):
            return rows
        new = [(*key, value, before.get(key)) for key, value in self.values.items() if value != before.get(key)]
        return new + [(*key, None, before[key]) for key in before if key not in self.values]

    def changed(self, key: Key, value: float | None) -> list[tuple[object, ...]]:
        """Set or remove one value; return its row if it changed."""
        previous = self.values.pop(key, None)
        if value is not None:
            self.values[key] = value
        return [] if value == previous else [(*key, value, previous)]

    def book(self) -> list[list[object]]:
        """Return the book as the peer writes it: for each runner by id, the last price and the ladders by price."""
        return [[runner, *(self._part(runner, part) for part in BOOK)] for runner in sorted(self.runners)]

    def _part(self, runner: int, part: str) -> object:
        if part == "last_price":
            return plain(self.values.get((runner, Decimal(0), part, None)))
        held = [(key[3], size) for key, size in self.values.items() if key[0] == runner and key[2] == part]
        return [[plain(price), plain(size)] for price, size in sorted(held)]


def entries(runner: dict[str, Any]) -> list[tuple[Key, float | None]]:
    """Return a message's entries of one runner: ladders, then figures."""
    who = (runner["id"], Decimal(str(runner.get("hc", 0))))
    told: list[tuple[Key, float | None]] = []
    for short, part in LADDERS.items():
        told += [((*who, part, Decimal(str(price))), size or None) for price, size in runner.get(short, [])]
    for short, part in FIGURES.items():
        if runner.get(short) is not None:
            told.append(((*who, part, None), None if runner[short] == "NaN" else float(runner[short])))
    return told


def fold(values: Iterable[bytes]) -> tuple[Market, list[tuple[object, ...]]]:
    """Return the market after all messages, and the rows as (offset, number in its message, *row)."""
    market = Market()
    rows = []
    for offset, value in enumerate(values):
        rows += [(offset, number, *row) for number, row in enumerate(market.take(value))]
    return market, rows


def plain(number: float | Decimal | None) -> float | None:
    """Return a number as JSON's shortest form: whole numbers without a point."""
    if number is None:
        return None
    return int(number) if float(number).is_integer() else float(number)


def digest(book: list[list[object]]) -> str:
    """Return the peer's digest of a book."""
    return hashlib.sha256(json.dumps(book, separators=(",", ":")).encode()).hexdigest()[:16]
