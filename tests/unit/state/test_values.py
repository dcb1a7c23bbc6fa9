"""Tables in a state that are stored row by row: the same rows as a dict, for any events between batches."""

from __future__ import annotations

import dataclasses
import enum
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep import MapState
from lockstep.errors import DeclarationError
from lockstep.model.map_state import TableState
from lockstep.state.changelog import StateFileWriter, StateVersion, read_segment
from lockstep.state.codec import MigrationFailed, StateNotOfItsType, StateSchema
from lockstep.state.decoded_sessions import SessionEntry
from lockstep.state.local_store_pool import MemoryBudget
from lockstep.state.store import PartitionState
from tests.unit.state.home import Home


class Level(msgspec.Struct, frozen=True):
    price: int
    note: str = ""


class Book(msgspec.Struct):
    """A state with two tables."""

    name: str
    bids: MapState[int, Level]
    names: MapState[str, tuple[int, ...]] = msgspec.field(default_factory=MapState)


class PlainBook(msgspec.Struct):
    """The same in the `value` layout."""

    name: str
    bids: dict[int, Level]
    names: dict[str, tuple[int, ...]] = {}


BOOK: StateSchema[Any] = StateSchema(Book)
PLAIN: StateSchema[Any] = StateSchema(PlainBook)


def book_home(folder: Path, schema: StateSchema[Any] = BOOK) -> Home:
    return Home(folder / "durable", folder / "hot", schema=schema)


def session_of(state: PartitionState[Any], name: str) -> Any:
    entry = state.entries.get(name) or state.load(name)
    return None if entry is None else entry.state


def make(state: PartitionState[Any], name: str, bids: Mapping[int, Level], *, is_plain: bool = False) -> None:
    """Set a snapshot of a session, known or not."""
    session_of(state, name)
    state.entries[name] = SessionEntry(0, PlainBook(name, dict(bids)) if is_plain else Book(name, MapState(bids)))


def test_rows_are_used_like_a_dict(tmp_path: Path) -> None:
    home = book_home(tmp_path)
    version = home.batch(home.start(), lambda state: make(state, "a", {n: Level(n) for n in (300, 2, 7)}))
    with home.open(version) as state:
        bids = session_of(state, "a").bids
        assert (bids[2], bids.get(3), 7 in bids, 8 in bids, len(bids)) == (Level(2), None, True, False, 3)
        bids[1] = Level(1)
        bids[2] = Level(20)
        del bids[300]
        assert list(bids.items()) == [(1, Level(1)), (2, Level(20)), (7, Level(7))]
        assert bids == {7: Level(7), 1: Level(1), 2: Level(20)}
        assert bids.pop(7, None) == Level(7)
        assert bids.setdefault(1, Level(9)) == Level(1)
        with pytest.raises(KeyError):
            del bids[300]
        with pytest.raises(KeyError):
            bids[7]
        bids.clear()
        assert (len(bids), list(bids)) == (0, [])


def test_only_touched_rows_are_written(tmp_path: Path) -> None:
    home = book_home(tmp_path)
    version = home.batch(home.start(), lambda state: make(state, "a", {n: Level(n) for n in range(1000)}))

    def touch(state: PartitionState[Any]) -> None:
        bids = session_of(state, "a").bids
        assert bids[5] == Level(5)
        bids[6] = Level(66)
        del bids[7]

    version = home.batch(version, touch)
    assert version.segment is not None
    changes = [change for block in read_segment(home.durable, version.segment, version).blocks() for change in block]
    begin = b"\xf9a\xffbids\xff"
    assert changes == [(begin + b"\x06", b"\x82\xa5price\x42\xa4note\xa0"), (begin + b"\x07", None)]


