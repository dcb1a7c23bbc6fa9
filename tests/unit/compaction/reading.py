"""Reads of a table while a writer and two compactions are at work, each compared with what was written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import duckdb
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from lockstep.compaction.run import compact_stream
from lockstep.table.dataset import open_dataset
from lockstep.table.parquet import DataFile
from tests.support.stream_table import StreamTable, live_files

A0, B0 = ("a", 0), ("b", 0)
HOURS = [f"2026-01-{day:02}T{hour:02}" for day in range(1, 29) for hour in range(24)]
READS_A_STEP = 4
Totals = tuple[int, int]
"""Rows, and the sum of a column."""


def commit_next(table: StreamTable, hour: str) -> list[DataFile]:
    """Commit a batch of two files."""
    files = [table.file({A0: 9}, hour), table.file({B0: 6}, hour)]
    table.try_batch(files, hour)
    return files


class Workers:
    """A writer and two compactions. Each `step` lets each of them work once, while the caller goes on.

    Attributes:
        expected: The totals after each batch.
    """

    def __init__(self, table: StreamTable) -> None:
        self._table, self._rows, self._total = table, 0, 0
        self._hours = (hour for hour in HOURS for _ in range(2))
        self._pools = [ThreadPoolExecutor(1) for _ in range(3)]
        self._works: list[Future[object]] = []
        self.expected = {0: 0}

    def step(self) -> None:
        """One batch, and two compactions at once, of the open hour too."""
        writer, *compactions = self._pools
        self._works.append(writer.submit(self._write))
        compact = partial(compact_stream, self._table.folders, open_files_max=1)
        self._works += [pool.submit(compact) for pool in compactions]

    def end(self) -> None:
        """Wait for all that was begun; what failed is raised here."""
        for pool in self._pools:
            pool.shutdown()
        for work in self._works:
            work.result()

    def _write(self) -> None:
        hour = next(self._hours)
        files = [self._table.file({A0: 9}, hour), self._table.file({B0: 6}, hour)]
        self._rows += sum(file.rows for file in files)
        self._total += sum(pc.sum(read_numbers(self._table, file.path)).as_py() for file in files)
        self.expected[self._rows] = self._total
        self._table.try_batch(files, hour)


def read_numbers(table: StreamTable, path: str) -> Any:
    return pq.ParquetFile(table.folders.table / path).read(["number"])["number"]


def read_by_deltalake(table: StreamTable) -> Totals:
    numbers = DeltaTable(table.folders.table).to_pyarrow_table(columns=["number"])["number"]
    return len(numbers), pc.sum(numbers).as_py() or 0


def read_by_duckdb(table: StreamTable) -> Totals:
    rows = open_dataset(table.folders.table)  # noqa: F841  # by its name in the query
    with duckdb.connect() as connection:
        ((count, total),) = connection.execute("SELECT count(*), coalesce(sum(number), 0) FROM rows").fetchall()
    return count, int(total)


def read_meanwhile(table: StreamTable, readers: Sequence[Callable[[StreamTable], Totals]], reads: int) -> int:
    """Number of reads that gave something that no version held."""
    workers, found = Workers(table), list[Totals]()
    try:
        for number in range(reads):
            if not number % READS_A_STEP:
                workers.step()
            found.append(readers[number % len(readers)](table))
    finally:
        workers.end()
    assert len({rows for rows, _ in found}) > 1, "nothing was written meanwhile"
    assert any("compacted-" in path for path in live_files(table.folders))
    return sum(workers.expected.get(rows) != total for rows, total in found)
