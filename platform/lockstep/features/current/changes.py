"""The rows that a stream has committed since a batch: the newest of each key.

A row has no batch in the table. It was committed after a batch if its place is behind the end of its partition in that
batch's ledger, so compactions and rewinds in between change nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lockstep.features.current.columns import IS_REMOVED, CurrentColumns, take_newest
from lockstep.features.current.history import CurrentBase, RemakeCause
from lockstep.model.position import TopicIdPartition
from lockstep.model.table_schema import COMMIT_HOUR, IDENTITY
from lockstep.storage import find_storage
from lockstep.table import delta_log, ledger
from lockstep.table.commit import Base
from lockstep.table.delta_log import AddAction
from lockstep.table.layout import StreamFolders
from lockstep.table.parquet import UNREADABLE, explain_unreadable
from lockstep.table.row_order import RowPlace, find_segments

ROWS_MAX = 2_000_000
"""Rows of files that are read for the changes, at most; and at most `ROWS_RATIO` times the current rows."""
ROWS_RATIO = 4
_ENDS = ["generation", "batch", "topic_id", "partition", "until", "rows_emitted", "lifecycle"]


def read_changes(
    folders: StreamFolders, base: CurrentBase, now: Base, columns: CurrentColumns
) -> pa.Table | RemakeCause:
    """Read the newest row of each key that was committed after a base, with `IS_REMOVED`.

    Args:
        folders: The folders of the stream.
        base: The base, of the same history as the table now.
        now: The version of the table to read, with its head.
        columns: The columns of the rows.

    Returns:
        The rows; or why the current table is to be made from the states instead.

    Raises:
        TableError: A file is missing or damaged.
    """
    ends = _read_ends(folders, base.history.batch)
    added = delta_log.read_added_files(folders.table, base.history.version, now.version)
    if ends is None or added is None:
        return RemakeCause.EXPIRED
    if _has_forgotten(folders, base.history.batch):
        return RemakeCause.FORGOTTEN
    files = [file for file in added.values() if file.rows and (file.commit_hour or "") >= base.hour]
    # To make all rows from the states costs less than to read so many.
    if sum(file.rows for file in files) > max(ROWS_MAX, ROWS_RATIO * base.rows):
        return RemakeCause.MANY
    tables = [columns.read.empty_table()]
    for file in files:
        tables += _read_file(folders.table, file, ends, columns.read)
    # In the order of the log, so that the last row of a key is the newest.
    rows = pa.concat_tables(tables).sort_by([(name, "ascending") for name in IDENTITY])
    newest = take_newest(rows, columns)
    is_removed = newest[columns.replay.removed].is_null()
    return newest.select(columns.schema.names).append_column(IS_REMOVED, is_removed)


def _read_ends(folders: StreamFolders, batch: int) -> dict[TopicIdPartition, RowPlace] | None:
    """The end of each partition after a batch; None if the log no longer has the batch."""
    if not batch:
        return {}
    head = delta_log.find_head_of_batch(folders.table, batch)
    if head is None:
        return None
    rows = ledger.read_columns(folders.ledger, _ENDS, first_batch=head.full_ledger_batch, last_batch=batch)
    places = zip(*(rows[name].to_pylist() for name in ("topic_id", "partition", "until", "rows_emitted")), strict=True)
    return {TopicIdPartition(topic, partition): RowPlace(*place) for topic, partition, *place in places}


def _has_forgotten(folders: StreamFolders, since: int) -> bool:
    """Whether a topic was forgotten in a batch or later: the ledger may follow the table by a batch."""
    rows = ledger.read_columns(folders.ledger, _ENDS, first_batch=since)
    return rows.filter(pc.field("lifecycle") == ledger.FORGOTTEN).num_rows > 0


def _read_file(
    table: Path, file: AddAction, ends: Mapping[TopicIdPartition, RowPlace], schema: pa.Schema
) -> Iterator[pa.Table]:
    """The rows of a file behind the ends of their partitions."""
    path = table / file.path
    try:
        with pq.ParquetFile(find_storage(path).open_source(path), pre_buffer=False) as parquet:
            present = [name for name in schema.names if name in parquet.schema_arrow.names]
            for group in range(parquet.num_row_groups):
                # First the place alone: most row groups have no new row.
                places = parquet.read_row_group(group, columns=list(IDENTITY), use_threads=False)
                is_new = _find_new(places, ends)
                if is_new.any():
                    rows = parquet.read_row_group(group, columns=present, use_threads=False)
                    yield _conform(rows.filter(pa.array(is_new)), schema, file.commit_hour)
    except UNREADABLE as error:
        raise explain_unreadable(path, error) from error


def _find_new(places: pa.Table, ends: Mapping[TopicIdPartition, RowPlace]) -> Any:
    """Which rows are behind the ends of their partitions."""
    is_new = np.ones(places.num_rows, bool)
    if not places.num_rows:
        return is_new
    segments = find_segments(places)
    offsets = places["_emit_offset"].to_numpy()
    numbers = places["_row"].to_numpy()
    for segment in range(len(segments.start)):
        end = ends.get(segments.partition(segment))
        if end is not None:
            part = slice(int(segments.start[segment]), int(segments.start[segment] + segments.length[segment]))
            emitted = offsets[part]
            is_new[part] = (emitted > end.emit_offset) | ((emitted == end.emit_offset) & (numbers[part] >= end.row))
    return is_new


def _conform(rows: pa.Table, schema: pa.Schema, hour: str | None) -> pa.Table:
    """Rows in the columns of a schema; a column that was added later is null, and the hour is not in the file."""
    arrays = list[Any]()
    for field in schema:
        if field.name == COMMIT_HOUR:
            arrays.append(pa.array([hour or ""] * rows.num_rows, field.type))
        elif field.name in rows.column_names:
            arrays.append(rows[field.name].cast(field.type))
        else:
            arrays.append(pa.nulls(rows.num_rows, field.type))
    return pa.Table.from_arrays(arrays, schema=schema)
