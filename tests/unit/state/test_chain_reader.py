"""Entries read from the indexes of segments, with and without a part in a local store, equal those of a dict."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.model.position import SegmentRef
from lockstep.model.state_types import hash_of_type_schema, make_type_schema
from lockstep.state.chain_reader import BlockCache, ChainReader
from lockstep.state.changelog import SegmentHeader, StateDamaged, StateFileWriter, StateVersion
from lockstep.state.entry_order import Change, make_store_key, sort_changes
from lockstep.state.filling_store import FillingStore
from lockstep.state.local_store import LocalStore, StoreFile
from lockstep.state.segment_reader import SegmentReader
from tests.support.examples import scale_examples
from tests.unit.state.test_filling import small_blocks
from tests.unit.state.test_merging import KEYS, STREAM, apply

SHAPE = make_type_schema(int)
HEADER = SegmentHeader(1, "topic-id", 0, 10, (), hash_of_type_schema(SHAPE), SHAPE, 9, 0, 1)
PREFIXES = [b"", b"a", b"\xf9a\xff", b"\xf9a\xffx\xff", b"\xf9b\xff", b"\xf9a\xffx\xff" + b"z" * 520]


def write(folder: Path, streams: list[list[Change]]) -> list[SegmentRef]:
    with StateFileWriter.open(folder, "g1-b1") as writer:
        return [writer.add(HEADER, writer.pack(sort_changes(stream))) for stream in streams]


def open_chain(folder: Path, refs: list[SegmentRef], cache: BlockCache | None = None) -> ChainReader:
    return ChainReader(folder, StateVersion(1, "topic-id", 0, 10, refs[-1]), tuple(refs), cache or BlockCache())


@settings(max_examples=scale_examples(300))
@given(
    stored=st.dictionaries(KEYS, st.binary(max_size=2), min_size=1),
    streams=st.lists(STREAM.filter(len), max_size=4),
    changes=STREAM,
    block_bytes=st.sampled_from([1, 10, 1_000]),
    cache_bytes=st.sampled_from([0, 1 << 20]),
)
def test_entries_are_those_of_a_dict(
    stored: dict[bytes, bytes],
    streams: list[list[Change]],
    changes: list[Change],
    block_bytes: int,
    cache_bytes: int,
) -> None:
    expected = dict(stored)
    for stream in streams:
        expected = apply(expected, sort_changes(stream))
    local = LocalStore(StoreFile(None, None), lambda store: store.file.close())
    with TemporaryDirectory() as folder, small_blocks(filled_bytes=1, block_bytes=block_bytes):
        refs = write(Path(folder), [list(stored.items()), *streams])
        chain = open_chain(Path(folder), refs, BlockCache(cache_bytes))
        filled: bytes | None = b""
        while filled is not None:
            filling = FillingStore(local, chain, filled)
            check(filling, expected, changes)
            filled = filling.fill()
        assert dict(local.items()) == expected
    local.close()


def check(filling: FillingStore, expected: dict[bytes, bytes], changes: list[Change]) -> None:
    """Compare each reading method with the dict."""
    in_order = sorted(expected.items(), key=lambda entry: make_store_key(entry[0]))
    assert list(filling.items()) == in_order
    assert dict(filling.items(sort_changes(changes))) == apply(expected, sort_changes(changes))
    for key in (
        b"a",
        b"absent",
        b"\xf9a\xffx\xff1",
        b"\xf9a\xffx\xff2",
        b"\xf9a\xffy\xff1",
        b"\xf9a\xffx\xff" + b"z" * 600,
    ):
        assert filling.get(key) == expected.get(key)
    for prefix in PREFIXES:
        found = filling.scan_all(prefix)
        assert len(found) == len(dict(found))
        assert dict(found) == {key: value for key, value in expected.items() if key.startswith(prefix)}
    short = [entry for entry in in_order if entry[0].startswith(b"\xf9a\xff") and len(entry[0]) < 500]
    assert filling.scan(b"\xf9a\xff", b"\xf9a\xff", 9) == short
    assert (
        filling.scan(b"\xf9a\xff", b"\xf9a\xffx\xff1", 1)
        == [each for each in short if each[0] > b"\xf9a\xffx\xff1"][:1]
    )


def test_a_block_in_the_place_of_another_is_found(tmp_path: Path) -> None:
    with small_blocks(filled_bytes=1, block_bytes=1):
        (ref,) = write(tmp_path, [[(b"%d" % number, os.urandom(50)) for number in range(8)]])
    reader = SegmentReader(tmp_path, ref, StateVersion(1, "topic-id", 0, 10, ref))
    length = reader.blocks[-1].length
    path = tmp_path / ref.file
    data = path.read_bytes()
    path.write_bytes(data[: -2 * length] + data[-length:] + data[-2 * length : -length])
    chain = open_chain(tmp_path, [ref])
    assert chain.get(b"1") is not None
    with pytest.raises(StateDamaged, match=r"block 7.*checksum"):
        chain.get(b"7")
