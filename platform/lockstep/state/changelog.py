"""Durable changelog files: segments, base or delta, chain, references.

Offsets alone do not name a state: a retried task may reach the same offset with another result.
So an address names the committed section, and a section's file name ends in a uuid drawn by the
task that wrote it: two sections are never called the same.

magic (8)  version (2)  header length (4)  CRC-32 of all other bytes (4)
    header: msgpack, zstd
    blocks, each: length (4), zstd frame with content checksum of msgpack [[session, value or nil], ...]

A header holds the section's whole chain, so one reference leads to all that a rebuild needs.
"""

from __future__ import annotations

import os
import struct
import uuid
import zlib
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import msgspec
import zstandard

from lockstep.errors import StateError
from lockstep.model.state_types import StateTypeSchema


class SegmentRef(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where one partition's section lies in a durable state file.

    Attributes:
        file: Name of the file, relative to the stream's state folder.
        start: First byte of the section.
        length: Bytes of the section.
    """

    file: str
    start: int
    length: int

    def __str__(self) -> str:
        return f"{self.file} bytes {self.start} to {self.start + self.length}"


class StateVersion(msgspec.Struct, frozen=True, gc=False):
    """Exactly one state of one partition: what a plan sends to a task.

    Attributes:
        generation: The lineage of batches that reads it. Its sections are of this generation or,
            after a rewind, of an earlier one.
        topic_id: Kafka's id of the topic's life.
        partition: Partition number.
        next_offset: The state is the fold of all offsets before this one.
        section: The last section that changed the state; None while the state is empty. Offsets
            that change nothing move `next_offset` and leave the section as it is.
    """

    generation: int
    topic_id: str
    partition: int
    next_offset: int
    section: SegmentRef | None

    def __str__(self) -> str:
        partition = f"{self.topic_id}/{self.partition}"
        return f"state of {partition} before offset {self.next_offset} (generation {self.generation})"


def make_empty_state(generation: int, topic_id: str, partition: int, next_offset: int) -> StateVersion:
    """The address of a partition that has no state yet."""
    return StateVersion(generation, topic_id, partition, next_offset, None)


def advance(address: StateVersion, next_offset: int, section: SegmentRef | None) -> StateVersion:
    """The address after a range: a later offset, and the section that the range wrote or kept."""
    return msgspec.structs.replace(address, next_offset=next_offset, section=section)


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


class SegmentHeader(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
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
        older: Shapes of marked values in the chain, other than `shape` (state/values.py).
        file: Name of the file it was written into: a copy of an older one in its place is not taken for it.
    """

    generation: int
    topic_id: str
    partition: int
    next_offset: int
    chain: tuple[SegmentRef, ...]
    shape_hash: str
    shape: StateTypeSchema
    base_bytes: int
    delta_bytes: int
    entries: int
    plain: StateTypeSchema | None = None
    older: tuple[StateTypeSchema, ...] = ()
    file: str = ""

    @property
    def is_base(self) -> bool:
        """Whether the section is a full copy."""
        return not self.chain


_HEADERS = msgspec.msgpack.Decoder(SegmentHeader)


class CompressedBlocks(msgspec.Struct, frozen=True):
    """Entries ready to be written.

    Attributes:
        blocks: Compressed blocks, each with its length before it.
        entries: Number of entries.
        size: Bytes of keys and values before compression.
    """

    blocks: tuple[bytes, ...]
    entries: int
    size: int


class Segment(msgspec.Struct, frozen=True):
    """A section that was read and found whole.

    Attributes:
        header: What it says of itself.
        place: The file and bytes it came from, for messages.
        body: Its compressed blocks.
    """

    header: SegmentHeader
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


def count_change_bytes(change: Change) -> int:
    """Size of a change before compression."""
    return len(change[0]) + (len(change[1]) if change[1] is not None else 0)


def compress_blocks(entries: Iterable[Change], compressor: zstandard.ZstdCompressor) -> CompressedBlocks:
    """Pack entries into compressed blocks of about `BLOCK_BYTES`."""
    blocks: list[bytes] = []
    count = size = 0
    for block in iterate_blocks(entries):
        blocks.append(_block(block, compressor))
        count, size = count + len(block), size + sum(map(count_change_bytes, block))
    return CompressedBlocks(tuple(blocks), count, size)


def iterate_blocks(entries: Iterable[Change]) -> Iterator[list[Change]]:
    """The entries in lists of about `BLOCK_BYTES`."""
    waiting: list[Change] = []
    waiting_bytes = 0
    for entry in entries:
        waiting.append(entry)
        waiting_bytes += count_change_bytes(entry)
        if waiting_bytes >= BLOCK_BYTES:
            yield waiting
            waiting, waiting_bytes = [], 0
    if waiting:
        yield waiting


def encode_segment(header: SegmentHeader, packed: CompressedBlocks, compressor: zstandard.ZstdCompressor) -> bytes:
    """The bytes of a section."""
    head = compressor.compress(_ENCODER.encode(header))
    rest = b"".join((head, *packed.blocks))
    checksum = zlib.crc32(rest, zlib.crc32(_PREAMBLE.pack(MAGIC, VERSION, len(head), 0)))
    return _PREAMBLE.pack(MAGIC, VERSION, len(head), checksum) + rest


def decode_segment(data: bytes, place: str) -> Segment:
    """Read a section, checking every byte of it.

    Raises:
        StateDamaged: It is not whole, or of another format version.
    """
    head_length, checksum = _checked_preamble(data, place)
    body = memoryview(data)[_PREAMBLE.size :]
    actual = zlib.crc32(body, zlib.crc32(_PREAMBLE.pack(MAGIC, VERSION, head_length, 0)))
    if actual != checksum:
        raise StateDamaged(place, f"checksum {checksum:08x}", f"{actual:08x}")
    return Segment(_header(body[:head_length], place), place, body[head_length:])


def decode_header(preamble_and_header: bytes, place: str) -> SegmentHeader:
    """The header of a section whose entries are not looked at; `data` begins where the section does.

    Raises:
        StateDamaged: It is not whole, or of another format version.
    """
    head_length = _checked_preamble(preamble_and_header, place)[0]
    return _header(memoryview(preamble_and_header)[_PREAMBLE.size :][:head_length], place)


def count_header_bytes(preamble: bytes, place: str) -> int:
    """Bytes of a section's preamble and header, from its first `PREAMBLE_BYTES`. Raises StateDamaged."""
    return PREAMBLE_BYTES + _checked_preamble(preamble, place)[0]


def check_header(header: SegmentHeader, place: str, address: StateVersion) -> None:
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


def _header(frame: memoryview, place: str) -> SegmentHeader:
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


ZSTD_LEVEL = 1
"""Higher levels cost several times the CPU for a few percent, on data that lives for minutes."""


class StateFileWriter:
    """Writes the state file of one task and batch; no file at all when no partition changed.

    As a context manager it closes on success and abandons on an exception.

    Attributes:
        name: The file's name in the state folder; ends in a uuid drawn here, because a zombie
            task may run beside this one with the same batch and attempt.
        is_durable: Whether all that was added is on disk.
    """

    def __init__(self, folder: Path, label: str) -> None:
        self.name = f"{label}-{uuid.uuid4().hex}.state"
        self.is_durable = False
        self._folder = folder
        self._file: BinaryIO | None = None
        self._compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_checksum=True)

    @classmethod
    def open(cls, folder: Path, label: str = "state") -> StateFileWriter:
        """Prepare a file in `folder`; `label` names the batch that writes it."""
        return cls(folder, label)

    def pack(self, entries: Iterable[Change]) -> CompressedBlocks:
        """Compress entries for `add`."""
        return compress_blocks(entries, self._compressor)

    def add(self, header: SegmentHeader, packed: CompressedBlocks) -> SegmentRef:
        """Append the section of one partition and say where it lies."""
        file = self._file or self._create()
        section = encode_segment(msgspec.structs.replace(header, file=self.name), packed, self._compressor)
        ref = SegmentRef(self.name, file.tell(), len(section))
        file.write(section)
        return ref

    def close(self) -> None:
        """Bring the file and its folder's entry to disk; only then may anything refer to it."""
        if self._file is not None:
            try:
                self._file.flush()
                os.fsync(self._file.fileno())
                sync_folder(self._folder)
            except OSError:
                self.abandon()
                raise
            self._file.close()
            self._file = None
        self.is_durable = True

    def abandon(self) -> None:
        """Remove what was written; nothing refers to it."""
        if self._file is not None:
            self._file.close()
            self._file = None
            (self._folder / self.name).unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    def _create(self) -> BinaryIO:
        if not self._folder.exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            sync_folder(self._folder.parent)
        self._file = (self._folder / self.name).open("xb")
        return self._file


