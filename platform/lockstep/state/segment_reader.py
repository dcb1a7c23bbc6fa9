"""Reads blocks of a segment without the others, each checked by its own checksum."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

import zstandard

from lockstep.model.position import SegmentRef
from lockstep.state.changelog import (
    PREAMBLE_BYTES,
    BlockAddress,
    SegmentHeader,
    StateDamaged,
    StateVersion,
    check_name,
    check_origin,
    count_header_bytes,
    count_index_bytes,
    decode_block,
    decode_header,
    decode_index,
    make_place,
)
from lockstep.state.entry_order import Change
from lockstep.storage import find_storage

OPENED_BYTES = 64 << 10
"""Read when a segment is opened: all of a small one, header and index of most others."""
READ_BYTES = 256 << 10
"""Read at a time when all entries are read: one request to an object store has its price."""


class SegmentReader:
    """A segment of which header and index are read.

    Attributes:
        ref: Its address.
        header: Its metadata.
        blocks: Its index.
        content_bytes: Bytes of the block that was read last, before compression.
    """

    def __init__(self, folder: Path, ref: SegmentRef, version: StateVersion) -> None:
        """Read header and index.

        Raises:
            StateDamaged: The file is missing, they are damaged, or it is another segment.
        """
        self._folder = folder
        self.ref = ref
        self._place = make_place(folder, ref)
        self._decompressor = zstandard.ZstdDecompressor()
        self._begin = b""
        self.content_bytes = 0
        check_name(ref, self._place)
        self._begin = self._read(0, min(ref.length, OPENED_BYTES))
        start = count_header_bytes(self._read(0, PREAMBLE_BYTES), self._place)
        self.header: SegmentHeader = decode_header(self._read(0, start), self._place)
        check_origin(self.header, ref, self._place, version)
        size = count_index_bytes(memoryview(self._read(start, 4)), self._place)
        blocks, _ = decode_index(memoryview(self._read(start, size)), ref.length - start, self._place)
        self.blocks: tuple[BlockAddress, ...] = blocks
        self._starts = [start + size]
        for block in self.blocks:
            self._starts.append(self._starts[-1] + block.length)

    def read(self, number: int) -> list[Change]:
        """The entries of one block. Raises StateDamaged."""
        return self._decode(number, memoryview(self._read(self._starts[number], self.blocks[number].length)))

    def entries(self, first: int = 0) -> Iterator[Change]:
        """All entries from a block on, with few requests and little memory. Raises StateDamaged."""
        while first < len(self.blocks):
            until = first + 1
            while until < len(self.blocks) and self._starts[until + 1] - self._starts[first] <= READ_BYTES:
                until += 1
            data = memoryview(self._read(self._starts[first], self._starts[until] - self._starts[first]))
            for number in range(first, until):
                start = self._starts[number] - self._starts[first]
                yield from self._decode(number, data[start : start + self.blocks[number].length])
            first = until

    def _decode(self, number: int, frame: memoryview) -> list[Change]:
        block = self.blocks[number]
        place = f"{self._place}, block {number}"
        checksum = zlib.crc32(frame)
        if checksum != block.checksum:
            raise StateDamaged(place, f"checksum {block.checksum:08x}", f"{checksum:08x}")
        entries = decode_block(self._decompressor, frame, place)
        self.content_bytes = zstandard.frame_content_size(frame)
        return entries

    def _read(self, start: int, length: int) -> bytes:
        """Bytes of the segment."""
        if start + length <= len(self._begin):
            return self._begin[start : start + length]
        if start + length > self.ref.length:
            raise StateDamaged(self._place, f"{start + length} bytes", self.ref.length)
        try:
            data = find_storage(self._folder).read_range(self._folder / self.ref.file, self.ref.start + start, length)
        except FileNotFoundError:
            raise StateDamaged(self._place, "a durable state file", "no such file") from None
        if len(data) != length:
            raise StateDamaged(self._place, f"{length} bytes", f"{len(data)}: the file is cut short")
        return data
