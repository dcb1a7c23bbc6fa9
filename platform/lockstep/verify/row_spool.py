"""Rows of the side tables by partition, in scratch files: those of a month do not fit into memory as objects.

Side files hold the rows of all partitions, batch by batch, and the proof walks one partition at a time. So the rows
are written once, in order of partitions, as uncompressed Arrow that is mapped into memory: a run of rows of one
partition is one record batch, from which any rows can be read again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lockstep.model.position import TopicIdPartition

Numbers = npt.NDArray[np.int64]
PLACE_COLUMNS = ("topic_id", "partition")
BY_BATCH = ("batch", "start", "until")
BY_OFFSET = ("offset", "batch")
"""The order of a partition's rows: of the ledger, and of quarantine and late table."""

FLUSH_BYTES = 128_000_000
"""Rows that are sorted by partition together: fewer make shorter runs, of which each has a header."""
SMALL_TABLES = 500
"""Tables that are copied together: a table of a few rows takes far more memory than its values."""


class RowRun(msgspec.Struct, frozen=True):
    """Rows of one partition that are stored together, in order.

    Attributes:
        file: Which scratch file.
        index: Which record batch of it.
        rows: How many.
        first: The order columns of the first.
        last: The same of the last.
    """

    file: int
    index: int
    rows: int
    first: tuple[int, ...]
    last: tuple[int, ...]


class RowSpool:
    """Collects the rows of a side table, in any order; `finish` returns them by partition.

    Attributes:
        rows: How many rows there are.
    """

    def __init__(self, scratch: Path, name: str, order: tuple[str, ...]) -> None:
        self._scratch = scratch
        self._name = name
        self._order = order
        self.rows = 0
        self._few = list[pa.Table]()
        self._held = list[pa.Table]()
        self._held_bytes = 0
        self._schema = pa.schema([])
        self._runs: dict[TopicIdPartition, list[RowRun]] = {}
        self._files: list[str] = []

    def add(self, rows: pa.Table) -> None:
        """Add some rows; most rows of a partition arrive in order."""
        rows = rows.replace_schema_metadata(None)
        if rows.schema != self._schema:  # of another release
            self._flush()
            self._schema = rows.schema
        self.rows += rows.num_rows
        self._held_bytes += rows.nbytes
        self._few.append(rows)
        # Together: a table of a few rows takes far more memory than its values.
        if len(self._few) >= SMALL_TABLES:
            self._held.append(pa.concat_tables(self._few).combine_chunks())
            self._few = []
        if self._held_bytes >= FLUSH_BYTES:
            self._flush()

    def finish(self) -> dict[TopicIdPartition, PartitionRows]:
        """Write the buffered rows; returns the rows of each partition, by topic id and partition."""
        self._flush()
        readers = [pa.ipc.open_file(pa.memory_map(path)) for path in self._files]
        return {key: PartitionRows(readers, runs, self._order) for key, runs in sorted(self._runs.items())}

    def _flush(self) -> None:
        """Write the rows that are held, by partition, as one file."""
        tables = [*self._held, *self._few]
        self._few = []
        self._held = []
        self._held_bytes = 0
        if not any(len(table) for table in tables):
            return
        order: Any = [(name, "ascending") for name in (*PLACE_COLUMNS, *self._order)]
        (rows,) = pa.concat_tables(tables).sort_by(order).combine_chunks().to_batches()
        path = str(self._scratch / f"{self._name}-{len(self._files)}.arrow")
        # Uncompressed, and mapped when it is read: any rows of a partition can be read again at no cost.
        with pa.ipc.new_file(path, rows.schema) as writer:
            for index, run in enumerate(_split(rows)):
                writer.write_batch(run)
                self._note(run, len(self._files), index)
        self._files.append(path)

    def _note(self, run: pa.RecordBatch, file: int, index: int) -> None:
        topic_id, partition = (run[name][0].as_py() for name in PLACE_COLUMNS)
        first = self._read_order(run, 0)
        last = self._read_order(run, run.num_rows - 1)
        runs = self._runs.setdefault(TopicIdPartition(topic_id, partition), [])
        runs.append(RowRun(file, index, run.num_rows, first, last))

    def _read_order(self, run: pa.RecordBatch, row: int) -> tuple[int, ...]:
        """The numbers of a row by which rows are sorted."""
        return tuple(int(run[name][row].as_py()) for name in self._order)


