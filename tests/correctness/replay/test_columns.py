"""Rows of a `ColumnFold` replay to its state at every batch: by message, and in chunks with and without Rust."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import astuple, replace

from lockstep.engine.executor.compiled_stream import CompiledStream, compile_stream
from lockstep.engine.executor.task import run_bin
from lockstep.engine.protocol import BatchIdentity, JobSpec, PlannedRange, TaskSpec
from lockstep.model.position import Position
from lockstep.state.changelog import make_state_version
from lockstep.state.local_store_pool import LocalStorePool
from lockstep.state.store import PartitionState
from tests.correctness.properties.test_chunks import compile_both, find_columns
from tests.support.gauge_log import DISTURBED, LATEST_US, STEPS, Source, make_log
from tests.support.gauges import Gauge, Gauges, make_gauges
from tests.support.native import BOTH_WAYS
from tests.support.tiers import first_usual

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lockstep.testing.script import InLog

COLUMNS = ("text", "level", "count", "is_open")
SESSIONS = ("a", "b", "c", "d", "")
_BITS = msgspec.msgpack.Encoder()
Tables = dict[str, dict[str, bytes]]


def run_batches(compiled: CompiledStream, log: list[InLog], folder: Path, size: int) -> Iterator[tuple[Tables, Tables]]:
    """Yield the replayed rows and the stored states after each batch."""
    position = Position(topic="gauges.a", topic_id="id", partition=0, next_offset=0)
    job = JobSpec(
        stream=b"",
        kafka={},
        table=folder,
        quarantine=folder,
        late=folder,
        archive=folder,
        state=folder / "s",
        local_root=folder / "h",
    )
    newest: Tables = {}
    for number, until in enumerate([*range(size, len(log), size), len(log)]):
        batch = BatchIdentity(
            generation=1, epoch=1, number=number, commit_hour="2026-01-01T00", planned_at_us=LATEST_US
        )
        result = run_bin(job, TaskSpec(batch, (PlannedRange(position, until),)), compiled, Source(log, [7]))
        position = result.ranges[0].reached
        for file in result.files:
            take_rows(newest, pq.read_table(folder / file.path, columns=["_session", "name", *COLUMNS]))
        yield {session: table for session, table in newest.items() if table}, read_states(compiled, job, position)
        if result.ranges[0].finding is not None:
            return


def take_rows(newest: Tables, rows: pa.Table) -> None:
    for row in rows.to_pylist():
        table = newest.setdefault(row["_session"], {})
        if row["text"] is None:
            assert [row[name] for name in COLUMNS] == [None] * len(COLUMNS)
            table.pop(row["name"], None)
        else:
            table[row["name"]] = _BITS.encode([row[name] for name in COLUMNS])


def read_states(compiled: CompiledStream, job: JobSpec, position: Position) -> Tables:
    version = make_state_version(1, position)
    local = LocalStorePool(job.local_root, job.state)
    with PartitionState.open(version, durable=job.state, local_stores=local, schema=compiled.state) as state:
        loaded = {session: state.load(session) for session in SESSIONS}
        tables = {
            session: cast("dict[str, Gauge]", entry.state) for session, entry in loaded.items() if entry and entry.state
        }
    return {
        session: {name: _BITS.encode(list(astuple(row))) for name, row in table.items()}
        for session, table in tables.items()
    }


@pytest.mark.parametrize("native", BOTH_WAYS)
@pytest.mark.parametrize("chunks", [True, False], ids=["chunks", "messages"])
@pytest.mark.parametrize("suspends", first_usual(1, [True, False]), ids=["suspends", "halts"])
@settings(max_examples=max(12, settings().max_examples // 5))
@given(made=st.fixed_dictionaries({"steps": STEPS, "faults": DISTURBED}), size=st.integers(3, 20))
def test_rows_replay_to_the_state_behind_each_batch(
    *, native: bool, chunks: bool, suspends: bool, made: dict[str, Any], size: int
) -> None:
    compiled = compile_stream(cast("Any", make_gauges(Gauges(), suspends=suspends)))
    columns = find_columns(compiled, native=native, messages_min=1, pause_max=0) if chunks else None
    with tempfile.TemporaryDirectory(prefix="lockstep-replay-") as root:
        for rows, states in run_batches(replace(compiled, columns=columns), make_log(**made), Path(root), size):
            assert rows == states


@pytest.mark.parametrize("native", BOTH_WAYS)
def test_chunks_between_snapshots_and_ends_replay(*, native: bool, tmp_path: Path) -> None:
    """Most of the chunks are plain, and each follows a table that was replaced."""
    updates = [("a", [{"name": name, "level": level}]) for level in (2.5, 3.5) for name in "xyz"]
    log = make_log(updates * 12, [(12, "snapshot"), (24, "new row"), (25, "snapshot"), (40, "end"), (40, "snapshot")])
    compiled, _ = compile_both("changes", native=native)
    batches = 0
    for rows, states in run_batches(compiled, log, tmp_path, 10):
        assert rows == states
        batches += 1
    assert batches == (len(log) + 9) // 10
