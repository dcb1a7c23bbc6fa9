"""A section: the changed entries of one partition in one batch, as bytes. Pure.

    magic (8)  version (2)  header length (4)  CRC-32 of all other bytes (4)
    header: msgpack, zstd
    blocks, each: length (4), zstd frame with content checksum of msgpack [[session, value or nil], ...]

A header holds the section's whole chain, so one reference leads to all that a rebuild needs.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator

import msgspec
import zstandard

from lockstep.errors import StateError
from lockstep.state.address import SectionRef, StateAddress
from lockstep.state.shape import Shape

MAGIC = b"lockstep"
VERSION = 1
BLOCK_BYTES = 4 << 20
"""Entries packed at a time: bounds memory on both sides to one block beside the compressed section.
Much smaller blocks compress worse; much larger ones only cost memory."""

Change = tuple[bytes, bytes | None]
"""A session and its new value; None when it was removed."""

_PREAMBLE = struct.Struct("<8sHII")
PREAMBLE_BYTES = _PREAMBLE.size
_LENGTH = struct.Struct("<I")
_ENCODER = msgspec.msgpack.Encoder()
_CHANGES = msgspec.msgpack.Decoder(list[Change])


class StateDamaged(StateError):
    """A durable state file is missing, damaged, or not what its address says.

    Attributes:
        place: The file and, where known, the bytes in it.
        expected: What should be there.
        found: What is there.
    """

    def __init__(self, place: str, expected: object, found: object) -> None:
        super().__init__(
            f"durable state {place}: expected {expected}, found {found}",
            next_step="put the file back from a copy of the stream's `state` folder; no batch runs without",
        )
        self.place = place
        self.expected = expected
        self.found = found


class SectionHeader(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What a section says of itself.

    Attributes:
        generation: Lineage of the batch that wrote it.
        topic_id: Kafka's id of the topic's life.
        partition: Partition number.
        next_offset: With its chain before it, the section gives the state before this offset.
        chain: The state base and the deltas before this section, in order; empty for a state base.
        shape: Shape of the state type that wrote it, with its hash.
        base_bytes: Bytes of the chain's state base, before compression.
        delta_bytes: Bytes of the chain's deltas up to and with this one, before compression.
        entries: Number of entries in this section.
        plain: Shape of the chain's values without a mark, where that is another than `shape`.
        older: Shapes of marked values in the chain, other than `shape` (state/versions.py).
        file: Name of the file it was written into: a copy of an older one in its place is not taken for it.
    """

    generation: int
    topic_id: str
    partition: int
    next_offset: int
    chain: tuple[SectionRef, ...]
    shape_hash: str
    shape: Shape
    base_bytes: int
    delta_bytes: int
    entries: int
    plain: Shape | None = None
    older: tuple[Shape, ...] = ()
    file: str = ""

    @property
    def is_base(self) -> bool:
        """Whether the section is a full copy."""
        return not self.chain


_HEADERS = msgspec.msgpack.Decoder(SectionHeader)


class Packed(msgspec.Struct, frozen=True):
    """Entries ready to be written.

    Attributes:
        blocks: Compressed blocks, each with its length before it.
        entries: Number of entries.
        size: Bytes of keys and values before compression.
    """

    blocks: tuple[bytes, ...]
    entries: int
    size: int


class Section(msgspec.Struct, frozen=True):
    """A section that was read and found whole.

    Attributes:
        header: What it says of itself.
        place: The file and bytes it came from, for messages.
        body: Its compressed blocks.
    """

    header: SectionHeader
    place: str
    body: memoryview

    def blocks(self) -> Iterator[list[Change]]:
        """The entries, block by block, so that memory holds one block at a time."""
        decompressor, at = zstandard.ZstdDecompressor(), 0
        while at < len(self.body):
            (length,) = _LENGTH.unpack_from(self.body, at)
            frame = self.body[at + _LENGTH.size : at + _LENGTH.size + length]
            at += _LENGTH.size + length
            yield _unpacked(decompressor, frame, self.place)


def change_bytes(change: Change) -> int:
    """Size of a change before compression."""
    return len(change[0]) + (len(change[1]) if change[1] is not None else 0)


def pack(entries: Iterable[Change], compressor: zstandard.ZstdCompressor) -> Packed:
    """Pack entries into compressed blocks of about `BLOCK_BYTES`."""
    blocks: list[bytes] = []
    count = size = 0
    for block in in_blocks(entries):
        blocks.append(_block(block, compressor))
        count, size = count + len(block), size + sum(map(change_bytes, block))
    return Packed(tuple(blocks), count, size)


