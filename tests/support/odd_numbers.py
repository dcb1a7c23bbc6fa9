"""Folds whose numbers, times and deadlines are not ints, or raise an error, as users without type checks write them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from lockstep import Envelope, Record
from tests.support.minute_stream import SECOND, Minute, Totals, Value, Window

if TYPE_CHECKING:
    from collections.abc import Iterable


class FloatNumbers(Totals):
    """Numbers as floats, as in some JSON."""

    def envelope(self, message: Value, record: Record) -> Envelope:
        """See the class."""
        return msgspec.structs.replace(super().envelope(message, record), sequence=float(message.n or 0))


class FlagNumbers(Totals):
    """A flag as the number."""

    def envelope(self, message: Value, record: Record) -> Envelope:
        """See the class."""
        return msgspec.structs.replace(super().envelope(message, record), sequence=bool(message.n))


class LaterFloats(Totals):
    """Only the first number is an int."""

    def envelope(self, message: Value, record: Record) -> Envelope:
        """See the class."""
        return msgspec.structs.replace(super().envelope(message, record), sequence=(message.n or 0) * 1.0 or 0)


class FloatTimes(Totals):
    """Microseconds as the product with a float."""

    def envelope(self, message: Value, record: Record) -> Envelope:
        """See the class."""
        return msgspec.structs.replace(super().envelope(message, record), event_time_us=message.t * 1e6)


class FloatWatermark(Totals):
    """A watermark as the product with a float."""

    def watermark(self, message: Value, record: Record) -> int | None:
        """See the class."""
        return message.t * 1e6  # type: ignore[return-value]  # the fault


class RaisingDeadline(Totals):
    """A deadline that raises an error if the sum is 8."""

    def deadline(self, state: Minute) -> int | None:
        """The end of the minute."""
        if state.total == 8:
            raise ValueError("a bug")
        return None if state.end is None else state.end * SECOND

    def on_timer(self, state: Minute, deadline_us: int) -> Iterable[Window]:
        """Emit the sum of the minute."""
        del deadline_us
        yield Window("minute", state.end, state.total)
        state.end = None
