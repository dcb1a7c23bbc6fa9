"""Finds numbers that are keys of a table in two spellings, such as 8442.65 and 8442.65000000: two rows of one level."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any, Final

import msgspec
from msgspec.structs import astuple

from lockstep.folds.columns import ColumnFold
from lockstep.folds.table import TableFold

KEYS_MAX = 200_000
TEXT_LENGTH_MAX = 64
"""Keys that are compared, of texts up to this length: some 50 MB."""
_NUMBER: Final = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,9})?", re.ASCII)
"""Decimal has no exponent of twenty digits."""


class TwoSpellings(msgspec.Struct, frozen=True):
    """One number that was a key in two spellings.

    Attributes:
        session: The session.
        first: One of them.
        second: The other one.
    """

    session: str
    first: str
    second: str


class KeySpellings:
    """The numbers among the keys of a ready fold, by value.

    Attributes:
        found: The first number with two spellings; None without any.
    """

    def __init__(self, transform: object) -> None:
        self._transform = transform
        self._texts: dict[tuple[str, int, tuple[object, ...]], tuple[str, ...]] = {}
        self.found: TwoSpellings | None = None

    def note(self, session: str, message: object) -> None:
        """Compare the keys of a message with those before it."""
        if self.found is not None:
            return
        for key in self._list_keys(message):
            parts = _split(key)
            texts = tuple(part for part in parts if isinstance(part, str))
            if len(self._texts) >= KEYS_MAX or not texts or max(map(len, texts)) > TEXT_LENGTH_MAX:
                continue
            value = (session, len(parts), tuple(map(_find_value, parts)))
            first_texts = self._texts.setdefault(value, texts)
            if first_texts != texts:
                first, second = next(pair for pair in zip(first_texts, texts, strict=True) if pair[0] != pair[1])
                self.found = TwoSpellings(session, first, second)
                return

    def _list_keys(self, message: object) -> Iterator[object]:
        """The keys of a message, up to the first error of the user's code or key without a hash."""
        fold: Any = self._transform
        try:
            if isinstance(fold, TableFold):
                changes: Iterable[tuple[object, object]] = fold.changes(message)
                for key, _ in changes:
                    hash(key)
                    yield key
            elif isinstance(fold, ColumnFold):
                for row in getattr(message, fold.fields.rows, ()):
                    yield getattr(row, fold.fields.key)
        except Exception:  # noqa: BLE001  # the user's code: the fold itself has judged the message
            return


def _split(key: object) -> tuple[object, ...]:
    if isinstance(key, msgspec.Struct):
        return astuple(key)
    return key if isinstance(key, tuple) else (key,)


def _find_value(part: object) -> object:
    """The number of a text, marked as one; other parts as they are."""
    if isinstance(part, str) and _NUMBER.fullmatch(part):
        return ("number", Decimal(part))
    return part
