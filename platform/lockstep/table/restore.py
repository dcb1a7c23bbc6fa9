"""Goes back to the files of an earlier version, as part of a rewind or a promotion: docs/decisions/0025.

To a stream reader, a commit that only removes files is retention, and a commit that only adds files is new rows.
So each commit that goes back adds a file and removes one: without such a file, the mark, a file without rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import msgspec
import pyarrow as pa
from deltalake import Field, Schema

from lockstep.table import commit_kinds, delta_log
from lockstep.table.commit import Base, Committed, OutputLog, Proposal, RestoredFiles, check_hour_open
from lockstep.table.delta_log import AddAction, RemoveAction
from lockstep.table.head import Head
from lockstep.table.parquet import DataFile, write_file
from lockstep.table.written_by import WrittenBy


class _OnlyReturns(Exception):  # no error: a mark is committed first
    """Files would return, and none would be removed: a stream reader would take their rows for new rows."""


class Restoration(msgspec.Struct, frozen=True, kw_only=True):
    """An earlier version to which a commit goes back.

    Attributes:
        table: Folder of the output table.
        version: The version; None if there is none any more, and it had no files.
        commit_hour: The hour of the commit.
        written_by: The batch that it is.
        adds_more: Whether it adds new files.
        fields: The columns afterwards; None for those of the version.
    """

    table: Path
    version: int | None
    commit_hour: str
    written_by: WrittenBy
    adds_more: bool = False
    fields: Sequence[Field] | None = None


def find_restored(planned: Restoration, base: int) -> RestoredFiles:
    """The files that a commit on a base version adds and removes to go back.

    Raises:
        TableError: The log does not list the files of a version.
    """
    now = delta_log.read_live_files(planned.table, base)
    then = dict[str, AddAction]()
    if planned.version is not None:
        then = delta_log.read_live_files(planned.table, planned.version)
    back = [file for path, file in then.items() if path not in now]
    gone = [file for path, file in now.items() if path not in then]
    if back and not gone:  # `commit_restored` commits a mark, which is removed by the next attempt
        raise _OnlyReturns
    # At the base: others may have described the columns since.
    handle = delta_log.open_delta_table(planned.table, version=base)
    schema = _find_schema(planned, handle.schema())
    # A commit that only removes files is retention to a stream reader: it adds a file without rows, too.
    if gone and not (back or planned.adds_more):
        back.append(write_mark(planned.table, schema, planned.commit_hour, planned.written_by).action())
    table_metadata = None
    if schema != handle.schema():
        table_metadata = delta_log.make_table_metadata(handle, schema)
    return RestoredFiles(
        adds=tuple(back),
        removes=tuple(RemoveAction(file.path, file.size, file.commit_hour) for file in gone),
        table_metadata=table_metadata,
    )


def _find_schema(planned: Restoration, now: Schema) -> Schema:
    """The columns afterwards, described as they are now."""
    fields = planned.fields
    if fields is None:
        fields = delta_log.open_delta_table(planned.table, version=planned.version).schema().fields  # or those of now
    described = {field.name: field.metadata for field in now.fields}
    restored = list[Field]()
    for field in fields:
        metadata = described.get(field.name, field.metadata)
        restored.append(Field(field.name, field.type, nullable=field.nullable, metadata=metadata))
    return Schema(restored)


def commit_restored(output: OutputLog, proposal: Proposal, commit_hour: str) -> Committed:
    """Commit a rewind or a promotion; after a commit with a mark, if it has no file to remove.

    Raises as `OutputLog.commit`.
    """
    try:
        return output.commit(proposal)
    except _OnlyReturns:
        output.commit(_add_mark(output, commit_hour))
        return output.commit(proposal)


def _add_mark(output: OutputLog, commit_hour: str) -> Proposal:
    """A commit of a file without rows, which no reader notices."""
    base = output.base()
    by = WrittenBy(base.head.generation, base.head.epoch, base.head.batch + 1)
    schema = delta_log.open_delta_table(output.folder, version=base.version).schema()
    mark = write_mark(output.folder, schema, commit_hour, by)

    def next_head(base: Base) -> Head:
        check_hour_open(base.head, commit_hour)
        return base.head

    return Proposal(kind=commit_kinds.MARK, next_head=next_head, adds=(mark,))


def write_mark(table: Path, schema: Schema, commit_hour: str, by: WrittenBy) -> DataFile:
    """A file without rows: with it, a reader takes a commit that removes files for a change, not a deletion."""
    columns = pa.schema(cast("pa.Schema", schema.to_arrow()))
    rows = pa.schema([field for field in columns if field.name != "commit_hour"]).empty_table()
    return write_file(table, rows, prefix=f"mark-{by.label}", commit_hour=commit_hour)
