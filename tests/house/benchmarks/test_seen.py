"""A delay is from a message to the version that shows it; CPU time covers the whole process tree."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.messages import Change
from benchmarks.seen import Commit, read_batch_seconds, read_delays
from lockstep.features.rehearsal import observer
from lockstep.features.rehearsal.process_usage import DRIVER, JVM, WORKERS, TreeMeter
from lockstep.model.position import Position
from lockstep.model.table_schema import make_table_schema
from lockstep.table.create import open_tables
from lockstep.table.layout import StreamFolders
from lockstep.table.ledger import write_ledger
from lockstep.table.positions import LedgerStamp, make_unchanged_row
from lockstep.table.side_tables import SideLog

if TYPE_CHECKING:
    from pathlib import Path

SECOND_NS = 1_000_000_000
BURN = "import time\nwhile time.process_time() < 2.0: pass\nprint('done', flush=True)\ntime.sleep(60)"
TREE = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BURN!r}])"


def add(table: Path, version: int, offsets: list[int], *, data_change: bool = True) -> None:
    """Write a version that adds one file with rows of the topic `t`."""
    name = f"{version} part.parquet"
    pq.write_table(pa.table({"_topic": ["t"] * len(offsets), "_offset": offsets}), table / name)
    entry = {"add": {"path": quote(name), "dataChange": data_change}}
    (table / "_delta_log" / f"{version:020d}.json").write_bytes(msgspec.json.encode(entry))


def test_the_delay_of_a_message_ends_when_its_version_is_seen(tmp_path: Path) -> None:
    table = tmp_path / "table"
    notes = tmp_path / "notes"
    (table / "_delta_log").mkdir(parents=True)
    add(table, 0, [0, 1])
    add(table, 1, [2, 3])
    add(table, 2, [0, 1, 2, 3], data_change=False)  # a compaction shows nothing new
    notes.write_text("".join(f"{version} {(10 + 2 * version) * SECOND_NS}\n" for version in range(3)))
    created = {"t": np.array([8_000, 9_000, 9_500, 11_500])}
    delays = read_delays(table, notes, created).between(8 * SECOND_NS + 1_000_000, 11 * SECOND_NS)
    assert delays.tolist() == [1.0, 2.5]


def test_a_batch_counts_if_it_was_seen_late_enough(tmp_path: Path) -> None:
    folders = StreamFolders("s", tmp_path)
    open_tables(folders, make_table_schema(Change), "cluster")
    for batch in (1, 2):
        now = datetime.now(UTC)
        stamp = LedgerStamp(
            generation=1, batch=batch, epoch=1, committed_at=now, batch_seconds=batch / 2, restart_cause=None
        )
        position = Position(topic="t", topic_id="id", partition=0, next_offset=batch)
        written = write_ledger(folders.ledger, [make_unchanged_row(stamp, position, None)])
        SideLog(folders.ledger).catch_up([written], batch, after=batch - 1)
    seen = [Commit(1, 1, 10 * SECOND_NS), Commit(2, 1, 12 * SECOND_NS)]
    assert read_batch_seconds(folders.ledger, seen, 11 * SECOND_NS) == [1.0]


def test_the_observer_notes_each_version_once_in_order(tmp_path: Path) -> None:
    log = tmp_path / "table" / "_delta_log"
    notes = tmp_path / "notes"
    done = threading.Event()
    watching = threading.Thread(target=observer.observe, args=(tmp_path / "table", notes, done), daemon=True)
    watching.start()
    log.mkdir(parents=True)
    before = time.time_ns()
    for version in range(3):
        (log / f"{version:020d}.json").touch()
    deadline = time.monotonic() + 30
    while not (notes.exists() and notes.read_text().count("\n") == 3):
        assert time.monotonic() < deadline, "a version was not seen"
        time.sleep(0.01)
    done.set()
    watching.join()
    lines = [tuple(map(int, line.split())) for line in notes.read_text().splitlines()]
    assert [version for version, _ in lines] == [0, 1, 2]
    assert all(before < seen_ns <= time.time_ns() for _, seen_ns in lines)


def test_a_tree_counts_from_the_first_look_on_by_role() -> None:
    with subprocess.Popen([sys.executable, "-c", TREE], stdout=subprocess.PIPE) as process:
        meter = TreeMeter(process.pid)
        assert process.stdout is not None
        assert process.stdout.readline() == b"done\n"
        used = meter.finish().cpu_seconds
        after = TreeMeter(process.pid).finish().cpu_seconds
        process.kill()
    assert used[WORKERS] >= 0.5
    assert used[DRIVER] < used[WORKERS]
    assert after[WORKERS] < 0.1
    assert used[JVM] == 0
