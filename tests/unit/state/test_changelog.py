"""A durable state file returns the written entries, or an error that names the damage."""

from __future__ import annotations

import zlib
from pathlib import Path

import msgspec
import pytest
import zstandard

from lockstep.model.position import SegmentRef
from lockstep.model.state_types import hash_of_type_schema, make_type_schema
from lockstep.state import changelog
from lockstep.state.changelog import (
    BLOCK_BYTES,
    SegmentHeader,
    StateDamaged,
    StateFileWriter,
    StateVersion,
    read_segment,
)
from lockstep.state.entry_order import Change

SHAPE = make_type_schema(int)
CHANGES: list[Change] = [(b"kept", b"value"), (b"removed", None), (b"", b""), (b"\x00/../\xff", b"\x00" * 300)]


def header(partition: int = 3, next_offset: int = 10, generation: int = 2) -> SegmentHeader:
    return SegmentHeader(generation, "topic-id", partition, next_offset, (), hash_of_type_schema(SHAPE), SHAPE, 9, 0, 4)


def version(ref: SegmentRef, partition: int = 3, next_offset: int = 10, generation: int = 2) -> StateVersion:
    return StateVersion(generation, "topic-id", partition, next_offset, ref)


def written(folder: Path, *sections: tuple[SegmentHeader, list[Change]]) -> list[SegmentRef]:
    with StateFileWriter.open(folder, "g2-b7") as writer:
        return [writer.add(head, writer.pack(changes)) for head, changes in sections]


def read(folder: Path, ref: SegmentRef, at: StateVersion | None = None) -> list[Change]:
    return [change for block in read_segment(folder, ref, at or version(ref)).blocks() for change in block]


def test_each_partition_has_its_own_section(tmp_path: Path) -> None:
    first, second = written(tmp_path, (header(), CHANGES), (header(partition=4), [(b"other", b"1")]))
    assert read(tmp_path, first) == CHANGES
    assert read(tmp_path, second, version(second, partition=4)) == [(b"other", b"1")]
    assert read_segment(tmp_path, first, version(first)).header == msgspec.structs.replace(header(), file=first.file)
    assert first.file == second.file
    assert second.start == first.length


