"""Rewrites one bin, in order.

Rows are collected into runs of a bounded size. A run is grouped by partition, sorted inside each,
and stored in a mapped scratch file, so that the system may reclaim its memory. The sorted whole
consists of slices of the runs, one after another.

Columns of text with few distinct values are read, moved, hashed and written as dictionaries: their values are then
examined once for each dictionary instead of once for each row. Parquet takes the codes of a row group if they are of
one dictionary, so that of each run starts with that of the run before: the last dictionary serves all.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lockstep.errors import TableError
from lockstep.features.compaction.plan import OPEN_PREFIX, Bin
from lockstep.features.compaction.proof import RowProof, compare_proofs, make_proof
from lockstep.model.position import TopicIdPartition
from lockstep.storage import Scratch, find_storage
from lockstep.table.live_files import COMPACTED_PREFIX, LiveFile
from lockstep.table.parquet import UNREADABLE, DataFile, DataFileWriter, decode_schema, decode_texts, explain_unreadable
from lockstep.table.row_groups import _carry_dictionaries, _has_large_dictionary, regroup_rows, widen_schema
from lockstep.table.row_order import (
    I64,
    OutOfOrder,
    RowPlace,
    Segments,
    add_keys,
    check_disjoint,
    find_segments,
)


@dataclass(frozen=True, slots=True)
class FileRun:
    """Rows grouped by partition and sorted inside each.

    Attributes:
        rows: The rows.
        segments: The segments of the partitions, in order.
        proof: Proof of the rows as they were read, before they were moved.
    """

    rows: pa.Table
    segments: Segments
    proof: RowProof


def collect_runs(tables: Iterable[pa.Table], scratch: Path, *, run_bytes: int) -> list[FileRun]:
    """Read all tables into runs.

    Args:
        tables: Row groups of the inputs, in any order; each sorted per partition.
        scratch: Folder for scratch files, which are unlinked once written.
        run_bytes: Decoded bytes of a run, at least.

    Raises:
        OutOfOrder: A table is not sorted.
    """
    runs: list[FileRun] = []
    for group in _groups(tables, run_bytes):
        dictionaries: list[pa.Table] = []
        if runs:
            last = runs[-1]
            dictionaries.append(_carry_dictionaries(last.rows))
            # Only now: the newest run stays in memory, so that a bin of one run is never written to a scratch file.
            runs[-1] = replace(last, rows=_spilled(last.rows, scratch))
        runs.append(order_run(group, dictionaries))
    return runs


def order_run(tables: list[pa.Table], before: Sequence[pa.Table] = ()) -> FileRun:
    """One run of these tables: segments are moved as a whole, rows are not compared again.

    Args:
        tables: The tables, each sorted per partition.
        before: Tables without rows, whose dictionaries start those of the run.
    """
    rows = pa.concat_tables([*before, *tables]).combine_chunks()
    segments = find_segments(rows, list(accumulate(len(table) for table in tables))[:-1])
    ordered = segments.taken(segments.order())
    proof = make_proof(rows, ordered)
    start = np.cumsum(ordered.length) - ordered.length
    if not np.array_equal(start, ordered.start):
        rows = _moved(rows, ordered, start)
    return FileRun(rows, replace(ordered, start=start), proof)


def sort_in_order(runs: list[FileRun]) -> Iterator[pa.Table]:
    """All rows in order of (topic id, partition, emit offset, row), as slices of the runs.

    Raises:
        OutOfOrder: Ranges of a partition overlap; raised before the first slice.
    """
    keys = tuple(sorted(set[TopicIdPartition]().union(*(run.segments.keys for run in runs))))
    segments, run_of = _join_segments([add_keys(run.segments, keys) for run in runs])
    order = segments.order()
    segments = segments.taken(order)
    run_of = run_of[order]
    check_disjoint(segments)
    end = segments.start + segments.length
    apart = (run_of[1:] != run_of[:-1]) | (segments.start[1:] != end[:-1])
    first = np.concatenate([[0], np.flatnonzero(apart) + 1])
    last = np.append(first[1:], len(end)) - 1
    for run, start, stop in zip(run_of[first], segments.start[first], end[last], strict=True):
        yield runs[run].rows.slice(start, stop - start)


def find_coded(runs: Sequence[pa.Table]) -> list[str]:
    """The columns whose dictionary in each run starts with that of the run before: none of them is large."""
    return [name for name in _find_dictionaries(runs[-1].schema) if _is_coded(runs, name)]


def _is_coded(runs: Sequence[pa.Table], name: str) -> bool:
    return not any(_has_large_dictionary(rows.column(name)) for rows in runs)


def share_dictionaries(rows: pa.Table, last: pa.Table, coded: Iterable[str]) -> pa.Table:
    """The rows of a run with the dictionaries of the last run in some columns."""
    for name in coded:
        number = rows.schema.get_field_index(name)
        column = _get_chunk(rows, name)
        last_column = _get_chunk(last, name)
        # The last dictionary starts with that of each run before it, so that all codes mean the same.
        shared: Any = pa.DictionaryArray.from_arrays(column.indices, last_column.dictionary, safe=False)
        rows = rows.set_column(number, rows.schema.field(number), shared)
    return rows


def _get_chunk(rows: pa.Table, name: str) -> Any:
    """A column of a run, which has one chunk."""
    return rows.column(name).chunk(0)


def _find_dictionaries(schema: pa.Schema) -> list[str]:
    return [field.name for field in schema if pa.types.is_dictionary(field.type)]


def _groups(tables: Iterable[pa.Table], run_bytes: int) -> Iterator[list[pa.Table]]:
    group: list[pa.Table] = []
    size = 0
    for table in tables:
        if len(table):
            group.append(table)
            # `nbytes` visits each array: a twentieth of all of a compaction.
            size += table.get_total_buffer_size()
        if size >= run_bytes:
            yield group
            group = []
            size = 0
    if group:
        yield group


def _moved(rows: pa.Table, ordered: Segments, start: I64) -> pa.Table:
    indices: Any = pa.array(np.repeat(ordered.start - start, ordered.length) + np.arange(len(rows)))
    # Column by column: taking from the whole table at once costs eight times as much (measured).
    return pa.Table.from_arrays([column.take(indices) for column in rows.columns], schema=rows.schema)


def _join_segments(parts: list[Segments]) -> tuple[Segments, I64]:
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
    """The same rows in a mapped, unlinked file: nothing remains after any crash."""
    with Scratch(scratch).open_file("lockstep-compaction-") as (_, path):
        with pa.ipc.new_file(str(path), rows.schema) as writer:
            writer.write_table(rows)
        with pa.memory_map(str(path)) as mapped:
            return pa.ipc.open_file(mapped).read_all()


ROW_GROUP_BYTES = 64 * 1024 * 1024
"""Decoded bytes of a row group, for wide rows: the writer holds them in memory."""


WHOLE_BYTES_MAX = 8 * 1024 * 1024
"""Smaller files are read with one request instead of two for each column."""

AHEAD_BYTES_MAX = 1024 * 1024
"""In an object store smaller files are read before their turn, several at the same time: they are in memory."""


SAMPLE_ROWS = 10_000
DISTINCT_RATIO = 2
"""A column of text is read as a dictionary if the first file has, in so many rows, this many times fewer distinct
values: with many of them a dictionary costs more than it saves."""


class RewriteTask(msgspec.Struct, frozen=True):
    """The work of one task.

    Attributes:
        table: Folder of the output table.
        bin: The files to rewrite.
        scratch: Folder for scratch files on the machine of the task; by default its temporary folder.
        run_bytes: Decoded rows of a run: about three times as much is in memory while it is sorted. Smaller runs split
            the rows of a partition into more slices; larger ones only take more memory.
        group_rows: Rows of a row group. Readers skip row groups, and rows are ordered by topic: smaller groups let a
            reader of one topic skip more; far smaller ones compress worse.
    """

    table: Path
    bin: Bin
    scratch: Path | None = None
    run_bytes: int = 32 * 1024 * 1024
    group_rows: int = 200_000


class Rewritten(msgspec.Struct, frozen=True):
    """A bin's output: synced, proven equal to its inputs, and not yet named by a commit."""

    file: DataFile
    digest: int
    partitions: int
    cpu_seconds: float


