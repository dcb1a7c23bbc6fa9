"""One entry removes all rows of a session: every reader agrees with a dict, also after spills and losses."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep import MapState
from lockstep.state.decoded_sessions import SessionEntry
from lockstep.state.entry_order import Change, is_prefix_removal, make_prefix_removal, sort_changes
from lockstep.state.local_store import LocalStore, StoreFile
from lockstep.state.store import PartitionState, SpillStore
from tests.support.examples import scale_examples
from tests.unit.state.home import Home
from tests.unit.state.tables import BATCHES, SCHEMA, Book, Model, Step, check_readers, read, read_changes, take


@settings(max_examples=scale_examples(200))
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
            check_readers(home, version, model)


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
