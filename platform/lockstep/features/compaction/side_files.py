"""Compacts the quarantine and the late table, and removes messages of erased sessions and of batches past retention.

A batch adds a file for each of its bins, so a stream whose messages are often quarantined or late adds thousands a day.
The files of a closed hour become one, rows in the order of batches; each new file is read again and compared. Deleted
are the replaced files only, once a compacted file has contained their batches for `REPLACED_SECONDS`, and files that
retention dropped so long ago.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, cast

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from lockstep.errors import TableError
from lockstep.features.compaction.ledger_files import (
    REPLACED_SECONDS,
    FilesCompaction,
    commit_replacement,
    find_replaced,
    list_older,
    merge_rows,
)
from lockstep.features.erase.commit import compute_session_digest
from lockstep.model.commit_hour import compute_next_hour, format_hour
from lockstep.storage import find_storage
from lockstep.table import delta_log, side_tables
from lockstep.table.commit import OLDEST_FILE_SECONDS
from lockstep.table.commit_kind import CommitKind
from lockstep.table.delta_log import NextEntry, RemoveAction
from lockstep.table.foreign_commits import refresh, refuse_foreign
from lockstep.table.head import Erasure, Head
from lockstep.table.layout import StreamFolders
from lockstep.table.ledger import LedgerFileName
from lockstep.table.live_files import COMPACTED_PREFIX, is_closed
from lockstep.table.log_tail import LogTail
from lockstep.table.parquet import UNREADABLE, Compression, DataFile, DataFileWriter, explain_unreadable
from lockstep.table.quarantine import ERASED, HIDDEN, KILLED_WORKER, NOT_STORABLE, UNKNOWN_SCHEMA
from lockstep.table.written_by import read_written_by

LOG = logging.getLogger("lockstep")

BIN_BYTES = 64 * 1024 * 1024
"""Bytes of a compacted file at most, about: a bin is held in memory, with values of up to a megabyte each."""
GROUP_BYTES = 16 * 1024 * 1024
"""Decoded bytes of a row group."""
COMPRESSION = Compression("zstd", 3)
SESSION_COLUMNS = ["batch", "topic", "session", "key"]
"""By which a message is found to be of an erased session."""


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


class SideTableBin(msgspec.Struct, frozen=True):
    """Files of one hour that become one, in order of their batches."""

    table: str
    hour: str
    files: tuple[SideTableFile, ...]


def list_side_tables(folders: StreamFolders) -> tuple[Path, ...]:
    """Quarantine and late table, as far as the stream has them."""
    return tuple(side for side in (folders.quarantine, folders.late) if delta_log.has_log(side))


def plan_side_tables(folders: StreamFolders, head: Head) -> tuple[SideTableBin, ...]:
    """What a compaction of quarantine and late table would do after a head; opens no file."""
    tables = ((side, delta_log.open_delta_table(side)) for side in list_side_tables(folders))
    return tuple(part for side, table in tables for part in plan_side_table(side.name, list_side_files(table), head))


def plan_side_table(table: str, files: Iterable[SideTableFile], head: Head) -> tuple[SideTableBin, ...]:
    """The bins worth rewriting, oldest hour first; none of open hours, of compacted files or of one file. Pure."""
    chosen = [file for file in files if not file.is_compacted and _is_over(file.name.hour, head)]
    ordered = sorted(chosen, key=lambda file: (file.name.generation, file.name.hour, file.name.first, file.path))
    groups = groupby(ordered, key=lambda file: (file.name.generation, file.name.hour))
    bins = (SideTableBin(table, hour, part) for (_, hour), group in groups for part in _split_bin(group))
    return tuple(sorted((part for part in bins if len(part.files) > 1), key=lambda part: part.hour))


def _is_over(hour: str, head: Head) -> bool:
    """Whether an hour is closed, and the next one, too, where the stream goes on: health counts whole files."""
    if hour <= head.closed_hour:
        return True
    return is_closed(compute_next_hour(hour), head)


def _split_bin(files: Iterable[SideTableFile]) -> Iterable[tuple[SideTableFile, ...]]:
    held, size = list[SideTableFile](), 0
    for file in files:
        if held and size + file.size > BIN_BYTES:
            yield tuple(held)
            held, size = [], 0
        held.append(file)
        size += file.size
    yield tuple(held)


def list_side_files(table: DeltaTable) -> tuple[SideTableFile, ...]:
    """The live files, with hour and batches by the log: bounds of their rows, and the time of their commit."""
    actions = pa.table(table.get_add_actions(flatten=True))
    columns = ["path", "size_bytes", "num_records", "modification_time", "min.generation", "min.batch", "max.batch"]
    wanted = [name for name in columns if name in actions.column_names]
    return tuple(map(_read_file, actions.select(wanted).to_pylist()))


def _read_file(row: dict[str, Any]) -> SideTableFile:
    hour = format_hour(datetime.fromtimestamp(row["modification_time"] / 1000, UTC))
    bounds = (int(row.get(name) or 0) for name in ("min.generation", "min.batch", "max.batch"))
    name = LedgerFileName.parse(row["path"]) or LedgerFileName(hour, *bounds)
    return SideTableFile(row["path"], row["size_bytes"], row["num_records"], name, row["modification_time"])


def compact_side_tables(folders: StreamFolders, head: Head) -> FilesCompaction:
    """Compact the closed hours of quarantine and late table; safe while a writer, readers and another one run.

    1. Bring the tables forward to the head, so that no named file is missing.
    2. Rewrite each bin and read the new file again: it must equal its inputs, row by row.
    3. Commit: inputs out, output in, no data changed; a bin whose inputs another process took is dropped.
    4. Delete the files whose batches a compacted file has contained for `REPLACED_SECONDS`.

    Raises:
        TableError: A file is damaged, or a table does not match its head.
        CommitUnknown: The store did not answer; the output may still become live, so it stays.
    """
    side_tables.catch_up_alongside_writer(folders, head)  # 1
    done = FilesCompaction()
    for side in list_side_tables(folders):
        table = delta_log.open_delta_table(side)
        for part in plan_side_table(side.name, list_side_files(table), head):
            if (output := _replace(side, table, part.files)) is not None:  # 2, 3
                done = done.with_bin(len(part.files), output.rows)
    due = [path for side in list_side_tables(folders) for path in list_replaced_side_files(side, head)]
    deleted = [size for size in find_storage(folders.root).delete_files(due) if size is not None]  # 4
    return msgspec.structs.replace(done, replaced_deleted=len(deleted), bytes_deleted=sum(deleted))


def list_replaced_side_files(side: Path, head: Head) -> list[Path]:
    """Files that neither the table names nor a recent reader or a batch to be committed needs.

    A file whose name tells its batch is replaced once a compacted file with that batch is old enough; one that no
    commit named, or whose name tells nothing, goes by its age, once its batch cannot be committed any more. Files of
    batches that retention dropped stay for readers that began before.
    """
    live = list_side_files(delta_log.open_delta_table(side))
    named = {file.path for file in live}
    others = [path for path in find_storage(side).find_files(side, "*.parquet") if path.name not in named]
    dropped = {path for path in others if _is_dropped(path, head)}
    others = [path for path in others if path not in dropped]
    over = {path: by for path in others if (by := read_written_by(path.name)) is None or by.is_over(head)}
    batches = [(path, LedgerFileName("", by.generation, by.batch, by.batch)) for path, by in over.items() if by]
    compacted = [(side / file.path, file.name) for file in live if file.is_compacted]
    replaced = set(find_replaced(compacted, batches))
    left = list_older([path for path in over if path not in replaced], time.time() - OLDEST_FILE_SECONDS)
    return sorted(replaced.union(left, dropped if _is_dropping_over(head) else ()))


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


def list_droppable_files(table: DeltaTable, last_batch: int) -> tuple[SideTableFile, ...]:
    """The live files whose messages are all of batches up to one."""
    return tuple(file for file in list_side_files(table) if file.name.last <= last_batch)


def find_last_unrepeatable(side: Path, files: Sequence[SideTableFile]) -> int:
    """The last batch of some files with a message of which a fold does not find out again why it was quarantined.

    0 for none. The last one of a file that is damaged or gone.
    """
    return max(find_storage(side).map_files(partial(_find_last_unrepeatable, side), files), default=0)


def _find_last_unrepeatable(side: Path, file: SideTableFile) -> int:
    try:
        rows = _read(side, file, ["batch", "cause", "found"]).to_pylist()
    except (FileNotFoundError, TableError):
        return file.name.last
    return max((row["batch"] for row in rows if _is_unrepeatable(row)), default=0)


def _is_unrepeatable(row: dict[str, Any]) -> bool:
    return row["cause"] == NOT_STORABLE or (row["found"] or "").startswith((KILLED_WORKER, UNKNOWN_SCHEMA))


def drop_side_files(side: Path, last_batch: int) -> tuple[SideTableFile, ...]:
    """Remove the files of all batches up to one from the quarantine or the late table; returns them.

    Safe while a writer, readers, a compaction and another retention run. A file that a compaction has merged with later
    batches stays until these are dropped, too. Safe to call again after a kill.

    Args:
        side: Folder of the table.
        last_batch: The last batch whose messages are dropped. A head with it is committed.

    Raises:
        ForeignCommit: The table has a foreign commit.
        TableReplaced: Its folder was moved or deleted.
        CommitUnknown: The store did not answer.
    """
    table = delta_log.open_delta_table(side)
    tail = LogTail(side)
    dropped: tuple[SideTableFile, ...] = ()

    def next_entry() -> NextEntry | None:
        nonlocal dropped
        tail.refresh()
        refuse_foreign(side, tail.version)
        refresh(table, side)
        dropped = list_droppable_files(table, last_batch)
        if not dropped:
            return None
        return NextEntry(
            version=tail.version + 1,
            kind=CommitKind.SIDE_RETENTION,
            removes=[RemoveAction(file.path, file.size) for file in dropped],
            transactions={
                delta_log.BATCH: tail.find_number(delta_log.BATCH),
                delta_log.DROPPED: max(last_batch, tail.find_number(delta_log.DROPPED)),
            },
        )

    written = delta_log.append_entry(side, next_entry)
    return () if written is None else dropped


def redact_side_tables(folders: StreamFolders, head: Head, erasure: Erasure) -> int:
    """Take the messages of an erased session out of quarantine and late table; gives their number.

    What stays of a message is its place, its batch and its cause: so counts still match the ledger, and the proof knows
    that it was not applied. Files with its messages that the table does not name any more, or never did, are deleted at
    once. Safe to call again, and by several processes.

    Args:
        folders: Folders of the stream.
        head: A head with the erasure, or a later one.
        erasure: The erasure; messages of later batches stay.

    Raises:
        TableError: A file is damaged, or a table does not match its head.
        CommitUnknown: The store did not answer.
    """
    side_tables.catch_up_alongside_writer(folders, head)
    count = 0
    for side in list_side_tables(folders):
        table, is_done = delta_log.open_delta_table(side), False
        while not is_done:
            refresh(table, side)
            found = [(file, rows) for file, rows in _find_erased(side, table, head.table_id, erasure) if rows]
            count += sum(rows for file, rows in found if _redact_file(side, table, file, head.table_id, erasure))
            is_done = not found
        _delete_unnamed(side, table, head.table_id, erasure)
    return count


def _delete_unnamed(side: Path, table: DeltaTable, table_id: str, erasure: Erasure) -> None:
    """Delete the files with messages of an erased session that the table does not name: replaced ones, and orphans.

    None of them can become live: the batches before an erasure are fenced, and of a compaction under way the inputs
    with such messages are not live any more. Other files may be the output of one, or needed by a reader.
    """
    storage = find_storage(side)
    found = storage.find_files(side, "*.parquet")
    refresh(table, side)  # after the list, so that what is committed meanwhile counts as named
    named = {file.path for file in list_side_files(table)}
    until = msgspec.structs.replace(erasure, batch=erasure.batch + 1)  # a batch that it overtook has its number
    for path in found:
        if path.name not in named and _may_hold_erased(path, table_id, until):
            storage.delete(path)


def _may_hold_erased(path: Path, table_id: str, erasure: Erasure) -> bool:
    """Whether a file has messages of the session, or is torn and was written by a batch before the erasure."""
    try:
        rows = pq.ParquetFile(find_storage(path).open_source(path)).read(columns=SESSION_COLUMNS)
    except FileNotFoundError:
        return False
    except UNREADABLE:
        by = read_written_by(path.name)
        return by is not None and by.batch < erasure.batch
    return bool(_match_rows(rows, table_id, erasure))


def count_messages(folders: StreamFolders, table_id: str, digest: str, topic: str) -> dict[str, list[dict[str, Any]]]:
    """The messages of a session in each side table: topic, topic id and partition of each."""
    wanted = Erasure(digest=digest, topic=topic, batch=2**62, version=0, at=0.0, cause="")
    found: dict[str, list[dict[str, Any]]] = {}
    for side in list_side_tables(folders):
        places = found[side.name] = []
        for file in list_side_files(delta_log.open_delta_table(side)):
            rows = _read(side, file, [*SESSION_COLUMNS, "topic_id", "partition"])
            at = pa.array(_match_rows(rows, table_id, wanted), pa.int64())
            places += rows.select(["topic", "topic_id", "partition"]).take(at).to_pylist()
    return found


def _find_erased(side: Path, table: DeltaTable, table_id: str, erasure: Erasure) -> Iterable[tuple[SideTableFile, int]]:
    """The files of batches before an erasure, each with its messages of the session."""
    for file in list_side_files(table):
        if file.name.first < erasure.batch:
            rows = _read_live(side, table, (file,))
            yield file, 1 if rows is None else len(_match_rows(rows, table_id, erasure))


def _redact_file(side: Path, table: DeltaTable, file: SideTableFile, table_id: str, erasure: Erasure) -> bool:
    """Replace a file by one without the messages; False where another process replaced it before."""

    def redact(rows: pa.Table) -> pa.Table:
        chosen = set(_match_rows(rows, table_id, erasure))
        redacted = [_redact(row) if number in chosen else row for number, row in enumerate(rows.to_pylist())]
        return pa.Table.from_pylist(redacted, schema=rows.schema)

    if _replace(side, table, (file,), redact, CommitKind.SIDE_REDACTION) is None:
        return False
    find_storage(side).delete(side / file.path)
    return True


def _redact(row: dict[str, Any]) -> dict[str, Any]:
    """What stays of a message: the proof must know whether it is to be decoded again."""
    found = row["found"] if (row["found"] or "").startswith((KILLED_WORKER, UNKNOWN_SCHEMA)) else None
    emptied = dict.fromkeys(("session", "key", "value", "timestamp"), None)
    return row | emptied | {"expected": ERASED, "found": found, "headers": [], "value_bytes": 0}


def _match_rows(rows: pa.Table, table_id: str, erasure: Erasure) -> list[int]:
    """The rows of the session, by its digest: where a message has none, its key stands for it."""
    columns = rows.select(SESSION_COLUMNS).to_pydict()
    digests: dict[str, str] = {}
    found = []
    for number, (batch, topic, session, key) in enumerate(zip(*columns.values(), strict=True)):
        name = session if session is not None or key is None else key.decode("utf-8", "surrogateescape")
        if name is not None and batch < erasure.batch and erasure.topic in {"", topic}:
            digest = digests.setdefault(name, compute_session_digest(table_id, name))
            if digest == erasure.digest:
                found.append(number)
    return found


def _replace(
    side: Path,
    table: DeltaTable,
    files: Sequence[SideTableFile],
    change: Callable[[pa.Table], pa.Table] = lambda rows: rows,
    kind: CommitKind = CommitKind.SIDE_COMPACTION,
) -> DataFile | None:
    """Replace files by one with the same rows, changed; None where an input was not live any more."""
    rows = _read_live(side, table, files)
    if rows is not None:
        output = _write(side, files, change(rows))
        inputs = {file.path: file.size for file in files}
        if commit_replacement(side, table, files[0].name.hour, inputs, output, kind):
            return output
        find_storage(side).delete(side / output.path)
    LOG.info("compaction of %s came too late for hour %s", side.name, files[0].name.hour)
    return None


def _write(side: Path, files: Sequence[SideTableFile], rows: pa.Table) -> DataFile:
    """One file of the rows; read again and compared."""
    first, last = files[0].name, max(file.name.last for file in files)
    prefix = LedgerFileName(first.hour, first.generation, first.first, last).prefix(COMPACTED_PREFIX)
    group_rows = max(1, len(rows) * GROUP_BYTES // max(1, rows.nbytes))
    with DataFileWriter(
        side,
        rows.schema,
        commit_hour=None,
        prefix=prefix,
        compression=COMPRESSION,
        sealed=True,
        hidden=HIDDEN,
    ) as writer:
        for start in range(0, len(rows), group_rows):
            writer.write(rows.slice(start, group_rows))
        written = writer.finish()
    # As old as its newest input: its rows entered the table then, and health counts those of the last hour.
    written = msgspec.structs.replace(written, added_ms=max(file.added_ms for file in files))
    storage, path = find_storage(side), side / written.path
    if not pq.ParquetFile(storage.open_source(path)).read().cast(rows.schema).equals(rows):
        storage.delete(path)
        raise TableError(
            f"{path} does not hold the rows of its inputs; nothing was committed",
            next_step="check disk and memory of this machine, then compact again",
        )
    return written


def _read_live(side: Path, table: DeltaTable, files: Sequence[SideTableFile]) -> pa.Table | None:
    """The rows of some files; None where another process has replaced one and deleted it."""
    schema = pa.schema(cast("pa.Schema", table.schema().to_arrow()))
    try:
        return merge_rows(find_storage(side).map_files(partial(_read, side), files), schema)
    except TableError:
        refresh(table, side)
        if {file.path for file in files} <= {file.path for file in list_side_files(table)}:
            raise
        return None


def _read(side: Path, file: SideTableFile, columns: list[str] | None = None) -> pa.Table:
    path = side / file.path
    try:
        found = pq.ParquetFile(find_storage(side).open_source(path)).read(columns=columns)
    except UNREADABLE as error:
        raise explain_unreadable(path, error) from error
    if found.num_rows != file.rows:
        raise TableError(
            f"{path}: the log counts {file.rows} rows, the file holds {found.num_rows}",
            next_step=f"lockstep repair {side.parent.name} looks at all files of the stream",
        )
    return found