class BinRefused(msgspec.Struct, frozen=True):
    """A bin that could not be rewritten; its output, if any, is removed."""

    problem: str
    next_step: str


def rewrite_or_refuse(task: RewriteTask) -> Rewritten | BinRefused:
    """Rewrite a bin; a refusal is a value, because Spark would only retry an exception."""
    try:
        return rewrite_bin(task)
    except TableError as error:
        return BinRefused(error.problem, error.next_step)


def rewrite_bin(task: RewriteTask) -> Rewritten:
    """Rewrite a bin into one file.

    1. Read every input once, into runs sorted by partition; prove the input. A row from before a column was
       added has null there, as for every reader of the table.
    2. Write the runs' slices, in order, as one file.
    3. Read the file back; prove that its rows are the same and in order.

    Raises:
        OutOfOrder: The inputs' rows overlap, or an input is not sorted.
        ProofDiffers: The output differs from its inputs; it is removed.
        TableError: An input is missing, or differs from its log entry.
    """
    started = time.process_time()
    scratch = task.scratch or Path(tempfile.gettempdir())
    runs = _runs(task, scratch)  # 1
    proof = _join_proofs(runs)
    _check_count(task.bin, proof)
    file = _write(task, runs)  # 2
    try:
        compare_proofs(proof, prove_file(task.table / file.path, _find_dictionaries(runs[0].rows.schema)))  # 3
    except TableError:
        find_storage(task.table).delete(task.table / file.path)
        raise
    return Rewritten(file, proof.digest, len(proof.spans), time.process_time() - started)


