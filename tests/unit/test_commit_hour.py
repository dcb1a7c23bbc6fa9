"""The commit hour: a text that sorts in order of time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from lockstep.model.commit_hour import compute_next_hour, format_hour, parse_hour


@pytest.mark.parametrize(
    ("hour", "after"),
    [("2026-01-31T09", "2026-01-31T10"), ("2028-02-28T23", "2028-02-29T00"), ("2026-12-31T23", "2027-01-01T00")],
)
def test_the_next_hour(hour: str, after: str) -> None:
    assert compute_next_hour(hour) == after


def test_an_hour_is_that_of_utc() -> None:
    kolkata = timezone(timedelta(hours=5, minutes=30))
    assert format_hour(datetime(2026, 1, 1, 4, 45, tzinfo=kolkata)) == "2025-12-31T23"
    assert parse_hour("2025-12-31T23") == datetime(2025, 12, 31, 23, tzinfo=UTC)


@pytest.mark.parametrize(
    "text", ["", "2026-01-31", "2026-01-31T9", "2026-01-31T24", "2026-02-30T00", "2026-01-31T9:00"]
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not an hour|does not match|out of range|unconverted"):
        parse_hour(text)
