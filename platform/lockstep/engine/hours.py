"""The commit hour of a batch: the log closes hours, not the clock.

`clock_hour` is the one place of the engine where a clock decides anything, and only a name of a folder.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


def hour_of(clock_hour: str, head_hour: str, closed_hour: str) -> str:
    """The hour of the next batch: the log closes hours, not the clock.

    Args:
        clock_hour: Hour of the clock, "YYYY-MM-DDTHH" UTC.
        head_hour: Hour of the last batch; empty before the first.
        closed_hour: Newest closed hour; empty while none is.
    """
    after_closed = next_hour(closed_hour) if closed_hour else ""
    return max(clock_hour, head_hour, after_closed)


def clock_hour() -> str:
    """The hour of this machine's clock, "YYYY-MM-DDTHH" UTC."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H")


def next_hour(hour: str) -> str:
    """The hour after one, "YYYY-MM-DDTHH" UTC."""
    moment = datetime.strptime(hour, "%Y-%m-%dT%H").replace(tzinfo=UTC) + timedelta(hours=1)
    return moment.strftime("%Y-%m-%dT%H")
