"""Deltas are merged, and a base is written only when they outweigh it: the state equals that of a plain dict."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.state import changelog
from lockstep.state.changelog import RestoreKind, read_header
from lockstep.state.entry_order import Change, is_prefix_removal, make_prefix_removal, sort_changes
from lockstep.state.merging import merge_changes
from lockstep.state.store import PartitionState
from tests.support.examples import scale_examples
from tests.unit.state.home import Home, put
from tests.unit.state.tables import SCHEMA, SESSIONS, STEPS, Model, Step, check_readers, take

FOUND = ["as left", "none", "an earlier one", "in use by another"]
LARGE = {f"base {number}": number for number in range(300)}
"""A base that a few deltas do not outweigh."""
BATCHES = st.lists(
    st.tuples(st.lists(STEPS, max_size=4), st.sampled_from(FOUND), st.integers(0, 9), st.booleans()),
    min_size=8,
    max_size=24,
)
History = list[tuple[list[Step], str, int, bool]]


@settings(max_examples=scale_examples(100, usual=12))
@given(batches=BATCHES)
def test_a_merged_state_is_that_of_a_dict(batches: History) -> None:
    """The history has local stores of earlier versions, kills before the commit and rewinds."""
    with TemporaryDirectory() as folder, patch.object(changelog, "CHAIN_MAX", 4), patch_limit(4):
        follow(Path(folder), batches)


def patch_limit(limit: int) -> Any:
    return patch.object(changelog, "compute_chain_limit", lambda _topic, _partition: limit)


def follow(folder: Path, batches: History) -> None:
    (folder / "durable").mkdir()
    home = Home(folder / "durable", folder / "hot", schema=SCHEMA)
    model: Model = {}
    version = home.batch(home.start(), partial(fill, model=model))
    versions = [(version, model)]
    for number, (steps, found, back, is_killed) in enumerate(batches):
        place_store(home, folder, found, min(back, number))
        if found == "as left" and back == 9:
            del versions[max(1, len(versions) - 3) :]
        version, model = versions[-1]
        model = dict(model)
        after = home.batch(version, partial(run, model=model, steps=steps))
        if not is_killed:
            versions.append((after, model))
        keep_store(home, folder, number)
        check_readers(home, *versions[-1])
        assert after.segment is None or len(read_header(home.durable, after.segment).chain) < 5


def fill(state: PartitionState[Any], model: Model) -> None:
    """Add sessions with rows, and many sessions that no step names."""
    for session in SESSIONS:
        take(state, model, Step("snapshot", session, {1: "x", 2: "y"}))
    for name in LARGE:
        take(state, {}, Step("snapshot", name, {}))


def run(state: PartitionState[Any], model: Model, steps: list[Step]) -> None:
    for step in steps:
        take(state, model, step)


def keep_store(home: Home, folder: Path, number: int) -> None:
    """Copy the local store, as another machine would hold it."""
    for path in home.store_files():
        shutil.copy(path, folder / f"{number}.kept")


def place_store(home: Home, folder: Path, found: str, back: int) -> None:
    """Restore the local store that a batch finds."""
    for path in home.store_files():
        kept = folder / f"{back}.kept"
        if found == "none":
            path.unlink()
        elif found == "an earlier one" and kept.exists():
            shutil.copy(kept, path)
    home.boot = BOOTS[found == "in use by another"]


BOOTS = ("00000000-0000-4000-8000-000000000001", "")


def test_a_small_delta_is_merged_and_never_a_reason_for_a_base(home: Home) -> None:
    version = home.batch(home.start(), put(dict.fromkeys(map(str, range(5_000)), 1)))
    first = version.segment
    chains = []
    for number in range(100):
        version = home.batch(version, put({str(number): number}))
        assert version.segment is not None
        header = read_header(home.durable, version.segment)
        assert header.chain[0] == first
        chains.append(len(header.chain))
    assert max(chains) < changelog.CHAIN_MAX
    assert home.restored(version).kind is RestoreKind.CURRENT
    assert home.values(version, ["50", "99", "100"]) == {"50": 50, "99": 99, "100": 1}


def test_a_local_store_in_the_middle_of_a_merge_takes_the_merged_delta(home: Home, tmp_path: Path) -> None:
    version = home.batch(home.start(), put(dict.fromkeys(map(str, range(5_000)), 1)))
    with patch_limit(6):
        for number in range(3):
            version = home.batch(version, put({str(number): number + 10}))
        shutil.copy(home.store_files()[0], tmp_path / "kept")
        for number in range(3, 30):
            version = home.batch(version, put({str(number): number + 10}))
    shutil.copy(tmp_path / "kept", home.store_files()[0])
    restored = home.restored(version)
    assert (restored.kind, restored.segments < 6) == (RestoreKind.ROLLED_FORWARD, True)
    assert home.values(version, list(map(str, range(30)))) == {str(number): number + 10 for number in range(30)}


def test_a_merge_without_its_files_writes_a_base(home: Home) -> None:
    version = home.batch(home.start(), put(dict.fromkeys(map(str, range(5_000)), 1)))
    with patch_limit(4):
        for number in range(3):
            version = home.batch(version, put({str(number): number + 10}))
        assert version.segment is not None
        (home.durable / version.segment.file).unlink()
        version = home.batch(version, put({"9": 9}))
    assert version.segment is not None
    assert read_header(home.durable, version.segment).is_base
    assert home.values(version, ["0", "1", "2", "9", "10"]) == {"0": 10, "1": 11, "2": 12, "9": 9, "10": 1}


KEYS = st.sampled_from(
    [b"a", b"\xf9a\xffx\xff1", b"\xf9a\xffx\xff2", b"\xf9a\xffy\xff1", b"\xf9a\xffx\xff" + b"z" * 600]
)
REMOVALS = st.sampled_from([b"\xf9a\xff", b"\xf9a\xffx\xff"]).map(make_prefix_removal)
STREAM = st.lists(
    st.tuples(KEYS, st.none() | st.binary(max_size=2)) | REMOVALS, max_size=6, unique_by=lambda change: change[0]
)


@settings(max_examples=scale_examples(500))
@given(
    streams=st.lists(STREAM, max_size=5), stored=st.dictionaries(KEYS, st.binary(max_size=2)), held=st.integers(0, 5)
)
def test_a_merged_stream_has_the_effect_of_all(
    streams: list[list[Change]], stored: dict[bytes, bytes], held: int
) -> None:
    """The store may already have the first of these streams."""
    ordered = [sort_changes(stream) for stream in streams]
    expected = stored
    for changes in ordered:
        expected = apply(expected, changes)
    merged = list(merge_changes(ordered))
    assert merged == sort_changes(merged)
    part = stored
    for changes in ordered[:held]:
        part = apply(part, changes)
    assert apply(part, merged) == expected


def apply(entries: dict[bytes, bytes], changes: list[Change]) -> dict[bytes, bytes]:
    """Return the entries after changes, as a plain dict."""
    after = dict(entries)
    for key, value in changes:
        if is_prefix_removal((key, value)):
            after = {held: each for held, each in after.items() if not held.startswith(key[1:])}
        elif value is None:
            after.pop(key, None)
        else:
            after[key] = value
    return after


def test_a_merge_refuses_changes_out_of_order() -> None:
    with pytest.raises(ValueError, match="out of order"):
        list(merge_changes([[(b"b", b"1"), (b"a", b"2")]]))
