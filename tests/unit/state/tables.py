"""A state with two tables, its model of plain dicts, and the steps that change both."""

from __future__ import annotations

from itertools import chain
from typing import Any

import msgspec
from hypothesis import strategies as st

from lockstep import MapState
from lockstep.model.position import SegmentRef
from lockstep.state.bases import read_entries
from lockstep.state.changelog import StateVersion, read_segment
from lockstep.state.codec import StateSchema
from lockstep.state.decoded_sessions import SessionEntry
from lockstep.state.entry_order import Change
from lockstep.state.store import PartitionState
from lockstep.state.values import is_session, make_session_prefix
from lockstep.verify.state import StoredSystemEntries
from tests.unit.state.home import Home

SESSIONS = ("a", "a\0", "b", "l" * 505, "m" * 700)
"""Rows of the last two have names too long for lmdb; of the fourth session only some rows."""
ROWS = st.dictionaries(st.integers(0, 6), st.text("xy", max_size=2), max_size=6)
Tables = tuple[dict[int, str], dict[int, str]]
Model = dict[str, Tables]
NO_TABLES: Tables = ({}, {})


class Book(msgspec.Struct):
    """A state with two tables."""

    bids: MapState[int, str]
    asks: MapState[int, str] = msgspec.field(default_factory=MapState)


SCHEMA: StateSchema[Any] = StateSchema(Book)


class Step(msgspec.Struct, frozen=True):
    """The effect of one message on one session."""

    kind: str
    session: str
    rows: dict[int, str]


STEPS = st.builds(
    Step,
    st.sampled_from(["snapshot", "update", "table", "clear", "end", "suspend", "spill"]),
    st.sampled_from(SESSIONS),
    ROWS,
)
BATCHES = st.lists(st.tuples(st.lists(STEPS, max_size=8), st.booleans()), min_size=1, max_size=6)


def take(state: PartitionState[Any], model: Model, step: Step) -> None:
    """Apply a step to the state and to the model."""
    entry = state.entries.get(step.session) or state.load(step.session)
    known = entry is not None and entry.state is not None
    bids, asks = model.get(step.session, NO_TABLES)
    match step.kind:
        case "spill":
            state.spill()
        case "end":
            state.remove(step.session)
            model.pop(step.session, None)
        case "suspend" if entry is not None:
            entry.state = None
            model[step.session] = ({}, {})
        case "update" if entry is not None and known:
            entry.state.bids.update(step.rows)
            model[step.session] = (bids | step.rows, asks)
        case "table" if entry is not None and known:
            entry.state.asks = MapState(step.rows)
            model[step.session] = (bids, dict(step.rows))
        case "clear" if entry is not None and known:
            entry.state.bids.clear()
            model[step.session] = ({}, asks)
        case "snapshot":
            state.entries[step.session] = SessionEntry(0, Book(MapState(step.rows), MapState(step.rows)))
            model[step.session] = (dict(step.rows), dict(step.rows))
        case _:
            pass


def read(home: Home, version: StateVersion) -> Model:
    """Return the tables that a fold reads."""
    found: Model = {}
    with home.open(version) as state:
        for session in SESSIONS:
            entry: Any = state.load(session)
            if entry is not None:
                tables = ({}, {}) if entry.state is None else (dict(entry.state.bids), dict(entry.state.asks))
                found[session] = tables
    return found


def count_rows(model: Model) -> int:
    return sum(len(bids) + len(asks) for bids, asks in model.values())


def verified_rows(home: Home, version: StateVersion) -> int:
    """Count the rows that the proof reads from all segments."""
    assert version.segment is not None
    entries = StoredSystemEntries()
    head = read_segment(home.durable, version.segment, version)
    for ref in (*head.header.chain, version.segment):
        for key, value in read_changes(home, version, ref):
            assert is_session(key) or entries.put(key, value)
    return sum(len(list(entries.scan(make_session_prefix(session.encode())))) for session in SESSIONS)


def read_changes(home: Home, version: StateVersion, ref: SegmentRef) -> list[Change]:
    """Return the entries of a segment."""
    return [*chain.from_iterable(read_segment(home.durable, ref, version).blocks())]


def check_readers(home: Home, version: StateVersion, model: Model) -> None:
    """Compare the view of a fold, all durable entries and the rows of the proof with the model."""
    assert read(home, version) == model
    if version.segment is not None:
        stored = read_entries(home.durable, version)[1]
        assert sum(not is_session(key) for key in stored) == count_rows(model)
        assert verified_rows(home, version) == count_rows(model)
