"""The times that every reader of a table can return: 0001-01-03 to the last microsecond of 9999, in UTC.

Measured with the readers of docs/reading.md at the bounds of each column type. Dates (0001-01-01 to 9999-12-31),
decimals of 38 digits, integers of 64 bits, floats and texts are returned by all of them as far as Arrow takes them.
Times are not: outside of the years 1 to 9999 pyarrow, pandas, polars and Spark raise, and fail on the whole hour.
Spark's `collect` also fails on the first day of the year 1, because Python asks for the local time of the day before;
in zones west of UTC it and duckdb fail on the second day too.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)

EARLIEST: Final = datetime(1, 1, 3, tzinfo=UTC)
LATEST: Final = datetime.max.replace(tzinfo=UTC)
EARLIEST_US: Final = (EARLIEST - _EPOCH) // _MICROSECOND
"""Microseconds since 1970 (UTC)."""
LATEST_US: Final = (LATEST - _EPOCH) // _MICROSECOND

VALUE_NOT_STORABLE: Final = "value not storable"
"""Cause of the finding about a message of which a row or the envelope has a value that its table cannot hold."""


def describe_unreadable(what: str) -> str:
    """The problem with a time outside of this range, for an error."""
    return f"{what} is not between {EARLIEST.date()} and {LATEST.date()} (UTC): readers could not return it"


def to_event_time(microseconds: int | None) -> datetime | None:
    """Microseconds since 1970 as a datetime; None for None and for a time that readers could not return."""
    if microseconds is None or not EARLIEST_US <= microseconds <= LATEST_US:
        return None
    return _EPOCH + timedelta(microseconds=microseconds)