def test_entries_larger_than_a_block_come_back_in_order(tmp_path: Path) -> None:
    changes: list[Change] = [(b"%d" % n, bytes([n]) * (BLOCK_BYTES // 3)) for n in range(10)]
    (ref,) = written(tmp_path, (header(), changes))
    blocks = list(read_segment(tmp_path, ref, version(ref)).blocks())
    assert len(blocks) > 2
    assert [change for block in blocks for change in block] == changes


def test_no_file_is_made_when_nothing_changed(tmp_path: Path) -> None:
    writer = StateFileWriter.open(tmp_path / "state")
    writer.close()
    assert writer.is_durable
    assert list(tmp_path.iterdir()) == []


def test_an_abandoned_file_is_removed(tmp_path: Path) -> None:
    with pytest.raises(StateDamaged):
        fail_while_writing(tmp_path)
    assert list(tmp_path.iterdir()) == []


def fail_while_writing(folder: Path) -> None:
    with StateFileWriter.open(folder) as writer:
        writer.add(header(), writer.pack(CHANGES))
        assert len(list(folder.iterdir())) == 1
        raise StateDamaged("another partition's segment", "bytes", "none")


def test_names_never_repeat_and_say_what_the_file_is(tmp_path: Path) -> None:
    names = {StateFileWriter.open(tmp_path, "g2-b7").name for _ in range(100)}
    assert len(names) == 100
    assert all(name.startswith("g2-b7-") and name.endswith(".state") for name in names)


def test_every_flipped_byte_is_found(tmp_path: Path) -> None:
    before, ref, _ = written(tmp_path, (header(), CHANGES), (header(), CHANGES), (header(), CHANGES))
    path = tmp_path / ref.file
    good = path.read_bytes()
    for position in range(ref.start, ref.start + ref.length):
        damaged = bytearray(good)
        damaged[position] ^= 0xFF
        path.write_bytes(damaged)
        with pytest.raises(StateDamaged) as raised:
            read(tmp_path, ref)
        assert str(path) in str(raised.value)
        assert "put the file back" in raised.value.next_step
    assert read(tmp_path, before) == CHANGES


class Decompressing:
    """zstandard for the changelog: after some frames, decompression fails with an error."""

    ZstdError = zstandard.ZstdError
    frame_content_size = staticmethod(zstandard.frame_content_size)

    def __init__(self, frames: int, error: str) -> None:
        self.frames = frames
        self.error = error
        self.decompressor = zstandard.ZstdDecompressor()

    def ZstdDecompressor(self) -> Decompressing:  # noqa: N802  # the library's name
        return self

    def decompress(self, frame: memoryview) -> bytes:
        if self.frames == 0:
            raise zstandard.ZstdError(f"decompression error: {self.error}")
        self.frames -= 1
        return self.decompressor.decompress(frame)


@pytest.mark.parametrize("frames", [0, 1, 2], ids=["header", "index", "block"])
def test_lack_of_memory_is_not_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, frames: int) -> None:
    (ref,) = written(tmp_path, (header(), CHANGES))
    monkeypatch.setattr(changelog, "zstandard", Decompressing(frames, "Allocation error : not enough memory"))
    with pytest.raises(MemoryError, match="not enough memory"):
        read(tmp_path, ref)
    monkeypatch.setattr(changelog, "zstandard", Decompressing(frames, "Data corruption detected"))
    with pytest.raises(StateDamaged, match="Data corruption detected"):
        read(tmp_path, ref)


@pytest.mark.parametrize("left", [0, 1, 17, 18, 100])
def test_a_file_cut_short_is_found(tmp_path: Path, left: int) -> None:
    (ref,) = written(tmp_path, (header(), CHANGES))
    path = tmp_path / ref.file
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(StateDamaged, match="cut short"):
        read(tmp_path, ref)


def test_a_reference_to_other_bytes_is_found(tmp_path: Path) -> None:
    (ref,) = written(tmp_path, (header(), CHANGES))
    for start, length in ((1, ref.length - 1), (0, ref.length - 1), (0, 10)):
        with pytest.raises(StateDamaged):
            read(tmp_path, SegmentRef(ref.file, start, length))


def test_a_missing_file_is_named_with_the_state_that_needs_it(tmp_path: Path) -> None:
    ref = SegmentRef("gone.state", 0, 10)
    with pytest.raises(StateDamaged, match=r"state of topic-id/3 before offset 10.*found no such file"):
        read(tmp_path, ref)


def test_a_newer_format_is_refused_by_its_version(tmp_path: Path) -> None:
    (ref,) = written(tmp_path, (header(), CHANGES))
    path = tmp_path / ref.file
    data = bytearray(path.read_bytes())
    data[8] = 9
    path.write_bytes(data)
    with pytest.raises(StateDamaged, match="expected format version 2, found 9"):
        read(tmp_path, ref)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"partition": 4}, "expected topic id topic-id partition 4, found topic id topic-id partition 3"),
        ({"generation": 1}, "expected generation 1 or earlier, found 2"),
        ({"next_offset": 9}, "expected state before offset 9 or earlier, found 10"),
    ],
)
def test_a_section_of_something_else_is_refused(tmp_path: Path, asked: dict[str, int], message: str) -> None:
    (ref,) = written(tmp_path, (header(), CHANGES))
    with pytest.raises(StateDamaged, match=message):
        read(tmp_path, ref, version(ref, **asked))


def test_a_later_offset_and_a_rewound_generation_still_read_the_last_section(tmp_path: Path) -> None:
    (ref,) = written(tmp_path, (header(), CHANGES))
    assert read(tmp_path, ref, version(ref, next_offset=99, generation=5)) == CHANGES


def test_the_file_is_plain_zstd_and_msgpack(tmp_path: Path) -> None:
    """It is read by the format's description alone, without the product's reader."""
    (ref,) = written(tmp_path, (header(), CHANGES))
    data = (tmp_path / ref.file).read_bytes()
    header_length = int.from_bytes(data[10:14], "little")
    body = data[18 + header_length :]
    index_length = int.from_bytes(body[:4], "little")
    ((first, length, checksum),) = msgspec.msgpack.decode(
        zstandard.ZstdDecompressor().decompress(body[4 : 4 + index_length])
    )
    frame = body[4 + index_length :]
    assert (first, length, checksum) == (b"kkept", len(frame), zlib.crc32(frame))
    assert zstandard.get_frame_parameters(frame).has_checksum
    entries = msgspec.msgpack.decode(zstandard.ZstdDecompressor().decompress(frame))
    assert [(key, value) for key, value in entries] == CHANGES
