"""The producer's numbers and contents, as second gates compare them. Pure."""

from __future__ import annotations

from hashlib import blake2b

from lockstep.declare.record import Record

LARGEST = 2**63 - 1


def fits_64_bits(number: int) -> bool:
    """Whether state and table can hold a producer's number."""
    return abs(number) <= LARGEST


def may_be_sent(number: int, wraps_at: int | None) -> bool:
    """Whether it is one of the numbers that a producer has."""
    return fits_64_bits(number) if wraps_at is None else number in range(wraps_at)


def counted_on(number: int, last: int, wraps_at: int | None) -> int:
    """A number as if it had never wrapped around: of all that it may stand for, the nearest to the last."""
    if wraps_at is None:
        return number
    ahead = (number - last) % wraps_at
    return last + ahead - (wraps_at if ahead >= wraps_at - wraps_at // 2 else 0)


def content_of(record: Record) -> bytes:
    """What tells the content of one message from another's, as it is stored."""
    return blake2b(record.value or b"", digest_size=8).digest()
