"""The columns of a current table, and the newest row of each key. Arrow only."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lockstep.declare.replay import ReplayKey
from lockstep.declare.stream import AnyStream
from lockstep.model.table_schema import COMMIT_HOUR, IDENTITY, make_table_schema

PLACE = ("_topic", "_topic_id", "_partition", "_session")
IS_REMOVED = "is removed"
"""A column of changes; no column of a row type has this name."""
Numbers = npt.NDArray[np.int64]


class CurrentColumns(NamedTuple):
    """The columns of a current table.

    Attributes:
        replay: The columns by which rows replay to states.
        values: The columns of the value.
        schema: All columns: place, key, value, and the commit hour of the last change.
        read: Those that are read from the table of the stream: with the column of removals, and the place in the order.
    """

    replay: ReplayKey
    values: tuple[str, ...]
    schema: pa.Schema
    read: pa.Schema

    @property
    def identity(self) -> tuple[str, ...]:
        """The columns that identify a row."""
        return (*PLACE[1:], *self.replay.columns)


def find_current_columns(stream: AnyStream) -> CurrentColumns:
    """The columns of the current table of a stream, whose rows replay to its states."""
    replay = stream.replay_key
    if replay is None:
        raise AssertionError(f"the rows of {stream.name} do not replay to its states")
    values = replay.values or ((replay.removed,) if replay.is_scalar else ())
    columns = make_table_schema(stream.types.row)
    names = (*PLACE, *replay.columns, *values, COMMIT_HOUR)
    read = dict.fromkeys((*names, replay.removed, *IDENTITY))
    return CurrentColumns(replay, values, _select(columns, names), _select(columns, read))


def _select(schema: pa.Schema, names: Iterable[str]) -> pa.Schema:
    return pa.schema([schema.field(name) for name in names])


def compute_buckets(rows: pa.Table, buckets: int) -> Numbers:
    """The bucket of each row: a hash of topic id, partition and session."""
    bucket_of_place = dict[tuple[str, int, str], int]()
    columns = (rows[name].to_pylist() for name in PLACE[1:])
    numbers = np.empty(rows.num_rows, np.int64)
    for number, place in enumerate(zip(*columns, strict=True)):
        bucket = bucket_of_place.get(place)
        if bucket is None:
            topic_id, partition, session = place
            # Not `hash`, which differs from process to process.
            bucket = bucket_of_place[place] = zlib.crc32(f"{topic_id}/{partition}/{session}".encode()) % buckets
        numbers[number] = bucket
    return numbers


def split_by_bucket(rows: pa.Table, buckets: int) -> dict[int, pa.Table]:
    """The rows of each bucket that has rows, in their order."""
    if not rows.num_rows:
        return {}
    numbers = compute_buckets(rows, buckets)
    order: Numbers = np.argsort(numbers, kind="stable")
    present, starts = np.unique(numbers[order], return_index=True)
    ends = np.append(starts[1:], len(order))
    bounds = zip(present.tolist(), starts.tolist(), ends.tolist(), strict=True)
    return {bucket: rows.take(order[start:end]) for bucket, start, end in bounds}


def take_newest(rows: pa.Table, columns: CurrentColumns) -> pa.Table:
    """The last row of each key, in the order of rows."""
    keys = pa.table([_make_comparable(rows[name]) for name in columns.identity], names=list(columns.identity))
    numbered = keys.append_column("number", pa.array(np.arange(rows.num_rows)))
    newest = numbered.group_by(list(columns.identity), use_threads=False).aggregate([("number", "max")])
    return rows.take(pa.array(np.sort(newest["number_max"].to_numpy())))


def apply_changes(rows: pa.Table, changes: pa.Table, columns: CurrentColumns) -> pa.Table:
    """The current rows after changes: the newest row of each key, without the removed keys.

    Args:
        rows: The current rows before them.
        changes: A row a key, with `IS_REMOVED`.
        columns: The columns.
    """
    current = rows.append_column(IS_REMOVED, pa.array(np.zeros(rows.num_rows, bool)))
    newest = take_newest(pa.concat_tables([current, changes]), columns)
    return newest.filter(pc.invert(newest[IS_REMOVED])).drop_columns([IS_REMOVED])


def _make_comparable(column: pa.ChunkedArray[Any]) -> pa.ChunkedArray[Any]:
    """A column as Arrow groups it: 0.0 and -0.0 are one key, and a nested value is grouped by its text."""
    if pa.types.is_floating(column.type):
        add: Any = pc.add
        normalized: pa.ChunkedArray[Any] = add(column, pa.scalar(0.0, column.type))
        return normalized
    if pa.types.is_nested(column.type):
        return pa.chunked_array([pa.array([repr(value) for value in column.to_pylist()], pa.string())])
    return column
