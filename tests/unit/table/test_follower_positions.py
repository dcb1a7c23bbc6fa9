"""Positions of followers: each is read as it was written or named as damaged, and names the commits that were read."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.table.follower_positions import (
    FOLDER,
    FollowerName,
    FollowerPosition,
    Reads,
    SourceHistory,
    find_generation,
    forget_position,
    make_history,
    make_position_path,
    make_unread_history,
    read_follower_positions,
    read_position,
    write_position,
)
from tests.support.every_commit import EveryCommit
from tests.support.examples import scale_examples

TEXTS = st.text(st.characters(exclude_categories=("C", "Z"), include_characters=" "), max_size=9)  # printable
NUMBERS = st.integers(0, 2**53)
TIMES = st.datetimes(datetime(2020, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
NAMES = st.from_regex(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*", fullmatch=True).filter(lambda name: len(name) < 64)
HISTORIES = st.builds(
    SourceHistory,
    stream=NAMES,
    table_id=TEXTS,
    generation=NUMBERS,
    erasure=NUMBERS,
    version=st.integers(-1, 2**53),
    token=TEXTS,
    batch=NUMBERS,
    batch_generation=NUMBERS,
    committed_at=st.none() | st.floats(0, 4e9),
    complete_batch=st.none() | NUMBERS,
)
POSITIONS = st.builds(
    FollowerPosition,
    kind=st.sampled_from(("derived", "export", "delivery")),
    name=NAMES,
    command=TEXTS,
    reads=st.sampled_from(Reads),
    rebuilds=st.booleans(),
    sources=st.lists(HISTORIES, max_size=3, unique_by=lambda history: history.stream).map(tuple),
    last_run=TIMES,
    failure=TEXTS,
)
ONE = FollowerPosition(
    kind="derived",
    name="activity",
    command="lockstep derive activity",
    reads=Reads.COMMITS,
    rebuilds=True,
    sources=(make_unread_history("adding"), make_unread_history("other")),
    last_run=datetime(2026, 1, 1, tzinfo=UTC),
)


def list_sources(position: FollowerPosition) -> list[str]:
    return [source.stream for source in position.sources]


@settings(max_examples=scale_examples(60), deadline=None)
@given(positions=st.lists(POSITIONS, max_size=5, unique_by=lambda position: position.follower))
def test_positions_are_read_as_they_were_written(positions: list[FollowerPosition]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for position in positions:
            write_position(root, position)
        found = read_follower_positions(root)
        assert found.read == tuple(sorted(positions, key=lambda position: position.follower))
        assert found.damaged == ()
        for stream in set(chain.from_iterable(map(list_sources, positions))):
            assert found.list_of(stream) == tuple(each for each in found.read if stream in list_sources(each))


def test_a_file_that_is_cut_at_any_byte_is_named_and_written_again(tmp_path: Path) -> None:
    write_position(tmp_path, ONE)
    path = make_position_path(tmp_path, ONE.follower)
    content = path.read_bytes()
    for size in range(len(content)):
        path.write_bytes(content[:size])
        found = read_follower_positions(tmp_path)
        assert (found.read, found.damaged) == ((), (ONE.follower,))
    write_position(tmp_path, ONE)
    assert read_follower_positions(tmp_path).read == (ONE,)


@settings(max_examples=scale_examples(200), deadline=None)
@given(at=st.integers(0, 1_000), byte=st.integers(0, 255))
def test_a_changed_byte_ends_no_reading(at: int, byte: int) -> None:
    """The position has another text, or is damaged; a position of another follower counts as damaged."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_position(root, ONE)
        path = make_position_path(root, ONE.follower)
        content = bytearray(path.read_bytes())
        content[at % len(content)] = byte
        path.write_bytes(content)
        found = read_follower_positions(root)
        assert [*(each.follower for each in found.read), *found.damaged] == [ONE.follower]


def test_other_files_are_no_positions(tmp_path: Path) -> None:
    write_position(tmp_path, ONE)
    folder = tmp_path / FOLDER / "derived"
    (folder / "activity.0123.tmp").write_bytes(b"{")
    (tmp_path / FOLDER / "readme").write_text("a file")
    (folder / "other.json").write_bytes(msgspec.json.encode(ONE))
    found = read_follower_positions(tmp_path)
    assert (found.read, found.damaged) == ((ONE,), (FollowerName("derived", "other"),))
    with pytest.raises(msgspec.DecodeError, match="is the position of derived activity"):
        read_position(tmp_path, FollowerName("derived", "other"))


def test_a_position_that_was_forgotten_is_not_there(tmp_path: Path) -> None:
    assert not forget_position(tmp_path, ONE.follower)
    write_position(tmp_path, ONE)
    assert forget_position(tmp_path, ONE.follower)
    assert read_follower_positions(tmp_path).read == ()
    assert read_position(tmp_path, ONE.follower) is None


STEPS = ("batch", "quiet", "hour", "compact", "retain", "close", "floor", "rewind", "promote", "erase")


@settings(max_examples=scale_examples(40), deadline=None)
@given(steps=st.lists(st.sampled_from(STEPS), max_size=5))
def test_the_history_of_a_version_is_that_of_its_head(steps: list[str]) -> None:
    with tempfile.TemporaryDirectory() as root:
        made = EveryCommit(Path(root))
        for step in ("batch", *steps):
            made.step(step)
        base = made.run.output.base()
        history = make_history(made.run.folders, base)
        assert (history.version, history.batch, history.generation) == (
            base.version,
            base.head.batch,
            base.head.generation,
        )
        assert base.head.valid_batches[history.batch_generation] >= history.batch
        assert all(find_generation(base.head, number) <= base.head.generation for number in range(base.head.batch + 1))
        assert history.committed_at is not None
