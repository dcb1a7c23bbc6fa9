"""A log checkpoint is made when the log since the last checkpoint costs more than a checkpoint."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from lockstep.table import delta_log
from lockstep.table.checkpoint import (
    CHECKPOINT_ENTRIES_MAX,
    CHECKPOINT_ENTRIES_MIN,
    COST_RATIO,
    is_due,
    write_checkpoint,
    write_checkpoint_if_due,
)
from lockstep.table.side_tables import SideLogs
from tests.support.protocol_run import ProtocolRun, folders_in

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def run(tmp_path: Path) -> ProtocolRun:
    made = ProtocolRun(folders_in(tmp_path))
    made.claim()
    return made


def test_one_is_made_when_the_log_since_the_last_has_cost_more(run: ProtocolRun) -> None:
    table = run.folders.table
    made = [version for version in range(2, 90) if write_checkpoint_if_due(table, run.batch(full=True).version)]
    sizes = {
        version: sum(path.stat().st_size for path in files)
        for version, files in delta_log.list_checkpoints(table).items()
    }
    assert sorted(sizes) == made
    assert made[0] == CHECKPOINT_ENTRIES_MIN
    for before, after in pairwise(made):
        written = [delta_log.make_entry_path(table, version).stat().st_size for version in range(before + 1, after + 1)]
        assert len(written) * sum(written) >= COST_RATIO * sizes[before]


def test_one_that_is_larger_than_the_log_waits_until_the_entries_are_too_many(run: ProtocolRun) -> None:
    table = run.folders.table
    run.batch()
    write_checkpoint(table)
    ((version, (file,)),) = delta_log.list_checkpoints(table).items()
    with file.open("ab") as grown:
        grown.truncate(100_000_000)
    for at in range(version + 1, version + CHECKPOINT_ENTRIES_MAX + 1):
        delta_log.make_entry_path(table, at).write_text("{}")
    assert not is_due(table, version + CHECKPOINT_ENTRIES_MAX - 1)
    assert is_due(table, version + CHECKPOINT_ENTRIES_MAX)


def test_side_tables_get_theirs_too(run: ProtocolRun) -> None:
    logs = SideLogs(run.folders)
    for _ in range(CHECKPOINT_ENTRIES_MIN + 2):
        logs.catch_up(run.commit(run.prepared()).head)
        for table, version in logs.list_versions():
            write_checkpoint_if_due(table, version)
    assert len(delta_log.list_checkpoints(run.folders.ledger)) == 1
