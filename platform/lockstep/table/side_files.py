"""Live files of side tables: their removal, and their replacement by one file with the same rows, proven."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import groupby, starmap
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from lockstep.errors import TableError
from lockstep.model.commit_hour import format_hour
from lockstep.storage import find_storage
from lockstep.table import delta_log, transactions
from lockstep.table.commit_kinds import CommitKind
from lockstep.table.delta_log import NextEntry, RemoveAction
from lockstep.table.foreign_commits import refresh, refuse_foreign
from lockstep.table.layout import StreamFolders
from lockstep.table.ledger import LedgerFileName
from lockstep.table.live_files import COMPACTED_PREFIX
from lockstep.table.live_names import LiveNames
from lockstep.table.log_tail import LogTail
from lockstep.table.parquet import UNREADABLE, Compression, DataFile, DataFileWriter, explain_unreadable
from lockstep.table.quarantine import HIDDEN
from lockstep.table.row_digest import PROOF, U64, hash_rows

LOG = logging.getLogger("lockstep")

REPLACED_SECONDS = 2 * 3600.0
"""Readers list the files of a ledger and then read them, which takes seconds to minutes."""
MERGED_ROWS = 50_000
"""Rows of small tables that are copied together: bounds the rows that are in memory twice."""
LEDGER_COMPRESSION = Compression("zstd", 9)


class LedgerFile(msgspec.Struct, frozen=True):
    """A live file of the ledger whose name contains its batches."""

    path: str
    size: int
    rows: int
    name: LedgerFileName


def list_live_files(table: DeltaTable) -> tuple[LedgerFile, ...]:
    """The live files of the ledger whose names contain their batches."""
    actions = pa.table(table.get_add_actions(flatten=True)).select(["path", "size_bytes", "num_records"])
    files = list[LedgerFile]()
    for row in actions.to_pylist():
        path = str(row["path"])
        name = LedgerFileName.parse(path)
        if name is not None:
            files.append(LedgerFile(path, cast("int", row["size_bytes"]), cast("int", row["num_records"]), name))
    return tuple(files)


def write_proven(ledger: Path, schema: pa.Schema, prefix: str, groups: Iterable[pa.Table]) -> DataFile:
    """One ledger file of some rows, a row group each; read again, and each row compared by its hash.

    Raises:
        TableError: It does not hold these rows; it is deleted.
    """
    hashes = list[U64]()
    with DataFileWriter(
        ledger,
        schema,
        commit_hour=None,
        prefix=prefix,
        compression=LEDGER_COMPRESSION,
        counted_only=True,
        sealed=True,
    ) as writer:
        for rows in groups:
            writer.write(rows)
            hashes.append(_hash(rows))
        written = writer.finish()
    # Compared before the commit: a wrong file that is committed would replace the right ones.
    if not np.array_equal(_join(hashes), _hash_file(ledger / written.path, schema)):
        path = ledger / written.path
        find_storage(ledger).delete(path)
        raise TableError(
            f"{path} does not hold the rows of its inputs; nothing was committed",
            next_step="check disk and memory of this machine, then compact again",
        )
    return written


def _hash_file(path: Path, schema: pa.Schema) -> U64:
    with pq.ParquetFile(find_storage(path).open_source(path), pre_buffer=False) as parquet:
        hashes = list[U64]()
        for group in range(parquet.num_row_groups):
            rows = parquet.read_row_group(group, use_threads=False)
            hashes.append(_hash(rows.cast(schema)))
        return _join(hashes)


def _hash(rows: pa.Table) -> U64:
    return _join(map(hash_rows, rows.to_batches()))


def _join(hashes: Iterable[U64]) -> U64:
    return np.concatenate([np.empty(0, np.uint64), *hashes])


def merge_rows(tables: Iterable[pa.Table], schema: pa.Schema) -> pa.Table:
    """The rows of several tables, in order, with the columns of a schema; those that a table lacks are null.

    Neighbours with the same columns are copied together and cast at once: a chunk costs as much for a few rows as for
    thousands, to cast, to write and to compare.
    """
    merged = list[pa.Table]()
    # Together: a chunk of a few rows costs as much to cast, write and compare as one of thousands.
    for _, alike in groupby(tables, key=lambda table: table.schema):
        for few in _batched(alike, MERGED_ROWS):
            merged.append(with_columns(pa.concat_tables(few).combine_chunks(), schema))
    return pa.concat_tables(merged)


def _batched(tables: Iterable[pa.Table], rows: int) -> Iterator[list[pa.Table]]:
    """Tables in order, in lists of so many rows at least, but for the last."""
    batch = list[pa.Table]()
    count = 0
    for table in tables:
        batch.append(table)
        count += table.num_rows
        if count >= rows:
            yield batch
            batch = []
            count = 0
    if batch:
        yield batch


def with_columns(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The columns of a table; those that a file lacks are null."""
    columns = list[Any]()
    for field in schema:
        if field.name in rows.column_names:
            columns.append(rows[field.name].cast(field.type))
        else:
            columns.append(pa.nulls(len(rows), field.type))
    return pa.table(columns, schema=schema)


