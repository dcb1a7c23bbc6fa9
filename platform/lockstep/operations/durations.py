"""Durations: their display, with that of counts, and pauses that grow."""

from __future__ import annotations

import math

DOUBLINGS_MAX = 64
"""More would exceed the range of a float in the end."""


def format_duration(seconds: float | None) -> str | None:
    """A duration for display: 0.4 s, 12 s, 5 min, 3.2 h, 4.0 d; None stays None."""
    if seconds is None:
        return None
    unit, name = next((unit, name) for limit, unit, name in _UNITS if abs(seconds) < limit)
    is_whole = name == "min" or (name == "s" and abs(seconds) >= 1)
    digits = 0 if is_whole else 1
    return f"{seconds / unit:.{digits}f} {name}"


def compute_back_off(repetitions: int, seconds: float, seconds_max: float) -> float:
    """The seconds of a pause that doubles with each repetition.

    Args:
        repetitions: Earlier pauses in a row, any number.
        seconds: The first pause.
        seconds_max: The longest pause.
    """
    return min(seconds * 2.0 ** min(repetitions, DOUBLINGS_MAX), seconds_max)


def format_count(number: int, what: str) -> str:
    """A count with its noun for display: 1 hour, 1,200 messages."""
    plural = "" if number == 1 else "s"
    return f"{number:,} {what}{plural}"


_UNITS = ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h"), (math.inf, 86_400, "d"))
