"""One spelling of a number that is the key of a row: 1.0 and 1.00 are equal, and their encodings are not."""

from __future__ import annotations

from decimal import Decimal
from typing import cast

DIGITS_MAX = 40
"""Digits up to which a whole number is spelled out: `1E+6` is a million, and `1E+999999` stays as it is."""


def make_canonical_key(key: object) -> object:
    """The spelling under which a key is stored, and with which its removal is emitted; equal keys have one.

    Args:
        key: A value of a key type: numbers, texts, bytes, enums, or tuples of them.
    """
    kind = type(key)
    if kind is Decimal:
        return _shorten(cast("Decimal", key))
    if kind is float:
        return key or 0.0  # -0.0 equals 0.0
    if kind is tuple:
        return tuple(map(make_canonical_key, cast("tuple[object, ...]", key)))
    return key


def _shorten(number: Decimal) -> Decimal:
    """A number without zeros at the end of its fraction; exact, unlike `Decimal.normalize`, which rounds."""
    sign, digits, exponent = number.as_tuple()
    if isinstance(exponent, str):  # infinity
        return number
    if not number:
        return Decimal(0)
    if len(digits) <= DIGITS_MAX and (exponent == 0 or (exponent < 0 and digits[-1])):
        return number
    count = len(digits)
    while digits[count - 1] == 0:
        count -= 1
    zeros = exponent + len(digits) - count
    if 0 < zeros <= DIGITS_MAX - count:
        return Decimal((sign, digits[:count] + (0,) * zeros, 0))
    return Decimal((sign, digits[:count], zeros))
