"""Order of entries, in local stores and segments, and the entry that removes many others.

An entry whose key is 0xf8 and a prefix removes all entries with keys of this prefix; it has no value. The prefix
removals of a range are its first changes: they apply before each other one. No value has a key with 0xf8 as its first
byte.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Container, Iterable, Iterator
from itertools import chain
from typing import Final

Change = tuple[bytes, bytes | None]
"""A key and its new value; None when it was removed."""

KEY_BYTES_MAX = 511
"""lmdb's limit, compiled in."""
PREFIX_REMOVED: Final = b"\xf8"
PLAIN: Final = b"k"
HASHED: Final = b"h"
_SEPARATOR: Final = b"\xff"


def make_store_key(key: bytes) -> bytes:
    """The lmdb key of an entry: its own, or its hash when it is too long for lmdb."""
    if len(key) < KEY_BYTES_MAX:
        return PLAIN + key
    return HASHED + hashlib.blake2b(key, digest_size=32).digest()


def is_hashed(store_key: bytes) -> bool:
    """Whether an lmdb key is the hash of a key too long for lmdb."""
    return store_key.startswith(HASHED)


def sort_changes(changes: Collection[Change]) -> list[Change]:
    """Changes in their order: prefix removals, then all others by their lmdb keys."""
    removals, others = split_changes(changes)
    return [*removals, *sorted(others, key=lambda change: make_store_key(change[0]))]


def split_changes(changes: Collection[Change]) -> tuple[list[Change], Collection[Change]]:
    """The prefix removals, sorted and each once, and the other changes."""
    removals = {change for change in changes if change[1] is None and change[0].startswith(PREFIX_REMOVED)}
    if not removals:  # nearly always
        return [], changes
    others = [change for change in changes if change not in removals]
    return sorted(removals, key=lambda change: change[0]), others


def make_prefix_removal(prefix: bytes) -> Change:
    """The change that removes all entries with keys of a prefix, which ends in 0xff."""
    return PREFIX_REMOVED + prefix, None


def take_prefixes(changes: Iterable[Change]) -> tuple[set[bytes], Iterator[Change]]:
    """The prefix removals, which are the first of the changes, and the changes after them."""
    newer = iter(changes)
    removed = set[bytes]()
    for change in newer:
        if not is_prefix_removal(change):
            return removed, chain((change,), newer)
        removed.add(to_prefix(change))
    return removed, newer


def is_prefix_removal(change: Change) -> bool:
    """Whether a change removes all entries with keys of a prefix."""
    return change[1] is None and change[0].startswith(PREFIX_REMOVED)


def to_prefix(removal: Change) -> bytes:
    """The prefix of a prefix removal."""
    return removal[0][len(PREFIX_REMOVED) :]


def find_prefixes(key: bytes) -> Iterator[bytes]:
    """The prefixes of a key, or of a longer prefix, that a prefix removal may have: to its first or second 0xff."""
    first = key.find(_SEPARATOR) + 1
    if first:
        yield key[:first]
        second = key.find(_SEPARATOR, first) + 1
        if second:
            yield key[:second]


def is_removed(key: bytes, prefixes: Container[bytes]) -> bool:
    """Whether a key has one of the prefixes of prefix removals."""
    return any(prefix in prefixes for prefix in find_prefixes(key))
