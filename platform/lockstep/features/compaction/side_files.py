"""Compacts quarantine, late table and archive.

A batch adds a file for each of its bins, so a stream whose messages are often quarantined or late adds thousands a day.
The files of a closed hour become one, rows in the order of batches, in the archive by partition and offset; each new
file is read again and compared. Deleted are the replaced files only, once a compacted file has contained their batches
for `REPLACED_SECONDS`, and files that retention dropped so long ago.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path

import msgspec
import pyarrow as pa

from lockstep.features.compaction.commit_kinds import SIDE_COMPACTION
from lockstep.features.compaction.ledger_files import FilesCompaction, find_replaced, list_older
from lockstep.model.commit_hour import compute_next_hour
from lockstep.storage import find_storage
from lockstep.table import delta_log, side_tables
from lockstep.table.commit import OLDEST_FILE_SECONDS
from lockstep.table.head import Head
from lockstep.table.layout import StreamFolders
from lockstep.table.ledger import LedgerFileName
from lockstep.table.live_files import is_closed
from lockstep.table.side_files import (
    REPLACED_SECONDS,
    SideTableFile,
    list_message_tables,
    list_side_files,
    list_side_tables,
    rewrite_side_files,
)
from lockstep.table.written_by import read_written_by

LOG = logging.getLogger("lockstep")

BIN_BYTES = 64 * 1024 * 1024
"""Bytes of a compacted file at most, about: a bin is held in memory, with values of up to a megabyte each."""


class SideTableBin(msgspec.Struct, frozen=True):
    """Files of one hour that become one, in order of their batches."""

    table: str
    hour: str
    files: tuple[SideTableFile, ...]


def plan_side_tables(folders: StreamFolders, head: Head) -> tuple[SideTableBin, ...]:
    """The plan of a compaction of quarantine, late table and archive after a head; opens no file."""
    bins: list[SideTableBin] = []
    for side in list_message_tables(folders):
        table = delta_log.open_delta_table(side)
        bins += plan_side_table(side.name, list_side_files(table), head)
    return tuple(bins)


def plan_side_table(table: str, files: Iterable[SideTableFile], head: Head) -> tuple[SideTableBin, ...]:
    """The bins worth rewriting, oldest hour first; none of open hours, of compacted files or of one file. Pure."""
    chosen = [file for file in files if not file.is_compacted and _is_over(file.name.hour, head)]
    ordered = sorted(chosen, key=lambda file: (file.name.generation, file.name.hour, file.name.first, file.path))
    bins: list[SideTableBin] = []
    # A compacted file is named by its batches, which belong to one generation.
    for (_, hour), group in groupby(ordered, key=lambda file: (file.name.generation, file.name.hour)):
        parts = [files_of_bin for files_of_bin in _split_bin(group) if len(files_of_bin) > 1]
        bins += [SideTableBin(table, hour, files_of_bin) for files_of_bin in parts]
    return tuple(sorted(bins, key=lambda part: part.hour))


def _is_over(hour: str, head: Head) -> bool:
    """Whether an hour is closed, and the next one, too, while the stream continues: health counts whole files."""
    if hour <= head.closed_hour:
        return True
    return is_closed(compute_next_hour(hour), head)


def _split_bin(files: Iterable[SideTableFile]) -> Iterable[tuple[SideTableFile, ...]]:
    part = list[SideTableFile]()
    size = 0
    for file in files:
        if part and size + file.size > BIN_BYTES:
            yield tuple(part)
            part = []
            size = 0
        part.append(file)
        size += file.size
    yield tuple(part)


def compact_side_tables(folders: StreamFolders, head: Head) -> FilesCompaction:
    """Compact the closed hours of quarantine, late table and archive; safe while a writer, readers and another one run.

    1. Bring the tables forward to the head, so that no named file is missing.
    2. Rewrite each bin and read the new file again: it must equal its inputs, row by row.
    3. Commit: inputs out, output in, no data changed; a bin whose inputs another process took is dropped.
    4. Delete the files whose batches a compacted file has contained for `REPLACED_SECONDS`.

    Raises:
        TableError: A file is damaged, or a table does not match its head.
        CommitUnknown: The store did not answer; the output may still become live, so it stays.
    """
    side_tables.catch_up_alongside_writer(folders, head)  # 1
    result = FilesCompaction()
    for side in list_message_tables(folders):
        table = delta_log.open_delta_table(side)
        # The archive is read by partition and offset, the others by batch.
        change = sort_archived if side == folders.archive else keep_order
        for part in plan_side_table(side.name, list_side_files(table), head):
            output = rewrite_side_files(side, table, part.files, SIDE_COMPACTION, change)  # 2, 3
            if output is not None:
                result = result.with_bin(len(part.files), output.rows)
    due: list[Path] = []
    for side in list_side_tables(folders):
        due += list_replaced_side_files(side, head)
    if delta_log.has_log(folders.archive):
        due += list_replaced_archive_files(folders.archive, head)
    deleted = [size for size in find_storage(folders.root).delete_files(due) if size is not None]  # 4
    return msgspec.structs.replace(result, replaced_deleted=len(deleted), bytes_deleted=sum(deleted))


def list_replaced_side_files(side: Path, head: Head) -> list[Path]:
    """Files that neither the table names nor a recent reader or a batch to be committed needs.

    A file whose name tells its batch is replaced once a compacted file with that batch is old enough; one that no
    commit named, or whose name tells nothing, goes by its age, once its batch cannot be committed any more. Files of
    batches that retention dropped stay for readers that started before.
    """
    live, others = _list_side_files(side)
    dropped = {path for path in others if _is_dropped(path, head)}
    due = _find_replaced(side, live, [path for path in others if path not in dropped], head)
    if _is_dropping_over(head):
        due |= dropped
    return sorted(due)


def list_replaced_archive_files(archive: Path, head: Head) -> list[Path]:
    """As `list_replaced_side_files`, of the archive, which has no generations."""
    return sorted(_find_replaced(archive, *_list_side_files(archive), head, has_generations=False))


def sort_archived(rows: pa.Table) -> pa.Table:
    """Sort archived rows by partition and offset: a reader of a partition needs few row groups."""
    return rows.sort_by([(name, "ascending") for name in ("topic_id", "partition", "offset")]).combine_chunks()


def keep_order(rows: pa.Table) -> pa.Table:
    """Return the rows."""
    return rows


def _list_side_files(side: Path) -> tuple[Sequence[SideTableFile], list[Path]]:
    """The live files of a table, and all others."""
    live = list_side_files(delta_log.open_delta_table(side))
    named = {file.path for file in live}
    return live, [path for path in find_storage(side).find_files(side, "*.parquet") if path.name not in named]


def _find_replaced(
    side: Path, live: Iterable[SideTableFile], others: Iterable[Path], head: Head, *, has_generations: bool = True
) -> set[Path]:
    over: list[Path] = []
    batches: list[tuple[Path, LedgerFileName]] = []
    for path in others:
        by = read_written_by(path.name)
        if by is None:
            over.append(path)
        elif by.is_over(head):
            over.append(path)
            generation = by.generation if has_generations else 0
            batches.append((path, LedgerFileName("", generation, by.batch, by.batch)))
    compacted = [(side / file.path, file.name) for file in live if file.is_compacted]
    replaced = set(find_replaced(compacted, batches))
    # Files that no commit named: old enough that none will.
    orphans = list_older([path for path in over if path not in replaced], time.time() - OLDEST_FILE_SECONDS)
    return replaced.union(orphans)


def _is_dropped(path: Path, head: Head) -> bool:
    """Whether a file that is not live has messages only of batches that retention dropped."""
    if (name := LedgerFileName.parse(path.name)) is not None:
        return name.last <= head.quarantine_dropped_up_to
    by = read_written_by(path.name)
    return by is not None and by.is_over(head) and by.batch <= head.quarantine_dropped_up_to


def _is_dropping_over(head: Head) -> bool:
    """Whether the newest retention was so long ago that no reader needs the files that it dropped."""
    dropped = head.quarantine_retention
    return dropped is not None and time.time() - dropped.at > REPLACED_SECONDS