def test_a_session_that_ends_takes_its_rows_with_it(tmp_path: Path) -> None:
    home = book_home(tmp_path)

    def both(state: PartitionState[Any]) -> None:
        make(state, "a", {1: Level(1)})
        make(state, "ab", {1: Level(2)})

    version = home.batch(home.start(), both)
    with home.open(version) as state:
        state.remove("a")
        assert state.changed() == [(b"a", None), (b"\xf8\xf9a\xff", None)]
    version = home.batch(version, lambda state: state.remove("a"))
    with home.open(version) as state:
        assert session_of(state, "a") is None
        make(state, "a", {})
        assert len(session_of(state, "a").bids) == 0
        assert dict(session_of(state, "ab").bids) == {1: Level(2)}
    version = home.batch(version, lambda state: make(state, "a", {}))
    with home.open(version) as state:
        assert dict(session_of(state, "a").bids) == {}


def whole(state: PartitionState[Any]) -> None:
    state.entries["a"] = SessionEntry(1, MapState({"x": Level(1)}))


def test_a_table_that_is_the_whole_state(tmp_path: Path) -> None:
    home = book_home(tmp_path, StateSchema(MapState[str, Level]))
    version = home.batch(home.start(), whole)
    version = home.batch(version, lambda state: session_of(state, "a").update({"y": Level(2)}))
    with home.open(version) as state:
        assert dict(session_of(state, "a")) == {"x": Level(1), "y": Level(2)}


def test_a_table_given_to_another_session_is_copied(tmp_path: Path) -> None:
    home = book_home(tmp_path)
    version = home.batch(home.start(), lambda state: make(state, "a", {1: Level(1), 2: Level(2)}))

    def give(state: PartitionState[Any]) -> None:
        state.entries["b"] = SessionEntry(0, Book("b", session_of(state, "a").bids))

    version = home.batch(version, give)
    version = home.batch(version, lambda state: session_of(state, "a").bids.clear())
    with home.open(version) as state:
        assert dict(session_of(state, "a").bids) == {}
        assert dict(session_of(state, "b").bids) == {1: Level(1), 2: Level(2)}


def read_migrated(folder: Path, migrate: Callable[[Mapping[str, Any]], Any]) -> tuple[Home, Any, StateVersion]:
    """Return a home, the state that a migration from `PlainBook` returned, and the version of its batch."""
    old = book_home(folder, PLAIN)
    version = old.batch(old.start(), lambda state: make(state, "a", {1: Level(5)}, is_plain=True))
    home = dataclasses.replace(old, schema=StateSchema(Book, migrate))
    found: list[Any] = []
    version = home.batch(version, lambda state: found.append(session_of(state, "a")))
    return home, found[0], version


def test_a_dict_becomes_a_table(tmp_path: Path) -> None:
    home, book, version = read_migrated(tmp_path, lambda old: Book(old["name"], MapState(old["bids"])))
    assert list(book.bids.items()) == [(1, Level(5))]
    with home.open(version) as state:
        assert list(session_of(state, "a").bids.items()) == [(1, Level(5))]


@pytest.mark.parametrize(
    ("migrate", "said"),
    [
        (lambda old: Book(old["name"], old["bids"]), "bids is a dict, not a MapState"),
        (lambda old: Book(old["name"], MapState[Any, Any]({"x": Level(1)})), "Expected `int`, got `str`"),
        (lambda old: Book(old["name"], MapState[Any, Any]({1: {"price": "x"}})), "Expected `int`, got `str`"),
        (lambda old: Book(old["name"], MapState[Any, Any]({1: object()})), "Encoding objects of type object"),
        (lambda _: None, "bids is a NoneType, not a MapState"),
    ],
    ids=["dict", "key", "row", "object", "nothing"],
)
def test_a_migration_that_gives_no_table_of_the_type_fails(
    tmp_path: Path, migrate: Callable[[Mapping[str, Any]], Any], said: str
) -> None:
    """A dict in place of a table must not lose its rows silently, nor must the other errors count against a message."""
    with pytest.raises(MigrationFailed, match=said) as raised:
        read_migrated(tmp_path, migrate)
    assert raised.value.session == "a"


