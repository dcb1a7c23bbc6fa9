"""The producer's numbers: their 64-bit range and their wrap-around. Pure."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final, cast

from lockstep.errors import DeclarationError
from lockstep.integrity.verdict import Verdict, report_violation
from lockstep.model.record import Record

LARGEST: Final = 2**63 - 1
"""The largest number of a state file and a table; decoders let larger numbers pass."""


WRAPS_AT_MIN: Final = 4


def check_range(number: int, wraps_at: int | None = None) -> Verdict | None:
    """The verdict on a number outside of 64 bits, or one that the producer cannot have sent.

    Raises:
        TypeError: It is not an int: the state would return a float or a bool as another number, or as null.
    """
    if type(number) is not int:
        raise TypeError(f"the number {number!r} of a message is of type {type(number).__name__}, not int")
    if wraps_at is None:
        if -LARGEST <= number <= LARGEST:
            return None
        return report_violation("number out of range", "a number of 64 bits", number)
    if 0 <= number < wraps_at:
        return None
    expected = f"a number from 0 to {wraps_at - 1}, because of wraps_at={wraps_at}"
    return report_violation("number out of range", expected, number)


def unwrap_sequence(number: int, last: int, wraps_at: int | None) -> int:
    """The number without its wrap-arounds: the candidate nearest to the last number.

    Args:
        number: As the producer sent it.
        last: The number before, unwrapped in the same way.
        wraps_at: Modulus of the numbers (256 for 8 bits); None for numbers that do not wrap.
    """
    if wraps_at is None:
        return number
    half = wraps_at // 2
    return last + (number - last + half) % wraps_at - half


def check_wrap(field: str, wraps_at: int | None) -> None:
    """Refuse an invalid modulus.

    Raises:
        DeclarationError: It is not a whole number, or is too small to distinguish forward from back.
    """
    modulus = cast("object", wraps_at)  # users need no checker
    if modulus is not None and (isinstance(modulus, bool) or not isinstance(modulus, int) or modulus < WRAPS_AT_MIN):
        raise DeclarationError(field, wraps_at, "is not how many numbers there are", "256 for a number of 8 bits")


def describe_wrap(wraps_at: int | None) -> str:
    """See `IntegrityClass.unordered_because`, of classes that compare numbers."""
    if wraps_at is None:
        return ""
    return f"the numbers of a session restart at 0 after {wraps_at - 1} (wraps_at)"


def make_digest(record: Record) -> bytes:
    """An eight-byte digest of a message's content."""
    return blake2b(record.value or b"", digest_size=8).digest()
