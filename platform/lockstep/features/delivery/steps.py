"""The rows of batches by the ranges of the ledger, in the order of identity.

A row has no batch in the table. The ledger names the offsets of each batch and partition, so compaction and vacuum
change nothing: a row belongs to the batch whose range has its emit offset. Rows of timers are emitted at the end of a
range, before the rows that the next message emits there; the ledger counts them (`rows_emitted`).

A step is a run of batches whose rows are read together: one batch behind a live writer, several on a backlog, since
each file of a compacted hour holds rows of all its batches.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any, NamedTuple, cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lockstep.errors import TableError
from lockstep.model.commit_hour import format_hour
from lockstep.model.position import TopicIdPartition
from lockstep.model.table_schema import IDENTITY
from lockstep.storage import find_storage
from lockstep.table import delta_log, ledger, transactions
from lockstep.table.commit import Base
from lockstep.table.head import Head
from lockstep.table.layout import StreamFolders
from lockstep.table.parquet import UNREADABLE, explain_unreadable
from lockstep.table.row_order import RowPlace, find_segments

STEP_ROWS = 500_000
"""Rows of a step of several batches, at most. Each step reads the row groups that hold its rows once."""
BATCHES_A_READ = 1_000
"""Of the ledger at a time."""
CACHE_BYTES = 256_000_000
"""Decoded row groups in memory, at most, besides the newest."""
SLICE_ROWS = 16_384
"""Rows that are decoded together, at most."""
_COLUMNS = [
    *("generation", "batch", "committed_at", "batch_seconds"),
    *("topic_id", "partition", "start", "until", "rows", "rows_emitted"),
]
_HOUR_MARGIN = timedelta(hours=2)
"""A batch has the commit hour of its planning; the ledger has the time of its commit."""


class RowRange(NamedTuple):
    """The rows of one batch and partition, from `first` to before `end`."""

    key: TopicIdPartition
    first: RowPlace
    end: RowPlace
    batch: int
    generation: int


class Step(msgspec.Struct, frozen=True):
    """A run of batches whose rows are delivered together, in the order of identity.

    Attributes:
        after: The batch before the first.
        batch: The last batch.
        generation: The generation that wrote it.
        rows: Rows that the ledger counts, erased ones included.
        ranges: The ranges with rows, in the order of identity.
        ends: The end of each partition after the step that has one in it.
        since_hour: No row of the step has an earlier commit hour, "YYYY-MM-DDTHH" UTC.
    """

    after: int
    batch: int
    generation: int
    rows: int
    ranges: tuple[RowRange, ...]
    ends: Mapping[TopicIdPartition, RowPlace]
    since_hour: str


class PlacedRows(NamedTuple):
    """Consecutive rows of one partition and batch, with their first place."""

    range: RowRange
    first: RowPlace
    rows: pa.Table


def find_readable_batch(folders: StreamFolders, head: Head) -> int:
    """The newest batch whose ranges the ledger has: it follows the table, by one batch at most.

    Raises:
        TableError: The ledger is further behind.
    """
    held = delta_log.open_delta_table(folders.ledger).transaction_version(transactions.BATCH) or 0
    if held >= head.batch:
        return head.batch
    if held == head.batch_before:
        return held
    raise TableError(
        f"{folders.ledger} has batch {held}, and the table has batch {head.batch}: no row of the batches between has "
        "a range",
        next_step=f"start {folders.stream}, which brings the ledger forward; or restore the ledger",
    )


def read_ends(folders: StreamFolders, head: Head, batch: int) -> dict[TopicIdPartition, RowPlace]:
    """The end of each partition after a batch that counts.

    Raises:
        TableError: A file of the ledger is missing or damaged.
    """
    if not batch:
        return {}
    then = head if batch == head.batch else delta_log.find_head_of_batch(folders.table, batch)
    if then is not None and then.batch == batch:
        rows = ledger.read_positions(folders, then)
    else:
        rows = ledger.read_positions_at(folders, batch)
    return {key: RowPlace(row.until, row.rows_emitted) for key, row in rows.items()}


def plan_steps(
    folders: StreamFolders,
    head: Head,
    after: int,
    until: int,
    ends: Mapping[TopicIdPartition, RowPlace],
    *,
    joins: bool = True,
) -> Iterator[Step]:
    """Plan the steps from the batch after `after` to `until`; each is made when it is asked for.

    Args:
        folders: Folders of the stream.
        head: The head of the table.
        after: The last batch that is done.
        until: The last batch to read.
        ends: The end of each partition after `after`.
        joins: Make one step of several batches; otherwise each batch is a step.

    Raises:
        TableError: A file of the ledger is missing or damaged.
    """
    now = dict(ends)
    pending = list[dict[str, Any]]()
    rows = 0
    done = after
    for group in _read_batches(folders, head, after, until):
        size = sum(row["rows"] for row in group)
        if pending and (not joins or rows + size > STEP_ROWS):
            yield make_step(done, pending, now)
            done = pending[-1]["batch"]
            rows = 0
            pending = []
        pending += group
        rows += size
    if pending:
        yield make_step(done, pending, now)


def plan_step(
    folders: StreamFolders, head: Head, after: int, until: int, ends: Mapping[TopicIdPartition, RowPlace]
) -> Step:
    """The one step from the batch after `after` to `until`, started by an earlier run. Raises as `plan_steps`."""
    rows = list[dict[str, Any]]()
    for group in _read_batches(folders, head, after, until):
        rows += group
    return make_step(after, rows, dict(ends))


def make_step(after: int, rows: Sequence[Mapping[str, Any]], ends: dict[TopicIdPartition, RowPlace]) -> Step:
    """The step of some ledger rows, in order of batch; moves `ends` behind it. Pure.

    Args:
        after: The batch before the step.
        rows: The ledger rows.
        ends: The end of each partition before the step, then after it.
    """
    ranges = list[RowRange]()
    moved = dict[TopicIdPartition, RowPlace]()
    for row in rows:
        key = TopicIdPartition(row["topic_id"], row["partition"])
        end = RowPlace(row["until"], row["rows_emitted"])
        first = ends.get(key, RowPlace(row["start"], 0))
        if row["rows"] and first < end:
            ranges.append(RowRange(key, first, end, row["batch"], row["generation"]))
        ends[key] = moved[key] = end
    newest = rows[-1]
    counted = sum(row["rows"] for row in rows)
    planned = min(row["committed_at"] - timedelta(seconds=row["batch_seconds"]) for row in rows)
    hour = format_hour(planned - _HOUR_MARGIN)
    return Step(after, newest["batch"], newest["generation"], counted, tuple(sorted(ranges)), moved, hour)


def _read_batches(folders: StreamFolders, head: Head, after: int, until: int) -> Iterator[list[dict[str, Any]]]:
    """The ledger rows that count, by batch."""
    counts = head.valid_batches
    for first in range(after + 1, until + 1, BATCHES_A_READ):
        last = min(first + BATCHES_A_READ - 1, until)
        rows = ledger.read_columns(folders.ledger, _COLUMNS, first_batch=first, last_batch=last).to_pylist()
        batches = dict[int, list[dict[str, Any]]]()
        for row in rows:
            if row["batch"] <= counts.get(row["generation"], -1):
                batches.setdefault(row["batch"], []).append(row)
        yield from batches.values()


class _DataFile(NamedTuple):
    """A live file, with the bounds of its statistics."""

    path: str
    lowest: tuple[str, int, int]
    highest: tuple[str, int, int]


class _Segment(NamedTuple):
    """Rows of one range in a row group; sorts by place."""

    range: RowRange
    first: RowPlace
    last: RowPlace
    file: str
    group: int
    start: int
    length: int


class TableSnapshot:
    """The data files of a table at one version, with a cache of row groups.

    A snapshot of exactly the head's version: after a rewind the rows of its ranges may be gone.
    """

    def __init__(self, folders: StreamFolders, base: Base) -> None:
        """List the live files.

        Raises:
            TableError: The log cannot be read.
        """
        self._table = folders.table
        opened = delta_log.open_delta_table(folders.table, version=base.version)
        self._actions = pa.table(opened.get_add_actions(flatten=True))
        self._schema = pa.schema(cast("pa.Schema", opened.schema().to_arrow()))
        self._groups = OrderedDict[tuple[str, int], pa.Table]()

    def read_rows(self, step: Step, after: tuple[TopicIdPartition, RowPlace] | None = None) -> Iterator[PlacedRows]:
        """Read the rows of a step, in the order of identity.

        Args:
            step: The step.
            after: The last row that is not wanted; None for all.

        Raises:
            TableError: A file is damaged, or two rows have one identity.
        """
        ranges = [each for each in step.ranges if after is None or (each.key, each.end) > after]
        by_key = dict[TopicIdPartition, list[RowRange]]()
        for each in ranges:
            by_key.setdefault(each.key, []).append(each)
        segments = list[_Segment]()
        for file in _list_since(self._actions, step.since_hour) if by_key else ():
            if _may_hold(file, by_key):
                segments += self._find_segments(file, by_key)
        segments.sort()
        _refuse_overlaps(segments)
        for segment in segments:
            yield from self._read_segment(segment, after)

    def _find_segments(self, file: _DataFile, by_key: Mapping[TopicIdPartition, list[RowRange]]) -> Iterator[_Segment]:
        """Find the rows of ranges by the identity columns alone."""
        path = self._table / file.path
        try:
            with pq.ParquetFile(find_storage(path).open_source(path), pre_buffer=False) as parquet:
                for group in range(parquet.num_row_groups):
                    if _group_may_hold(parquet.metadata.row_group(group), by_key):
                        rows = parquet.read_row_group(group, columns=list(IDENTITY), use_threads=False)
                        yield from _cut_segments(file.path, group, rows, by_key)
        except UNREADABLE as error:
            raise explain_unreadable(path, error) from error

    def _read_segment(self, segment: _Segment, after: tuple[TopicIdPartition, RowPlace] | None) -> Iterator[PlacedRows]:
        rows = self._read_group(segment.file, segment.group).slice(segment.start, segment.length)
        if after is not None and (segment.range.key, segment.last) <= after:
            return
        if after is not None and (segment.range.key, segment.first) <= after:
            rows = rows.slice(_count_up_to(rows, after[1]))
        for start in range(0, rows.num_rows, SLICE_ROWS):
            piece = rows.slice(start, SLICE_ROWS)
            place = RowPlace(piece["_emit_offset"][0].as_py(), piece["_row"][0].as_py())
            yield PlacedRows(segment.range, place, piece)

    def _read_group(self, file: str, group: int) -> pa.Table:
        """A decoded row group with all columns of the table; columns that were added later are null."""
        key = (file, group)
        if key in self._groups:
            self._groups.move_to_end(key)
            return self._groups[key]
        while self._groups and sum(each.nbytes for each in self._groups.values()) > CACHE_BYTES:
            self._groups.popitem(last=False)
        path = self._table / file
        wanted = [field for field in self._schema if field.name != "commit_hour"]
        try:
            with pq.ParquetFile(find_storage(path).open_source(path), pre_buffer=False) as parquet:
                rows = parquet.read_row_group(group, use_threads=False)
        except UNREADABLE as error:
            raise explain_unreadable(path, error) from error
        columns = [
            rows[field.name].cast(field.type) if field.name in rows.column_names else pa.nulls(len(rows), field.type)
            for field in wanted
        ]
        self._groups[key] = pa.table(columns, names=[field.name for field in wanted])
        return self._groups[key]


_MISSING_LOWEST = ("", 0, 0)
_MISSING_HIGHEST = ("\U0010ffff", 2**31, 2**63)


def _list_since(actions: pa.Table, hour: str) -> Iterator[_DataFile]:
    """The files of commit hours from `hour` on."""
    names = IDENTITY[:3]
    wanted = ["path", "num_records", *(f"min.{name}" for name in names), *(f"max.{name}" for name in names)]
    held = [name for name in wanted if name in actions.column_names]
    recent = actions.filter(pc.field("partition.commit_hour") >= hour)
    for row in recent.select(held).to_pylist():
        if row.get("num_records") == 0:
            continue  # the mark of a rewind
        lowest = tuple(row.get(f"min.{name}") for name in names)
        highest = tuple(row.get(f"max.{name}") for name in names)
        yield _DataFile(
            row["path"],
            _MISSING_LOWEST if None in lowest else cast("tuple[str, int, int]", lowest),
            _MISSING_HIGHEST if None in highest else cast("tuple[str, int, int]", highest),
        )


def _may_hold(file: _DataFile, by_key: Mapping[TopicIdPartition, list[RowRange]]) -> bool:
    """Whether a file may hold rows of a range, by its bounds: each column has its own."""
    for key, ranges in by_key.items():
        if file.lowest[0] <= key.topic_id <= file.highest[0] and file.lowest[1] <= key.partition <= file.highest[1]:
            last = ranges[-1].end
            if ranges[0].first.emit_offset <= file.highest[2] and file.lowest[2] <= last.emit_offset:
                return True
    return False


def _group_may_hold(group: Any, by_key: Mapping[TopicIdPartition, list[RowRange]]) -> bool:
    """Whether a row group may hold rows of a range, by its statistics."""
    bounds = dict[str, tuple[Any, Any]]()
    for at in range(group.num_columns):
        column = group.column(at)
        if column.path_in_schema in IDENTITY and column.is_stats_set and column.statistics.has_min_max:
            bounds[column.path_in_schema] = (column.statistics.min, column.statistics.max)
    lowest = tuple(
        bounds[name][0] if name in bounds else low for name, low in zip(IDENTITY, _MISSING_LOWEST, strict=False)
    )
    highest = tuple(
        bounds[name][1] if name in bounds else high for name, high in zip(IDENTITY, _MISSING_HIGHEST, strict=False)
    )
    return _may_hold(_DataFile("", cast("Any", lowest), cast("Any", highest)), by_key)


def _cut_segments(
    file: str, group: int, rows: pa.Table, by_key: Mapping[TopicIdPartition, list[RowRange]]
) -> Iterator[_Segment]:
    """The parts of a row group that are in ranges; its segments are sorted by place inside of a partition."""
    if not rows.num_rows:
        return
    found = find_segments(rows)
    offsets = rows["_emit_offset"].to_numpy()
    numbers = rows["_row"].to_numpy()
    for at in range(len(found.start)):
        ranges = by_key.get(found.partition(at))
        if ranges is not None:
            places = _Places(offsets, numbers, int(found.start[at]), int(found.length[at]))
            yield from _cut_segment(file, group, places, ranges)


class _Places(NamedTuple):
    """The places of the rows of a segment."""

    offsets: Any
    numbers: Any
    start: int
    length: int

    def get(self, at: int) -> RowPlace:
        """The place of a row of the segment."""
        return RowPlace(int(self.offsets[self.start + at]), int(self.numbers[self.start + at]))

    def count_before(self, place: RowPlace) -> int:
        """The number of rows of the segment before a place."""
        return bisect_left(range(self.length), place, key=self.get)


def _cut_segment(file: str, group: int, places: _Places, ranges: Iterable[RowRange]) -> Iterator[_Segment]:
    opens = places.get(0)
    closes = places.get(places.length - 1)
    for each in ranges:
        if each.end <= opens or closes < each.first:
            continue
        start = places.count_before(each.first)
        until = places.count_before(each.end)
        if start < until:
            first = places.get(start)
            last = places.get(until - 1)
            yield _Segment(each, first, last, file, group, places.start + start, until - start)


def _refuse_overlaps(segments: Sequence[_Segment]) -> None:
    for before, after in pairwise(segments):
        if before.range.key == after.range.key and after.first <= before.last:
            key = after.range.key
            raise TableError(
                f"topic id {key.topic_id}, partition {key.partition}, emit offset {after.first.emit_offset}: "
                f"{before.file} and {after.file} have rows of the same place; nothing of this step was delivered",
                next_step="lockstep verify names the rows that are in the table twice",
            )


def _count_up_to(rows: pa.Table, place: RowPlace) -> int:
    offsets = pc.field("_emit_offset")
    numbers = pc.field("_row")
    is_done = (offsets < place.emit_offset) | ((offsets == place.emit_offset) & (numbers <= place.row))
    return rows.select(["_emit_offset", "_row"]).filter(is_done).num_rows
