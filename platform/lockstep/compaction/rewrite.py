"""Rewrites one bin into one file, and proves it. Runs as a Spark task or in any process."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from lockstep.compaction.gather import RUN_BYTES, Run, collect_runs, in_order, regrouped
from lockstep.compaction.plan import COMPACTED_PREFIX, Bin
from lockstep.compaction.proof import Proof, compare, prove
from lockstep.compaction.segments import OutOfOrder, PartitionKey, RowPlace, Segments, check_disjoint, find_segments
from lockstep.errors import TableError
from lockstep.table.files import DataFile, DataFileWriter

COMPRESSION_LEVEL = 3
"""zstd's default, paid once for a file that is read for years: half the bytes of a batch's level 1 for
about a tenth more CPU of reading and writing (2.16 M repetitive rows of 26 columns). Higher levels cost
several times more."""
ROW_GROUP_ROWS = 200_000
"""Readers skip row groups, and rows are ordered by topic: smaller groups let a reader of one topic skip
more; far smaller ones compress worse."""
ROW_GROUP_BYTES = 64 * 1024 * 1024
"""Decoded bytes of a row group, for wide rows: what the writer holds in memory."""


class RewriteTask(msgspec.Struct, frozen=True):
    """The work of one task.

    Attributes:
        table: Folder of the output table.
        bin: The files to rewrite.
        scratch: Folder for scratch files on the machine of the task; its temporary folder when left out.
    """

    table: Path
    bin: Bin
    scratch: Path | None = None


class Rewritten(msgspec.Struct, frozen=True):
    """A bin's output: synced, proven equal to its inputs, and named by nobody yet."""

    file: DataFile
    digest: int
    partitions: int
    cpu_seconds: float


class Refused(msgspec.Struct, frozen=True):
    """A bin that could not be rewritten; its output, if any, is removed."""

    problem: str
    next_step: str


def rewrite_or_refuse(task: RewriteTask) -> Rewritten | Refused:
    """Rewrite a bin; a refusal is a value, because Spark would only try it again."""
    try:
        return rewrite_bin(task)
    except TableError as error:
        return Refused(error.problem, error.next_step)


def rewrite_bin(task: RewriteTask) -> Rewritten:
    """Rewrite a bin into one file.

    1. Read every input once, into runs ordered by partition; prove what was read. A row of before a column was
       added has null there, as every reader of the table sees it.
    2. Write the runs' slices, in order, as one file.
    3. Read the file back; prove that its rows are the same and in order.

    Raises:
        OutOfOrder: The inputs' rows overlap, or an input is not sorted.
        ProofDiffers: The output is not what the inputs are; it is removed.
        TableError: An input is missing, or is not what the log says of it.
    """
    started = time.process_time()
    scratch = task.scratch or Path(tempfile.gettempdir())
    runs = _runs(task, scratch)
    before = _joined(runs)
    _check_count(task.bin, before)
    file = _write(task, runs)
    try:
        compare(before, prove_file(task.table / file.path))
    except TableError:
        (task.table / file.path).unlink()
        raise
    return Rewritten(file, before.digest, len(before.spans), time.process_time() - started)


def prove_file(path: Path) -> Proof:
    """The proof of a compacted file, read back row group by row group.

    Raises:
        OutOfOrder: Its rows are not in order of topic id, partition, emit offset and row.
    """
    proof = Proof()
    last: tuple[PartitionKey, RowPlace] | None = None
    for rows in _row_groups(path):
        segments = find_segments(rows)
        _check_order(segments, last)
        last = segments.partition(-1), segments.closes(-1)
        proof = proof.joined(prove(rows, segments))
    return proof


def _check_order(segments: Segments, last: tuple[PartitionKey, RowPlace] | None) -> None:
    first = segments.partition(0), segments.opens(0)
    if (last is not None and last >= first) or (segments.key[1:] <= segments.key[:-1]).any():
        raise OutOfOrder(first[0], first[1].emit_offset, "the compacted file is not in order")
    check_disjoint(segments)