class Noted(msgspec.Struct):
    name: str


class Counted(msgspec.Struct):
    """`Noted` with a table that has a row by default."""

    name: str
    bids: MapState[int, Level] = msgspec.field(default_factory=lambda: MapState({1: Level(5)}))


def test_the_rows_of_a_default_are_kept(tmp_path: Path) -> None:
    """They must be present in every batch after the release, not only in the first."""
    home = book_home(tmp_path, StateSchema(Noted))
    version = home.batch(home.start(), lambda state: state.entries.update(a=SessionEntry(0, Noted("a"))))  # type: ignore[arg-type]  # of this schema
    home = dataclasses.replace(home, schema=StateSchema(Counted))
    for note in "bc":

        def fold(state: PartitionState[Any], note: str = note) -> None:
            book = session_of(state, "a")
            book.name = note
            assert list(book.bids.items()) == [(1, Level(5))]

        version = home.batch(version, fold)


def test_a_table_replaced_by_something_else_names_session_and_field(tmp_path: Path) -> None:
    home = book_home(tmp_path)
    with home.open(home.start()) as state:
        state.entries["a"] = SessionEntry(0, Book("a", {}))  # type: ignore[arg-type]  # the fault
        with pytest.raises(
            StateNotOfItsType, match=r"session 'a'.*state\.bids = {} is of type dict.*its type is MapState"
        ):
            state.changed()


class Mutable(msgspec.Struct):
    value: int


class HoldsList(msgspec.Struct, frozen=True):
    values: list[int]


class Colour(enum.Enum):
    RED = 1


class Nested(msgspec.Struct):
    books: list[MapState[int, int]]


