"""Brings the rows of many files into order, each file read once, in bounded memory.

Rows are collected into runs of a bounded size. A run is grouped by partition, in order inside each,
and lies in a mapped scratch file, so that the system may take its memory back. The ordered whole is
then slices of the runs, one after another.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from lockstep.compaction.proof import Proof, prove
from lockstep.compaction.segments import I64, Segments, check_disjoint, find_segments, with_keys

RUN_BYTES = 64 * 1024 * 1024
"""Decoded rows of a run: about three times of it is in memory while it is ordered. Smaller runs cut the
rows of a partition into more slices; larger ones only take more memory."""


@dataclass(frozen=True, slots=True)
class Run:
    """Rows grouped by partition and in order inside each.

    Attributes:
        rows: The rows.
        segments: Where each partition's rows lie, in order.
        proof: Proof of the rows as they were read, before they were moved.
    """

    rows: pa.Table
    segments: Segments
    proof: Proof


def collect_runs(tables: Iterable[pa.Table], scratch: Path, *, run_bytes: int) -> list[Run]:
    """Read all tables into runs.

    Args:
        tables: Row groups of the inputs, in any order; each sorted per partition.
        scratch: Folder for scratch files, which have no name once they are written.
        run_bytes: Decoded bytes of a run, at least.

    Raises:
        OutOfOrder: A table is not sorted.
    """
    runs: list[Run] = []
    for group in _groups(tables, run_bytes):
        run = order_run(group)
        runs.append(replace(run, rows=_spilled(run.rows, scratch)))
    return runs


def order_run(tables: list[pa.Table]) -> Run:
    """One run of these tables: segments are moved as a whole, rows are not compared again."""
    rows = pa.concat_tables(tables).combine_chunks()
    segments = find_segments(rows, list(accumulate(len(table) for table in tables))[:-1])
    ordered = segments.taken(segments.order())
    proof = prove(rows, ordered)
    start = np.cumsum(ordered.length) - ordered.length
    if not np.array_equal(start, ordered.start):
        rows = _moved(rows, ordered, start)
    return Run(rows, replace(ordered, start=start), proof)


def in_order(runs: list[Run]) -> Iterator[pa.Table]:
    """All rows in order of (topic id, partition, emit offset, row), as slices of the runs.

    Raises:
        OutOfOrder: Ranges of a partition overlap; raised before the first slice.
    """
    keys = tuple(sorted({key for run in runs for key in run.segments.keys}))
    segments, run_of = _joined([with_keys(run.segments, keys) for run in runs])
    order = segments.order()
    segments, run_of = segments.taken(order), run_of[order]
    check_disjoint(segments)
    end = segments.start + segments.length
    apart = (run_of[1:] != run_of[:-1]) | (segments.start[1:] != end[:-1])
    first = np.concatenate([[0], np.flatnonzero(apart) + 1])
    last = np.append(first[1:], len(end)) - 1
    for run, start, stop in zip(run_of[first], segments.start[first], end[last], strict=True):
        yield runs[run].rows.slice(start, stop - start)


def regrouped(slices: Iterable[pa.Table], rows: int) -> Iterator[pa.Table]:
    """The same rows in tables of exactly `rows` rows, but for the last."""
    held: list[pa.Table] = []
    count = 0
    for piece in slices:
        while count + len(piece) >= rows:
            cut = rows - count
            yield pa.concat_tables([*held, piece.slice(0, cut)])
            held, count, piece = [], 0, piece.slice(cut)  # noqa: PLW2901  # what is left of it
        if len(piece):
            held.append(piece)
            count += len(piece)
    if held:
        yield pa.concat_tables(held)


def _groups(tables: Iterable[pa.Table], run_bytes: int) -> Iterator[list[pa.Table]]:
    held: list[pa.Table] = []
    size = 0
    for table in tables:
        if len(table):
            held.append(table)
            size += table.nbytes
        if size >= run_bytes:
            yield held
            held, size = [], 0
    if held:
        yield held


def _moved(rows: pa.Table, ordered: Segments, start: I64) -> pa.Table:
    indices: Any = pa.array(np.repeat(ordered.start - start, ordered.length) + np.arange(len(rows)))
    # Column by column: taking from the whole table at once costs eight times as much (measured).
    return pa.Table.from_arrays([column.take(indices) for column in rows.columns], schema=rows.schema)


def _joined(parts: list[Segments]) -> tuple[Segments, I64]:
    """All segments of several runs, and the run of each."""
    run_of = np.repeat(np.arange(len(parts)), [len(part.key) for part in parts])

    def both(pairs: list[tuple[I64, I64]]) -> tuple[I64, I64]:
        return np.concatenate([pair[0] for pair in pairs]), np.concatenate([pair[1] for pair in pairs])

    joined = Segments(
        keys=parts[0].keys,
        key=np.concatenate([part.key for part in parts]),
        start=np.concatenate([part.start for part in parts]),
        length=np.concatenate([part.length for part in parts]),
        first=both([part.first for part in parts]),
        last=both([part.last for part in parts]),
    )
    return joined, run_of


def _spilled(rows: pa.Table, scratch: Path) -> pa.Table:
    """The same rows in a mapped file, whose name is removed: nothing is left, whatever dies."""
    with tempfile.NamedTemporaryFile(dir=scratch, prefix="lockstep-compaction-") as file:
        with pa.ipc.new_file(file.name, rows.schema) as writer:
            writer.write_table(rows)
        with pa.memory_map(file.name) as mapped:
            return pa.ipc.open_file(mapped).read_all()
