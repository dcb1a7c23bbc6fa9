"""A price is a number: all its spellings by the exchange mean the same level."""

from __future__ import annotations

import json
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assets.order_books import LevelChange, order_books
from lockstep.testing import run
from tests.support.spellings import spell

if TYPE_CHECKING:
    from hypothesis.strategies import DataObject

    from lockstep.testing import RunResult

Levels = list[tuple[str, str]]
"""(price, quantity) as sent."""


def snapshot(bids: Levels, asks: Levels = []) -> bytes:  # noqa: B006  # not changed
    return json.dumps({"lastUpdateId": 1, "bids": bids, "asks": asks}).encode()


def update(number: int, bids: Levels, asks: Levels = []) -> bytes:  # noqa: B006  # not changed
    return json.dumps({"data": {"E": number, "U": number, "u": number, "b": bids, "a": asks}}).encode()


def book_of(ran: RunResult[Any, LevelChange]) -> dict[tuple[str, Decimal], str]:
    """Replay the rows in the plainest way; return the quantity as sent by side and price."""
    book: dict[tuple[str, Decimal], str] = {}
    for row in ran.proven:
        level = (row.row.side, row.row.price)
        if row.row.quantity is None:
            del book[level]
        else:
            book[level] = row.row.quantity
    return book


@pytest.mark.parametrize(
    ("price", "zero"),
    [
        ("8442.65000000", "0.00000000"),
        ("1.7e-7", "0"),
        ("8442.65", "0E-8"),
        ("8442.65", "-0.00000000"),
        ("+08442.6500", ".0"),
        ("17E-8", "0e5"),
    ],
)
def test_a_level_is_removed_by_every_spelling_of_its_price_and_of_zero(price: str, zero: str) -> None:
    levels = [("8442.65", "1.0"), ("0.00000017", "5")]
    ran = run(order_books, snapshot(levels), update(2, [(price, zero)]), key="eth").or_raise()
    gone = Decimal(price)
    assert {level for _, level in book_of(ran)} == {Decimal(sent) for sent, _ in levels} - {gone}
    assert len(ran.states["eth"]) == 1
    (removal,) = [row for row in ran.rows if row.quantity is None]
    assert (removal.price, removal.price_text) == (gone, next(sent for sent, _ in levels if Decimal(sent) == gone))


@pytest.mark.parametrize("sent", ["", "NaN", "inf", "-inf", "one", "-", "0x0", "0_"])
@pytest.mark.parametrize("place", [0, 1])
def test_what_is_no_number_is_no_level(sent: str, place: int) -> None:
    level = (sent, "1") if place == 0 else ("1", sent)
    ran = run(order_books, snapshot([]), update(2, [level]), key="eth")
    assert ran.finding is not None
    assert ran.finding.cause == "transform raised"


PRICES = st.sampled_from([Decimal(each) for each in ("8442.65", "1.7E-7", "0.5", "100", "1E+3", "99999999.12345678")])
QUANTITIES = st.sampled_from([Decimal(each) for each in ("0", "0", "1", "0.00000001", "250.5")])
CHANGES = st.lists(st.tuples(st.sampled_from(["bid", "ask"]), PRICES, QUANTITIES), max_size=12)


@given(messages=st.lists(CHANGES, min_size=1, max_size=6), data=st.data())
def test_a_book_does_not_depend_on_the_spelling_of_its_numbers(
    messages: list[list[tuple[str, Decimal, Decimal]]], data: DataObject
) -> None:
    book: dict[tuple[str, Decimal], Decimal] = {}
    sent: list[bytes] = []
    for number, changes in enumerate(messages, 1):
        sides: dict[str, Levels] = {"bid": [], "ask": []}
        for side, levels in sides.items():  # bids are applied first
            for _, price, quantity in (each for each in changes if each[0] == side):
                levels.append((data.draw(spell(price)), data.draw(spell(quantity))))
                book.pop((side, price), None)
                if quantity:
                    book[side, price] = quantity
        send = snapshot if number == 1 else partial(update, number)
        sent.append(send(sides["bid"], sides["ask"]))
    ran = run(order_books, *sent, key="eth").or_raise()
    assert {level: Decimal(quantity) for level, quantity in book_of(ran).items()} == book
    assert {level: Decimal(each.quantity) for level, each in ran.states.get("eth", {}).items()} == book
    assert run(order_books, *sent, key="eth", split=1).proven == ran.proven
