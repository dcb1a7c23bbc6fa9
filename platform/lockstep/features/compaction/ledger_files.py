"""Compacts the ledger: the files of a closed hour, one per batch, become one file; order and rows preserved, proven.

Files that a reader of positions may still request by name are not touched: those from the newest full set of
positions on. The replaced files are kept for running readers, and are deleted by a later run.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from typing import cast

import msgspec
import pyarrow as pa
from deltalake import DeltaTable

from lockstep.errors import TableError
from lockstep.features.compaction.commit_kinds import SIDE_COMPACTION
from lockstep.storage import find_storage
from lockstep.table import delta_log, side_tables
from lockstep.table.commit import OLDEST_FILE_SECONDS
from lockstep.table.file_checksum import read_verified_rows
from lockstep.table.foreign_commits import refresh
from lockstep.table.head import Head
from lockstep.table.layout import StreamFolders
from lockstep.table.ledger import LedgerFileName
from lockstep.table.live_files import COMPACTED_PREFIX
from lockstep.table.parquet import DataFile
from lockstep.table.side_files import (
    REPLACED_SECONDS,
    LedgerFile,
    _batched,
    commit_replacement,
    list_live_files,
    merge_rows,
    write_proven,
)

LOG = logging.getLogger("lockstep")

GROUP_ROWS = 100_000
"""Rows of a row group, which a compaction holds in memory, at least."""


class LedgerBin(msgspec.Struct, frozen=True):
    """The files of one hour that become one, in order of their batches."""

    hour: str
    files: tuple[LedgerFile, ...]


NamedFile = tuple[Path, LedgerFileName]
"""A file, and its batches."""


class FilesCompaction(msgspec.Struct, frozen=True, kw_only=True):
    """The result, or the plan, of a compaction of the ledger, or of quarantine and late table.

    Attributes:
        hours: Hours that were compacted.
        files_before: Their files.
        files_after: Files that replaced them.
        rows: Rows in them.
        replaced_deleted: Deleted files whose batches a compacted file contains.
        bytes_deleted: Their bytes.
    """

    hours: int = 0
    files_before: int = 0
    files_after: int = 0
    rows: int = 0
    replaced_deleted: int = 0
    bytes_deleted: int = 0

    def with_bin(self, files: int, rows: int) -> FilesCompaction:
        """The result with one more bin: so many files with so many rows became one."""
        return msgspec.structs.replace(
            self,
            hours=self.hours + 1,
            files_before=self.files_before + files,
            files_after=self.files_after + 1,
            rows=self.rows + rows,
        )


def plan_ledger(files: Iterable[LedgerFile], head: Head) -> tuple[LedgerBin, ...]:
    """The hours that are worth compacting, oldest first. Pure.

    An hour is closed once a later hour has a file; the newest hour, and everything from the newest full set of
    positions on, are not touched. If a clock went back, a batch belongs to the hour of the batch before it.
    """
    ordered = sorted(files, key=lambda file: (file.name.generation, file.name.first))
    hours = list[tuple[str, LedgerFile]]()
    latest = ""
    for file in ordered:
        latest = max(latest, file.name.hour)
        hours.append((latest, file))
    closed = [(hour, file) for hour, file in hours if hour < latest and file.name.last < head.full_ledger_batch]
    chosen = [(hour, file) for hour, file in closed if not file.path.startswith(COMPACTED_PREFIX)]
    bins: list[LedgerBin] = []
    # A compacted file is named by its batches, which belong to one generation.
    for (hour, _), group in groupby(chosen, key=lambda item: (item[0], item[1].name.generation)):
        files_of_hour = tuple(file for _, file in group)
        if len(files_of_hour) > 1:
            bins.append(LedgerBin(hour, files_of_hour))
    return tuple(bins)


def compact_ledger(folders: StreamFolders, head: Head) -> FilesCompaction:
    """Compact the closed hours, one commit each; safe while a writer, readers and another compaction run.

    1. Bring the ledger forward to the head, so that no named file is missing.
    2. Rewrite each closed hour and read the new file again: it must equal its inputs, row by row.
    3. Commit: inputs out, output in, no data changed; a bin whose inputs another compaction took is dropped.
    4. Delete the files whose batches a compacted file has contained for `REPLACED_SECONDS`, and what rewinds and
       promotions left that were killed before their commit.

    Raises:
        TableError: A file is damaged, or the ledger does not match its head.
        CommitUnknown: The store did not answer; the output may still become live, so it stays.
    """
    side_tables.catch_up_alongside_writer(folders, head)  # 1
    result = FilesCompaction()
    handle = delta_log.open_delta_table(folders.ledger)
    storage = find_storage(folders.ledger)
    for part in plan_ledger(list_live_files(handle), head):
        output = _rewrite_live(folders.ledger, handle, part)  # 2
        if output is not None and _commit(folders.ledger, handle, part, output):  # 3
            result = result.with_bin(len(part.files), output.rows)
            continue
        if output is not None:
            storage.delete(folders.ledger / output.path)
        LOG.info("compaction of the ledger was too late for hour %s", part.hour)
    replaced = list_replaced_files(folders.ledger, head)  # 4
    deleted = [size for size in storage.delete_files(replaced) if size is not None]
    return msgspec.structs.replace(result, replaced_deleted=len(deleted), bytes_deleted=sum(deleted))


def _commit(ledger: Path, handle: DeltaTable, part: LedgerBin, output: DataFile) -> bool:
    inputs = {file.path: file.size for file in part.files}
    return commit_replacement(ledger, handle, part.hour, inputs, output, SIDE_COMPACTION)


def list_replaced_files(ledger: Path, head: Head) -> list[Path]:
    """Files that no recent version names: their batches are in a live compacted file.

    Decided by generation and batch, not by the age of the file: a file that a writer is about to commit is of a batch
    that no compacted file contains. Only those of a generation that has not started are judged by their age: the rewind
    or the promotion that wrote them commits soon after, or never.
    """
    live = list_live_files(delta_log.open_delta_table(ledger))
    named = {file.path for file in live}
    compacted = [(ledger / file.path, file.name) for file in live if file.path.startswith(COMPACTED_PREFIX)]
    others: list[NamedFile] = []
    of_later_generations: list[Path] = []
    for path in find_storage(ledger).find_files(ledger, "*.parquet"):
        name = LedgerFileName.parse(path.name)
        if path.name in named or name is None:
            continue
        others.append((path, name))
        if name.generation > head.generation:
            of_later_generations.append(path)
    replaced = find_replaced(compacted, others)
    return replaced + list_older(of_later_generations, time.time() - OLDEST_FILE_SECONDS)


def list_older(paths: Sequence[Path], than: float) -> list[Path]:
    """Those of some files that were written before a time; not those that are gone."""
    if not paths:
        return []
    statuses = zip(paths, find_storage(paths[0]).get_statuses(paths), strict=True)
    return [path for path, status in statuses if status is not None and status.modified_at < than]


def _is_older(path: Path, than: float) -> bool:
    status = find_storage(path).get_status(path)
    return status is not None and status.modified_at < than


def find_replaced(compacted: Iterable[NamedFile], others: Iterable[NamedFile]) -> list[Path]:
    """The other files whose batches a compacted file has contained for `REPLACED_SECONDS`.

    Only the compacted files that contain one of them are read: a table of a year has thousands.
    """
    ordered = sorted(compacted, key=lambda file: _start(file[1]))
    starts = [_start(name) for _, name in ordered]
    replaced_before = time.time() - REPLACED_SECONDS

    @cache
    def is_old(path: Path) -> bool:
        return _is_older(path, replaced_before)

    def is_replaced(name: LedgerFileName) -> bool:
        index = bisect_right(starts, _start(name)) - 1
        if index < 0:
            return False
        path, batches = ordered[index]
        return _holds(batches, name) and is_old(path)

    return [path for path, name in others if is_replaced(name)]


def _start(name: LedgerFileName) -> tuple[int, int]:
    return name.generation, name.first


def _holds(outer: LedgerFileName, inner: LedgerFileName) -> bool:
    return outer.generation == inner.generation and outer.first <= inner.first and inner.last <= outer.last


def _rewrite_live(ledger: Path, table: DeltaTable, part: LedgerBin) -> DataFile | None:
    """One file with the rows of a bin; None if an erasure has replaced an input and deleted it."""
    try:
        return _rewrite(ledger, table, part)
    except TableError:
        # Only if all inputs are live the error is one: an erasure may have deleted a file that was being read.
        refresh(table, ledger)
        if set(part.files) <= set(list_live_files(table)):
            raise
        return None


def _rewrite(ledger: Path, table: DeltaTable, part: LedgerBin) -> DataFile:
    """One file with the rows of a bin, in order.

    A row group at a time is in memory: an hour of a thousand partitions has millions of rows.
    """
    schema = pa.schema(cast("pa.Schema", table.schema().to_arrow()))
    first = part.files[0].name
    last = part.files[-1].name
    name = LedgerFileName(part.hour, first.generation, first.first, last.last).prefix(COMPACTED_PREFIX)
    batched = _batched(find_storage(ledger).map_files(partial(_read_ledger_rows, ledger), part.files), GROUP_ROWS)
    return write_proven(ledger, schema, name, (merge_rows(tables, schema) for tables in batched))


def _read_ledger_rows(ledger: Path, file: LedgerFile) -> pa.Table:
    """The rows of a file, with the columns that it has."""
    rows = read_verified_rows(ledger / file.path, ledger.parent.name)
    if rows.num_rows != file.rows:
        raise TableError(
            f"{ledger / file.path}: the log counts {file.rows} rows, the file holds {rows.num_rows}",
            next_step=f"lockstep repair {ledger.parent.name} checks all files of the stream",
        )
    return rows