class _Unlike(TableError):
    """A file has other columns than the one before it."""


def _runs(task: RewriteTask, scratch: Path) -> list[Run]:
    """The inputs' rows; all files are looked at beforehand only where their columns were found to differ."""
    try:
        return collect_runs(_read_inputs(task), scratch, run_bytes=RUN_BYTES)
    except _Unlike as unlike:
        widest = _widest(task, unlike)
        return collect_runs(_read_inputs(task, widest), scratch, run_bytes=RUN_BYTES)


def _read_inputs(task: RewriteTask, widest: pa.Schema | None = None) -> Iterator[pa.Table]:
    schema = widest
    for file in task.bin.files:
        path = task.table / file.path
        for found in _row_groups(path):
            rows = found if widest is None else widened(found, widest)
            schema = schema or rows.schema
            if rows.schema != schema:
                raise _unlike(path)
            yield rows


def widened(rows: pa.Table, widest: pa.Schema) -> pa.Table:
    """Rows with all columns of a schema, in its order; null in those that they do not have."""
    columns = [
        rows[field.name] if field.name in rows.column_names else pa.nulls(len(rows), field.type) for field in widest
    ]
    return pa.table(columns, schema=widest)


def _widest(task: RewriteTask, unlike: _Unlike) -> pa.Schema:
    """The schema that has the columns of all inputs; those that not all have, or that may be null in one, are optional.

    Raises:
        TableError: A column is of two types.
    """
    schemas = []
    for file in task.bin.files:
        with pq.ParquetFile(task.table / file.path, pre_buffer=False) as parquet:
            schemas.append(parquet.schema_arrow)
    try:
        united = pa.unify_schemas(schemas)
    except pa.ArrowInvalid:
        raise unlike from None
    everywhere = {field.name for field in united if all(field.name in schema.names for schema in schemas)}
    return pa.schema([field if field.name in everywhere else field.with_nullable(nullable=True) for field in united])


def _row_groups(path: Path) -> Iterator[pa.Table]:
    try:
        with pq.ParquetFile(path, pre_buffer=False) as parquet:
            for group in range(parquet.num_row_groups):
                yield parquet.read_row_group(group, use_threads=False)
    except FileNotFoundError:
        raise _missing(path) from None
    except pa.ArrowInvalid as error:
        raise _unreadable(path, error) from error


def _joined(runs: list[Run]) -> Proof:
    proof = Proof()
    for run in runs:
        proof = proof.joined(run.proof)
    return proof


def _check_count(planned: Bin, before: Proof) -> None:
    if before.rows != planned.rows:
        raise TableError(
            f"hour {planned.commit_hour}: the log counts {planned.rows} rows, the files hold {before.rows}",
            next_step="nothing was compacted here; restore the files from a copy",
        )


def _write(task: RewriteTask, runs: list[Run]) -> DataFile:
    schema = runs[0].rows.schema
    with DataFileWriter(
        task.table,
        schema,
        commit_hour=task.bin.commit_hour,
        prefix=COMPACTED_PREFIX,
        compression_level=COMPRESSION_LEVEL,
    ) as writer:
        for rows in regrouped(in_order(runs), _group_rows(runs)):
            writer.write(rows)
        return writer.finish()


def _group_rows(runs: list[Run]) -> int:
    rows, size = sum(len(run.rows) for run in runs), sum(run.rows.nbytes for run in runs)
    return max(1, min(ROW_GROUP_ROWS, rows * ROW_GROUP_BYTES // max(1, size)))


def _missing(path: Path) -> TableError:
    return TableError(f"{path} is missing", next_step="restore the file from a copy, or end whoever deletes files here")


def _unreadable(path: Path, error: pa.ArrowInvalid) -> TableError:
    return TableError(f"{path} cannot be read: {error}", next_step="restore the file from a copy")


def _unlike(path: Path) -> _Unlike:
    return _Unlike(
        f"{path} has columns of other types than the files before it",
        next_step="nothing was compacted here; find out who wrote the file: only lockstep writes this table",
    )
