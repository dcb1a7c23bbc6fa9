"""A state type that changes: its states are read, migrated when touched, or refused, all in one chain."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.state.changelog import SegmentHeader, StateVersion, read_header
from lockstep.state.codec import MigrationFailed, StateSchema, StateTypeChanged
from lockstep.state.decoded_sessions import SessionEntry
from lockstep.state.store import PartitionState
from tests.unit.state.home import Home, Panel


class Panel2(msgspec.Struct):
    """`Panel` with other names and types."""

    amount: str
    words: list[str]


class Panel3(msgspec.Struct):
    """`Panel2` with another field that has a default, which needs no migration."""

    amount: str
    words: list[str]
    note: str | None = None


class ByPlace(msgspec.Struct, array_like=True):
    """`Panel` with fields by position."""

    text: str
    value: int


def number_of(old: Mapping[str, object]) -> int:
    return int(cast("Any", old.get("value", old.get("amount"))))


def text_of(old: Mapping[str, object]) -> str:
    return cast("str", old["text"]) if "text" in old else " ".join(cast("list[str]", old["words"]))


def to_panel(old: Mapping[str, object]) -> Panel:
    return Panel(number_of(old), text_of(old))


def to_panel2(old: Mapping[str, object]) -> Panel2:
    return Panel2(str(number_of(old)), text_of(old).split())


def to_panel3(old: Mapping[str, object]) -> Panel3:
    return Panel3(str(number_of(old)), text_of(old).split())


def to_by_place(old: Mapping[str, object]) -> ByPlace:
    return ByPlace(text_of(old), number_of(old))


@dataclasses.dataclass(frozen=True)
class Release:
    """A state type with its migration."""

    schema: StateSchema[Any]
    made: Callable[[Mapping[str, object]], Any]


RELEASES = [
    Release(StateSchema(Panel, to_panel), to_panel),
    Release(StateSchema(Panel2, to_panel2), to_panel2),
    Release(StateSchema(Panel3, to_panel3), to_panel3),
    Release(StateSchema(ByPlace, to_by_place), to_by_place),
]


def put(release: Release, values: Mapping[str, int | None]) -> Callable[[PartitionState[Any]], None]:
    """Return a fold that sets sessions as this release's state, or removes them."""

    def fold(state: PartitionState[Any]) -> None:
        for session, value in values.items():
            entry = state.entries.get(session) or state.load(session)
            if value is None:
                state.remove(session)
                continue
            new = release.made({"value": value, "text": f"is {value}"})
            if entry is None:
                state.entries[session] = SessionEntry(value, new)
            else:
                entry.gate = value
                entry.state = new

    return fold


def read(home: Home, version: StateVersion, sessions: list[str]) -> dict[str, tuple[object, Any]]:
    with home.open(version) as state:
        loaded = {session: state.load(session) for session in sessions}
    return {session: (entry.gate, entry.state) for session, entry in loaded.items() if entry is not None}


def of(home: Home, release: Release) -> Home:
    return dataclasses.replace(home, schema=release.schema)


def header(home: Home, version: StateVersion) -> SegmentHeader:
    assert version.segment is not None
    return read_header(home.durable, version.segment)


def lose_local_stores(home: Home) -> None:
    for path in home.store_files():
        path.unlink()


@pytest.mark.parametrize("warm", [True, False], ids=["hot", "rebuilt"])
def test_a_session_is_migrated_when_it_is_touched_and_written_back_with_todays_type(home: Home, warm: bool) -> None:  # noqa: FBT001
    old = of(home, RELEASES[0])
    new = of(home, RELEASES[1])
    version = old.batch(home.start(), put(RELEASES[0], {"a": 1, "b": 2, "c": 3, "d": 4, "e": 5, "f": 6}))
    if not warm:
        lose_local_stores(home)

    def touch(state: PartitionState[Any]) -> None:
        assert state.load("a") == SessionEntry(
            1, Panel2("1", ["is", "1"]), b"\x92\x01\x82\xa5value\x01\xa4text\xa4is 1"
        )
        assert [key for key, _ in state.changed()] == [b"a"]

    version = new.batch(version, touch)
    assert not header(home, version).is_base
    if not warm:
        lose_local_stores(home)
    assert read(new, version, ["a", "b"]) == {"a": (1, Panel2("1", ["is", "1"])), "b": (2, Panel2("2", ["is", "2"]))}
    with new.open(version) as state:
        state.load("a")
        assert state.changed() == []


