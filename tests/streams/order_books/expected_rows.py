"""The expected rows of the order-book stream, by the plain fold alone."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

from tests.streams.order_books.plain_fold import fold

if TYPE_CHECKING:
    from collections.abc import Iterable

COLUMNS = ("_emit_offset", "_row", "side", "price", "price_text", "quantity", "previous_quantity")


def expected_rows(values: Iterable[bytes]) -> list[tuple[object, ...]]:
    """Return the rows of one partition as `COLUMNS`, in order; the values are its messages from offset 0."""
    return [
        (row.message, row.row, change.side, Decimal(change.price), change.price, change.quantity, change.previous)
        for row in fold(values)
        for change in [row.change]
    ]
