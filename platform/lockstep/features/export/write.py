"""Writes one hour: rows in their order, a row group at a time, read back and compared before it is published."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lockstep.errors import TableError
from lockstep.features.export.dataset import (
    ExportedFile,
    ExportOptions,
    HourManifest,
    list_batches,
    publish_hour,
    read_manifest,
    take_back_hour,
    write_manifest,
)
from lockstep.features.export.publish import find_suffix, make_staging_folder
from lockstep.storage import find_storage
from lockstep.table.head import Head
from lockstep.table.live_files import LiveFile
from lockstep.table.parquet import UNREADABLE, explain_unreadable
from lockstep.table.row_digest import digest_rows
from lockstep.table.row_groups import regroup_rows, widen_schema

PARTITIONS_MAX = 200
"""Files of one source that are open at a time: each holds a row group in memory."""
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
"""The folder of null, and of an empty text, as Spark writes them: it refuses a dataset with a folder of no name."""
FOLDER_BYTES_MAX = 255
"""Longest name of a folder, in every usual file system."""
MODULUS = 2**64


class HourToExport(msgspec.Struct, frozen=True):
    """A closed and compacted hour that is not exported yet.

    Attributes:
        hour: The commit hour.
        files: Its live files.
        rows: Rows in them.
        bytes: Their bytes.
        below_batch: All its rows are of earlier batches.
    """

    hour: str
    files: tuple[LiveFile, ...]
    rows: int
    bytes: int
    below_batch: int = 0


class SourceTable(msgspec.Struct, frozen=True):
    """The table that is exported, at one version.

    Attributes:
        folder: Its folder.
        schema: Its columns; files that were written before a column was added lack it.
        version: The version.
        head: The head at it.
    """

    folder: Path
    schema: pa.Schema
    version: int
    head: Head


def write_hour(
    folder: Path, hour: HourToExport, source: SourceTable, options: ExportOptions, is_current: Callable[[], bool]
) -> HourManifest | None:
    """Export an hour; None if another export was faster, or the plan is not current any more.

    1. Write each source file as one file, or one for each value of the partition columns, into a staging folder.
    2. Read all of them again: rows and digest must be those of the sources.
    3. Publish the folder, manifest last; check before and after whether the plan is current, and withdraw it if not.

    Raises:
        TableError: A source is damaged, or the written rows differ from it; nothing is published.
    """
    staged = make_staging_folder(folder, hour.hour)
    storage = find_storage(folder)
    all_columns = options.columns or tuple(name for name in source.schema.names if name != "commit_hour")
    columns = [name for name in all_columns if name not in options.partition_by]
    try:
        digest = 0
        files = list[ExportedFile]()
        for number, file in enumerate(hour.files):
            rows = _read_rows(source, file, columns, options.partition_by)  # 1
            with _FileSet(staged, f"{number:05d}-{find_suffix(staged.name)}", options, columns) as written:
                for group in regroup_rows(rows, options.row_group_rows):
                    digest = (digest + digest_rows(group.select(columns))) % MODULUS
                    written.add(group)
                files += written.finish()
        _compare(staged, hour, files, digest)  # 2
        manifest = HourManifest(
            hour=hour.hour,
            rows=sum(file.rows for file in files),
            digest=f"{digest:016x}",
            files=tuple(files),
            sources=tuple(file.path for file in hour.files),
            version=source.version,
            generation=source.head.generation,
            below_batch=hour.below_batch,
            batches=list_batches(source.head, hour.below_batch),
            exported_at=time.time(),
        )
        write_manifest(staged, manifest)
    except BaseException:
        # Also on Ctrl-C: staging folders of a killed export stay for a day.
        storage.delete_folder(staged)
        raise
    if not _publish_current(folder, staged, manifest, is_current):  # 3
        return None
    return manifest


def _publish_current(folder: Path, staged: Path, manifest: HourManifest, is_current: Callable[[], bool]) -> bool:
    """Publish an hour unless the plan is overtaken, in the moment of the rename as well."""
    if not is_current():
        find_storage(folder).delete_folder(staged)
        return False
    if not publish_hour(folder, staged, manifest):
        return False
    if is_current():
        return True
    # The erasure or the rewind was committed between the check and the rename.
    take_back_hour(folder, manifest.hour, partial(_is_published, folder, manifest))
    return False


def _is_published(folder: Path, manifest: HourManifest) -> bool:
    """Whether an hour is the publication of this manifest: another export may have withdrawn it, and published."""
    with suppress(FileNotFoundError):
        return read_manifest(folder, manifest.hour) == manifest
    return False


def _read_rows(
    source: SourceTable, file: LiveFile, columns: Sequence[str], partition_by: Sequence[str]
) -> Iterator[pa.Table]:
    """The rows of a file with the wanted columns and those that it is divided by, row group by row group."""
    path = source.folder / file.path
    wanted = list(dict.fromkeys((*columns, *partition_by)))
    schema = pa.schema([source.schema.field(name) for name in wanted])
    try:
        with pq.ParquetFile(find_storage(path).open_source(path), pre_buffer=False) as parquet:
            present = [name for name in wanted if name in parquet.schema_arrow.names]
            for group in range(parquet.num_row_groups):
                rows = parquet.read_row_group(group, columns=present, use_threads=False)
                yield widen_schema(rows, schema).cast(schema)
    except UNREADABLE as error:
        raise explain_unreadable(path, error) from error


class _FileSet:
    """The files of one source: one, or one for each value of the partition columns."""

    def __init__(self, folder: Path, stem: str, options: ExportOptions, columns: Sequence[str]) -> None:
        self._folder = folder
        self._stem = stem
        self._options = options
        self._columns = list(columns)
        self._open: dict[str, tuple[Any, pq.ParquetWriter]] = {}
        self._stack = ExitStack()
        self._files = list[ExportedFile]()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def add(self, rows: pa.Table) -> None:
        """Append rows, each to the file of its values."""
        for values, part in _divide(rows, self._options.partition_by):
            path = "/".join((*values, f"{self._stem}.parquet"))
            self._writer(path, part.select(self._columns).schema).write_table(part.select(self._columns))

    def finish(self) -> list[ExportedFile]:
        """Close and sync all files."""
        files = []
        for path, (pending, writer) in self._open.items():
            writer.close()
            size = pending.finish()
            rows = pq.read_metadata(find_storage(self._folder).open_source(self._folder / path)).num_rows
            files.append(ExportedFile(path, rows, size))
        return files

    def _writer(self, path: str, schema: pa.Schema) -> pq.ParquetWriter:
        if path not in self._open:
            # A file for each value of a column of ids would exhaust memory and open files.
            if len(self._open) == PARTITIONS_MAX:
                raise TableError(
                    f"more than {PARTITIONS_MAX} values of {', '.join(self._options.partition_by)} in one file",
                    next_step="divide by columns with fewer values: Export(partition_by=...)",
                )
            pending = find_storage(self._folder).open_pending(self._folder / path)
            self._stack.callback(pending.abandon)
            codec: Any = self._options.codec
            self._open[path] = pending, pq.ParquetWriter(pending.sink, schema, compression=codec)
        return self._open[path][1]


def name_partition(column: str) -> str:
    """The name of a partition column in folders: Arrow ignores folders that start with an underscore."""
    return column.lstrip("_")


def _divide(rows: pa.Table, names: Sequence[str]) -> Iterator[tuple[tuple[str, ...], pa.Table]]:
    """The parts of some rows by the values of columns, as names of folders; rows keep their order."""
    if not names:
        yield (), rows
        return
    name, *others = names
    for value in pc.unique(rows[name]):
        text = ""
        chosen = pc.is_null(rows[name])
        if value.is_valid:
            text = _escape_folder(str(value.as_py()))
            chosen = pc.equal(rows[name], value)
        folder = f"{name_partition(name)}={text or NULL_PARTITION}"
        if len(folder.encode()) > FOLDER_BYTES_MAX:
            raise TableError(
                f"a value of {name} is too long for the name of a folder: {text[:40]}...",
                next_step="divide by columns with short values: Export(partition_by=..., folder=...)",
            )
        for below, part in _divide(rows.filter(chosen), others):  # a null is not chosen
            yield (folder, *below), part


def _escape_folder(text: str) -> str:
    """A text as a part of a path, as Spark writes it: it takes each escaped byte for a character."""
    return "".join(quote(character, safe="") if character.isascii() else character for character in text)


def _compare(staged: Path, hour: HourToExport, files: Sequence[ExportedFile], digest: int) -> None:
    """Read the written rows: as many as the log counts, with the digest of the rows that were read."""
    rows = sum(file.rows for file in files)
    if rows != hour.rows:
        raise _differs(hour, f"the log counts {hour.rows} rows, {rows} were written")
    again = 0
    for file in files:
        with pq.ParquetFile(find_storage(staged).open_source(staged / file.path), pre_buffer=False) as parquet:
            for group in range(parquet.num_row_groups):
                again = (again + digest_rows(parquet.read_row_group(group, use_threads=False))) % MODULUS
    if again != digest:
        raise _differs(hour, f"digest {digest:016x} became {again:016x}")


def _differs(hour: HourToExport, what: str) -> TableError:
    return TableError(
        f"hour {hour.hour} cannot be exported: {what}; nothing was published",
        next_step="check disk and memory of this machine, then export again",
    )
