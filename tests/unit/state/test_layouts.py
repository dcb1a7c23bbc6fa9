"""A table is stored whole or row by row, as its release declares; a release with the other layout reads it."""

from __future__ import annotations

import dataclasses
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.model.map_state import MapState, TableState, make_table
from lockstep.state.codec import StateSchema, StateTypeChanged
from lockstep.state.decoded_sessions import SessionCache, SessionEntry
from tests.unit.state.home import Home

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstep.state.changelog import StateVersion
    from lockstep.state.store import PartitionState


class Point(msgspec.Struct, array_like=True):
    x: int
    at: Decimal


class Newer(msgspec.Struct, array_like=True):
    x: int
    at: Decimal
    label: str = ""


Key = tuple[str, int]
LAYOUTS: tuple[tuple[StateSchema[Any], Callable[[dict[Any, Any]], Any]], ...] = (
    (StateSchema(dict[Key, Point]), dict),
    (StateSchema(TableState[Key, Point]), make_table),
    (StateSchema(TableState[Key, Point]), dict),
)
ROWS = st.dictionaries(
    st.tuples(st.sampled_from("ab"), st.integers(0, 3)), st.builds(Point, st.integers(0, 9), st.just(Decimal("1.50")))
)
STEPS = st.lists(st.tuples(st.integers(0, 2), st.dictionaries(st.sampled_from("pqr"), st.none() | ROWS), st.booleans()))


def put(
    values: dict[str, dict[Any, Any] | None], make: Callable[[dict[Any, Any]], Any]
) -> Callable[[PartitionState[Any]], None]:
    """Return a fold that sets the tables of sessions; None ends a session. An existing table is changed in place."""

    def fold(state: PartitionState[Any]) -> None:
        for session, rows in values.items():
            if rows is None:
                state.remove(session)
            elif (entry := state.load(session)) is None:
                state.entries[session] = SessionEntry(1, make(dict(rows)))
            else:
                for key in [key for key in entry.state if key not in rows]:
                    del entry.state[key]
                entry.state.update(rows)

    return fold


def read(home: Home, version: StateVersion, sessions: str = "pqr") -> dict[str, dict[Any, Any]]:
    with open_state(home, version) as state:
        loaded = {session: state.load(session) for session in sessions}
        return {session: dict(entry.state.items()) for session, entry in loaded.items() if entry is not None}


def open_state(home: Home, version: StateVersion) -> PartitionState[Any]:
    return home.open(version)


@given(STEPS)
def test_any_order_of_layouts_reads_the_same_rows(steps: list[tuple[int, dict[str, Any], bool]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = Home(Path(folder) / "durable", Path(folder) / "hot")
        version = home.start()
        expected: dict[str, dict[Any, Any]] = {}
        for number, values, is_lost in steps:
            schema, make = LAYOUTS[number]
            version = dataclasses.replace(home, schema=schema).batch(version, put(values, make))
            expected |= {session: rows for session, rows in values.items() if rows is not None}
            for session in [session for session, rows in values.items() if rows is None]:
                expected.pop(session, None)
            for path in home.store_files() if is_lost else ():
                path.unlink()
        for schema, _ in LAYOUTS:
            assert read(dataclasses.replace(home, schema=schema), version) == expected


def test_a_new_layout_takes_compatible_rows_and_refuses_others(tmp_path: Path) -> None:
    home = Home(tmp_path / "durable", tmp_path / "hot", schema=StateSchema(dict[Key, Point]))
    version = home.batch(home.start(), put({"p": {("a", 1): Point(1, Decimal(2))}}, dict))
    newer = dataclasses.replace(home, schema=StateSchema(TableState[Key, Newer]))
    assert read(newer, version) == {"p": {("a", 1): Newer(1, Decimal(2))}}
    for refused in (TableState[Key, int], TableState[tuple[str, str], Point], MapState[int, str]):
        with pytest.raises(StateTypeChanged):
            read(dataclasses.replace(home, schema=StateSchema(refused)), version)


def test_only_rows_that_differ_are_written(tmp_path: Path) -> None:
    home = Home(tmp_path / "durable", tmp_path / "hot", schema=StateSchema(TableState[Key, list[int]]))
    rows = {("a", number): [number] for number in range(100)}
    version = home.batch(home.start(), put({"p": rows}, dict))
    with open_state(home, version) as state:
        entry = state.load("p")
        assert entry is not None
        entry.state.get(("a", 1))
        entry.state.get(("a", 2)).append(0)
        entry.state[("a", 3)] = list(entry.state[("a", 3)])
        entry.state[("a", 4)] = [5]
        del entry.state[("a", 5)]
        written = sorted(msgspec.msgpack.decode(key[4:])[1] for key, _ in state.changed())
    assert written == [2, 4, 5]


@pytest.mark.parametrize("make", [make_table, dict])
def test_rows_that_return_to_an_earlier_value_are_written(
    tmp_path: Path, make: Callable[[dict[Any, Any]], Any]
) -> None:
    """The session may also stay decoded from batch to batch."""
    schema: StateSchema[Any] = StateSchema(TableState[Key, list[int]])
    home = Home(tmp_path / "durable", tmp_path / "hot", schema=schema, decoded=SessionCache())
    rows: dict[Any, Any] = {("a", number): [number] for number in range(9)}
    version = home.batch(home.start(), put({"p": rows}, make))
    home.decoded = SessionCache()
    for value in ([7], [1], [7]):
        rows[("a", 1)] = value
        version = home.batch(version, put({"p": rows}, make))
        assert read(dataclasses.replace(home, decoded=SessionCache(bytes_max=0)), version) == {"p": rows}
