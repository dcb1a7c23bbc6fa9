"""Reads of a table during writes and two compactions, each compared with the written totals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import duckdb
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from lockstep.features.compaction.run import compact_stream
from lockstep.table.checkpoint import write_checkpoint_if_due
from lockstep.table.dataset import open_dataset
from lockstep.table.parquet import DataFile
from tests.support.stream_table import StreamTable, live_files

A0 = ("a", 0)
B0 = ("b", 0)
HOURS = [f"2026-01-{day:02}T{hour:02}" for day in range(1, 29) for hour in range(24)]
BATCHES_AN_HOUR = 4
"""A closed hour is one file, and every read opens it."""
Totals = tuple[int, int]
"""Row count and the sum of a column."""


def commit_next(table: StreamTable, hour: str) -> list[DataFile]:
    """Commit a batch of two files."""
    files = [table.file({A0: 9}, hour), table.file({B0: 6}, hour)]
    table.try_batch(files, hour)
    return files


class Workers:
    """A writer and two compactions on threads; each `step` starts the idle threads and does not wait for their end.

    Attributes:
        expected: The sum after each batch, by row count.
    """

    def __init__(self, table: StreamTable) -> None:
        self._table = table
        self._rows = 0
        self._total = 0
        self._hours = (hour for hour in HOURS for _ in range(BATCHES_AN_HOUR))
        self._pools = [ThreadPoolExecutor(1) for _ in range(3)]
        self._works: list[list[Future[object]]] = [[] for _ in self._pools]
        self.expected = {0: 0}

    def step(self) -> None:
        """Start a batch and two compactions, also of the open hour."""
        if self._works[0]:
            self._works[0][-1].result()
        for pool, done, work in zip(self._pools, self._works, (self._write, self._compact, self._compact), strict=True):
            if not done or done[-1].done():  # otherwise work queues up and the end waits for all of it
                done.append(pool.submit(work))

    def end(self) -> None:
        """Wait for all started work and raise its errors."""
        for pool in self._pools:
            pool.shutdown()
        for work in (work for done in self._works for work in done):
            work.result()
        self._compact()

    def _compact(self) -> None:
        compact_stream(self._table.folders, open_files_max=1)

    def _write(self) -> None:
        hour = next(self._hours)
        files = [self._table.file({A0: 9}, hour), self._table.file({B0: 6}, hour)]
        self._rows += sum(file.rows for file in files)
        self._total += sum(pc.sum(read_numbers(self._table, file.path)).as_py() for file in files)
        self.expected[self._rows] = self._total
        landed = self._table.try_batch(files, hour)
        write_checkpoint_if_due(self._table.folders.table, landed.version)  # as the writer of the engine does


def read_numbers(table: StreamTable, path: str) -> Any:
    return pq.ParquetFile(table.folders.table / path).read(["number"])["number"]


def read_by_deltalake(table: StreamTable) -> Totals:
    numbers = DeltaTable(table.folders.table).to_pyarrow_table(columns=["number"])["number"]
    return len(numbers), pc.sum(numbers).as_py() or 0


def read_by_duckdb(table: StreamTable) -> Totals:
    rows = open_dataset(table.folders.table)  # noqa: F841  # used by name in the query
    with duckdb.connect() as connection:
        ((count, total),) = connection.execute("SELECT count(*), coalesce(sum(number), 0) FROM rows").fetchall()
    return count, int(total)


def read_meanwhile(
    table: StreamTable, readers: Sequence[Callable[[StreamTable], Totals]], reads: int, *, reads_a_step: int = 4
) -> int:
    """Return the number of reads whose totals match no version."""
    workers = Workers(table)
    found = list[Totals]()
    try:
        for number in range(reads):
            if not number % reads_a_step:
                workers.step()
            found.append(readers[number % len(readers)](table))
    finally:
        workers.end()
    assert len({rows for rows, _ in found}) > 1, "nothing was written meanwhile"
    assert any("compacted-" in path for path in live_files(table.folders))
    return sum(workers.expected.get(rows) != total for rows, total in found)
