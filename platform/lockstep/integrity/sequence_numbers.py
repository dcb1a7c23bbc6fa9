"""The producer's numbers: what can be kept of them, and where they wrap around. Pure."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final, cast

from lockstep.errors import DeclarationError
from lockstep.integrity.verdict import Verdict, report_violation
from lockstep.model.record import Record

LARGEST: Final = 2**63 - 1
"""What a state file and a table can hold; decoders let larger numbers pass."""


WRAPS_AT_MIN: Final = 4


def is_out_of_range(number: int, wraps_at: int | None = None) -> Verdict | None:
    """The verdict on a number that neither state nor table can hold, or that the producer cannot have sent."""
    if wraps_at is not None:
        right = f"a number from 0 to {wraps_at - 1}, because of wraps_at={wraps_at}"
        return None if 0 <= number < wraps_at else report_violation("number out of range", right, number)
    if -LARGEST <= number <= LARGEST:
        return None
    return report_violation("number out of range", "a number of 64 bits", number)


def unwrap_sequence(number: int, last: int, wraps_at: int | None) -> int:
    """The number counted on over its wrap-arounds: the one nearest to the last.

    Args:
        number: As the producer sent it.
        last: The number before, counted on in the same way.
        wraps_at: How many numbers there are (256 for 8 bits); None for numbers that do not wrap.
    """
    if wraps_at is None:
        return number
    half = wraps_at // 2
    return last + (number - last + half) % wraps_at - half


def check_wrap(field: str, wraps_at: int | None) -> None:
    """Refuse a wrap-around that is none.

    Raises:
        DeclarationError: It is no whole number, or too small to tell forward from back.
    """
    given = cast("object", wraps_at)  # users need no checker
    if given is not None and (isinstance(given, bool) or not isinstance(given, int) or given < WRAPS_AT_MIN):
        raise DeclarationError(field, wraps_at, "is not how many numbers there are", "256 for a number of 8 bits")


def make_digest(record: Record) -> bytes:
    """Eight bytes that tell the content of one message from another's."""
    return blake2b(record.value or b"", digest_size=8).digest()
