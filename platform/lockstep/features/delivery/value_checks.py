"""Checks of values that a target would store as other values without an error."""

from __future__ import annotations


def check_int32(value: int) -> int:
    """Refuse an integer that is larger than 32 bits: a driver sends its lower bits. Raises ValueError."""
    if not -(2**31) <= value < 2**31:
        raise ValueError(f"{value} is not an integer of 32 bits")
    return value
