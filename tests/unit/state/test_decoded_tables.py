"""Tables of sessions that a worker keeps decoded equal the stored tables, and are not read again."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.model.map_state import MapState
from lockstep.state.changelog import StateFileWriter, make_empty_state
from lockstep.state.codec import StateSchema
from lockstep.state.decoded_sessions import SessionCache, SessionEntry
from lockstep.state.local_store_pool import IdleFiles, LocalStorePool
from lockstep.state.store import PartitionState
from lockstep.state.values import ROW_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstep.state.changelog import StateVersion

Table = MapState[int, str]
SCHEMA: StateSchema[Any] = StateSchema(MapState[int, str])
SESSIONS = ("a", "b")
KEYS = 6


@dataclass
class Worker:
    """A process that keeps sessions decoded, with the state of one partition."""

    root: Path
    cache: SessionCache = field(default_factory=SessionCache)

    def open(self, version: StateVersion) -> PartitionState[Any]:
        """Open the state of a version."""
        stores = LocalStorePool(
            self.root / "local", self.root / "durable", stores_max=10, decoded=self.cache, idle=IdleFiles(files_max=0)
        )
        return PartitionState.open(version, durable=self.root / "durable", local_stores=stores, schema=SCHEMA)

    def batch(self, version: StateVersion, fold: Callable[[PartitionState[Any]], None]) -> StateVersion:
        """Fold one range as a task does, and return the new version."""
        with self.open(version) as state:
            fold(state)
            with StateFileWriter.open(self.root / "durable") as writer:
                after = state.write(writer, version.next_offset + 1)
            state.publish_local()
        return after

    def read(self, version: StateVersion) -> dict[str, dict[int, str]]:
        """Return the tables of all sessions of a state, as another process decodes them."""
        other = Worker(self.root, SessionCache(bytes_max=0))
        with other.open(version) as state:
            loaded = {session: state.load(session) for session in SESSIONS}
            return {session: dict(entry.state) for session, entry in loaded.items() if entry is not None}


def start(root: Path) -> tuple[Worker, StateVersion]:
    (root / "durable").mkdir()
    return Worker(root), make_empty_state(1, "topic-id", 0, 0)


def find(state: PartitionState[Any], session: str) -> Table:
    """Return the table of a session; make it if it is new."""
    entry = state.entries.get(session) or state.load(session)
    if entry is None:
        entry = state.entries[session] = SessionEntry(None, Table())
    table: Table = entry.state
    return table


CHANGES = st.sampled_from(["set", "delete", "replace", "clear", "remove", "read"])
STEPS = st.lists(
    st.tuples(
        st.lists(st.tuples(CHANGES, st.sampled_from(SESSIONS), st.integers(0, KEYS - 1), st.text(max_size=3))),
        st.booleans(),
        st.integers(0, 9).map(lambda number: number == 0),
    ),
    max_size=15,
)


def apply(state: PartitionState[Any], expected: dict[str, dict[int, str]], change: tuple[str, str, int, str]) -> None:
    """Make a change in a state and in a plain dict, and compare their views of its key."""
    kind, session, key, text = change
    if kind == "remove":
        state.remove(session)
        expected.pop(session, None)
        return
    table = find(state, session)
    rows = expected.setdefault(session, {})
    match kind:
        case "set":
            table[key] = rows[key] = text
        case "delete":
            assert table.pop(key, None) == rows.pop(key, None)
        case "replace":
            state.entries[session].state = Table({key: text})
            expected[session] = {key: text}
        case "clear":
            table.clear()
            rows.clear()
        case _:
            assert (table.get(key), len(table)) == (rows.get(key), len(rows))


@given(STEPS)
def test_any_history_of_batches_reads_as_plain_dicts(steps: list[tuple[Any, bool, bool]]) -> None:
    with TemporaryDirectory() as folder:
        worker, version = start(Path(folder))
        expected = dict[str, dict[int, str]]()
        for changes, commits, loses_local_store in steps:
            after = {session: dict(rows) for session, rows in expected.items()}

            def fold(
                state: PartitionState[Any],
                changes: list[tuple[str, str, int, str]] = changes,
                after: dict[str, dict[int, str]] = after,
            ) -> None:
                for change in changes:
                    apply(state, after, change)

            written = worker.batch(version, fold)
            if commits:
                version = written
                expected = after
            if loses_local_store:
                shutil.rmtree(worker.root / "local", ignore_errors=True)
            assert worker.read(version) == expected


def test_the_next_batch_uses_the_rows_in_memory(tmp_path: Path) -> None:
    worker, version = start(tmp_path)
    version = worker.batch(version, lambda state: find(state, "a").update(dict.fromkeys(range(100), "x")))
    with worker.open(version) as state:
        table = find(state, "a")
        state._entries.get = None  # type: ignore[method-assign, assignment]  # noqa: SLF001  # nothing is read
        assert [table[number] for number in range(100)] == ["x"] * 100
        assert state.changed() == []


@given(STEPS)
def test_rows_in_memory_count_by_their_encoded_bytes(steps: list[tuple[Any, bool, bool]]) -> None:
    """For any history of read, written, deleted and new rows, and keys that are known to be absent."""
    with TemporaryDirectory() as folder:
        worker, version = start(Path(folder))
        for changes, _, _ in steps:

            def fold(state: PartitionState[Any], changes: list[tuple[str, str, int, str]] = changes) -> None:
                for kind, session, key, text in changes:
                    apply_alone(state, kind, session, key, text * 1_000)

            version = worker.batch(version, fold)
            with worker.open(version) as state:
                kept = state.find_decoded()
                entries = {session: entry for session in SESSIONS if (entry := kept.take(session)) is not None}
                for entry in entries.values():
                    assert entry.rows_bytes == count_held_bytes(entry.state)
                kept.put_all(entries)
                state.publish_local()


def apply_alone(state: PartitionState[Any], kind: str, session: str, key: int, text: str) -> None:
    """Make a change in a state."""
    match kind:
        case "set":
            find(state, session)[key] = text
        case "delete":
            find(state, session).pop(key, None)
        case "replace":
            find(state, session)
            state.entries[session].state = Table({key: text})
        case "remove":
            state.remove(session)
        case _:
            find(state, session).get(key)


def count_held_bytes(table: Table) -> int:
    """Return the bytes of the rows in memory, counted from the rows."""
    held: dict[int, Any] = getattr(table, "_held")  # noqa: B009  # as `bind` has it
    rows = [(msgspec.msgpack.encode(key), row) for key, row in held.items()]
    sizes = [len(msgspec.msgpack.encode(row)) if isinstance(row, str) else 0 for _, row in rows]
    return sum(ROW_BYTES + 2 * len(key) + size for (key, _), size in zip(rows, sizes, strict=True))


@pytest.mark.parametrize(("length", "kept"), [(1, True), (10_000, False)])
def test_large_rows_are_not_kept_beyond_the_limit_of_the_cache(tmp_path: Path, length: int, kept: bool) -> None:  # noqa: FBT001  # a parameter
    worker, version = start(tmp_path)
    worker.cache = SessionCache(bytes_max=200_000)
    rows = dict.fromkeys(range(100), "x" * length)
    version = worker.batch(version, lambda state: find(state, "a").update(rows))
    with worker.open(version) as state:
        assert (len(state.find_decoded()) > 0) is kept
