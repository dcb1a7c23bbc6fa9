"""Betting markets of an exchange: an image of a market, then changes of its runners.

A message is about one market (`mc` has one entry, none in a heartbeat). A message of several is
refused as undecodable, because a message has one session. An undeclared ladder or runner field
is refused too, never silently ignored. Data of the market as a whole (definition, total matched)
is not stored.

Nothing in these messages proves that none is missing: `con` even states that the exchange merged
some. So the evidence is `LogOnly`: messages that the producer lost before Kafka are not detected.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Annotated, Literal

import msgspec

from lockstep import DecimalType, Envelope, Kind, LogOnly, Record, Stream, Strict, TableFold, Topics
from lockstep.derived import Export

HANDICAP = DecimalType(12, 4)
PRICE = DecimalType(12, 4)
read_handicap = HANDICAP.make_reader()
read_price = PRICE.make_reader()
Odds = tuple[float, float]
"""(price, size); size zero removes the price."""
Figure = float | Literal["NaN", "Infinity"] | None


class Runner(msgspec.Struct, forbid_unknown_fields=True):
    """The changes of one runner: ladders row by row, figures whole."""

    id: int
    hc: float = 0.0
    atb: list[Odds] = []
    atl: list[Odds] = []
    trd: list[Odds] = []
    spb: list[Odds] = []
    spl: list[Odds] = []
    ltp: Figure = None
    tv: Figure = None
    spn: Figure = None
    spf: Figure = None


class Market(msgspec.Struct):
    """One market: with `img` all of it, otherwise its changes; `con` means that changes were merged."""

    id: str
    img: bool = False
    con: bool = False
    rc: list[Runner] = []


class MarketMessage(msgspec.Struct):
    """One message of the exchange, published at `pt` (milliseconds)."""

    pt: int
    mc: Annotated[list[Market], msgspec.Meta(max_length=1)] = []


Key = tuple[int, Decimal, str, Decimal | None]
"""(runner, handicap, part, price): the price is None for a figure. Prices and handicaps are exact."""


class RunnerChange(msgspec.Struct, frozen=True):
    """One changed price of a ladder, or one changed figure; a value is null where there is none.

    Attributes:
        runner: The exchange's id of the runner.
        handicap: Handicap of the runner, where the market has one; otherwise 0.
        part: In ladders available_to_back, available_to_lay, traded, starting_price_back, starting_price_lay;
            without a price last_price, traded_volume, near_price, far_price.
        price: Price of the rung; null for a figure.
        value: Money at the price, or the figure, after the message; null when there is none.
        previous_value: The same before the message.
    """

    runner: int
    handicap: Annotated[Decimal, HANDICAP]
    part: str
    price: Annotated[Decimal, PRICE] | None
    value: float | None
    previous_value: float | None


class BettingMarket(TableFold[MarketMessage, Key, float, RunnerChange]):
    """The ladders and figures of one market's runners."""

    key = ("runner", "handicap", "part", "price")
    removed = "value"

    def envelope(self, message: MarketMessage, record: Record) -> Envelope:
        """The market is the key; a heartbeat is skipped."""
        session = record.key_text
        if not message.mc:
            return Envelope(session, Kind.SKIP)
        kind = Kind.SNAPSHOT if message.mc[0].img else Kind.UPDATE
        return Envelope(session, kind, event_time_us=message.pt * 1000)

    def changes(self, message: MarketMessage) -> Iterable[tuple[Key, float | None]]:
        """Runner by runner: ladders, then figures. "NaN" is the exchange's notation for no figure."""
        for runner in message.mc[0].rc:
            handicap = read_handicap(runner.hc)
            for part, ladder in ladders(runner):
                for price, size in ladder:
                    yield (runner.id, handicap, part, read_price(price)), size or None
            for part, figure in figures(runner):
                if figure is not None:
                    yield (runner.id, handicap, part, None), None if figure == "NaN" else float(figure)

    def emit(self, message: MarketMessage | None, key: Key, new: float | None, previous: float | None) -> RunnerChange:
        """One row for a changed price or figure."""
        return RunnerChange(*key, new, previous)


def ladders(runner: Runner) -> tuple[tuple[str, list[Odds]], ...]:
    """Ladders of a runner by the name of their part."""
    return (
        ("available_to_back", runner.atb),
        ("available_to_lay", runner.atl),
        ("traded", runner.trd),
        ("starting_price_back", runner.spb),
        ("starting_price_lay", runner.spl),
    )


def figures(runner: Runner) -> tuple[tuple[str, Figure], ...]:
    """Figures of a runner by the name of their part."""
    return (
        ("last_price", runner.ltp),
        ("traded_volume", runner.tv),
        ("near_price", runner.spn),
        ("far_price", runner.spf),
    )


betting_markets = Stream(
    name="betting_markets",
    topics=Topics(pattern=r"betting_markets\..+"),
    transform=BettingMarket(),
    integrity=Strict(evidence=LogOnly()),
    description="Every change of every price and figure of a market's runners. The log is proven, its producer is not.",
    export=Export(),
)
