"""Creates the tables of a stream and refuses foreign ones."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import DeltaError

from lockstep.addresses import is_in_object_store
from lockstep.errors import TableError
from lockstep.model.table_schema import to_delta
from lockstep.storage import find_storage
from lockstep.store_clients import find_delta_options, repeat_broken_off
from lockstep.table import archive, commit_kinds, delta_log, ledger, quarantine
from lockstep.table.commit import OutputLog, Writer, commit_schema
from lockstep.table.delta_log import NO_HOOKS
from lockstep.table.head import HEAD_VERSION, Head
from lockstep.table.layout import StreamFolders
from lockstep.table.schema_evolution import add_columns, evolve_side_table, mark_added

PROPERTIES = {
    # Longer than the slowest reader and the wanted depth of rewinding.
    "delta.deletedFileRetentionDuration": "interval 3 days",
    "delta.logRetentionDuration": "interval 30 days",
    "delta.enableExpiredLogCleanup": "false",
}
SIDE_PROPERTIES = PROPERTIES | {
    # Their rows are never changed, only moved into larger files: readers read the newest version.
    "delta.deletedFileRetentionDuration": "interval 6 hours",
}

INCOMING = "the stream is being restored or imported, or that was killed"
INCOMING_STEP = (
    "wait until it has ended; if none runs, delete the objects of the stream, `incoming` last, and repeat it"
)


def open_tables(
    folders: StreamFolders,
    schema: pa.Schema,
    cluster_id: str,
    *,
    defaulted: frozenset[str] = frozenset(),
    keeps_late: bool = False,
    has_archive: bool = False,
) -> OutputLog:
    """The output table's log; missing tables are created.

    Args:
        folders: Their folders.
        schema: Of the output table.
        cluster_id: Id of the Kafka cluster.
        defaulted: Columns whose fields have a default.
        keeps_late: Whether a late table is needed.
        has_archive: Whether an archive is needed.

    Raises:
        TableError: The table belongs to another stream or Kafka cluster, cannot grow to the schema, or is gone while
            others of the stream are there.
    """
    refuse_incoming(folders)
    if is_first := not delta_log.has_log(folders.table):
        # Side tables of a stream deleted in part would pass for those of the new table.
        _refuse_remains(folders)
    head = Head(stream=folders.stream, cluster_id=cluster_id, version=HEAD_VERSION)
    metadata = {delta_log.KIND: commit_kinds.CREATE.name, delta_log.HEAD: head.encode()}
    sides = {folders.ledger: ledger.SCHEMA, folders.quarantine: quarantine.SCHEMA}
    if keeps_late:
        sides[folders.late] = quarantine.SCHEMA
    if has_archive:
        sides[folders.archive] = archive.SCHEMA
    for side, side_schema in sides.items():
        create_table(side, side_schema, SIDE_PROPERTIES)
    create_table(folders.table, schema, PROPERTIES, partition_by=["commit_hour"], metadata=metadata)
    refuse_incoming(folders)  # again: a copy checks for tables after it has created its mark
    if is_first and not all(map(delta_log.has_log, sides)):  # it took them for its own, and deleted them
        raise TableError(f"tables of {folders.stream} were deleted meanwhile", next_step="start it again")
    output = OutputLog(folders.table)
    check_identity(output.base().head, folders, output.table_id, cluster_id)
    output.find_schema_changes(schema, defaulted)
    return output


def refuse_incoming(folders: StreamFolders) -> None:
    """Refuse a stream whose objects are being copied to its place.

    Raises:
        TableError: They are, or that was killed.
    """
    if is_incoming(folders):
        raise TableError(f"{folders.incoming}: {INCOMING}", next_step=INCOMING_STEP)


def is_incoming(folders: StreamFolders) -> bool:
    """Whether the objects of a stream are being copied to its place, or that was killed."""
    return is_in_object_store(folders.root) and find_storage(folders.root).get_status(folders.incoming) is not None


def _refuse_remains(folders: StreamFolders) -> None:
    """Refuse the rest of a stream whose deletion was killed: its side tables would pass for those of a new table.

    The rest of a killed first start is not refused: tables without a commit.

    Raises:
        TableError: There is some.
    """
    tables = (folders.table, folders.ledger, folders.quarantine, folders.late, folders.archive)
    remains = [table for table in tables if any(delta_log.list_versions(table))]  # a version above 0 is a commit
    if not remains:
        return
    refuse_incoming(folders)
    if not delta_log.has_log(folders.table):  # else another first start was faster
        raise TableError(
            f"{folders.table} is gone, and {remains[0]} has commits: the rest of a stream that was deleted in part",
            next_step="delete all of it; of a shadow: lockstep shadow drop STREAM --name "
            f"{folders.stream}. If the deletion was a mistake, restore a backup",
        )


def create_late_table(folders: StreamFolders) -> None:
    """Create the late table if it is missing."""
    create_table(folders.late, quarantine.SCHEMA, SIDE_PROPERTIES)


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


def create_table(
    folder: Path,
    schema: pa.Schema,
    properties: Mapping[str, str],
    *,
    partition_by: list[str] | None = None,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Create an empty table, unless the folder has a table.

    Args:
        folder: Its folder.
        schema: Its columns.
        properties: Its properties, by Delta's names.
        partition_by: Its partition columns.
        metadata: Further metadata of its first entry.

    Raises:
        DeltaError: It was not created.
    """
    if delta_log.has_log(folder):
        return
    storage = find_storage(folder)
    storage.make_folder(folder)
    create = partial(
        DeltaTable.create,
        storage.uri(folder),
        to_delta(schema),
        partition_by=partition_by,
        configuration=dict(properties),
        storage_options=find_delta_options(folder),
        # Never its default, which retries at version 1: over the table of a run that was faster.
        commit_properties=CommitProperties(custom_metadata=dict(metadata or {}), max_commit_retries=0),
    )
    try:
        repeat_broken_off(create)
    except DeltaError:
        if not delta_log.has_log(folder):  # otherwise another run created it concurrently
            raise
    storage.sync(delta_log.make_entry_path(folder, 0))


def evolve_tables(
    output: OutputLog, folders: StreamFolders, writer: Writer, schema: pa.Schema, defaulted: frozenset[str]
) -> str:
    """Add the missing columns to all tables; done by the writer, before its first batch.

    Returns:
        The changes of the output table; empty without any.

    Raises:
        TableError: The table cannot grow to the schema.
        Fenced: Another writer has claimed it meanwhile.
    """
    batch = output.base().head.batch
    changes = output.find_schema_changes(schema, defaulted)
    if changes.added:  # in any lost race: no other process commits a batch in the epoch of this writer
        output.commit(commit_schema(writer, partial(add_columns, mark_added(changes.added, batch))))
    for name in changes.loosened:
        output.commit(commit_schema(writer, partial(_loosen, name)))
    evolve_side_table(folders.ledger, ledger.SCHEMA)
    evolve_side_table(folders.quarantine, quarantine.SCHEMA)
    if delta_log.has_log(folders.late):
        evolve_side_table(folders.late, quarantine.SCHEMA)
    return str(changes)


def _loosen(name: str, table: DeltaTable, how: CommitProperties) -> None:
    table.alter.drop_column_not_null(name, commit_properties=how, post_commithook_properties=NO_HOOKS)
