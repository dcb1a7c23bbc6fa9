"""The commit hour: "YYYY-MM-DDTHH" UTC, a text that sorts as the hours do."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_FORMAT = "%Y-%m-%dT%H"
_LENGTH = 13


def format_hour(moment: datetime) -> str:
    """The hour of a moment, which has a time zone."""
    return moment.astimezone(UTC).strftime(_FORMAT)


def parse_hour(hour: str) -> datetime:
    """The start of an hour.

    Raises:
        ValueError: The text is not an hour.
    """
    if len(hour) != _LENGTH:  # strptime takes an hour of one digit
        raise ValueError(f"{hour!r} is not an hour such as 2026-01-31T09")
    return datetime.strptime(hour, _FORMAT).replace(tzinfo=UTC)


def find_current_hour() -> str:
    """The hour of this machine's clock."""
    return format_hour(datetime.now(UTC))


def compute_next_hour(hour: str) -> str:
    """The hour after one."""
    return format_hour(parse_hour(hour) + timedelta(hours=1))
