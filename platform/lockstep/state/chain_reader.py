"""Reads single entries of a state from its segments, through their indexes; no local store is needed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import chain, takewhile
from pathlib import Path
from typing import Final

from lockstep.model.position import SegmentRef
from lockstep.state.changelog import StateVersion
from lockstep.state.entry_order import (
    HASHED,
    PLAIN,
    Change,
    is_hashed,
    is_removed,
    make_prefix_removal,
    make_store_key,
    to_prefix,
)
from lockstep.state.merging import merge_changes
from lockstep.state.segment_reader import SegmentReader
from lockstep.storage import find_storage

CACHED_BYTES = 32_000_000
"""Of the blocks that a task keeps decoded: of the small, newest segments, and of sessions in use."""
_ENTRY_BYTES: Final = 150
"""Objects and a dict slot of an entry."""


class NotFound:
    """An entry that a segment does not change."""


_NOT_FOUND: Final = NotFound()
_Block = dict[bytes, bytes | None]


class BlockCache:
    """Decoded blocks of segments; a block that was not used lately is given up first."""

    def __init__(self, bytes_max: int = CACHED_BYTES) -> None:
        self._bytes_max = bytes_max
        self._held = 0
        self._blocks: dict[tuple[SegmentRef, int], tuple[_Block, int]] = {}

    def read(self, reader: SegmentReader, number: int) -> _Block:
        """The entries of a block by key, in their order. Raises StateDamaged."""
        place = (reader.ref, number)
        cached = self._blocks.pop(place, None)
        if cached is None:
            block = dict(reader.read(number))
            size = reader.content_bytes + len(block) * _ENTRY_BYTES
            cached = (block, size)
            self._held += size
        self._blocks[place] = cached
        while self._held > self._bytes_max and len(self._blocks) > 1:
            self._held -= self._blocks.pop(next(iter(self._blocks)))[1]
        return cached[0]


class _IndexedSegment:
    """One segment of the chain.

    Attributes:
        removed: The prefixes that it removes.
    """

    def __init__(self, reader: SegmentReader, cache: BlockCache) -> None:
        self._reader = reader
        self._cache = cache
        self._firsts = [block.first for block in reader.blocks]
        self._begin = bisect_right(self._firsts, b"")
        removals = chain.from_iterable(reader.read(number) for number in range(self._begin))
        self.removed = {to_prefix(change) for change in removals}

    @property
    def has_hashed(self) -> bool:
        """Whether an entry has a name too long for lmdb; such entries are the first."""
        return self._begin < len(self._firsts) and is_hashed(self._firsts[self._begin])

    def find(self, key: bytes, store_key: bytes) -> bytes | NotFound | None:
        """The new value of a key; None when the segment removes it."""
        number = bisect_right(self._firsts, store_key) - 1
        if number >= self._begin:
            value = self._cache.read(self._reader, number).get(key, _NOT_FOUND)
            if not isinstance(value, NotFound):
                return value
        return None if self.removed and is_removed(key, self.removed) else _NOT_FOUND

    def iterate(self, start: bytes, *, is_cached: bool) -> Iterator[Change]:
        """The prefix removals, and the other changes from an lmdb key on."""
        number = max(bisect_right(self._firsts, start) - 1, self._begin)
        yield from map(make_prefix_removal, sorted(self.removed))
        entries = self._cached(number) if is_cached else self._reader.entries(number)
        for change in entries:
            if make_store_key(change[0]) >= start:
                yield change
                yield from entries  # all others are behind it: their keys are not computed

    def _cached(self, number: int) -> Iterator[Change]:
        for following in range(number, len(self._firsts)):
            yield from self._cache.read(self._reader, following).items()


class ChainReader:
    """The entries of a version, each from the newest segment that changes it.

    All methods raise `StateDamaged` when a file is missing or a block is damaged.
    """

    def __init__(self, folder: Path, version: StateVersion, whole: tuple[SegmentRef, ...], cache: BlockCache) -> None:
        """Read the indexes of a chain, from its base on."""
        readers = find_storage(folder).map_files(lambda ref: SegmentReader(folder, ref, version), whole)
        self._segments = [_IndexedSegment(reader, cache) for reader in readers]
        self._newest_first = self._segments[::-1]

    def get(self, key: bytes) -> bytes | None:
        """The value of an entry; None without one."""
        store_key = make_store_key(key)
        for segment in self._newest_first:
            value = segment.find(key, store_key)
            if not isinstance(value, NotFound):
                return value
        return None

    def iterate(self, start: bytes, *, is_cached: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """All entries from an lmdb key on, in order.

        Args:
            start: The lmdb key.
            is_cached: Few entries are read, and others of the same blocks later.
        """
        streams = [segment.iterate(start, is_cached=is_cached) for segment in self._segments]
        return ((key, value) for key, value in merge_changes(streams) if value is not None)

    def scan(self, prefix: bytes, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Entries by key prefix, from an lmdb key on; those with short names in order, then the others."""
        wanted = make_store_key(prefix)
        if not is_hashed(wanted):
            entries = self.iterate(max(wanted, start), is_cached=True)
            yield from takewhile(lambda entry: entry[0].startswith(prefix), entries)
        if start < PLAIN and any(segment.has_hashed for segment in self._segments):
            # Sorted by their hashes: all of them are read.
            for entry in self.iterate(max(HASHED, start)):
                if not is_hashed(make_store_key(entry[0])):
                    return
                if entry[0].startswith(prefix):
                    yield entry
