"""Reads of a table while a writer and two compactions are at work, each compared with what was written."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
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
Totals = tuple[int, int]
"""Rows, and the sum of a column."""


def commit_next(table: StreamTable, hour: str) -> list[DataFile]:
    """Commit a batch of two files."""
    files = [table.file({A0: 9}, hour), table.file({B0: 6}, hour)]
    table.try_batch(files, hour)
    return files


@contextmanager
def compacting(table: StreamTable, expected: dict[int, int]) -> Iterator[None]:
    """A writer and two compactions at work for as long as the block; the totals after each batch are in `expected`."""
    ended, rows, total = threading.Event(), 0, 0

    def write() -> None:
        nonlocal rows, total
        for hour in HOURS:
            for _ in range(3):
                if ended.is_set():
                    return
                files = [table.file({A0: 9}, hour), table.file({B0: 6}, hour)]
                found = [pc.sum(read_numbers(table, file.path)).as_py() for file in files]
                rows, total = rows + sum(file.rows for file in files), total + sum(found)
                expected[rows] = total
                table.try_batch(files, hour)

    def compact() -> None:
        while not ended.is_set():
            compact_stream(table.folders)

    with ThreadPoolExecutor(3) as pool:
        works = [pool.submit(write), pool.submit(compact), pool.submit(compact)]
        try:
            yield
        finally:
            ended.set()
        for work in works:
            work.result()


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
    expected = {0: 0}
    with compacting(table, expected):
        found = [readers[number % len(readers)](table) for number in range(reads)]
    assert len({rows for rows, _ in found}) > 1, "nothing was written meanwhile"
    assert any("compacted-" in path for path in live_files(table.folders))
    return sum(expected.get(rows) != total for rows, total in found)
