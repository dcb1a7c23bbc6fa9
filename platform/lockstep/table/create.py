"""Creates the tables of a stream and refuses tables that are not its own."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field
from deltalake.exceptions import DeltaError

from lockstep.errors import TableError
from lockstep.table import ledger, log, quarantine
from lockstep.table.commit import CommitKind, OutputLog
from lockstep.table.head import Head
from lockstep.table.layout import StreamFolders
from lockstep.table.schema import to_delta

PROPERTIES = {
    "delta.appendOnly": "true",
    # Longer than the slowest reader and the wanted depth of rewinding.
    "delta.deletedFileRetentionDuration": "interval 3 days",
    "delta.logRetentionDuration": "interval 30 days",
    "delta.enableExpiredLogCleanup": "false",
}


def open_tables(folders: StreamFolders, schema: pa.Schema, cluster_id: str, *, keeps_late: bool = False) -> OutputLog:
    """The output table's log; all tables are created when they are not there.

    Args:
        folders: Where they lie.
        schema: Of the output table.
        cluster_id: Id of the Kafka cluster.
        keeps_late: There is to be a late table.

    Raises:
        TableError: The table belongs to another stream or Kafka cluster, or has another schema.
    """
    head = Head(stream=folders.stream, cluster_id=cluster_id)
    metadata = {log.KIND: CommitKind.CREATE.value, log.HEAD: head.encode()}
    sides = {folders.ledger: ledger.SCHEMA, folders.quarantine: quarantine.SCHEMA}
    for side, side_schema in (sides | ({folders.late: quarantine.SCHEMA} if keeps_late else {})).items():
        _create(side, side_schema, None, {})
        _widen(side, side_schema)
    _create(folders.table, schema, ["commit_hour"], metadata)
    output = OutputLog(folders.table)
    check_identity(output.base().head, folders, output.table_id, cluster_id)
    _check_schema(folders.table, schema)
    return output


def check_identity(head: Head, folders: StreamFolders, table_id: str, cluster_id: str) -> None:
    """Refuse a table that is not this stream's on this cluster."""
    compared = (
        ("stream", head.stream, folders.stream),
        ("Kafka cluster", head.cluster_id, cluster_id),
        ("table id", head.table_id or table_id, table_id),
    )
    for what, held, ours in compared:
        if held != ours:
            raise TableError(
                f"{folders.table} belongs to {what} {held!r}, not {ours!r}",
                next_step="set another table_root (LOCKSTEP_TABLE_ROOT), or give the stream another name",
            )


def _create(folder: Path, schema: pa.Schema, partition_by: list[str] | None, metadata: dict[str, str]) -> None:
    if log.exists(folder):
        return
    folder.mkdir(parents=True, exist_ok=True)
    try:
        DeltaTable.create(
            folder,
            to_delta(schema),
            partition_by=partition_by,
            configuration=PROPERTIES,
            commit_properties=CommitProperties(custom_metadata=metadata),
        )
    except DeltaError:
        if not log.exists(folder):  # else another run created it in the same moment
            raise
    log.sync(log.entry_path(folder, 0))
    log.sync(folder / "_delta_log")


def _widen(side: Path, schema: pa.Schema) -> None:
    """Add the columns that this release writes and the one that created the table did not; old rows have nulls."""
    table = DeltaTable(side)
    held = {field.name for field in table.schema().fields}
    missing = [field for field in to_delta(schema).fields if field.name not in held]
    if missing:
        table.alter.add_columns([Field(field.name, field.type, nullable=True) for field in missing])


def _check_schema(table: Path, wanted: pa.Schema) -> None:
    held = {field.name: str(field.type) for field in DeltaTable(table).schema().fields}
    asked = {field.name: str(field.type) for field in to_delta(wanted).fields}
    different = [
        f"{name}: table {held.get(name, 'none')}, declared {asked.get(name, 'none')}"
        for name in sorted(held.keys() | asked.keys())
        if held.get(name) != asked.get(name)
    ]
    if different:
        raise TableError(
            f"the row type does not fit {table}: {'; '.join(different)}",
            next_step="undo the change of the row type, or give the stream a new name for a new table",
        )