@pytest.mark.parametrize(
    ("state_type", "said"),
    [
        (MapState, "does not declare its types"),
        (MapState[int, Mutable], "can be changed in place"),
        (MapState[int, HoldsList], "can be changed in place"),
        (MapState[int, dict[str, int]], "can be changed in place"),
        (MapState[float, int], "no single encoding"),
        (Nested, "Rows is the whole state, or a field"),
        (dict[str, MapState[int, int]], "Rows is the whole state, or a field"),
    ],
)
def test_tables_that_cannot_be_kept_row_by_row_are_refused_when_declared(state_type: object, said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        StateSchema[object](state_type)


@pytest.mark.parametrize("row", [int, str | None, tuple[int, ...], Level, Colour, tuple[Level, bytes]])
@pytest.mark.parametrize("key", [int, str, bytes, Colour, tuple[int, str]])
def test_immutable_rows_are_taken(key: Any, row: Any) -> None:
    shape = StateSchema[object](MapState[key, row]).shape
    assert shape.kind == "rows"


Key = st.integers(0, 12)
Action = st.one_of(
    st.tuples(st.just("set"), Key, st.integers(0, 5)),
    st.tuples(st.just("delete"), Key),
    st.tuples(st.just("snapshot"), st.dictionaries(Key, st.integers(0, 5), max_size=4)),
    st.tuples(st.just("name"), Key),
    st.tuples(st.just("sum")),
    st.tuples(st.just("end")),
)
Batch = st.tuples(
    st.lists(st.tuples(st.sampled_from(["a", "b", "a" * 600]), Action), max_size=10),
    st.sampled_from(["", "lost"]),
)


def do(state: PartitionState[Any], session: str, action: tuple[Any, ...], *, is_plain: bool) -> object:
    """Carry out an action of a fold, and return its view."""
    kind, *given_ = action
    held = session_of(state, session)
    if kind == "snapshot":
        make(state, session, {key: Level(value) for key, value in given_[0].items()}, is_plain=is_plain)
    elif kind == "end":
        state.remove(session)
    elif held is None:
        return None
    elif kind == "set":
        held.bids[given_[0]] = Level(given_[1])
    elif kind == "delete":
        return held.bids.pop(given_[0], None)
    elif kind == "name":
        held.names[str(given_[0])] = (*held.names.get(str(given_[0]), ()), 1)
    return seen(state, session)


def seen(state: PartitionState[Any], session: str) -> object:
    held = session_of(state, session)
    return None if held is None else (held.name, sorted(held.bids.items()), sorted(held.names.items()), len(held.bids))


@given(st.lists(Batch, max_size=8), st.sampled_from([1, 600, 10**9]))
def test_both_layouts_give_the_same_rows(batches: list[Any], memory_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        homes = [Small(Path(folder) / "rows" / "d", Path(folder) / "rows" / "h", schema=BOOK, bytes_max=memory_bytes)]
        homes.append(Small(Path(folder) / "value" / "d", Path(folder) / "value" / "h", schema=PLAIN, bytes_max=10**9))
        versions = [home.start() for home in homes]
        for actions, event in batches:
            found = [run(home, version, actions, event) for home, version in zip(homes, versions, strict=True)]
            versions = [version for version, _ in found]
            assert found[0][1] == found[1][1]


@dataclasses.dataclass
class Small(Home):
    """A home whose tasks may hold few bytes of state."""

    bytes_max: int = 0

    def local_stores(self) -> Any:
        made = super().local_stores()
        made.budget = MemoryBudget(self.bytes_max)
        return made


def run(home: Home, version: StateVersion, actions: list[Any], event: str) -> tuple[StateVersion, list[object]]:
    shown: list[object] = []

    def fold(state: PartitionState[Any]) -> None:
        shown.extend(do(state, session, action, is_plain=home.schema is PLAIN) for session, action in actions)

    version = home.batch(version, fold)
    if event == "lost":
        for path in home.store_files():
            path.unlink()
    return version, shown


def test_what_is_spilled_is_seen_by_nobody_before_the_commit_and_gone_after(tmp_path: Path) -> None:
    home = Small(tmp_path / "d", tmp_path / "h", schema=BOOK, bytes_max=1)
    version = home.batch(home.start(), lambda state: make(state, "a", {1: Level(1)}))
    files = set(home.durable.iterdir())
    with home.open(version) as state, StateFileWriter.open(home.durable) as writer:
        for number in range(20):
            make(state, f"new{number}", {number: Level(number)})
        assert len(state.entries) == 1
        with home.open(version) as other:
            assert session_of(other, "new0") is None
        assert set(home.durable.iterdir()) == files
        after = state.write(writer, 2)
    with home.open(after) as state:
        assert [dict(session_of(state, f"new{number}").bids) for number in range(20)] == [
            {number: Level(number)} for number in range(20)
        ]
    assert [path.name for path in home.local_root.iterdir() if not path.name.startswith("boot-")] == []


@pytest.mark.parametrize(("declared", "make"), [(MapState[int, str], MapState), (TableState[int, str], dict)])
def test_rows_that_are_read_count_towards_the_memory_of_a_task(
    tmp_path: Path, declared: object, make: Callable[[dict[int, str]], Any]
) -> None:
    home = Small(tmp_path / "d", tmp_path / "h", schema=StateSchema(declared), bytes_max=20_000)
    sessions = [str(number) for number in range(40)]

    def open_all(state: PartitionState[Any]) -> None:
        for session in sessions:
            state.entries[session] = SessionEntry(None, make(dict.fromkeys(range(100), "x" * 20)))

    def read_all(state: PartitionState[Any]) -> None:
        for session in sessions:
            entry = state.load(session)
            assert entry is not None
            assert sum(map(len, entry.state.values())) == 2_000
            entry.state[0] = "changed"
            assert len(state.entries) <= 20_000 // 2_000

    version = home.batch(home.batch(home.start(), open_all), read_all)
    with home.open(version) as state:
        loaded: list[Any] = [state.load(session) for session in sessions]
        assert [entry.state[0] for entry in loaded] == ["changed"] * len(sessions)
