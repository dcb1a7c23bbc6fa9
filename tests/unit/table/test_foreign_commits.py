"""Only lockstep writes its tables: a commit of another writer stops the stream, by version and author."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.schema import Field, PrimitiveType

from lockstep.errors import TableError
from lockstep.model.table_schema import make_table_schema
from lockstep.operations.repair import repair_stream
from lockstep.table.foreign_commits import ForeignCommit
from tests.support.protocol_run import HOUR, ProtocolRun, Row, folders_in, stored_offsets

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lockstep.table.layout import StreamFolders


@pytest.fixture
def folders(tmp_path: Path) -> StreamFolders:
    return folders_in(tmp_path)


@pytest.fixture
def run(folders: StreamFolders) -> ProtocolRun:
    """Return a run with two committed batches; the newest version is 3."""
    claimed = ProtocolRun(folders)
    claimed.claim()
    claimed.batch()
    claimed.batch()
    return claimed


def append(table: Path) -> None:
    """Append a row as a user's notebook does."""
    row = {
        "number": 7,
        "_topic": "t",
        "_topic_id": "id",
        "_partition": 0,
        "_offset": 99,
        "_emit_offset": 99,
        "_row": 0,
        "_session": "s",
        "_sequence": None,
        "_event_time": None,
        "_cause": "update",
        "commit_hour": HOUR,
    }
    write_deltalake(table, pa.Table.from_pylist([row], schema=make_table_schema(Row)), mode="append")


def restore(table: Path) -> None:
    """Restore the first batch, which leaves application transactions unchanged."""
    DeltaTable(table).restore(2)


def vacuum(table: Path) -> None:
    """Vacuum a table with a file to delete, as an empty vacuum commits nothing."""
    (table / "orphan.parquet").write_bytes(b"PAR1")
    DeltaTable(table).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)


def optimize(table: Path) -> None:
    DeltaTable(table).optimize.compact()


def add_column(table: Path) -> None:
    DeltaTable(table).alter.add_columns(Field("extra", PrimitiveType("long")))


def set_property(table: Path) -> None:
    DeltaTable(table).alter.set_table_properties({"delta.logRetentionDuration": "interval 1 days"})


def delete(table: Path) -> None:
    """Delete rows, which Delta allows as the table is not append-only."""
    DeltaTable(table).delete("number = 1")


def update(table: Path) -> None:
    DeltaTable(table).update(predicate="number = 1", updates={"number": "7"})


def merge(table: Path) -> None:
    rows = DeltaTable(table).to_pyarrow_table().slice(0, 1)
    merged = DeltaTable(table).merge(rows, "s.number = t.number", source_alias="s", target_alias="t")
    merged.when_matched_update({"number": "9"}).execute()


def set_append_only(table: Path) -> None:
    DeltaTable(table).alter.set_table_properties({"delta.appendOnly": "true"})


FOREIGN: dict[str, Callable[[Path], None]] = {
    "WRITE": append,
    "RESTORE": restore,
    "VACUUM START": vacuum,
    "OPTIMIZE": optimize,
    "ADD COLUMN": add_column,
    "SET TBLPROPERTIES": set_property,
    "DELETE": delete,
    "UPDATE": update,
    "MERGE": merge,
}


@pytest.mark.parametrize("operation", FOREIGN)
def test_a_foreign_commit_stops_a_run_that_is_going_on(
    folders: StreamFolders, run: ProtocolRun, operation: str
) -> None:
    batch = run.prepared()
    FOREIGN[operation](folders.table)
    with pytest.raises(TableError) as refused:
        run.commit(batch)
    assert refused.value.problem.startswith(f"{folders.table}: version 4 is {operation} by ")
    assert refused.value.problem.endswith("not a commit of lockstep; only lockstep writes this table")
    assert "the writer of version 4" in refused.value.next_step


def test_a_reserved_property_is_refused_by_its_name(folders: StreamFolders, run: ProtocolRun) -> None:
    batch = run.prepared()
    set_append_only(folders.table)
    with pytest.raises(ForeignCommit, match=r"SET TBLPROPERTIES by delta-rs\S* \(delta\.appendOnly = true\), not a"):
        run.commit(batch)


@pytest.mark.parametrize("operation", ["DELETE", "UPDATE", "MERGE"])
def test_what_others_have_done_to_rows_is_undone_by_repair(
    folders: StreamFolders, run: ProtocolRun, operation: str
) -> None:
    before = DeltaTable(folders.table).to_pyarrow_table()
    FOREIGN[operation](folders.table)
    assert DeltaTable(folders.table).to_pyarrow_table() != before
    with pytest.raises(ForeignCommit, match=f"version 4 is {operation} by delta-rs"):
        run.batch()
    assert repair_stream(folders, apply=True).checks[2].condition == "repaired"
    assert DeltaTable(folders.table).to_pyarrow_table() == before
    ProtocolRun(folders).claim()


@pytest.mark.parametrize("operation", FOREIGN)
def test_a_foreign_commit_stops_a_run_that_starts(folders: StreamFolders, run: ProtocolRun, operation: str) -> None:
    del run
    FOREIGN[operation](folders.table)
    with pytest.raises(TableError, match="version 4 is"):
        ProtocolRun(folders)


def test_a_restore_is_seen_although_the_table_is_as_it_once_was(folders: StreamFolders, run: ProtocolRun) -> None:
    restore(folders.table)
    assert stored_offsets(folders) == [0, 1]
    with pytest.raises(TableError, match="version 4 is RESTORE"):
        run.batch()


def test_a_foreign_commit_stays_seen_after_a_log_checkpoint(folders: StreamFolders, run: ProtocolRun) -> None:
    append(folders.table)
    DeltaTable(folders.table).create_checkpoint()
    with pytest.raises(TableError, match="version 4 is WRITE"):
        run.batch()


def test_a_version_whose_entry_is_gone_is_not_written_a_second_time(folders: StreamFolders, run: ProtocolRun) -> None:
    from lockstep.table.checkpoint import write_checkpoint
    from lockstep.table.commit import OutputLog
    from lockstep.table.delta_log import make_entry_path
    from lockstep.table.foreign_commits import TableReplaced

    newest = run.output.base().version
    write_checkpoint(folders.table)
    make_entry_path(folders.table, newest).unlink()
    with pytest.raises(TableReplaced, match=f"version {newest} is gone"):
        OutputLog(folders.table).base()


def test_a_cut_entry_is_named_with_its_path(folders: StreamFolders, run: ProtocolRun) -> None:
    from lockstep.table.checkpoint import write_checkpoint
    from lockstep.table.delta_log import make_entry_path

    write_checkpoint(folders.table)
    make_entry_path(folders.table, 3).write_bytes(b"")
    with pytest.raises(TableError, match=r"00003\.json is empty or cut"):
        run.output.base()