def read_segment(folder: Path, ref: SegmentRef, address: StateVersion) -> Segment:
    """Read one section of the chain behind an address.

    Raises:
        StateDamaged: The file is missing, any byte of the section is wrong, or it belongs to
            another partition, a later generation or a later offset than the address.
    """
    place = _place(folder, ref)
    try:
        with (folder / ref.file).open("rb", buffering=0) as file:
            data = os.pread(file.fileno(), ref.length, ref.start)
    except FileNotFoundError:
        raise StateDamaged(place, f"the file of the {address}", "no such file") from None
    if len(data) != ref.length:
        raise StateDamaged(place, f"{ref.length} bytes", f"{len(data)}: the file is cut short")
    section = decode_segment(data, place)
    check_header(section.header, place, address)
    if section.header.file not in {ref.file, ""}:  # releases before 0.2 did not say
        raise StateDamaged(place, f"what was written as {ref.file}", section.header.file)
    return section


def read_header(folder: Path, ref: SegmentRef) -> SegmentHeader:
    """What one section says of itself; its entries are not read.

    Raises:
        StateDamaged: The file is missing, or the section's header is not whole.
    """
    place = _place(folder, ref)
    try:
        with (folder / ref.file).open("rb", buffering=0) as file:
            preamble = os.pread(file.fileno(), PREAMBLE_BYTES, ref.start)
            return decode_header(os.pread(file.fileno(), count_header_bytes(preamble, place), ref.start), place)
    except FileNotFoundError:
        raise StateDamaged(place, "a durable state file", "no such file") from None


