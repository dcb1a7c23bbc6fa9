"""The table's rows, put beside each other partition by partition, and whether they are in order (I2).

Data files hold many partitions each, and the fold wants one partition at a time. So all files are read once, in one
pass, into a scratch file of uncompressed Arrow, mapped into memory: a slice of it then costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lockstep.operations.verify.proof import Place, ViolationKind, Violations
from lockstep.operations.verify.ranges import Key
from lockstep.operations.verify.stored_tables import StoredFile

BATCH_ROWS = 65_536
PLACE_COLUMNS = ("_topic", "_topic_id", "_partition")
ORDER_COLUMNS = ("_emit_offset", "_row")


class Slice(msgspec.Struct, frozen=True):
    """Rows of one partition that follow each other in a data file.

    Attributes:
        file: Which scratch file.
        index: Which record batch of it.
        rows: How many.
        first: Emit offset and row number of the first.
        last: The same of the last.
        ordered: Whether they rise.
    """

    file: int
    index: int
    rows: int
    first: tuple[int, int]
    last: tuple[int, int]
    ordered: bool


class TableRows:
    """All rows of a table by partition. Close it: the scratch files stay mapped until then.

    Attributes:
        slices: By (topic id, partition), in order of their first rows.
        places: Each partition with the topic's name that its rows carry.
        rows: How many rows there are.
    """

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._schemas: list[pa.Schema] = []
        self._readers: list[pa.ipc.RecordBatchFileReader] = []
        self._stack = ExitStack()
        self.slices: dict[Key, list[Slice]] = {}
        self.places: dict[Key, Place] = {}
        self.rows = 0

    def load(self, table: Path, files: Iterable[StoredFile]) -> None:
        """Read all files; those that are missing are somebody else's finding."""
        with ExitStack() as stack:
            writers: list[tuple[pa.ipc.RecordBatchFileWriter, int]] = []
            for file in files:
                if (table / file.path).exists():
                    for batch in pq.ParquetFile(table / file.path).iter_batches(BATCH_ROWS):
                        self._add(batch, writers, stack)
        for number in range(len(self._schemas)):
            mapped = self._stack.enter_context(pa.memory_map(str(self._path(number))))
            self._readers.append(self._stack.enter_context(pa.ipc.open_file(mapped)))
        for key in self.slices:
            self.slices[key].sort(key=lambda each: each.first)

    def check_order(self, violations: Violations) -> None:
        """Find rows that do not rise within their partition, and rows that are there twice."""
        for key, slices in self.slices.items():
            if not _is_ordered(slices):
                _name_disorder(self.places[key], self._positions(key), violations)

    def cursor(self, key: Key) -> Cursor:
        """The rows of a partition, in order; put in order first where they are not."""
        slices = self.slices.get(key, [])
        batches = (self._readers[each.file].get_batch(each.index) for each in slices)
        if _is_ordered(slices):
            return Cursor(batches)
        order: Any = [(name, "ascending") for name in ORDER_COLUMNS]
        return Cursor(iter(pa.Table.from_batches(batches).sort_by(order).combine_chunks().to_batches()))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._readers.clear()
        self._stack.close()

    def _path(self, number: int) -> Path:
        return self._scratch / f"rows-{number}.arrow"

    def _add(self, batch: pa.RecordBatch, writers: list[tuple[Any, int]], stack: ExitStack) -> None:
        if batch.schema not in self._schemas:
            path = str(self._path(len(self._schemas)))
            self._schemas.append(batch.schema)
            writers.append((stack.enter_context(pa.ipc.new_file(path, batch.schema)), 0))
        file = self._schemas.index(batch.schema)
        self.rows += batch.num_rows
        for start, until in _runs(batch):
            run = batch.slice(start, until - start)
            writer, index = writers[file]
            writer.write_batch(run)
            writers[file] = (writer, index + 1)
            self._note(run, file, index)

    def _note(self, run: pa.RecordBatch, file: int, index: int) -> None:
        topic, topic_id, partition = (run[name][0].as_py() for name in PLACE_COLUMNS)
        emitted, numbers = (_numbers(run, name) for name in ORDER_COLUMNS)
        rises = (emitted[1:] > emitted[:-1]) | ((emitted[1:] == emitted[:-1]) & (numbers[1:] > numbers[:-1]))
        first, last = (int(emitted[0]), int(numbers[0])), (int(emitted[-1]), int(numbers[-1]))
        found = Slice(file, index, run.num_rows, first, last, bool(rises.all()))
        self.slices.setdefault((topic_id, partition), []).append(found)
        self.places.setdefault((topic_id, partition), Place(topic, topic_id, partition))

    def _positions(self, key: Key) -> list[tuple[int, int]]:
        """Emit offset and row number of each row, in the order of the table."""
        found: list[tuple[int, int]] = []
        for each in self.slices[key]:
            batch = self._readers[each.file].get_batch(each.index)
            found += zip(*(_numbers(batch, name).tolist() for name in ORDER_COLUMNS), strict=True)
        return found


class Cursor:
    """Walks through the rows of one partition."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._batch: pa.RecordBatch | None = next(batches, None)

    def before(self, offset: int) -> list[pa.RecordBatch]:
        """The next rows, up to those emitted at `offset` or later."""
        taken: list[pa.RecordBatch] = []
        while self._batch is not None:
            rows = int(np.searchsorted(_numbers(self._batch, "_emit_offset"), offset))
            if rows:
                taken.append(self._batch.slice(0, rows))
            if rows < self._batch.num_rows:
                self._batch = self._batch.slice(rows)
                break
            self._batch = next(self._batches, None)
        return taken

    def skip(self, rows: int) -> None:
        """Pass over so many rows."""
        while rows and self._batch is not None:
            passed = min(rows, self._batch.num_rows)
            rows, rest = rows - passed, self._batch.slice(passed)
            self._batch = rest if rest.num_rows else next(self._batches, None)


def _numbers(batch: pa.RecordBatch, name: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    return batch[name].to_numpy(zero_copy_only=False)


def _runs(batch: pa.RecordBatch) -> Iterator[tuple[int, int]]:
    """Where rows of one partition follow each other."""
    if batch.num_rows == 0:
        return
    changed = np.zeros(max(0, batch.num_rows - 1), dtype=bool)
    for name in ("_topic_id", "_partition"):
        column = batch[name]
        changed |= pc.not_equal(column.slice(1), column.slice(0, len(column) - 1)).to_numpy(zero_copy_only=False)
    edges = [0, *(np.flatnonzero(changed) + 1).tolist(), batch.num_rows]
    yield from pairwise(edges)


def _is_ordered(slices: list[Slice]) -> bool:
    return all(each.ordered for each in slices) and all(before.last < after.first for before, after in pairwise(slices))


def _name_disorder(place: Place, positions: list[tuple[int, int]], violations: Violations) -> None:
    seen: set[tuple[int, int]] = set()
    highest = (-1, -1)
    for position in positions:
        offset, row = position
        if position in seen:
            violations.add(ViolationKind.ROW_DOUBLED, place, offset, f"row {row} once", "the row again")
        elif position < highest:
            found = f"row {row} behind row {highest[1]} of offset {highest[0]}"
            violations.add(ViolationKind.ROW_ORDER, place, offset, "rising offsets and rows", found)
        seen.add(position)
        highest = max(highest, position)
