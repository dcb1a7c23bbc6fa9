"""Cron expressions of schedules: their checks before Dagster reads them."""

from __future__ import annotations

import re

_RANGES = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
"""Of minute, hour, day of the month, month and day of the week."""
_NUMBER = re.compile(r"(?<![/\w])\d+")
"""A number that cannot be a step."""


def find_cron_problem(expression: str) -> str:
    """Reason why a text is not a cron expression of five fields; empty without one. Dagster checks names of days."""
    fields = expression.split()
    if len(fields) != len(_RANGES):
        return "is not a cron expression of five fields"
    for field, (least, most) in zip(fields, _RANGES, strict=True):
        if any(not least <= int(number) <= most for number in _NUMBER.findall(field)):
            return f"is not a cron expression: {field!r} is not from {least} to {most}"
    return ""
