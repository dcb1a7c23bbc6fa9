"""A local store that is filled from the durable files over several batches, and may be read from the start.

It has all entries before a key, as of its stamp. All others are read from the segments.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from lockstep.state.chain_reader import ChainReader
from lockstep.state.changelog import count_change_bytes, iterate_blocks
from lockstep.state.entry_order import Change, is_prefix_removal, make_store_key
from lockstep.state.local_store import LocalStore
from lockstep.state.merging import merge_changes

FILLED_BYTES = 32_000_000
"""Entries that a batch adds to a local store: some tenths of a second."""


class StoredEntries(Protocol):
    """The entries of one state."""

    def get(self, key: bytes) -> bytes | None:
        """The value of an entry; None without one."""
        ...

    def items(self, changes: Iterable[Change] = ()) -> Iterator[tuple[bytes, bytes]]:
        """All entries as they are after some changes, in order."""
        ...

    def scan(self, prefix: bytes, after: bytes, most: int) -> list[tuple[bytes, bytes]]:
        """Entries with short names by prefix, after a given name, in order, at most so many."""
        ...

    def scan_all(self, prefix: bytes) -> list[tuple[bytes, bytes]]:
        """All entries by name prefix."""
        ...


class FillingStore:
    """The entries of a local store before a key, and those of the segments from it on. Implements `StoredEntries`."""

    def __init__(self, local: LocalStore, durable: ChainReader, filled: bytes) -> None:
        """Read from both.

        Args:
            local: Has the entries before `filled`.
            durable: Has all entries of the same state.
            filled: An lmdb key.
        """
        self._local = local
        self._durable = durable
        self._filled = filled

    def get(self, key: bytes) -> bytes | None:
        """See StoredEntries."""
        if make_store_key(key) < self._filled:
            return self._local.get(key)
        return self._durable.get(key)

    def items(self, changes: Iterable[Change] = ()) -> Iterator[tuple[bytes, bytes]]:
        """See StoredEntries."""
        stored = self._iterate_stored()
        return ((key, value) for key, value in merge_changes((stored, changes)) if value is not None)

    def scan(self, prefix: bytes, after: bytes, most: int) -> list[tuple[bytes, bytes]]:
        """See StoredEntries."""
        entries = self._local.scan(prefix, after, most)
        if len(entries) >= most:
            return entries
        start = max(self._filled, make_store_key(after))
        for entry in self._durable.iterate(start, is_cached=True):
            if not entry[0].startswith(prefix):
                break
            if entry[0] > after:
                entries.append(entry)
                if len(entries) == most:
                    break
        return entries

    def scan_all(self, prefix: bytes) -> list[tuple[bytes, bytes]]:
        """See StoredEntries."""
        return [*self._local.scan_all(prefix), *self._durable.scan(prefix, self._filled)]

    def fill(self) -> bytes | None:
        """Put the next entries into the local store; returns the new end of its entries, None when it has all."""
        size = 0
        for block in iterate_blocks(self._durable.iterate(self._filled)):
            self._local.apply(block, None)
            size += sum(map(count_change_bytes, block))
            if size >= FILLED_BYTES:
                return make_store_key(block[-1][0]) + b"\0"  # the smallest key behind it
        return None

    def _iterate_stored(self) -> Iterator[Change]:
        yield from self._local.items()
        yield from self._durable.iterate(self._filled)


def keep_filled(changes: Iterable[Change], filled: bytes | None) -> Iterable[Change]:
    """The changes that a local store takes when it has the entries before an lmdb key; all without one."""
    if filled is None:
        return changes
    return (change for change in changes if is_prefix_removal(change) or make_store_key(change[0]) < filled)
