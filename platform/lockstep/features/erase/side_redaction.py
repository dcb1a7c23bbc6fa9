"""Takes the messages of an erased session out of quarantine, late table and archive."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from lockstep.features.erase.commit_kinds import SIDE_REDACTION
from lockstep.storage import find_storage
from lockstep.table import delta_log, side_tables
from lockstep.table.archive import ERASED_MESSAGE
from lockstep.table.foreign_commits import refresh
from lockstep.table.head import Erasure, Head
from lockstep.table.layout import StreamFolders
from lockstep.table.parquet import UNREADABLE
from lockstep.table.quarantine import ERASED, KILLED_WORKER, UNKNOWN_SCHEMA
from lockstep.table.session_digest import compute_session_digest
from lockstep.table.side_files import (
    SideTableFile,
    list_message_tables,
    list_side_files,
    read_side_file,
    rewrite_side_files,
)
from lockstep.table.written_by import read_written_by

SESSION_COLUMNS = ["batch", "topic", "session", "key"]
"""By which a message is found to be of an erased session."""


def redact_side_tables(folders: StreamFolders, head: Head, erasure: Erasure) -> int:
    """Remove the messages of an erased session from quarantine, late table and archive; returns their number.

    What stays of a message is its place, its batch and its cause: so counts still match the ledger, and the proof knows
    that it was not applied. In the archive it becomes an offset without a message, of the cause "erased". Files that
    have its messages and that the table does not name any more, or never did, are deleted immediately. Safe to call
    again, and by several processes.

    Args:
        folders: Folders of the stream.
        head: A head with the erasure, or a later head.
        erasure: The erasure; messages of later batches stay.

    Raises:
        TableError: A file is damaged, or a table does not match its head.
        CommitUnknown: The store did not answer.
    """
    side_tables.catch_up_alongside_writer(folders, head)
    count = 0
    for side in list_message_tables(folders):
        table = delta_log.open_delta_table(side)
        is_done = False
        while not is_done:
            refresh(table, side)
            due = [(file, rows) for file, rows in _find_erased(side, table, head.table_id, erasure) if rows]
            for file, rows in due:
                if _redact_file(side, table, file, head.table_id, erasure):
                    count += rows
            # A compaction may have moved the messages into another file meanwhile.
            is_done = not due
        _delete_unnamed(side, table, head.table_id, erasure)
    return count


def _delete_unnamed(side: Path, table: DeltaTable, table_id: str, erasure: Erasure) -> None:
    """Delete the files with messages of an erased session that the table does not name: replaced ones, and orphans.

    None of them can become live: the batches before an erasure are fenced, and of a compaction under way the inputs
    with such messages are not live any more. Other files may be the output of one, or needed by a reader.
    """
    storage = find_storage(side)
    paths = storage.find_files(side, "*.parquet")
    refresh(table, side)  # after the list, so that files committed meanwhile count as named
    named = {file.path for file in list_side_files(table)}
    until = msgspec.structs.replace(erasure, batch=erasure.batch + 1)  # a batch that it overtook has its number
    for path in paths:
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
    # Before every batch that will ever be: the erasure is only planned.
    wanted = Erasure(digest=digest, topic=topic, batch=2**62, version=0, at=0.0, cause="")
    messages: dict[str, list[dict[str, Any]]] = {}
    for side in list_message_tables(folders):
        of_side: list[dict[str, Any]] = []
        for file in list_side_files(delta_log.open_delta_table(side)):
            rows = read_side_file(side, file, [*SESSION_COLUMNS, "topic_id", "partition"])
            numbers = pa.array(_match_rows(rows, table_id, wanted), pa.int64())
            of_side += rows.select(["topic", "topic_id", "partition"]).take(numbers).to_pylist()
        messages[side.name] = of_side
    return messages


def _find_erased(side: Path, table: DeltaTable, table_id: str, erasure: Erasure) -> Iterable[tuple[SideTableFile, int]]:
    """The files of batches before an erasure, each with its messages of the session."""
    for file in list_side_files(table):
        if file.name.first < erasure.batch:
            try:
                rows = read_side_file(side, file, SESSION_COLUMNS)
            except FileNotFoundError:  # replaced meanwhile: the table is read again
                yield file, 1
            else:
                yield file, len(_match_rows(rows, table_id, erasure))


def _redact_file(side: Path, table: DeltaTable, file: SideTableFile, table_id: str, erasure: Erasure) -> bool:
    """Replace a file by one without the messages; False if another process replaced it before."""

    def redact(rows: pa.Table) -> pa.Table:
        chosen = set(_match_rows(rows, table_id, erasure))
        redacted = [_redact(row) if number in chosen else row for number, row in enumerate(rows.to_pylist())]
        return pa.Table.from_pylist(redacted, schema=rows.schema)

    if rewrite_side_files(side, table, (file,), SIDE_REDACTION, redact) is None:
        return False
    find_storage(side).delete(side / file.path)
    return True


def _redact(row: dict[str, Any]) -> dict[str, Any]:
    """What stays of a message: the proof must know whether it is to be decoded again."""
    if "found" not in row:  # of the archive
        return row | {"session": None, "key": None, "value": None, "headers": [], "cause": ERASED_MESSAGE}
    # Other findings may quote the message; these two tell the proof that it was never decoded.
    finding = None
    if (row["found"] or "").startswith((KILLED_WORKER, UNKNOWN_SCHEMA)):
        finding = row["found"]
    emptied = dict.fromkeys(("session", "key", "value", "timestamp"), None)
    return row | emptied | {"expected": ERASED, "found": finding, "headers": [], "value_bytes": 0}


def _match_rows(rows: pa.Table, table_id: str, erasure: Erasure) -> list[int]:
    """The rows of the session, by its digest: without a session, a message's key counts."""
    columns = rows.select(SESSION_COLUMNS).to_pydict()
    digests: dict[str, str] = {}
    numbers: list[int] = []
    for number, (batch, topic, session, key) in enumerate(zip(*columns.values(), strict=True)):
        name = session if session is not None or key is None else key.decode("utf-8", "surrogateescape")
        if name is not None and batch < erasure.batch and erasure.topic in {"", topic}:
            digest = digests.setdefault(name, compute_session_digest(table_id, name))
            if digest == erasure.digest:
                numbers.append(number)
    return numbers
