"""Parquet files of a table: written once under a name of their own, synced, then named by a commit."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self, cast

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.transaction import AddAction

from lockstep.table.log import sync
from lockstep.table.statistics import SeenValues, file_statistics, written_columns

ROW_GROUP_ROWS = 1_000_000
"""Rows of a row group at most; a batch's file has one, which is what compaction holds in memory."""

NAMED_MAX = 5
"""So many files are named to people; the rest is counted."""

BATCH_COMPRESSION_LEVEL = 1
"""zstd's fastest usual level: a batch's file is soon compacted, and its CPU time is the batch's."""


class DataFile(msgspec.Struct, frozen=True):
    """A finished file that a commit may name.

    Attributes:
        path: Relative to its table.
        size: Bytes.
        rows: Number of rows.
        statistics: Delta statistics as JSON.
        commit_hour: Value of the partition column; None for tables without partitions.
    """

    path: str
    size: int
    rows: int
    statistics: str
    commit_hour: str | None = None

    def action(self, *, data_change: bool = True) -> AddAction:
        """The action that adds the file to its table."""
        hours = {} if self.commit_hour is None else {"commit_hour": self.commit_hour}
        return AddAction(self.path, self.size, hours, int(time.time() * 1000), data_change, self.statistics)


class DataFileWriter:
    """Writes one Parquet file. The name ends in a uuid drawn here and is created exclusively.

    A name made of epoch, batch and attempt would not do: attempts start again with each Spark job,
    so a worker thought dead could overwrite a committed file.
    """

    def __init__(
        self,
        table: Path,
        schema: pa.Schema,
        *,
        commit_hour: str | None,
        prefix: str,
        compression_level: int = BATCH_COMPRESSION_LEVEL,
        counted_only: bool = False,
    ) -> None:
        """Create the file.

        Args:
            table: Folder of the table.
            schema: Of the rows.
            commit_hour: Value of the partition column; None for tables without partitions.
            prefix: How the name begins.
            compression_level: Of zstd.
            counted_only: The file says how many rows it has and nothing of their values: a small file that is read
                whole is half as large so, and its log entry a tenth. Bounds of some columns only would be wrong: see
                `statistics`.
        """
        folder = f"commit_hour={commit_hour}/" if commit_hour is not None else ""
        self._table, self._commit_hour, self._schema = table, commit_hour, schema
        self._path = f"{folder}{prefix}-{uuid.uuid4().hex}.parquet"
        self._full = table / self._path
        self._full.parent.mkdir(parents=True, exist_ok=True)
        self._sink = self._full.open("xb")
        # Floats carry no Parquet statistics: a NaN would hide rows. Watched values give Delta's own instead.
        self._seen, columns = SeenValues(schema), written_columns(schema)
        self._counted_only = counted_only
        self._parquet = pq.ParquetWriter(
            self._sink,
            schema,
            compression="zstd",
            compression_level=compression_level,
            use_dictionary=cast("bool", columns.use_dictionary or False),  # or a list, which the stubs forget
            write_statistics=cast("bool", not counted_only and (columns.write_statistics or False)),
            store_schema=not counted_only,
        )

    def write(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Append rows as one row group."""
        table = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
        self._parquet.write_table(table, row_group_size=ROW_GROUP_ROWS)
        if not self._counted_only:
            self._seen.add(table)

    def finish(self) -> DataFile:
        """Close and sync the file and its folder, then say what was written."""
        self._parquet.close()
        self._sink.flush()
        os.fsync(self._sink.fileno())
        self._sink.close()
        sync(self._full.parent)
        metadata = pq.read_metadata(self._full)
        return DataFile(
            path=self._path,
            size=self._full.stat().st_size,
            rows=metadata.num_rows,
            statistics=self._statistics(metadata),
            commit_hour=self._commit_hour,
        )

    def _statistics(self, metadata: pq.FileMetaData) -> str:
        if self._counted_only:
            return msgspec.json.encode({"numRecords": metadata.num_rows}).decode()
        return file_statistics(metadata, self._schema, self._seen)

    def abandon(self) -> None:
        """Remove the file: nothing refers to it."""
        self._parquet.close()
        self._sink.close()
        self._full.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._sink.closed:
            self.abandon()


def write_file(
    table: Path, rows: pa.Table, *, prefix: str, commit_hour: str | None = None, counted_only: bool = False
) -> DataFile:
    """Write a whole table of rows as one file; see `DataFileWriter`."""
    with DataFileWriter(
        table, rows.schema, commit_hour=commit_hour, prefix=prefix, counted_only=counted_only
    ) as writer:
        writer.write(rows)
        return writer.finish()


def named_files(table: Path, version: int | None = None) -> list[tuple[Path, int]]:
    """The files that a version names, the newest unless told otherwise, with their sizes."""
    actions = DeltaTable(table, version=version).get_add_actions(flatten=True).select(["path", "size_bytes"])
    named = zip(actions["path"].to_pylist(), actions["size_bytes"].to_pylist(), strict=True)
    return [(table / path, size) for path, size in named]


def wrong_files(files: Iterable[tuple[Path, int]]) -> list[str]:
    """Those that are missing or of another size."""
    return [str(path) for path, size in files if not path.exists() or path.stat().st_size != size]


def some(items: list[str]) -> str:
    """The first of them, and how many more there are."""
    more = f" and {len(items) - NAMED_MAX} more" if len(items) > NAMED_MAX else ""
    return ", ".join(items[:NAMED_MAX]) + more


def delete_file(path: Path) -> int | None:
    """Delete a file; its bytes, or None where another clean-up was faster."""
    try:
        size = path.stat().st_size
        path.unlink()
    except FileNotFoundError:
        return None
    return size
