"""Recorded feeds whose snapshots are sent again: the rows replay to the books and markets at each place."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from assets.betting_markets import betting_markets
from assets.checksummed_books import Book, checksummed_books
from assets.order_books import order_books
from lockstep.features.localdev.recordings import (
    read_betting_market,
    read_checksummed_books,
    read_recorded_days,
    to_sent,
)
from lockstep.testing import SentMessage, run
from tests.correctness.replay.replaying import replay

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstep.declare.stream import AnyStream

RECORDINGS = Path(__file__).parents[2] / "recordings"
PLACES = (1, 2, 60, 61, 62, 119, 120, 121, 150)


def check_recorded(stream: AnyStream, feed: Sequence[SentMessage[Any]], values: str) -> int:
    """Check the rows at each place; return the number of snapshot rows at the last place."""
    replayed_by = stream.replay_key
    assert replayed_by is not None
    columns = replayed_by.columns
    removed = replayed_by.removed
    for length in (*(each for each in PLACES if each < len(feed)), len(feed)):
        ran = run(stream, *feed[:length]).or_raise()
        rows = replay(ran.proven, columns, removed)
        replayed = {
            session: {key: getattr(row, values) for key, row in table.items()} for session, table in rows.items()
        }
        tables = {session: dict(list_rows(state)) for session, state in ran.states.items()}
        assert replayed == {session: table for session, table in tables.items() if table}
    return sum(each.cause == "snapshot" for each in ran.proven)


def list_rows(state: Any) -> Any:
    rows = state.levels() if isinstance(state, Book) else state.items()
    return [(key, getattr(value, "quantity", value)) for key, value in rows]


@cache
def read_book() -> tuple[bytes, ...]:
    """Return a snapshot of a book, followed by its differences."""
    days = read_recorded_days(RECORDINGS / "binance_l2", "spot_ethusdt")
    return tuple(message.value for message in to_sent(days).messages)


def sent(key: str, values: Sequence[bytes]) -> list[SentMessage[Any]]:
    return [SentMessage(value=value, key=key) for value in values]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 4))])
def test_an_order_book_whose_snapshot_comes_again(seed: int) -> None:
    """The new snapshot removes some levels, changes some and adds some, in any order."""
    random = Random(seed)  # noqa: S311  # a test
    feed = list(read_book()[:60])
    differences = len(feed)
    for _ in range(3):
        ran = run(order_books, *feed, key="eth").or_raise()
        last = msgspec.json.decode(feed[-1])
        number = last["lastUpdateId"] if "lastUpdateId" in last else last["data"]["u"]
        levels = [[side, level.price_text, level.quantity] for (side, _), level in ran.states["eth"].items()]
        random.shuffle(levels)
        kept = [[side, price, "7.5" if random.random() < 0.2 else text] for side, price, text in levels[5:]]
        kept.append(["bid", "0.01", "1"])
        sides = {f"{name}s": [each[1:] for each in kept if each[0] == name] for name in ("bid", "ask")}
        feed.append(msgspec.json.encode({"lastUpdateId": number, **sides}))
        feed += read_book()[differences : differences + 30]
        differences += 30
    assert check_recorded(order_books, sent("eth", feed), "quantity") > 0


def test_a_checksummed_book_that_is_sent_again() -> None:
    values = [message.value for message in read_checksummed_books(RECORDINGS_OF_KRAKEN)["xmr_usd"][:60]]
    assert check_recorded(checksummed_books, sent("xmr_usd", values * 2), "quantity") > 0


def test_a_betting_market_whose_image_comes_again() -> None:
    values = [message.value for message in read_betting_market(RECORDINGS / "betfair" / "mcm_1.181223995.jsonl.gz")]
    assert check_recorded(betting_markets, sent("market", values[:60] + values[:90]), "value") > 0


RECORDINGS_OF_KRAKEN = RECORDINGS / "exchange_ws" / "kraken_spot_book1000_crc32.txt.gz"
