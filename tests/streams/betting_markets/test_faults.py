"""Faults that the stream refuses, and faults that it cannot detect: its evidence is the log alone, as documented."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from assets.betting_markets import RunnerChange, betting_markets
from lockstep.testing import ACCEPT, run
from tests.streams.betting_markets.plain_fold import fold

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lockstep.features.localdev.recordings import Recorded

MARKET = "1.181223995"
IMAGE = b'{"pt":1,"mc":[{"id":"1.1","img":true,"rc":[{"id":7,"atb":[[2.0,10]],"ltp":3}]}]}'


@pytest.fixture(scope="module")
def values(recorded: Sequence[Recorded]) -> list[bytes]:
    """The first 2,000 messages, up to the peer's first whole book."""
    return [message.value for message in recorded[:2_000]]


def dropped(values: list[bytes], at: int) -> list[bytes]:
    return [*values[:at], *values[at + 1 :]]


def swapped(values: list[bytes], at: int) -> list[bytes]:
    return [*values[:at], values[at + 1], values[at], *values[at + 2 :]]


@pytest.mark.parametrize(("fault", "at"), [(dropped, 1_998), (swapped, 1_917)])
def test_what_the_producer_loses_or_swaps_is_not_seen_though_it_matters(
    fault: Callable[[list[bytes], int], list[bytes]], at: int, values: list[bytes], peer: dict[str, Any]
) -> None:
    """The peer's book shows that the fault matters. `LogOnly` cannot detect it; it guarantees only the log."""
    told = peer["books_every_2000"]["2000"]
    assert fold(values)[0].book() == told
    assert fold(fault(values, at))[0].book() != told
    ran = run(betting_markets, *fault(values, at), key=MARKET)
    assert (ran.finding, {*ran.verdicts}) == (None, {ACCEPT})
    assert "what the producer lost is not seen" in betting_markets.integrity.guarantee()


def test_a_repeated_message_emits_nothing(values: list[bytes]) -> None:
    ran = run(betting_markets, *values[:900], values[899], key=MARKET)
    assert ran.folded[-1].rows == ()
    assert ran.states == run(betting_markets, *values[:900], key=MARKET).states


def test_without_an_image_the_session_is_unknown(values: list[bytes]) -> None:
    ran = run(betting_markets, *values[1:], key=MARKET)
    assert [verdict.cause for verdict in ran.verdicts] == ["unknown session"]


def test_truncated_json_is_undecodable(values: list[bytes]) -> None:
    ran = run(betting_markets, *values[:700], values[700][:-4], key=MARKET)
    assert (len(ran.folded), ran.verdicts[-1].cause) == (701, "undecodable")


@pytest.mark.parametrize(
    "odd",
    [
        b'{"pt":2,"mc":[{"id":"1.1"},{"id":"1.2"}]}',
        b'{"pt":2,"mc":[{"id":"1.1","rc":[{"id":7,"batb":[[0,2.0,5.0]]}]}]}',
        b'{"pt":2,"mc":[{"id":"1.1","rc":[{"id":7,"atb":[[2.0]]}]}]}',
        b'{"pt":2,"mc":[{"id":"1.1","rc":[{"id":7,"spn":"-Infinity"}]}]}',
        b'{"pt":2,"mc":[{"id":"1.1","rc":[{"id":7,"ltp":NaN}]}]}',
    ],
    ids=["two markets", "an undeclared ladder", "a price without size", "another word for a figure", "a bare NaN"],
)
def test_what_is_not_declared_is_undecodable_and_never_left_out(odd: bytes) -> None:
    assert [verdict.cause for verdict in run(betting_markets, IMAGE, odd, key="1.1").verdicts] == ["", "undecodable"]


def test_a_heartbeat_is_skipped_and_merged_changes_are_changes_like_any() -> None:
    merged = b'{"pt":3,"mc":[{"id":"1.1","con":true,"rc":[{"id":7,"atb":[[2.0,12]]}]}]}'
    ran = run(betting_markets, IMAGE, b'{"op":"mcm","ct":"HEARTBEAT","pt":2}', merged, key="1.1")
    assert [verdict.cause for verdict in ran.verdicts] == ["", "skip", ""]
    assert ran.rows[2:] == [RunnerChange(7, Decimal("0.0"), "available_to_back", Decimal("2.0"), 12.0, 10.0)]


def test_a_second_image_replaces_everything_and_emits_the_difference() -> None:
    image = b'{"pt":2,"mc":[{"id":"1.1","img":true,"rc":[{"id":8,"ltp":4}]}]}'
    ran = run(betting_markets, IMAGE, image, key="1.1")
    assert ran.rows[2:] == [
        RunnerChange(8, Decimal("0.0"), "last_price", None, 4.0, None),
        RunnerChange(7, Decimal("0.0"), "last_price", None, None, 3.0),
        RunnerChange(7, Decimal("0.0"), "available_to_back", Decimal("2.0"), None, 10.0),
    ]
    assert ran.states == {"1.1": {(8, Decimal(0), "last_price", None): 4.0}}


def test_figures_in_words_and_runners_with_handicap() -> None:
    first = b'{"pt":2,"mc":[{"id":"1.1","rc":[{"id":7,"hc":1.5,"spn":"Infinity","spf":"NaN","tv":0}]}]}'
    then = b'{"pt":3,"mc":[{"id":"1.1","rc":[{"id":7,"hc":1.5,"spn":"NaN"}]}]}'
    assert run(betting_markets, IMAGE, first, then, key="1.1").rows[2:] == [
        RunnerChange(7, Decimal("1.5"), "traded_volume", None, 0.0, None),
        RunnerChange(7, Decimal("1.5"), "near_price", None, math.inf, None),
        RunnerChange(7, Decimal("1.5"), "near_price", None, None, math.inf),
    ]
