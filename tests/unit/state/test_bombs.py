"""A small state file takes little memory, for any sizes stated in it; a written file can always be read."""

from __future__ import annotations

import struct
import tracemalloc
import zlib
from typing import TYPE_CHECKING

import msgspec
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lockstep.model.position import SegmentRef
from lockstep.model.state_types import hash_of_type_schema, make_type_schema
from lockstep.state.changelog import (
    ANY_FRAME_BYTES,
    HEADER_BYTES_MAX,
    MAGIC,
    VERSION,
    SegmentHeader,
    StateDamaged,
    StateFileWriter,
    StateVersion,
    compute_frame_limit,
    read_header,
    read_segment,
)
from lockstep.state.entry_order import Change

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SHAPE = make_type_schema(int)
HEADER = SegmentHeader(1, "id", 0, 10, (), hash_of_type_schema(SHAPE), SHAPE, 9, 0, 1, file="x.state")
MEMORY_MAX = 160_000_000
"""The memory for a file of some kilobytes: a block of the smallest entries, decoded."""
MIB = 1 << 20


def frame_of(content: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=1, write_checksum=True).compress(content)


def zeros(size: int) -> bytes:
    """Return a frame of that many zeros, without all of them in memory."""
    writer = zstandard.ZstdCompressor(level=19).compressobj(size=size)
    pieces = [writer.compress(bytes(MIB)) for _ in range(size // MIB)]
    return b"".join((*pieces, writer.flush()))


def segment_of(head: bytes, block: bytes) -> bytes:
    index = frame_of(msgspec.msgpack.encode([(b"", len(block), zlib.crc32(block))]))
    return segment_with(head, index, block)


def segment_with(head: bytes, index: bytes, block: bytes = b"") -> bytes:
    rest = b"".join((head, struct.pack("<I", len(index)), index, block))
    checksum = zlib.crc32(rest, zlib.crc32(struct.pack("<8sHII", MAGIC, VERSION, len(head), 0)))
    return struct.pack("<8sHII", MAGIC, VERSION, len(head), checksum) + rest


def read_all(folder: Path, data: bytes, length: int | None = None) -> int:
    """Read a file as a header and as a segment; return the number of its entries."""
    (folder / "x.state").write_bytes(data)
    ref = SegmentRef("x.state", 0, len(data) if length is None else length)
    read_header(folder, ref)
    segment = read_segment(folder, ref, StateVersion(1, "id", 0, 10, ref))
    return sum(len(block) for block in segment.blocks())


def measure(act: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


HEAD = frame_of(msgspec.msgpack.encode(HEADER))
SMALLEST = msgspec.msgpack.encode([[b"", None]])[1:]
MANY = b"\xdd" + struct.pack(">I", 7 * MIB)
BOMBS = {
    "33 kB of 1.2 GB": lambda: segment_of(HEAD, zeros(1_200 * MIB)),
    "a header of 1.2 GB": lambda: segment_of(zeros(1_200 * MIB), b""),
    "a header of little more than one": lambda: segment_of(zeros(-(-HEADER_BYTES_MAX // MIB) * MIB), b""),
    "entries of four bytes": lambda: segment_of(HEAD, frame_of(MANY + SMALLEST * 7 * MIB)),
    "an index of 1.2 GB": lambda: segment_with(HEAD, zeros(1_200 * MIB)),
    "an index of four bytes a block": lambda: segment_with(HEAD, frame_of(MANY + b"\x93\xc4\x00\x00" * 7 * MIB)),
    "a nested index": lambda: segment_with(HEAD, frame_of(b"\x91" * 100_000)),
    "no size": lambda: segment_of(HEAD, zstandard.ZstdCompressor(write_content_size=False).compress(bytes(MIB))),
    "nested": lambda: segment_of(frame_of(b"\x91" * 100_000), b""),
    "nested entries": lambda: segment_of(HEAD, frame_of(b"\x91" * 100_000)),
}  # fmt: skip


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_is_refused_before_memory_is_taken(tmp_path: Path, bomb: str) -> None:
    data = BOMBS[bomb]()
    assert len(data) < MIB

    def read() -> None:
        with pytest.raises(StateDamaged):
            read_all(tmp_path, data)

    assert measure(read) < MEMORY_MAX


@pytest.mark.parametrize("length", [1 << 40, 1 << 62, -1])
def test_an_address_of_more_bytes_than_the_file_has_takes_no_memory(tmp_path: Path, length: int) -> None:
    data = segment_of(HEAD, frame_of(msgspec.msgpack.encode([(b"a", b"b")])))
    assert read_all(tmp_path, data) == 1

    def read() -> None:
        with pytest.raises(StateDamaged):
            read_all(tmp_path, data, length)

    assert measure(read) < MIB


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lie=st.integers(0, 2**64 - 1) | st.integers(0, 2 * ANY_FRAME_BYTES),
    is_header=st.booleans(),
    body=st.binary(max_size=60),
)
def test_whatever_size_a_frame_states_it_is_refused(
    tmp_path: Path,
    lie: int,
    is_header: bool,  # noqa: FBT001  # of the strategy
    body: bytes,
) -> None:
    """The frame has eight bytes for its size, and further bytes after it."""
    frame = b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", lie) + body
    data = segment_of(frame, b"") if is_header else segment_of(HEAD, frame)

    def read() -> None:
        with pytest.raises(StateDamaged):
            read_all(tmp_path, data)

    assert measure(read) < ANY_FRAME_BYTES + 4 * MIB


@pytest.mark.parametrize("size", [5 * MIB, ANY_FRAME_BYTES - MIB, ANY_FRAME_BYTES + MIB, 3 * ANY_FRAME_BYTES])
def test_a_large_value_that_compresses_well_comes_back(tmp_path: Path, size: int) -> None:
    changes: list[Change] = [(b"large", bytes(size)), (b"small", b"1")]
    with StateFileWriter.open(tmp_path, "g1-b1") as writer:
        ref = writer.add(HEADER, writer.pack(changes))
    found = read_segment(tmp_path, ref, StateVersion(1, "id", 0, 10, ref))
    assert [change for block in found.blocks() for change in block] == changes
    assert ref.length * 1_000 > size or size < ANY_FRAME_BYTES
    assert compute_frame_limit(ref.length) >= size


@pytest.mark.parametrize("name", ["../x.state", "a/../../x.state", "link/x.state", "", ".", "..", "a\0b", "{absolute}"])
def test_an_address_in_another_folder_is_refused(tmp_path: Path, name: str) -> None:
    state = tmp_path / "state"
    (state / "a").mkdir(parents=True)
    data = segment_of(HEAD, frame_of(msgspec.msgpack.encode([(b"a", b"b")])))
    assert read_all(tmp_path, data) == 1
    (state / "link").symlink_to(tmp_path)
    ref = SegmentRef(name.format(absolute=tmp_path / "x.state"), 0, len(data))
    with pytest.raises(StateDamaged, match="the name of a file of the state folder"):
        read_header(state, ref)
    with pytest.raises(StateDamaged, match="the name of a file of the state folder"):
        read_segment(state, ref, StateVersion(1, "id", 0, 10, ref))