def prove_file(path: Path, dictionaries: Sequence[str] = ()) -> RowProof:
    """The proof of a compacted file, read back row group by row group.

    Args:
        path: The file.
        dictionaries: Columns of text that are read as dictionaries.

    Raises:
        OutOfOrder: Its rows are not in order of topic id, partition, emit offset and row.
    """
    proof = RowProof()
    last: tuple[TopicIdPartition, RowPlace] | None = None
    for rows in _row_groups(path, dictionaries):
        segments = find_segments(rows)
        _check_order(segments, last)
        last = segments.partition(-1), segments.closes(-1)
        proof = proof.joined(make_proof(rows, segments))
    return proof


def _check_order(segments: Segments, last: tuple[TopicIdPartition, RowPlace] | None) -> None:
    first = segments.partition(0), segments.opens(0)
    if (last is not None and last >= first) or (segments.key[1:] <= segments.key[:-1]).any():
        raise OutOfOrder(first[0], first[1].emit_offset, "the compacted file is not in order")
    check_disjoint(segments)


class _Unlike(TableError):
    """A file has other columns than the previous file."""


def _runs(task: RewriteTask, scratch: Path) -> list[FileRun]:
    """The inputs' rows; all files are inspected beforehand only if their columns were found to differ."""
    dictionaries = _find_repetitive(task.table / task.bin.files[0].path)
    try:
        return collect_runs(_read_inputs(task, dictionaries), scratch, run_bytes=task.run_bytes)
    except _Unlike as unlike:
        # Without dictionaries: the schemas are united by their plain types.
        widest = _widest(task, unlike)
        return collect_runs(_read_inputs(task, (), widest), scratch, run_bytes=task.run_bytes)


def _find_repetitive(path: Path) -> list[str]:
    """The columns of text that have few distinct values in a file."""
    rows = next(_row_groups(path), pa.table({})).slice(0, SAMPLE_ROWS)
    texts = [field.name for field in rows.schema if pa.types.is_string(field.type)]
    return [name for name in texts if DISTINCT_RATIO * len(rows[name].unique()) <= len(rows)]


def _read_inputs(task: RewriteTask, dictionaries: Sequence[str], widest: pa.Schema | None = None) -> Iterator[pa.Table]:
    schema = widest
    contents = find_storage(task.table).map_files(partial(_read_ahead, task.table), task.bin.files)
    for file, content in zip(task.bin.files, contents, strict=True):
        path = task.table / file.path
        for group in _row_groups(path, dictionaries, content, is_small=file.size < WHOLE_BYTES_MAX):
            rows = group if widest is None else widen_schema(group, widest)
            schema = schema or rows.schema
            if rows.schema != schema:
                raise _unlike(path)
            yield rows


