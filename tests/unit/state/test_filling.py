"""A large state is read from the blocks of its segments until its local store is filled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.state.changelog import RestoreKind, StateDamaged, StateVersion, read_segment
from lockstep.state.entry_order import Change
from lockstep.state.local_store import LocalStore
from lockstep.state.restore import SelfHealingStore
from lockstep.state.segment_reader import SegmentReader
from lockstep.state.store import PartitionState
from lockstep.state.values import make_session_prefix
from tests.support.examples import scale_examples
from tests.unit.state.home import Home, drop, put
from tests.unit.state.tables import SCHEMA, Step, take
from tests.unit.state.test_merging import BATCHES as HISTORIES
from tests.unit.state.test_merging import History, follow, patch_limit

VALUES = {str(number): number for number in range(2_000)}


@contextmanager
def small_blocks(filled_bytes: int, block_bytes: int = 100) -> Iterator[None]:
    """Read any chain by its blocks, and make the blocks small."""
    sizes = {
        "restore.LATER_BYTES_MIN": -1,
        "restore.AHEAD_BYTES_MAX": 0,
        "filling_store.FILLED_BYTES": filled_bytes,
        "changelog.APPLIED_BYTES": block_bytes,
        "changelog.BLOCK_BYTES": block_bytes,
    }
    with ExitStack() as patches:
        for name, size in sizes.items():
            patches.enter_context(patch(f"lockstep.state.{name}", size))
        yield


@settings(max_examples=scale_examples(150, usual=15))
@given(batches=HISTORIES, filled_bytes=st.sampled_from([0, 300, 2_000, 1 << 30]))
def test_a_state_that_is_filled_later_is_that_of_a_dict(batches: History, filled_bytes: int) -> None:
    with TemporaryDirectory() as folder, patch_limit(4), small_blocks(filled_bytes):
        follow(Path(folder), batches)


def lose_store(home: Home) -> None:
    for path in home.store_files():
        path.unlink()


def test_batches_fill_a_lost_store_bit_by_bit(home: Home) -> None:
    with small_blocks(filled_bytes=6_000):
        version = home.batch(home.start(), put(VALUES))
        lose_store(home)
        kinds = []
        filled = []
        for number in range(12):
            version = home.batch(version, put({str(number): number + 10_000}))
            restored = home.restored(version)
            kinds.append(restored.kind)
            filled.append(restored.filled)
        assert set(kinds) == {RestoreKind.CURRENT}
        assert filled[0] == b""
        assert filled[-1] is None
        known = [each for each in filled if each is not None]
        assert known == sorted(known)
        assert len(set(known)) > 3
        for path in home.durable.iterdir():
            path.unlink()
        expected = VALUES | {str(number): number + 10_000 for number in range(12)}
        assert home.values(version, list(VALUES)) == expected


def test_the_first_batch_reads_the_blocks_of_its_sessions_only(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    with small_blocks(filled_bytes=1_000):
        version = home.batch(home.start(), put(VALUES))
        version = home.batch(version, drop("5"))
        lose_store(home)
        read: list[int] = []
        original = SegmentReader.read

        def count(reader: SegmentReader, number: int) -> list[Change]:
            read.append(number)
            return original(reader, number)

        monkeypatch.setattr(SegmentReader, "read", count)
        assert home.values(version, ["5", "6", "1000", "unknown"]) == {"6": 6, "1000": 1_000}
    assert len(read) <= 8
    assert version.segment is not None
    base = read_segment(home.durable, version.segment, version).header.chain[0]
    assert len(SegmentReader(home.durable, base, version).blocks) > 100


@pytest.mark.parametrize("part", ["header", "index", "block"])
def test_a_damaged_block_is_found_when_it_is_read(home: Home, part: str) -> None:
    with small_blocks(filled_bytes=1_000):
        version = home.batch(home.start(), put(VALUES))
        lose_store(home)
        assert version.segment is not None
        reader = SegmentReader(home.durable, version.segment, version)
        first = version.segment.length - sum(block.length for block in reader.blocks)
        at = {"header": 30, "index": first - 10, "block": first + 20}[part]
        path = home.durable / version.segment.file
        data = bytearray(path.read_bytes())
        data[at] ^= 1
        path.write_bytes(data)
        with pytest.raises(StateDamaged):
            home.values(version, list(VALUES))
        if part == "block":
            assert home.values(version, ["999"]) == {"999": 999}


def test_a_store_in_use_by_another_reads_blocks_too(home: Home) -> None:
    with small_blocks(filled_bytes=1_000):
        version = home.batch(home.start(), put(VALUES))
        with home.open(version) as state:
            state.load("1")
            assert home.values(version, ["7", "x"]) == {"7": 7}
            after: StateVersion = home.batch(version, put({"7": 8}))
        assert home.values(after, ["7", "8"]) == {"7": 8, "8": 8}


@pytest.mark.parametrize(
    ("ending", "other", "until"), [("a", "b", b"k\xf9a\xff\xff"), ("m" * 700, "n" * 700, b"h\x80")]
)
def test_a_removed_session_leaves_the_filled_part_too(tmp_path: Path, ending: str, other: str, until: bytes) -> None:
    (tmp_path / "durable").mkdir()
    home = Home(tmp_path / "durable", tmp_path / "hot", schema=SCHEMA)

    def begin(state: PartitionState[Any]) -> None:
        for session in (ending, other):
            take(state, {}, Step("snapshot", session, dict.fromkeys(range(100), "x")))

    def update(state: PartitionState[Any]) -> None:
        take(state, {}, Step("update", other, {1: f"at {state.version.next_offset}"}))

    with small_blocks(filled_bytes=2_000):
        version = home.batch(home.start(), begin)
        lose_store(home)
        while (filled := home.restored(version).filled) is not None and filled < until:
            version = home.batch(version, update)
        assert filled is not None
        assert filled[:1] == until[:1]
        version = home.batch(version, lambda state: state.remove(ending))
        store = SelfHealingStore(version, home.durable, home.local_stores(), home.schema)
        assert store.use(lambda entries: entries.scan_all(make_session_prefix(ending.encode()))) == []
        assert len(store.use(lambda entries: entries.scan_all(make_session_prefix(other.encode())))) == 200
        store.close()


class KilledError(Exception):
    """The end of the process."""


@pytest.mark.parametrize("calls", range(1, 14))
def test_a_kill_while_a_store_is_filled_loses_nothing(home: Home, monkeypatch: pytest.MonkeyPatch, calls: int) -> None:
    """The kill is at each transaction of a batch that fills the store."""
    with small_blocks(filled_bytes=2_000):
        version = home.batch(home.start(), put(VALUES))
        lose_store(home)
        version = home.batch(version, put({"1": 10}))
        left = iter(range(calls))
        apply = LocalStore.apply

        def apply_until_kill(store: LocalStore, changes: list[Change], stamp: bytes | None) -> None:
            if next(left, None) is None:
                raise KilledError
            apply(store, changes, stamp)

        monkeypatch.setattr(LocalStore, "apply", apply_until_kill)
        with suppress(KilledError):
            home.batch(version, put({"2": 20, "1999": 30}))
        monkeypatch.undo()
        assert home.values(version, ["1", "2", "1999", "3"]) == {"1": 10, "2": 2, "1999": 1_999, "3": 3}
        later = {session: value + 1 for session, value in VALUES.items()}
        version = home.batch(version, put(later))  # as a base
        for number in range(40):
            version = home.batch(version, put({"4": 10_000 + number}))
        assert home.restored(version).filled is None
        assert home.values(version, list(VALUES)) == later | {"4": 10_039}