def commit_replacement(
    table: Path,
    handle: DeltaTable,
    hour: str,
    inputs: Mapping[str, int],
    output: DataFile,
    kind: CommitKind,
) -> bool:
    """Replace files by a file that is proven to hold their rows; False if one is no longer live.

    Args:
        table: Folder of the ledger, the quarantine or the late table.
        handle: The table, opened; refreshed here.
        hour: The hour of the files.
        inputs: The bytes of each replaced file, by path.
        output: The file that replaces them, already synced.
        kind: Whether it holds their rows, or leaves an erased session out.
    """
    proof = {"verdict": "equal", "rows": output.rows, "hour": hour, "files": len(inputs)}
    tail = LogTail(table)
    live = LiveNames(table, handle)

    def next_entry() -> NextEntry | None:
        tail.refresh()
        refuse_foreign(table, tail.version)
        if live.find_missing(inputs, tail.version):
            return None
        return NextEntry(
            version=tail.version + 1,
            kind=kind,
            adds=[output.action()],
            removes=list(starmap(RemoveAction, inputs.items())),
            transactions={transactions.BATCH: tail.find_number(transactions.BATCH)},
            metadata={PROOF: msgspec.json.encode(proof).decode()},
        )

    return delta_log.append_entry(table, next_entry) is not None


GROUP_BYTES = 16 * 1024 * 1024
"""Decoded bytes of a row group."""
MESSAGE_COMPRESSION = Compression("zstd", 3)


class SideTableFile(msgspec.Struct, frozen=True):
    """A live file of the quarantine or the late table.

    Attributes:
        path: Relative to the table.
        size: Bytes.
        rows: Number of rows.
        name: Hour of its commit, generation and batches.
        added_ms: Time of the commit of its newest row, in milliseconds since 1970.
    """

    path: str
    size: int
    rows: int
    name: LedgerFileName
    added_ms: int

    @property
    def is_compacted(self) -> bool:
        """Whether it replaced others."""
        return self.path.startswith(f"{COMPACTED_PREFIX}-")


def list_side_tables(folders: StreamFolders) -> tuple[Path, ...]:
    """Quarantine and late table, as far as the stream has them."""
    return tuple(side for side in (folders.quarantine, folders.late) if delta_log.has_log(side))


def list_message_tables(folders: StreamFolders) -> tuple[Path, ...]:
    """Quarantine, late table and archive, as far as the stream has them."""
    if delta_log.has_log(folders.archive):
        return (*list_side_tables(folders), folders.archive)
    return list_side_tables(folders)


def list_side_files(table: DeltaTable) -> tuple[SideTableFile, ...]:
    """The live files, with hour and batches by the log: bounds of their rows, and the time of their commit."""
    actions = pa.table(table.get_add_actions(flatten=True))
    columns = ["path", "size_bytes", "num_records", "modification_time", "min.generation", "min.batch", "max.batch"]
    wanted = [name for name in columns if name in actions.column_names]
    return tuple(map(_parse_side_file, actions.select(wanted).to_pylist()))


def _parse_side_file(row: dict[str, Any]) -> SideTableFile:
    hour = format_hour(datetime.fromtimestamp(row["modification_time"] / 1000, UTC))
    bounds = (int(row.get(name) or 0) for name in ("min.generation", "min.batch", "max.batch"))
    name = LedgerFileName.parse(row["path"]) or LedgerFileName(hour, *bounds)
    return SideTableFile(row["path"], row["size_bytes"], row["num_records"], name, row["modification_time"])


