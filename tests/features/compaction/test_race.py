"""Compactions in separate processes: raced, and killed between write and commit."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from lockstep.features.compaction.run import CompactionResult, compact_stream
from tests.features.compaction.compacting import DEADLINE_SECONDS, wait_for
from tests.support.stream_table import HOUR, NEXT_HOUR, StreamTable, files_on_disk, live_files, stored_rows

ROOT = Path(__file__).parents[3]
A0 = ("a", 0)
B0 = ("b", 0)


@pytest.fixture
def two_hours(table: StreamTable) -> StreamTable:
    for hour in (HOUR, NEXT_HOUR):
        for _ in range(4):
            table.batch({A0: 20, B0: 10}, {("c", 0): 5}, hour=hour)
    table.close(NEXT_HOUR)
    return table


@contextmanager
def started(table: StreamTable, gate: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a compacting process that waits at the gate with its files written."""
    gate.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "tests.features.compaction.compacting"]
    command += [str(table.folders.root), table.folders.stream, str(gate)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            wait_for(gate / str(process.pid), lambda: process.poll() is None)
            yield process
        finally:
            process.kill()


def result_of(process: subprocess.Popen[str]) -> CompactionResult:
    output, _ = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 0
    return msgspec.json.decode(output, type=CompactionResult)


def test_of_two_compactions_at_once_one_wins_each_bin_and_rows_stay_equal(
    two_hours: StreamTable, tmp_path: Path
) -> None:
    before = stored_rows(two_hours.folders)
    gate = tmp_path / "gate"
    with started(two_hours, gate) as one, started(two_hours, gate) as other:
        assert len(files_on_disk(two_hours.folders)) == 16 + 4
        (gate / "go").touch()
        results = [result_of(one), result_of(other)]
    assert 2 == sum(result.bins for result in results) == sum(result.bins_lost for result in results)
    assert before == stored_rows(two_hours.folders)
    compacted = [path for path in files_on_disk(two_hours.folders) if "compacted-" in path]
    assert live_files(two_hours.folders) == compacted


def test_killed_between_write_and_commit_it_leaves_only_an_orphan(two_hours: StreamTable, tmp_path: Path) -> None:
    before = stored_rows(two_hours.folders)
    files = live_files(two_hours.folders)
    version = two_hours.output.base().version
    with started(two_hours, tmp_path / "gate") as process:
        process.kill()
    assert (version, files) == (two_hours.output.base().version, live_files(two_hours.folders))
    assert len(files_on_disk(two_hours.folders)) == len(files) + 2
    assert compact_stream(two_hours.folders).bins == 2
    assert before == stored_rows(two_hours.folders)
