"""One entry removes all rows of a session: every reader agrees with a dict, after spills and losses too."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep import MapState
from lockstep.model.position import SegmentRef
from lockstep.state.bases import read_entries
from lockstep.state.changelog import StateVersion, read_segment
from lockstep.state.codec import StateSchema
from lockstep.state.decoded_sessions import SessionEntry
from lockstep.state.entry_order import Change, is_prefix_removal, make_prefix_removal, sort_changes
from lockstep.state.local_store import LocalStore, StoreFile
from lockstep.state.store import PartitionState, SpillStore
from lockstep.state.values import is_session, make_session_prefix
from lockstep.verify.state import StoredSystemEntries
from tests.unit.state.home import Home

SESSIONS = ("a", "a\0", "b", "l" * 505, "m" * 700)
"""Rows of the last two have names too long for lmdb, of the fourth only some."""
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
    """The tables that a fold reads."""
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
    """The rows that the proof reads from all segments."""
    assert version.segment is not None
    entries = StoredSystemEntries()
    head = read_segment(home.durable, version.segment, version)
    for ref in (*head.header.chain, version.segment):
        for key, value in read_changes(home, version, ref):
            assert is_session(key) or entries.put(key, value)
    return sum(len(list(entries.scan(make_session_prefix(session.encode())))) for session in SESSIONS)


def read_changes(home: Home, version: StateVersion, ref: SegmentRef) -> list[Change]:
    """The entries of a segment."""
    return [*chain.from_iterable(read_segment(home.durable, ref, version).blocks())]


@settings(max_examples=200)
@given(batches=BATCHES)
def test_every_reader_agrees_with_a_dict(batches: list[tuple[list[Step], bool]]) -> None:
    with TemporaryDirectory() as folder:
        (Path(folder) / "durable").mkdir()
        home = Home(Path(folder) / "durable", Path(folder) / "hot", schema=SCHEMA)
        version = home.start()
        model: Model = {}
        for steps, is_lost in batches:

            def fold(state: PartitionState[Any], steps: list[Step] = steps) -> None:
                for step in steps:
                    take(state, model, step)

            version = home.batch(version, fold)
            if is_lost:
                for path in home.store_files():
                    path.unlink()
            assert read(home, version) == model
            if version.segment is not None:
                stored = read_entries(home.durable, version)[1]
                assert sum(not is_session(key) for key in stored) == count_rows(model)
                assert verified_rows(home, version) == count_rows(model)


def test_spilled_removals_hide_stored_rows(tmp_path: Path) -> None:
    (tmp_path / "durable").mkdir()
    home = Home(tmp_path / "durable", tmp_path / "hot", schema=SCHEMA)
    before = Step("snapshot", "a", {1: "x", 2: "x"})
    version = home.batch(home.start(), lambda state: take(state, {}, before))
    model: Model = {}

    def fold(state: PartitionState[Any]) -> None:
        for kind, rows in (("end", {}), ("spill", {}), ("snapshot", {1: "x"}), ("spill", {})):
            take(state, model, Step(kind, "a", rows))
        entry: Any = state.load("a")
        assert (entry.state.bids.get(1), entry.state.bids.get(2)) == ("x", None)

    assert read(home, home.batch(version, fold)) == model == {"a": ({1: "x"}, {1: "x"})}


def test_the_end_of_a_large_session_is_two_entries(tmp_path: Path) -> None:
    (tmp_path / "durable").mkdir()
    home = Home(tmp_path / "durable", tmp_path / "hot", schema=SCHEMA)
    rows = dict.fromkeys(range(20000), "row")

    def begin(state: PartitionState[Any]) -> None:
        state.entries["a"] = SessionEntry(0, Book(MapState(rows)))
        state.entries["b"] = SessionEntry(0, Book(MapState(rows)))

    version = home.batch(home.start(), begin)
    version = home.batch(version, lambda state: state.remove("a"))
    assert version.segment is not None
    assert read_changes(home, version, version.segment) == [(b"\xf8\xf9a\xff", None), (b"a", None)]
    assert {session: len(bids) for session, (bids, _) in read(home, version).items()} == {"b": 20_000}


def test_a_snapshot_of_other_rows_removes_the_old_ones_by_one_entry(tmp_path: Path) -> None:
    (tmp_path / "durable").mkdir()
    home = Home(tmp_path / "durable", tmp_path / "hot", schema=SCHEMA)
    first = Step("snapshot", "a", dict.fromkeys(range(100), "x"))
    version = home.batch(home.start(), lambda state: take(state, {}, first))
    version = home.batch(version, lambda state: take(state, {}, Step("snapshot", "a", {7: "x", 200: "y"})))
    assert version.segment is not None
    changes = read_changes(home, version, version.segment)
    assert [key for key, value in changes if value is None] == [b"\xf8\xf9a\xffasks\xff", b"\xf8\xf9a\xffbids\xff"]
    assert sum(key.startswith(b"\xf9a\xff") for key, _ in changes) == 4


KEYS = [
    b"a",
    b"\xf9a\xffx\xff1",
    b"\xf9a\xffx\xff2",
    b"\xf9a\xffy\xff1",
    b"\xf9ab\xffx\xff1",
    b"\xf9a\xffx\xff" + b"z" * 600,
]
PREFIXES = [b"\xf9a\xff", b"\xf9a\xffx\xff", b"\xf9ab\xff"]
CHANGES = st.lists(
    st.tuples(st.sampled_from(KEYS), st.none() | st.binary(max_size=2))
    | st.sampled_from(PREFIXES).map(make_prefix_removal),
    max_size=8,
    unique_by=lambda change: change[0],
)


@given(stored=st.dictionaries(st.sampled_from(KEYS), st.binary(max_size=2)), spills=st.lists(CHANGES, max_size=4))
def test_spilled_changes_are_those_of_a_dict(stored: dict[bytes, bytes], spills: list[list[Change]]) -> None:
    base, scratch = (LocalStore(StoreFile(None, None), lambda store: store.file.close()) for _ in range(2))
    base.apply(list(stored.items()), b"stamp")
    spilled = SpillStore(scratch)
    expected = dict(stored)
    for changes in spills:
        spilled.put(changes)
        for change in sort_changes(changes):
            if is_prefix_removal(change):
                expected = {key: value for key, value in expected.items() if not key.startswith(change[0][1:])}
            elif change[1] is None:
                expected.pop(change[0], None)
            else:
                expected[change[0]] = change[1]
    assert dict(base.items(spilled)) == expected
    assert spilled.size == sum(len(key) + len(value or b"") for key, value in spilled)
    base.apply(list(spilled), b"stamp")
    assert dict(base.items()) == expected
    base.close()
    spilled.close()