def test_without_a_migration_a_chain_with_an_older_type_in_it_is_refused(home: Home) -> None:
    version = of(home, RELEASES[0]).batch(home.start(), put(RELEASES[0], {str(n): n for n in range(9)}))
    version = of(home, RELEASES[1]).batch(version, put(RELEASES[1], {"1": 5}))
    without = of(home, Release(StateSchema(Panel2), to_panel2))
    with pytest.raises(StateTypeChanged, match=r"(?s)value: stored int.*override migrate"):
        read(without, version, ["1"])


def test_a_base_forgets_an_older_type_once_no_session_is_of_it(home: Home) -> None:
    sessions = {str(n): n for n in range(9)}
    version = of(home, RELEASES[0]).batch(home.start(), put(RELEASES[0], sessions))
    new = of(home, RELEASES[1])
    version = new.batch(version, put(RELEASES[1], {name: number + 10 for name, number in sessions.items()}))
    assert header(home, version).is_base
    without = of(home, Release(StateSchema(Panel2), to_panel2))
    found = read(without, version, list(sessions))
    assert {name: state.amount for name, (_, state) in found.items()} == {str(n): str(n + 10) for n in range(9)}


def test_after_a_step_back_values_of_todays_type_that_have_a_tag_are_read(home: Home) -> None:
    """The base of the older release has tags, and no delta after it recorded that there were tags."""
    newer = of(home, RELEASES[2])
    older = of(home, RELEASES[1])
    version = newer.batch(home.start(), put(RELEASES[2], {"a": 1, "b": 2}))
    version = older.batch(version, put(RELEASES[1], {"c": 3, "d": 4, "e": 5, "f": 6, "g": 7}))
    assert header(home, version).is_base
    for value in (8, 9):
        version = newer.batch(version, put(RELEASES[2], {"c": value}))
        assert not header(home, version).is_base
        assert {name: gate for name, (gate, _) in read(newer, version, ["a", "c"]).items()} == {"a": 1, "c": value}


def raising(old: Mapping[str, object]) -> Panel2:
    return Panel2(cast("str", old["amount"]), [])


def wrong(old: Mapping[str, object]) -> Panel2:
    return Panel2(cast("str", old["value"]), [])


def forgetting(_: Mapping[str, object]) -> Panel2:
    return None  # type: ignore[return-value]  # its last line is no `return`


@pytest.mark.parametrize(
    ("migrate", "said"),
    [
        (raising, "KeyError: 'amount'"),
        (wrong, "not of the state type: Expected `str`, got `int`"),
        (forgetting, "not of the state type: Expected `object`, got `None`"),
    ],
)
def test_a_migration_that_fails_names_the_session_and_what_it_was_given(
    home: Home, migrate: Callable[[Mapping[str, object]], Panel2], said: str
) -> None:
    version = of(home, RELEASES[0]).batch(home.start(), put(RELEASES[0], {"a": 1}))
    with pytest.raises(MigrationFailed, match=said) as raised:
        read(of(home, Release(StateSchema(Panel2, migrate), to_panel2)), version, ["a"])
    assert (raised.value.session, raised.value.old) == ("a", {"value": 1, "text": "is 1"})
    assert "fix migrate()" in raised.value.next_step


Step = tuple[int, dict[str, int | None], bool]
STEPS = st.lists(
    st.tuples(
        st.integers(0, len(RELEASES) - 1),
        st.dictionaries(st.sampled_from("abcdefgh"), st.one_of(st.none(), st.integers(-9, 10**6)), max_size=4),
        st.booleans(),
    ),
    max_size=14,
)


@given(STEPS)
def test_any_order_of_releases_reads_what_the_last_one_wrote(steps: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = Home(Path(folder) / "durable", Path(folder) / "hot")
        version = home.start()
        expected = dict[str, int]()
        for number, values, is_lost in steps:
            release = RELEASES[number]
            version = of(home, release).batch(version, put(release, values))
            for name, value in values.items():
                expected.pop(name, None)
                if value is not None:
                    expected[name] = value
            if is_lost:
                lose_local_stores(home)
        for release in RELEASES:
            found = read(of(home, release), version, list("abcdefgh"))
            wanted = {name: release.made({"value": value, "text": f"is {value}"}) for name, value in expected.items()}
            assert wanted == {name: state for name, (_, state) in found.items()}
            assert expected == {name: gate for name, (gate, _) in found.items()}