def _split(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The rows of each partition; they are sorted by it."""
    changed = np.zeros(max(0, rows.num_rows - 1), dtype=bool)
    for name in PLACE_COLUMNS:
        changed |= pc.not_equal(rows[name].slice(1), rows[name].slice(0, rows.num_rows - 1)).to_numpy(
            zero_copy_only=False
        )
    for start, until in pairwise([0, *(np.flatnonzero(changed) + 1).tolist(), rows.num_rows]):
        yield rows.slice(start, until - start)


class PartitionRows:
    """The rows of one partition, in the order of its spool."""

    def __init__(self, readers: list[pa.ipc.RecordBatchFileReader], runs: list[RowRun], order: tuple[str, ...]) -> None:
        self._readers = readers
        self._runs = sorted(runs, key=lambda run: run.first)
        self._order = order
        self._sorted: pa.RecordBatch | None = None
        if any(after.first < before.last for before, after in pairwise(self._runs)):  # the files were in no order
            self._sorted = self._sort()
        counts = [run.rows for run in self._runs]
        if self._sorted is not None:
            counts = [self._sorted.num_rows]
        self._begins = [0, *accumulate(counts)]
        self._near: tuple[int, pa.RecordBatch] | None = None

    def __len__(self) -> int:
        """The number of rows."""
        return self._begins[-1]

    def read(self, first: int, until: int) -> list[dict[str, object]]:
        """Rows as mappings of their columns."""
        rows = list[dict[str, object]]()
        while first < min(until, len(self)):
            number = bisect_right(self._begins, first) - 1
            end = min(until, self._begins[number + 1])
            rows += self._find_batch(number).slice(first - self._begins[number], end - first).to_pylist()
            first = end
        return rows

    def read_numbers(self, name: str) -> Numbers:
        """A column of numbers; 0 without one."""
        return np.concatenate([np.zeros(0, np.int64), *(_to_numbers(batch, name) for batch in self._batches())])

    def find_texts(self, name: str) -> set[str]:
        """The distinct texts of a column."""
        texts = set[str]()
        for batch in self._batches():
            texts.update(map(str, pc.unique(batch[name]).to_pylist()))
        return texts

    def find_rows_with(self, name: str) -> Numbers:
        """The rows that have a value in a column, other than an empty list."""
        has_value = [np.zeros(0, bool), *(_find_values(batch, name) for batch in self._batches())]
        return np.flatnonzero(np.concatenate(has_value))

    def find_rows_with_part(self, name: str, part: str, value: str) -> Numbers:
        """Which rows have a list with an item of which a part has this value."""
        has_part = [np.zeros(0, bool), *(_find_parts(batch, name, part, value) for batch in self._batches())]
        return np.flatnonzero(np.concatenate(has_part))

    def _batches(self) -> Iterator[pa.RecordBatch]:
        return map(self._find_batch, range(len(self._begins) - 1))

    def _find_batch(self, number: int) -> pa.RecordBatch:
        if self._sorted is not None:
            return self._sorted
        if self._near is None or self._near[0] != number:
            run = self._runs[number]
            self._near = number, self._readers[run.file].get_batch(run.index)
        return self._near[1]

    def _sort(self) -> pa.RecordBatch:
        order: Any = [(name, "ascending") for name in self._order]
        batches = (self._readers[run.file].get_batch(run.index) for run in self._runs)
        rows = pa.concat_tables([pa.Table.from_batches([batch]) for batch in batches], promote_options="default")
        (batch,) = rows.sort_by(order).combine_chunks().to_batches()
        return batch


def _to_numbers(batch: pa.RecordBatch, name: str) -> Numbers:
    if name not in batch.schema.names:
        return np.zeros(batch.num_rows, np.int64)
    return np.asarray(batch[name].cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False), np.int64)


def _find_values(batch: pa.RecordBatch, name: str) -> npt.NDArray[np.bool_]:
    if name not in batch.schema.names:
        return np.zeros(batch.num_rows, bool)
    column: Any = batch[name]
    if not pa.types.is_list(column.type):
        return np.asarray(column.is_valid().to_numpy(zero_copy_only=False), bool)
    return np.asarray(pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False) > 0, bool)


def _find_parts(batch: pa.RecordBatch, name: str, part: str, value: str) -> npt.NDArray[np.bool_]:
    has_part = _find_values(batch, name)
    if has_part.any():
        column: Any = batch[name]
        parents = pc.list_parent_indices(column).to_numpy(zero_copy_only=False)
        parts = pc.struct_field(pc.list_flatten(column), part).to_numpy(zero_copy_only=False)
        has_part = np.isin(np.arange(batch.num_rows), parents[parts == value])
    return has_part
