"""The deliveries of the stream choose exactly the large updates of spot markets."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

import pytest

from assets.order_books import ALARMING_VALUE, HAS_OUTPUTS, LARGE_VALUE, OUTPUTS, BookMessage, LevelChange, order_books
from lockstep.testing import SentMessage, choose_rows, run

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstep.features.localdev.recordings import Sent

MESSAGES = 400
BOOKS, MOVES, ALERTS = OUTPUTS


def find_value(row: LevelChange) -> Decimal:
    return (Decimal(row.quantity or 0) - Decimal(row.previous_quantity or 0)) * row.price


@pytest.mark.parametrize(("book", "is_spot"), [("spot_btcusdt", True), ("cm_btcusd_perp", False)])
def test_large_updates_of_spot_markets_are_delivered(
    both_days: Callable[[str], Sent], book: str, *, is_spot: bool
) -> None:
    sent = both_days(book).messages[:MESSAGES]
    messages = [SentMessage[BookMessage](value=each.value, key=each.key) for each in sent]
    result = run(order_books, *messages, topic=f"order_books.{book}")
    updates = [each for each in result.proven if each.cause == "update" and is_spot]
    assert len(choose_rows(BOOKS, result)) == len(result.proven) > MESSAGES
    for delivery, least in ((MOVES, LARGE_VALUE), (ALERTS, ALARMING_VALUE)):
        expected = [find_value(each.row) for each in updates if abs(find_value(each.row)) >= least]
        delivered = [each.value for each in choose_rows(delivery, result)]
        assert [move.value for move in delivered] == pytest.approx([float(value) for value in expected])  # type: ignore[attr-defined]  # a Move
        assert bool(delivered) is is_spot


def test_an_installation_without_these_targets_has_no_deliveries() -> None:
    assert (HAS_OUTPUTS, order_books.deliveries, order_books.current) == (False, (), False)