def in_blocks(entries: Iterable[Change]) -> Iterator[list[Change]]:
    """The entries in lists of about `BLOCK_BYTES`."""
    waiting: list[Change] = []
    waiting_bytes = 0
    for entry in entries:
        waiting.append(entry)
        waiting_bytes += change_bytes(entry)
        if waiting_bytes >= BLOCK_BYTES:
            yield waiting
            waiting, waiting_bytes = [], 0
    if waiting:
        yield waiting


def encode_section(header: SectionHeader, packed: Packed, compressor: zstandard.ZstdCompressor) -> bytes:
    """The bytes of a section."""
    head = compressor.compress(_ENCODER.encode(header))
    rest = b"".join((head, *packed.blocks))
    checksum = zlib.crc32(rest, zlib.crc32(_PREAMBLE.pack(MAGIC, VERSION, len(head), 0)))
    return _PREAMBLE.pack(MAGIC, VERSION, len(head), checksum) + rest


def decode_section(data: bytes, place: str) -> Section:
    """Read a section, checking every byte of it.

    Raises:
        StateDamaged: It is not whole, or of another format version.
    """
    head_length, checksum = _checked_preamble(data, place)
    body = memoryview(data)[_PREAMBLE.size :]
    actual = zlib.crc32(body, zlib.crc32(_PREAMBLE.pack(MAGIC, VERSION, head_length, 0)))
    if actual != checksum:
        raise StateDamaged(place, f"checksum {checksum:08x}", f"{actual:08x}")
    return Section(_header(body[:head_length], place), place, body[head_length:])


def decode_header(preamble_and_header: bytes, place: str) -> SectionHeader:
    """The header of a section whose entries are not looked at; `data` begins where the section does.

    Raises:
        StateDamaged: It is not whole, or of another format version.
    """
    head_length = _checked_preamble(preamble_and_header, place)[0]
    return _header(memoryview(preamble_and_header)[_PREAMBLE.size :][:head_length], place)


def header_bytes(preamble: bytes, place: str) -> int:
    """Bytes of a section's preamble and header, from its first `PREAMBLE_BYTES`. Raises StateDamaged."""
    return PREAMBLE_BYTES + _checked_preamble(preamble, place)[0]


def check_header(header: SectionHeader, place: str, address: StateAddress) -> None:
    """Check that a section may stand behind an address.

    A rewind begins a new generation on sections of an earlier one, and offsets may have moved on
    without a change: both may be lower than the address says, never higher.

    Raises:
        StateDamaged: It belongs to another partition, a later generation or a later offset.
    """
    expected = f"topic id {address.topic_id} partition {address.partition}"
    found = f"topic id {header.topic_id} partition {header.partition}"
    if expected != found:
        raise StateDamaged(place, expected, found)
    if header.generation > address.generation:
        raise StateDamaged(place, f"generation {address.generation} or earlier", header.generation)
    if header.next_offset > address.next_offset:
        raise StateDamaged(place, f"state before offset {address.next_offset} or earlier", header.next_offset)


def _checked_preamble(data: bytes, place: str) -> tuple[int, int]:
    """Length of the header and checksum of the section."""
    if len(data) < _PREAMBLE.size:
        raise StateDamaged(place, f"at least {_PREAMBLE.size} bytes", f"{len(data)}")
    magic, version, head_length, checksum = _PREAMBLE.unpack_from(data)
    if magic != MAGIC:
        raise StateDamaged(place, f"the mark {MAGIC!r}", f"{magic!r}")
    if version != VERSION:
        raise StateDamaged(place, f"format version {VERSION}", f"{version}")
    return head_length, checksum


def _header(frame: memoryview, place: str) -> SectionHeader:
    try:
        return _HEADERS.decode(zstandard.ZstdDecompressor().decompress(frame))
    except (zstandard.ZstdError, msgspec.MsgspecError) as error:
        raise StateDamaged(place, "a header as encoded", str(error)) from error


def _block(entries: list[Change], compressor: zstandard.ZstdCompressor) -> bytes:
    frame = compressor.compress(_ENCODER.encode(entries))
    return _LENGTH.pack(len(frame)) + frame


def _unpacked(decompressor: zstandard.ZstdDecompressor, frame: memoryview, place: str) -> list[Change]:
    try:
        return _CHANGES.decode(decompressor.decompress(frame))
    except (zstandard.ZstdError, msgspec.MsgspecError) as error:
        raise StateDamaged(place, "entries as packed", str(error)) from error
