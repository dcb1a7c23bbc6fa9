"""A stream without state: the lines of each order."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from lockstep import Envelope, FlatMap, Record, Stream, Topics, Violation
from lockstep.folds.flat_map import NoState
from lockstep.integrity.base import IntegrityClass


class Order(msgspec.Struct):
    """An order with the quantities of its lines."""

    id: str
    quantities: list[int]


class Line(msgspec.Struct):
    """One line of an order."""

    order: str
    quantity: int


class Lines(FlatMap[Order, Line]):
    """Emits a row for each line."""

    def flat_map(self, message: Order, record: Record) -> Iterable[Line]:
        """Return the lines; refuse a negative quantity."""
        for quantity in message.quantities:
            if quantity < 0:
                raise Violation("a quantity of at least 0", quantity)
            yield Line(message.id, quantity)


class LinesById(Lines):
    """Lines for `Once`: sessions by key, orders by id."""

    def envelope(self, message: Order, record: Record) -> Envelope:
        """Use the order's id."""
        return Envelope(record.key_text, id=message.id)


def orders(
    integrity: IntegrityClass, transform: Lines | None = None, pattern: str = "orders"
) -> Stream[Order, NoState, Line]:
    """Return a stream of orders."""
    return Stream(
        name="order_lines", topics=Topics(pattern=pattern), transform=transform or Lines(), integrity=integrity
    )
