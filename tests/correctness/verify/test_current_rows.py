"""The current rows of a partition, and their differences from states, as a plain dict finds them in generated rows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep import DecimalType
from lockstep.declare.replay import ReplayKey
from lockstep.model.table_schema import make_file_schema
from lockstep.verify import current_rows
from lockstep.verify.current_rows import CurrentRows, StateRows, find_differences, make_replay_schema
from lockstep.verify.rows import to_column

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

START = datetime(2026, 1, 1, tzinfo=UTC)


class Side(Enum):
    BID = "bid"
    ASK = "ask"


class Level(msgspec.Struct):
    """A row of a state."""

    size: Annotated[Decimal, DecimalType(20, 4)]
    ratio: float
    tags: list[str]
    at: datetime | None


class LevelRow(msgspec.Struct):
    """A row of a table."""

    side: Side
    price: float
    size: Annotated[Decimal, DecimalType(20, 4)] | None
    ratio: float | None
    tags: list[str] | None
    at: datetime | None


KEY = ReplayKey(("side", "price"), "size", ("size", "ratio", "tags", "at"))
FILE = make_file_schema(LevelRow)
SCHEMA = make_replay_schema(KEY, FILE)

LEVELS = st.builds(
    Level,
    st.decimals(-99, 99, places=2),
    st.sampled_from([0.0, -0.0, 0.5, float("nan"), float("inf")]),
    st.lists(st.sampled_from("ab"), max_size=2),
    st.none() | st.integers(0, 9).map(lambda second: START + timedelta(seconds=second)),
)
KEYS = st.tuples(st.sampled_from(Side), st.sampled_from([0.0, -0.0, 1.5, float("inf")]))
CHANGES = st.lists(st.tuples(st.sampled_from("xyz"), KEYS, st.none() | LEVELS), max_size=40)
States = dict[str, dict[tuple[Side, float], Level]]


def to_row(number: int, session: str, key: tuple[Side, float], level: Level | None) -> dict[str, Any]:
    values = dict.fromkeys(KEY.values) if level is None else msgspec.structs.asdict(level)
    place = {"_session": session, "_emit_offset": number // 3, "_row": number % 3}
    return {"side": key[0].value, "price": key[1]} | values | place


def fold(changes: Iterable[tuple[str, tuple[Side, float], Level | None]]) -> States:
    states: States = {}
    for session, key, level in changes:
        state = states.setdefault(session, {})
        if level is None:
            state.pop(key, None)
        else:
            state[key] = level
    return states


def read_current(rows: list[dict[str, Any]], batch_rows: int) -> pa.Table:
    current = CurrentRows(KEY, SCHEMA)
    schema = pa.schema([*SCHEMA])
    for at in range(0, len(rows), batch_rows):
        (batch,) = pa.Table.from_pylist(rows[at : at + batch_rows], schema).combine_chunks().to_batches()
        current.add(batch)
    return current.finish()


def read_states(states: Mapping[str, Mapping[tuple[Side, float], Level]]) -> pa.Table:
    made = StateRows(KEY, SCHEMA)
    for session, state in states.items():
        made.add(session, state.items())
    return made.finish()


@pytest.fixture(autouse=True, params=[1, 5, 1_000])
def together(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Set the minimum number of rows that are merged and compared together."""
    monkeypatch.setattr(current_rows, "MERGED_ROWS", request.param)
    monkeypatch.setattr(current_rows, "COMPARED_ROWS", request.param)
    return int(request.param)


@given(changes=CHANGES, batch_rows=st.integers(1, 7))
def test_the_current_rows_are_the_rows_of_the_states(
    changes: list[tuple[str, tuple[Side, float], Level | None]], batch_rows: int
) -> None:
    rows = [to_row(number, *change) for number, change in enumerate(changes)]
    current = read_current(rows, batch_rows)
    states = fold(changes)
    assert current.num_rows == sum(map(len, states.values()))
    assert list(find_differences(KEY, current, read_states(states))) == []


@given(changes=CHANGES, other=LEVELS, data=st.data())
def test_each_difference_of_rows_and_states_is_found_with_its_key(
    changes: list[tuple[str, tuple[Side, float], Level | None]], other: Level, data: st.DataObject
) -> None:
    """An additional key, a missing key or a changed value: exactly that is named."""
    rows = [to_row(number, *change) for number, change in enumerate(changes)]
    current = read_current(rows, 7)
    states = fold(changes)
    keys = [(session, key) for session, state in states.items() for key in state]
    kind = data.draw(st.sampled_from(["missing", "extra", "changed"] if keys else ["missing"]))
    if kind == "missing":
        states.setdefault("new", {})[Side.ASK, 7.0] = other
        (found,) = find_differences(KEY, current, read_states(states))
        assert (found.session, found.key, found.column, found.position) == ("new", ("ask", 7.0), None, None)
        return
    session, key = data.draw(st.sampled_from(keys))
    level = states[session].pop(key)
    if kind == "changed":
        states[session][key] = msgspec.structs.replace(level, tags=[*level.tags, "c"])
    (found,) = find_differences(KEY, current, read_states(states))
    newest = max(n for n, change in enumerate(changes) if change[:2] == (session, key))
    assert (found.session, found.key) == (session, (key[0].value, key[1]))
    assert found.position == (newest // 3, newest % 3)
    if kind == "changed":
        assert (found.column, found.expected, found.found) == ("tags", [*level.tags, "c"], level.tags)
    else:
        assert found.column is None


class Pair(msgspec.Struct, frozen=True):
    """A key of two parts."""

    name: str
    path: tuple[int, ...]


class PairRow(msgspec.Struct):
    """A row with a nested part of its key, whose value is not a Struct."""

    name: str
    path: list[int]
    total: int | None


@given(
    st.dictionaries(
        st.builds(Pair, st.sampled_from("ab"), st.lists(st.integers(0, 2), max_size=2).map(tuple)), st.integers()
    )
)
def test_a_nested_key_and_a_value_that_is_no_struct_are_compared(state: dict[Pair, int]) -> None:
    key = ReplayKey(("name", "path"), "total", is_scalar=True)
    schema = make_replay_schema(key, make_file_schema(PairRow))
    rows = [
        {
            "_session": "s",
            "name": pair.name,
            "path": to_column(pair.path),
            "total": total % 100,
            "_emit_offset": 0,
            "_row": 0,
        }
        for pair, total in state.items()
    ]
    current = CurrentRows(key, schema)
    for batch in pa.Table.from_pylist(rows, schema).to_batches():
        current.add(batch)
    states = StateRows(key, schema)
    states.add("s", state.items())
    found = list(find_differences(key, current.finish(), states.finish()))
    assert len(found) == sum(total != total % 100 for total in state.values())