def _widest(task: RewriteTask, unlike: _Unlike) -> pa.Schema:
    """The schema with the columns of all inputs; columns that are missing or nullable in one of them are optional.

    Raises:
        TableError: A column has two types.
    """
    schemas = []
    for file in task.bin.files:
        path = task.table / file.path
        try:
            with pq.ParquetFile(find_storage(path).open_source(path), pre_buffer=False) as parquet:
                schemas.append(parquet.schema_arrow)
        except UNREADABLE as error:
            raise explain_unreadable(path, error) from error
    try:
        united = pa.unify_schemas(schemas)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        raise unlike from None
    everywhere = set(united.names).intersection(*(schema.names for schema in schemas))
    return pa.schema([field if field.name in everywhere else field.with_nullable(nullable=True) for field in united])


def _read_ahead(table: Path, file: LiveFile) -> bytes | None:
    """The content of a file of a batch; None for larger ones, which are read in their turn."""
    if file.size >= AHEAD_BYTES_MAX:
        return None
    try:
        return find_storage(table).read(table / file.path)
    except FileNotFoundError:
        raise _missing(table / file.path) from None


def _row_groups(
    path: Path, dictionaries: Sequence[str] = (), content: bytes | None = None, *, is_small: bool = False
) -> Iterator[pa.Table]:
    storage = find_storage(path)
    try:
        if content is None and is_small:
            content = storage.read(path)
        with _open(path, content, list(dictionaries)) as parquet:
            for group in range(parquet.num_row_groups):
                yield parquet.read_row_group(group, use_threads=False)
    except FileNotFoundError:
        raise _missing(path) from None
    except UNREADABLE as error:
        raise explain_unreadable(path, error) from error


def _open(path: Path, content: bytes | None, dictionaries: list[str]) -> pq.ParquetFile:
    if content is not None:
        return pq.ParquetFile(pa.BufferReader(content), pre_buffer=False, read_dictionary=dictionaries)
    return pq.ParquetFile(find_storage(path).open_source(path), pre_buffer=False, read_dictionary=dictionaries)


def _join_proofs(runs: list[FileRun]) -> RowProof:
    proof = RowProof()
    for run in runs:
        proof = proof.joined(run.proof)
    return proof


def _check_count(planned: Bin, before: RowProof) -> None:
    if before.rows != planned.rows:
        raise TableError(
            f"hour {planned.commit_hour}: the log counts {planned.rows} rows, the files hold {before.rows}",
            next_step="nothing was compacted here; restore the files from a copy",
        )


def _write(task: RewriteTask, runs: list[FileRun]) -> DataFile:
    coded = find_coded([run.rows for run in runs])
    last = runs[-1].rows
    shared = [replace(run, rows=share_dictionaries(run.rows, last, coded)) for run in runs]
    with DataFileWriter(
        task.table,
        decode_schema(last.schema, keep=coded),
        commit_hour=task.bin.commit_hour,
        prefix=OPEN_PREFIX if task.bin.is_minor else COMPACTED_PREFIX,
    ) as writer:
        for rows in regroup_rows(sort_in_order(shared), _group_rows(runs, task.group_rows)):
            # Parquet encodes each slice on its own: with those of 500 partitions that is up to two thirds of the time.
            writer.write(decode_texts(rows, keep=coded).combine_chunks())
        return writer.finish()


def _group_rows(runs: list[FileRun], rows_max: int) -> int:
    rows = sum(len(run.rows) for run in runs)
    size = sum(_count_bytes(run.rows) for run in runs)
    return max(1, min(rows_max, rows * ROW_GROUP_BYTES // max(1, size)))


def _count_bytes(rows: pa.Table) -> int:
    """Decoded bytes of rows; of dictionaries about."""
    size: int = rows.nbytes
    for column in rows.columns:
        if not pa.types.is_dictionary(column.type):
            continue
        chunks: list[Any] = column.chunks
        for chunk in chunks:
            size += len(chunk) * chunk.dictionary.nbytes // max(1, len(chunk.dictionary))
    return size


def _missing(path: Path) -> TableError:
    return TableError(f"{path} is missing", next_step="restore it from a copy, or end what deletes files here")


def _unlike(path: Path) -> _Unlike:
    return _Unlike(
        f"{path} has columns of other types than the files before it",
        next_step="nothing was compacted here; find out who wrote the file: only lockstep writes this table",
    )