def drop_files(
    side: Path,
    kind: CommitKind,
    choose: Callable[[tuple[SideTableFile, ...]], tuple[SideTableFile, ...]],
    last_batch: int = 0,
) -> tuple[SideTableFile, ...]:
    """Remove live files in one commit that names the last dropped batch; returns them.

    Args:
        side: Folder of the table.
        kind: Kind of the commit.
        choose: Returns the files to remove, of the live files of the newest version.
        last_batch: A batch up to which all messages are dropped, even without a file.

    Raises:
        ForeignCommit: The table has a foreign commit.
        TableReplaced: Its folder was moved or deleted.
        CommitUnknown: The store did not answer.
    """
    table = delta_log.open_delta_table(side)
    tail = LogTail(side)
    removed: tuple[SideTableFile, ...] = ()

    def next_entry() -> NextEntry | None:
        nonlocal removed
        tail.refresh()
        refuse_foreign(side, tail.version)
        refresh(table, side)
        removed = choose(list_side_files(table))
        if not removed:
            return None
        batches = (last_batch, tail.find_number(transactions.DROPPED), *(file.name.last for file in removed))
        return NextEntry(
            version=tail.version + 1,
            kind=kind,
            removes=[RemoveAction(file.path, file.size) for file in removed],
            transactions={
                transactions.BATCH: tail.find_number(transactions.BATCH),
                transactions.DROPPED: max(batches),
            },
        )

    written = delta_log.append_entry(side, next_entry)
    return () if written is None else removed


def rewrite_side_files(
    side: Path,
    table: DeltaTable,
    files: Sequence[SideTableFile],
    kind: CommitKind,
    change: Callable[[pa.Table], pa.Table] = lambda rows: rows,
) -> DataFile | None:
    """Replace files by one with the same rows, changed; None if an input was not live any more."""
    rows = read_live_rows(side, table, files)
    if rows is not None:
        output = _write_side_file(side, files, change(rows))
        inputs = {file.path: file.size for file in files}
        if commit_replacement(side, table, files[0].name.hour, inputs, output, kind):
            return output
        find_storage(side).delete(side / output.path)
    LOG.info("the replacement of files of %s was too late for hour %s", side.name, files[0].name.hour)
    return None


def _write_side_file(side: Path, files: Sequence[SideTableFile], rows: pa.Table) -> DataFile:
    """One file of the rows; read again and compared."""
    first = files[0].name
    last = max(file.name.last for file in files)
    prefix = LedgerFileName(first.hour, first.generation, first.first, last).prefix(COMPACTED_PREFIX)
    group_rows = max(1, len(rows) * GROUP_BYTES // max(1, rows.nbytes))
    with DataFileWriter(
        side,
        rows.schema,
        commit_hour=None,
        prefix=prefix,
        compression=MESSAGE_COMPRESSION,
        sealed=True,
        hidden=HIDDEN,
    ) as writer:
        for start in range(0, len(rows), group_rows):
            writer.write(rows.slice(start, group_rows))
        written = writer.finish()
    # As old as its newest input: its rows entered the table then, and health counts those of the last hour.
    written = msgspec.structs.replace(written, added_ms=max(file.added_ms for file in files))
    storage = find_storage(side)
    path = side / written.path
    if not pq.ParquetFile(storage.open_source(path)).read().cast(rows.schema).equals(rows):
        storage.delete(path)
        raise TableError(
            f"{path} does not hold the rows of its inputs; nothing was committed",
            next_step="check disk and memory of this machine, then compact again",
        )
    return written


def read_live_rows(side: Path, table: DeltaTable, files: Sequence[SideTableFile]) -> pa.Table | None:
    """The rows of some files; None where another process has replaced one and deleted it."""
    schema = pa.schema(cast("pa.Schema", table.schema().to_arrow()))
    try:
        return merge_rows(find_storage(side).map_files(partial(read_side_file, side), files), schema)
    except TableError:
        refresh(table, side)
        if {file.path for file in files} <= {file.path for file in list_side_files(table)}:
            raise
        return None


def read_side_file(side: Path, file: SideTableFile, columns: list[str] | None = None) -> pa.Table:
    """Read columns of a file. Raises TableError if it is damaged, FileNotFoundError if it is gone."""
    path = side / file.path
    try:
        rows = pq.ParquetFile(find_storage(side).open_source(path)).read(columns=columns)
    except UNREADABLE as error:
        raise explain_unreadable(path, error) from error
    if rows.num_rows != file.rows:
        raise TableError(
            f"{path}: the log counts {file.rows} rows, the file holds {rows.num_rows}",
            next_step=f"lockstep repair {side.parent.name} checks all files of the stream",
        )
    return rows
