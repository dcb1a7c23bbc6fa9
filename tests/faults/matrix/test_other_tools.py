"""Commits of other tools to a stream's tables: refused by version, operation and author; one command reverts them."""

from __future__ import annotations

import os
import shutil
import time
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable, TableFeatures, write_deltalake
from deltalake.schema import Field, PrimitiveType

from lockstep.features.compaction.ledger_files import compact_ledger
from lockstep.features.retention.housekeeping import run_housekeeping
from lockstep.operations.repair import Condition, repair_stream
from lockstep.table import ledger
from lockstep.table.checkpoint import write_checkpoint
from lockstep.table.foreign_commits import ForeignCommit, TableReplaced
from tests.support.protocol_run import ProtocolRun, folders_in, stored_offsets

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lockstep.table.layout import StreamFolders

BATCHES = 3


@pytest.fixture
def run(tmp_path: Path) -> ProtocolRun:
    """A run with three committed batches, which the ledger contains."""
    made = ProtocolRun(folders_in(tmp_path))
    made.claim()
    for _ in range(BATCHES):
        made.batch()
    return made


def optimize(table: Path) -> None:
    DeltaTable(table).optimize.compact()


def restore(table: Path) -> None:
    DeltaTable(table).restore(DeltaTable(table).version() - 1)


def write(table: Path) -> None:
    """Write the existing rows a second time."""
    write_deltalake(table, DeltaTable(table).to_pyarrow_table(), mode="append")


def vacuum(table: Path) -> None:
    """Delete old, unreferenced files, as the rules of Delta allow."""
    orphan = table / "orphan.parquet"
    then = time.time() - 30 * 24 * 3600
    orphan.write_bytes(b"PAR1")
    os.utime(orphan, (then, then))
    DeltaTable(table).vacuum(dry_run=False, full=True)


def vacuum_all(table: Path) -> None:
    """Delete all files that the newest version does not name."""
    DeltaTable(table).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)


def add_column(table: Path) -> None:
    DeltaTable(table).alter.add_columns(Field("extra", PrimitiveType("long")))


def set_property(table: Path) -> None:
    DeltaTable(table).alter.set_table_properties({"delta.logRetentionDuration": "interval 1 days"})


def upgrade(table: Path) -> None:
    """Upgrade to a protocol that lockstep neither writes nor declares."""
    DeltaTable(table).alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)


FOREIGN: dict[str, Callable[[Path], None]] = {
    "OPTIMIZE": optimize,
    "RESTORE": restore,
    "WRITE": write,
    "VACUUM START": vacuum,
    "ADD COLUMN": add_column,
    "SET TBLPROPERTIES": set_property,
    "ADD FEATURE": upgrade,
}


def accounts(folders: StreamFolders) -> tuple[list[int], list[int]]:
    """Return the offsets of the rows, and the batches of the ledger."""
    return stored_offsets(folders), sorted(row.batch for row in ledger.read_ledger(folders.ledger))


@pytest.mark.fault("F21")
@pytest.mark.parametrize("table", ["table", "ledger"])
@pytest.mark.parametrize("operation", FOREIGN)
def test_what_another_tool_commits_stops_the_stream_by_name_and_one_command_sets_it_aside(
    run: ProtocolRun, operation: str, table: str
) -> None:
    folders = run.folders
    harmed = {"table": folders.table, "ledger": folders.ledger}[table]
    version = DeltaTable(harmed).version() + 1
    prepared = run.prepared()
    FOREIGN[operation](harmed)
    for act in (lambda: run.forward(run.commit(prepared).head), lambda: ProtocolRun(folders).claim()):
        with pytest.raises(ForeignCommit) as refused:
            act()
        assert (refused.value.table, refused.value.version) == (harmed, version)
        assert (refused.value.operation, refused.value.author[:9]) == (operation, "delta-rs:")
        assert refused.value.next_step.endswith("lockstep repair readings")
    assert not repair_stream(folders, apply=False).whole
    assert repair_stream(folders, apply=True).whole
    after = ProtocolRun(folders)
    after.claim()
    after.batch()
    batches = after.head.batch
    assert accounts(folders) == (list(range(2 * batches)), list(range(1, batches + 1)))


@pytest.mark.fault("F21")
@pytest.mark.parametrize("table", ["table", "ledger"])
def test_compaction_and_housekeeping_do_not_build_on_what_another_tool_committed(run: ProtocolRun, table: str) -> None:
    optimize({"table": run.folders.table, "ledger": run.folders.ledger}[table])
    with pytest.raises(ForeignCommit):
        compact_ledger(run.folders, run.output.base().head)
    with pytest.raises(Exception, match="is OPTIMIZE by delta-rs") as refused:
        run_housekeeping(run.folders, retention_seconds=0)
    assert "lockstep" in type(refused.value).__module__


@pytest.mark.fault("F21")
def test_a_vacuum_that_finds_nothing_is_none(run: ProtocolRun) -> None:
    for table in (run.folders.table, run.folders.ledger):
        vacuum_all(table)
    run.batch()
    assert accounts(run.folders) == (list(range(8)), [1, 2, 3, 4])


@pytest.mark.fault("F21")
def test_a_vacuum_after_a_restore_deletes_what_is_needed_and_each_file_is_named(run: ProtocolRun) -> None:
    restore(run.folders.table)
    vacuum_all(run.folders.table)
    (found,) = (check for check in repair_stream(run.folders, apply=True).checks if check.check == "commits to table")
    assert found.condition == Condition.BROKEN.value
    assert "files of the version before it are gone: " in found.found
    assert "restore" in found.next_step
    with pytest.raises(ForeignCommit, match="is RESTORE"):
        ProtocolRun(run.folders)


@pytest.mark.fault("F21")
def test_what_a_log_checkpoint_holds_is_not_set_aside(run: ProtocolRun) -> None:
    set_property(run.folders.table)
    write_checkpoint(run.folders.table)
    (found,) = (check for check in repair_stream(run.folders, apply=True).checks if check.check == "commits to table")
    assert (found.condition, found.found[-25:]) == (Condition.BROKEN.value, "a log checkpoint holds it")


@pytest.mark.fault("F75")
@pytest.mark.parametrize("how", ["moved", "set back"])
def test_a_root_that_is_moved_or_set_back_under_a_run_ends_it_and_the_next_goes_on(
    run: ProtocolRun, tmp_path: Path, how: str
) -> None:
    folders = run.folders
    copy = folders_in(tmp_path / "copy")
    shutil.copytree(folders.root / folders.stream, copy.root / copy.stream)
    run.batch()
    prepared = run.prepared()
    shutil.rmtree(folders.root / folders.stream)
    if how == "set back":
        shutil.copytree(copy.root / copy.stream, folders.root / folders.stream)
    with pytest.raises(TableReplaced, match="moved, deleted or restored") as ended:
        run.commit(prepared)
    assert "table_root" in ended.value.next_step
    later = ProtocolRun(copy if how == "moved" else folders)
    later.claim()
    later.batch()
    assert accounts(later.folders) == (list(range(8)), [1, 2, 3, 4])
