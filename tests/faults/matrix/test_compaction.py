"""Compaction that is killed, raced and read during its run: rows are unchanged for each reader."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.features.compaction.run import compact_stream
from lockstep.operations.lifecycle import close_hour
from tests.features.compaction.dying import PHASES
from tests.features.compaction.reading import HOURS, commit_next, read_by_deltalake, read_by_duckdb, read_meanwhile
from tests.support.stream_table import StreamTable, files_on_disk, live_files, stored_rows

ROOT = Path(__file__).parents[3]
CHEAP = ("the output is written and not proven", "the entry is written and not synced")
KILLS = 20


@pytest.mark.fault("F43")
@pytest.mark.parametrize("phase", CHEAP)
def test_a_compaction_killed_at_a_phase_changes_no_row(table: StreamTable, phase: str) -> None:
    kill_while_streaming(table, phase, rounds=1)


@pytest.mark.slow
@pytest.mark.fault("F43")
@pytest.mark.parametrize("phase", PHASES)
def test_twenty_kills_at_each_phase_while_streaming_change_no_row(table: StreamTable, phase: str) -> None:
    kill_while_streaming(table, phase, rounds=KILLS)


@pytest.mark.slow
@pytest.mark.fault("F43")
@pytest.mark.parametrize("phase", PHASES)
def test_twenty_kills_of_a_minor_compaction_at_each_phase_change_no_row(table: StreamTable, phase: str) -> None:
    rows = 0
    for _ in range(KILLS):
        rows += sum(file.rows for _ in range(2) for file in commit_next(table, HOURS[0]))
        kill_compaction(table, phase, open_files_max=1)
    assert compact_stream(table.folders, open_files_max=1).minor_bins <= 1
    close_hour(table.folders)
    assert compact_stream(table.folders).minor_bins == 0
    assert len(stored_rows(table.folders)) == rows
    assert len(live_files(table.folders)) == 1


def kill_compaction(table: StreamTable, phase: str, *, open_files_max: int) -> None:
    before = stored_rows(table.folders)
    command = [sys.executable, "-m", "tests.features.compaction.dying", str(table.folders.root), table.folders.stream]
    command += [phase, str(open_files_max)]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == -signal.SIGKILL
    assert before == stored_rows(table.folders)


def kill_while_streaming(table: StreamTable, phase: str, *, rounds: int) -> None:
    """Batches continue between the kills; finally all is compacted, and the rows are those that were written."""
    rows = 0
    hours = iter(HOURS)
    for _ in range(rounds):
        for _ in range(2):
            hour = next(hours)
            rows += sum(file.rows for _ in range(2) for file in commit_next(table, hour))
        close_hour(table.folders)
        kill_compaction(table, phase, open_files_max=720)
    hour = next(hours)
    rows += sum(file.rows for file in commit_next(table, hour))
    close_hour(table.folders)
    compact_stream(table.folders)
    assert len(stored_rows(table.folders)) == rows
    assert len(live_files(table.folders)) == 2 * rounds + 1
    assert set(live_files(table.folders)) <= set(files_on_disk(table.folders))


@pytest.mark.fault("F43")
def test_readers_during_compactions_see_a_version_of_the_table(table: StreamTable) -> None:
    assert read_meanwhile(table, [read_by_deltalake, read_by_duckdb], 40) == 0
