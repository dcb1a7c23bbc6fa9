"""A partition's state: loaded on request, saved when changed, and only then."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import msgspec
import pytest

from lockstep.state.changelog import RestoreKind, StateDamaged, StateFileWriter, StateVersion, advance
from lockstep.state.codec import StateNotOfItsType, StateSchema, StateTypeChanged
from lockstep.state.decoded_sessions import SessionEntry
from lockstep.state.store import PartitionState
from tests.unit.state.home import Home, Panel, drop, put

AWKWARD = [
    "",
    "plain",
    "x" * 510,
    "x" * 511,
    "x" * 10_000,
    "x" * 9_999 + "y",
    "../../etc/passwd",
    "a/b\\c",
    "null\0inside",
    "\0",
    "!",
    "täglich",
    "\ud800",
    "line\nbreak",
]


def test_what_was_put_is_loaded_by_the_next_batch(home: Home) -> None:
    version = home.batch(home.start(), put({"a": 1, "b": 2}))
    with home.open(version) as state:
        entry = state.load("a")
        assert entry is not None
        assert (entry.gate, entry.state) == (1, Panel(1))
        assert state.entries == {"a": entry}
        assert state.load("unknown") is None


def test_a_change_in_place_is_found_and_saved(home: Home) -> None:
    version = home.batch(home.start(), put({"a": 1, "b": 2}))
    version = home.batch(version, put({"b": 5}))
    assert home.values(version, ["a", "b"]) == {"a": 1, "b": 5}


def test_only_what_changed_is_written(home: Home) -> None:
    version = home.batch(home.start(), put({"a": 1, "b": 2}))
    with home.open(version) as state:
        put({"a": 1, "b": 3})(state)
        assert [session for session, _ in state.changed()] == [b"b"]


def test_a_removed_session_is_unknown_at_once_and_for_ever(home: Home) -> None:
    version = home.batch(home.start(), put({"a": 1, "b": 2}))
    with home.open(version) as state:
        state.load("a")
        state.remove("a")
        assert state.load("a") is None
        assert state.changed() == [(b"a", None)]
    version = home.batch(version, drop("a"))
    assert home.values(version, ["a", "b"]) == {"b": 2}


def test_a_session_removed_and_opened_again_in_one_range_is_saved_as_it_is_now(home: Home) -> None:
    version = home.batch(home.start(), put({"a": 1}))

    def replaced(state: PartitionState[Panel]) -> None:
        state.remove("a")
        put({"a": 9})(state)

    assert home.values(home.batch(version, replaced), ["a"]) == {"a": 9}


def test_a_session_removed_and_opened_again_between_two_spills_is_saved_as_it_is_now(home: Home) -> None:
    version = home.batch(home.start(), put({"a": 1, "b": 2}))

    def spilled(state: PartitionState[Panel]) -> None:
        drop("a", "b")(state)
        state.spill()
        put({"a": 9})(state)
        state.spill()
        put({"c": 3})(state)

    assert home.values(home.batch(version, spilled), ["a", "b", "c"]) == {"a": 9, "c": 3}


def test_a_first_base_leaves_out_what_was_spilled_and_then_removed(home: Home) -> None:
    def spilled(state: PartitionState[Panel]) -> None:
        put({"a": 1, "b": 2})(state)
        state.spill()
        drop("a")(state)

    header = home.restored(home.batch(home.start(), spilled)).header
    assert header is not None
    assert header.entries == 1


def test_a_session_opened_without_a_look_can_be_removed(home: Home) -> None:
    version = home.batch(home.start(), put({"a": 1}))

    def blind(state: PartitionState[Panel]) -> None:
        state.entries["a"] = SessionEntry(2, Panel(2))
        state.remove("a")

    assert home.values(home.batch(version, blind), ["a"]) == {}


def test_removing_what_never_was_changes_nothing(home: Home) -> None:
    version = home.batch(home.start(), put({"a": 1}))
    assert home.batch(version, drop("b")).segment == version.segment


def test_offsets_move_without_a_file_when_nothing_changed(home: Home) -> None:
    version = home.batch(home.start(), put({"a": 1}))
    files = list(home.durable.iterdir())
    later = home.batch(version, put({"a": 1}))
    assert later == advance(version, version.next_offset + 1, version.segment)
    assert list(home.durable.iterdir()) == files
    assert home.restored(later).kind is RestoreKind.CURRENT
    assert home.values(home.batch(later, put({"a": 2})), ["a"]) == {"a": 2}


@pytest.mark.parametrize("warm", [True, False], ids=["hot", "rebuilt"])
def test_sessions_may_be_any_string(home: Home, warm: bool) -> None:  # noqa: FBT001
    values = {session: number for number, session in enumerate(AWKWARD)}
    version = home.batch(home.start(), put(values))
    version = home.batch(version, put({session: value + 100 for session, value in values.items()}))
    if not warm:
        home.store_files()[0].unlink()
    assert home.values(version, AWKWARD) == {session: value + 100 for session, value in values.items()}
    version = home.batch(version, drop(*AWKWARD[::2]))
    assert home.values(version, AWKWARD) == {session: values[session] + 100 for session in AWKWARD[1::2]}


def test_the_hot_copy_waits_for_the_durable_file(home: Home) -> None:
    with home.open(home.start()) as state, StateFileWriter.open(home.durable) as writer:
        put({"a": 1})(state)
        state.write(writer, 1)
        with pytest.raises(RuntimeError, match="before the writer's close"):
            state.publish_local()


def test_a_base_leaves_out_what_was_removed(home: Home) -> None:
    version = home.batch(home.start(), put({str(n): n for n in range(10)}))
    version = home.batch(version, drop(*map(str, range(9))))
    version = home.batch(version, put({"big": 1}))
    for _ in range(40):
        version = home.batch(version, put({"big": version.next_offset}))
    header = home.restored(version).header
    assert header is not None
    assert header.base_bytes < 50
    home.store_files()[0].unlink()
    assert home.values(version, ["0", "9", "big"]) == {"9": 9, "big": version.next_offset - 1}


def test_more_partitions_than_stores_may_be_open_are_folded_side_by_side(home: Home) -> None:
    home.stores_max = 2
    local_stores = home.local_stores()
    states = [home.open(home.start(partition), local_stores) for partition in range(7)]
    versions = fold_all(home, states, 1)
    states = [home.open(version, local_stores) for version in versions]
    for state in states * 2:
        entry = state.load("s")
        assert entry is not None
        assert entry.state.value == state.version.partition + 1
    versions = fold_all(home, states, 2)
    assert {home.restored(version).kind for version in versions} == {RestoreKind.CURRENT}
    assert [home.values(version, ["s"])["s"] for version in versions] == [2, 3, 4, 5, 6, 7, 8]


def fold_all(home: Home, states: list[PartitionState[Panel]], by: int) -> list[StateVersion]:
    for state in states:
        put({"s": state.version.partition + by})(state)
    with StateFileWriter.open(home.durable) as writer:
        versions = [state.write(writer, state.version.next_offset + 1) for state in states]
    for state in states:
        state.publish_local()
        state.close()
    assert len({version.segment.file for version in versions if version.segment}) == 1
    return versions


def test_a_state_that_cannot_be_encoded_names_its_session(home: Home) -> None:
    with home.open(home.start()) as state:
        state.entries["broken"] = SessionEntry(1, Panel(object()))  # type: ignore[arg-type]  # the fault
        with pytest.raises(StateNotOfItsType, match=r"(?s)session 'broken'.*fix the fold") as raised:
            state.changed()
    assert raised.value.session == "broken"


def test_a_state_left_with_a_wrong_type_names_its_session_and_field(home: Home) -> None:
    version = home.batch(home.start(), put({"a": 1}))
    with pytest.raises(StateNotOfItsType, match=r"(?s)session 'a'.*state\.value = 'text' is of type str.*type is int"):
        home.batch(version, put({"a": "text"}))  # type: ignore[dict-item]  # the fault


class Panel2(msgspec.Struct):
    value: int


@pytest.mark.parametrize("warm", [True, False], ids=["hot", "rebuilt"])
def test_state_of_a_changed_type_is_refused(home: Home, warm: bool) -> None:  # noqa: FBT001
    version = home.batch(home.start(), put({"a": 1}))
    if not warm:
        home.store_files()[0].unlink()
    later = dataclasses.replace(home, schema=StateSchema[Panel](Panel2))
    with pytest.raises(StateTypeChanged, match="text: stored str, declared no such field"):
        later.values(version, ["a"])
    assert home.values(version, ["a"]) == {"a": 1}


@pytest.mark.parametrize("warm", [True, False], ids=["hot", "rebuilt"])
def test_state_of_a_later_offset_than_the_position_is_refused(home: Home, warm: bool) -> None:  # noqa: FBT001
    version = home.batch(home.start(), put({"a": 1}))
    if not warm:
        home.store_files()[0].unlink()
    with pytest.raises(StateDamaged, match="expected state before offset 0 or earlier, found 1"):
        home.values(msgspec.structs.replace(version, next_offset=0), ["a"])


def test_after_an_error_a_state_is_not_taken_for_the_one_asked_for(home: Home) -> None:
    first = home.batch(home.start(), put({"a": 1}))
    second = home.batch(first, put({"a": 2}))
    home.store_files()[0].unlink()
    assert first.segment is not None
    assert second.segment is not None
    home.values(first, ["a"])
    (home.durable / second.segment.file).unlink()
    with home.open(second) as state:
        for _ in range(2):
            with pytest.raises(StateDamaged, match="no such file"):
                state.load("a")


@pytest.fixture(autouse=True)
def no_private_copy_is_left(home: Home) -> Iterator[None]:
    yield
    left = [path for path in home.local_root.rglob("*") if path.is_file() and path.suffix not in {".lmdb", ".lock"}]
    assert left == []
