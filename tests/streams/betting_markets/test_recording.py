"""The recordings are as documented, and the plain fold makes the peer's books from them."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest

from lockstep.features.localdev.recordings import Recorded, RecordedKind, RecordingError, read_betting_market
from tests.streams.betting_markets.plain_fold import Market, digest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def test_one_market_begins_with_its_only_image_and_the_other_has_none(
    recorded: Sequence[Recorded], basic: Sequence[Recorded]
) -> None:
    assert (len(recorded), len(basic)) == (21_922, 480)
    assert [at for at, message in enumerate(recorded) if message.kind is RecordedKind.SNAPSHOT] == [0]
    assert {message.kind for message in basic} == {RecordedKind.DIFFERENCE}
    assert {message.key for message in recorded} == {b"1.181223995"}
    assert [json.loads(message.value)["pt"] for message in basic] == [message.timestamp_ms for message in basic]


def test_every_message_holds_one_market(recorded: Sequence[Recorded], basic: Sequence[Recorded]) -> None:
    assert {len(json.loads(message.value)["mc"]) for message in (*recorded, *basic)} == {1}


def test_the_plain_fold_makes_every_book_that_the_peer_tells(
    recorded: Sequence[Recorded], peer: dict[str, Any]
) -> None:
    market = Market()
    books = {}
    digests = []
    for number, message in enumerate(recorded, start=1):
        market.take(message.value)
        if number % 1_000 == 0:
            books[str(number)] = market.book()
            digests.append([number, digest(market.book())])
    assert {number: books[number] for number in peer["books_every_2000"]} == peer["books_every_2000"]
    assert digests == peer["digest_every_1000"]
    assert (len(recorded), market.book()) == (peer["states"], peer["final"])


def test_the_plain_fold_makes_the_peers_last_prices_after_each_message(
    basic: Sequence[Recorded], basic_books: list[dict[str, Any]]
) -> None:
    market = Market()
    for message, told in zip(basic, basic_books, strict=True):
        market.take(message.value)
        assert [[runner[0], runner[1]] for runner in market.book()] == last_prices(told)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"pt":2,"mc":[{"id":"1.2"}]}', "of market 1.2, the others are of 1.1"),
        ('{"pt":2,"mc":[{"id":"1.1"},{"id":"1.2"}]}', "not a recorded market"),
        ('{"pt":2,"mc":[', "not a recorded market"),
    ],
)
def test_a_line_that_is_not_of_such_a_recording_is_named(line: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.jsonl.gz"
    with gzip.open(path, "wt") as wrong:
        wrong.write('{"pt":1,"mc":[{"id":"1.1","img":true}]}\n' + line + "\n")
    with pytest.raises(RecordingError, match=rf"wrong\.jsonl\.gz, line 2: {problem}"):
        read_betting_market(path)


def last_prices(book: dict[str, Any]) -> list[list[object]]:
    """Return runner and last price of a basic book of the peer, by runner; its ladders must be empty."""
    assert not any(ladder for runner in book["runners"] for ladder in runner["ex"].values())
    return sorted([runner["selectionId"], runner["lastPriceTraded"]] for runner in book["runners"])
