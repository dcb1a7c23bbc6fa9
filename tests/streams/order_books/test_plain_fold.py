"""The plain fold follows its rule, and rebuilds the exchange's book."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.streams.order_books.oracle import compare
from tests.streams.order_books.plain_fold import Change, Row, fold

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstep.features.localdev.recordings import Sent

BOOKS = ("cm_btcusd_perp", "spot_btcusdt", "spot_ethusdt")
# Counted by a second method when the extract was made: by price over time instead of by message.
ROWS = {"cm_btcusd_perp": 369_645, "spot_btcusdt": 174_407, "spot_ethusdt": 162_743}
# Differences of spot_btcusdt (`u`) whose last best-price ticker was never recorded. The book is right.
TICKER_NEVER_CAME = (50093478174, 50093480542)

SNAPSHOT = {"lastUpdateId": 7, "bids": [["10.0", "1.5"], ["9.5", "2.0"]], "asks": [["10.5", "3.0"]]}


def difference(update_id: int, bids: list[list[str]], asks: list[list[str]]) -> bytes:
    data = {"e": "depthUpdate", "U": update_id, "u": update_id, "b": bids, "a": asks}
    return json.dumps({"stream": "x@depth", "data": data}).encode()


def changes(*differences: bytes) -> list[Change]:
    return [row.change for row in fold([json.dumps(SNAPSHOT).encode(), *differences]) if row.message]


def test_a_snapshot_emits_its_difference_to_the_book_before() -> None:
    again = {"lastUpdateId": 7, "bids": [["10.0", "1.5"], ["9.0", "2.0"]], "asks": [["10.5", "4.0"]]}
    assert changes(json.dumps(again).encode()) == [
        Change("bid", "9.0", None, "2.0"),
        Change("ask", "10.5", "3.0", "4.0"),
        Change("bid", "9.5", "2.0", None),
    ]
    assert [row.change.quantity for row in fold([json.dumps(SNAPSHOT).encode()])] == ["1.5", "2.0", "3.0"]


def test_a_changed_quantity_is_a_row_with_the_previous_one() -> None:
    assert [Change("bid", "10.0", "1.5", "1.7")] == changes(difference(8, [["10.0", "1.7"]], []))


def test_a_new_price_has_no_previous_quantity() -> None:
    assert [Change("ask", "10.6", None, "1.0")] == changes(difference(8, [], [["10.6", "1.0"]]))


def test_a_removed_price_has_no_new_quantity() -> None:
    assert [Change("ask", "10.5", "3.0", None)] == changes(difference(8, [], [["10.5", "0.0"]]))


def test_removing_an_absent_price_emits_nothing() -> None:
    assert changes(difference(8, [["1.0", "0.0"]], [])) == []


def test_the_same_quantity_again_emits_nothing() -> None:
    assert changes(difference(8, [["10.0", "1.5"]], [["10.5", "3.0"]])) == []


def test_a_price_that_comes_back_has_no_previous_quantity() -> None:
    rows = changes(difference(8, [["10.0", "0.0"]], []), difference(9, [["10.0", "1.5"]], []))
    assert [Change("bid", "10.0", "1.5", None), Change("bid", "10.0", None, "1.5")] == rows


def test_rows_come_bids_first_in_the_order_of_the_message_and_say_where_they_are_from() -> None:
    values = [
        json.dumps(SNAPSHOT).encode(),
        difference(8, [], []),
        difference(9, [["9.5", "1.0"], ["10.0", "1.0"]], [["10.5", "1.0"]]),
    ]
    assert [
        Row(2, 0, 9, Change("bid", "9.5", "2.0", "1.0")),
        Row(2, 1, 9, Change("bid", "10.0", "1.5", "1.0")),
        Row(2, 2, 9, Change("ask", "10.5", "3.0", "1.0")),
    ] == [row for row in fold(values) if row.message]


@pytest.mark.parametrize("book", BOOKS)
def test_the_rebuilt_book_is_the_exchanges_own_over_midnight(book: str, both_days: Callable[[str], Sent]) -> None:
    compared = list(compare(*raw(both_days(book))))
    wrong = [each for each in compared if each.rebuilt != each.told]
    assert len(compared) == len(both_days(book).messages) - 1
    assert (TICKER_NEVER_CAME if book == "spot_btcusdt" else ()) == tuple(each.update_id for each in wrong)


def test_where_a_ticker_never_came_the_last_one_names_a_bid_that_lived_only_inside_the_difference(
    both_days: Callable[[str], Sent],
) -> None:
    values, tickers = raw(both_days("spot_btcusdt"))
    differences = {message.last_id: message for message in both_days("spot_btcusdt").messages[1:]}
    compared = [each for each in compare(values, tickers) if each.update_id in TICKER_NEVER_CAME]
    assert len(compared) == len(TICKER_NEVER_CAME)
    for each in compared:
        difference = differences[each.update_id]
        assert difference.first_id is not None
        assert difference.first_id < each.ticker_id < difference.last_id
        assert each.told.bid not in prices(difference.value)
        assert (each.told.ask, each.told.ask_quantity) == (each.rebuilt.ask, each.rebuilt.ask_quantity)


@pytest.mark.parametrize("book", BOOKS)
def test_the_oracle_notices_a_lost_difference_unless_the_next_one_repairs_it(
    book: str, both_days: Callable[[str], Sent]
) -> None:
    values, tickers = raw(both_days(book))
    values = values[:1000]
    best = [each.rebuilt for each in compare(values, tickers)]  # best[n] is the book after values[n + 1]
    moved = (n for n in range(500, 998) if best[n - 1] != best[n])
    lost = next(n + 1 for n in moved if not prices(values[n + 1]) & prices(values[n + 2]))
    without = values[:lost] + values[lost + 1 :]
    assert any(each.rebuilt != each.told for each in compare(without, tickers))


@pytest.mark.parametrize("book", BOOKS)
def test_every_changed_row_is_counted(book: str, both_days: Callable[[str], Sent]) -> None:
    rows = sum(1 for _ in fold(raw(both_days(book))[0]))
    assert ROWS[book] == rows


@pytest.mark.parametrize("book", BOOKS)
def test_all_numbers_of_a_book_have_the_same_digits_so_equal_numbers_are_equal_strings(
    book: str, both_days: Callable[[str], Sent]
) -> None:
    digits = {
        (len(price.partition(".")[2]), len(quantity.partition(".")[2]))
        for value in raw(both_days(book))[0]
        for price, quantity in entries(value)
    }
    assert len(digits) == 1


def raw(sent: Sent) -> tuple[list[bytes], list[bytes]]:
    return [message.value for message in sent.messages], [ticker.value for ticker in sent.tickers]


def entries(value: bytes) -> list[list[str]]:
    message = json.loads(value)
    found: list[list[str]] = (
        message["bids"] + message["asks"] if "lastUpdateId" in message else message["data"]["b"] + message["data"]["a"]
    )
    return found


def prices(value: bytes) -> set[str]:
    return {price for price, _ in entries(value)}
