"""The hour of a batch: never a closed one, never before the last."""

from __future__ import annotations

import pytest

from lockstep.engine.driver.planner import choose_commit_hour, compute_next_hour


@pytest.mark.parametrize(
    ("clock", "head", "closed", "expected"),
    [
        ("2026-03-01T10", "", "", "2026-03-01T10"),
        ("2026-03-01T10", "2026-03-01T09", "", "2026-03-01T10"),
        ("2026-03-01T10", "2026-03-01T10", "2026-03-01T09", "2026-03-01T10"),
        ("2026-03-01T10", "2026-03-01T12", "", "2026-03-01T12"),  # a clock that went back
        ("2026-03-01T10", "2026-03-01T10", "2026-03-01T10", "2026-03-01T11"),  # the open hour was closed
        ("2026-03-01T10", "2026-03-01T08", "2026-03-01T10", "2026-03-01T11"),
        ("2026-03-01T10", "2026-03-01T11", "2026-03-01T10", "2026-03-01T11"),
        ("2026-03-01T13", "2026-03-01T11", "2026-03-01T10", "2026-03-01T13"),
        ("2026-02-28T23", "2026-02-28T23", "2026-02-28T23", "2026-03-01T00"),  # over the end of a month
        ("2026-12-31T23", "", "2026-12-31T23", "2027-01-01T00"),  # and of a year
    ],
)
def test_the_log_closes_hours_not_the_clock(clock: str, head: str, closed: str, expected: str) -> None:
    assert choose_commit_hour(clock, head, closed) == expected


def test_the_next_hour_of_a_leap_day() -> None:
    assert compute_next_hour("2028-02-28T23") == "2028-02-29T00"