def _place(folder: Path, ref: SegmentRef) -> str:
    return f"{folder / ref.file} (bytes {ref.start} to {ref.start + ref.length})"


def sync_folder(folder: Path) -> None:
    """Bring the entries of a folder to disk: a new file's name lives there."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


CHAIN_MAX = 64
"""Sections in a chain at most. A rebuild opens one file per section (some 50 us each) and a header
carries the whole chain (some 30 bytes each, compressed), so longer chains cost every batch; shorter
ones copy a large, slowly changing state too often."""


class RestoreKind(Enum):
    """How a hot copy came to the state that was asked for."""

    CURRENT = "current"
    """It held exactly this state."""
    ROLLED_FORWARD = "rolled forward"
    """It held an earlier state of the same chain."""
    REBUILT = "rebuilt"
    """It was made anew from the state base and its deltas, or is empty as the state is."""


class RestorePlan(msgspec.Struct, frozen=True):
    """What has to be read to bring a hot copy to a state.

    Attributes:
        recovery: How the hot copy comes to the state.
        sections: The sections to apply, in order.
    """

    recovery: RestoreKind
    sections: tuple[SegmentRef, ...]


def restore_plan(held: SegmentRef | None, head: SegmentRef, chain: tuple[SegmentRef, ...]) -> RestorePlan:
    """What to read when a copy holds the state of one section and that of `head` is wanted.

    Args:
        held: The section whose state the copy holds; None when that is not known.
        head: The section whose state is wanted.
        chain: What comes before `head`, from its state base on.
    """
    whole = (*chain, head)
    if held not in whole:
        return RestorePlan(RestoreKind.REBUILT, whole)
    missing = whole[whole.index(held) + 1 :]
    return RestorePlan(RestoreKind.ROLLED_FORWARD if missing else RestoreKind.CURRENT, missing)


def is_base_due(header: SegmentHeader, size: int) -> bool:
    """Whether the next section is a full copy: deltas would outgrow the base, or the chain its limit.

    Args:
        header: Header of the newest section.
        size: Bytes of the changes to be written, before compression.
    """
    if header.delta_bytes + size >= header.base_bytes:
        return True
    return len(header.chain) + 1 >= compute_chain_limit(header.topic_id, header.partition)


def append_to_chain(header: SegmentHeader, head: SegmentHeader, head_ref: SegmentRef) -> SegmentHeader:
    """The header of a delta: `header` put behind the section `head` that lies at `head_ref`."""
    return msgspec.structs.replace(
        header,
        chain=(*head.chain, head_ref),
        base_bytes=head.base_bytes,
        delta_bytes=head.delta_bytes + header.base_bytes,
    )


def compute_chain_limit(topic_id: str, partition: int) -> int:
    """Sections after which this partition writes a base: spread, so that not all do in one batch."""
    spread = CHAIN_MAX // 2
    return CHAIN_MAX - zlib.crc32(f"{topic_id}/{partition}".encode()) % spread
