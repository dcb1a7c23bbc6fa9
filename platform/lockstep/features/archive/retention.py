"""Retention of the archive: housekeeping drops whole files, in one commit that names their last batch."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path

from lockstep.features.archive.commit_kinds import ARCHIVE_RETENTION
from lockstep.features.archive.readers import ArchiveReader, list_readers
from lockstep.model.commit_hour import find_current_hour, format_hour, parse_hour
from lockstep.operations.clean_up import CleanedStream, CleanUpStep
from lockstep.operations.stream_table import open_table
from lockstep.storage import find_storage
from lockstep.table import delta_log, side_tables, transactions
from lockstep.table.layout import StreamFolders
from lockstep.table.ledger import LedgerFileName
from lockstep.table.side_files import SideTableFile, drop_files, list_side_files
from lockstep.table.written_by import read_written_by

LOG = logging.getLogger("lockstep")

HELD_LEAST = timedelta(days=7)
"""Messages that a stream is to read again stay as long again as `Archive.keep`, at least so long."""


def find_old_files(
    files: Iterable[SideTableFile], before_hour: str, *, unread_from: int | None = None, held_from: str = ""
) -> tuple[SideTableFile, ...]:
    """The oldest files, all of whose messages were archived before an hour, in order of batches. Pure.

    A file that shares a batch with a younger file stays.

    Args:
        files: The live files.
        before_hour: The hour, "YYYY-MM-DDTHH" UTC.
        unread_from: The first batch that a reader needs; None without a reader.
        held_from: The first hour of which files stay for readers.
    """
    ordered = sorted(files, key=lambda file: file.name.first)
    old = list[SideTableFile]()
    kept_from = list[int]()
    for file in ordered:
        is_held = unread_from is not None and file.name.last >= unread_from and file.name.hour >= held_from
        if file.name.hour < before_hour and not is_held:
            old.append(file)
        else:
            kept_from.append(file.name.first)
    first_kept = min(kept_from, default=None)
    return tuple(file for file in old if first_kept is None or file.name.last < first_kept)


def drop_old_messages(folders: StreamFolders, keep: timedelta) -> tuple[SideTableFile, ...]:
    """Drop archived messages that are older than the retention; returns their files, which stay for an hour.

    Messages that the stream is to read again after a rewind, or that a shadow has not read, stay as long again as
    `keep`, and at least `HELD_LEAST`.

    Safe while a writer, readers, a compaction and another retention run, and again after a kill.

    Args:
        folders: Folders of the stream.
        keep: How long messages stay, in whole hours, counted from the newest batch.

    Raises:
        TableError: The archive does not match its head, or has a foreign commit.
        CommitUnknown: The store did not answer.
    """
    head = open_table(folders).base().head
    if not delta_log.has_log(folders.archive) or not head.hour:
        return ()
    side_tables.catch_up_alongside_writer(folders, head)
    readers = list_readers(folders, head)
    newest = parse_hour(min(head.hour, find_current_hour()))  # a clock that is off drops nothing that is younger
    choose = partial(
        find_old_files,
        before_hour=format_hour(newest - keep),
        unread_from=min((each.first_batch for each in readers), default=None),
        held_from=format_hour(newest - keep - max(keep, HELD_LEAST)),
    )
    dropped = drop_files(folders.archive, ARCHIVE_RETENTION, choose)
    _warn_of_readers(folders.stream, dropped, readers)
    return dropped


def _warn_of_readers(stream: str, dropped: Sequence[SideTableFile], readers: Iterable[ArchiveReader]) -> None:
    last = max((file.name.last for file in dropped), default=0)
    for each in readers:
        if each.first_batch <= last:
            LOG.warning(
                "the archive of %s has dropped messages of batches %d to %d, which %s has not read: they were older "
                "than the retention and the time for which it waits",
                stream,
                each.first_batch,
                last,
                each.stream,
            )


def list_dropped_files(archive: Path) -> Sequence[Path]:
    """The files of the archive whose messages all were dropped, and that the table does not name."""
    if not delta_log.has_log(archive):
        return ()
    table = delta_log.open_delta_table(archive)
    dropped_up_to = table.transaction_version(transactions.DROPPED) or 0
    named = {file.path for file in list_side_files(table)}
    others = (path for path in find_storage(archive).find_files(archive, "*.parquet") if path.name not in named)
    return [path for path in others if _find_last_batch(path.name, dropped_up_to + 1) <= dropped_up_to]


def _find_last_batch(name: str, unknown: int) -> int:
    if (parsed := LedgerFileName.parse(name)) is not None:
        return parsed.last
    by = read_written_by(name)
    return unknown if by is None else by.batch


def _list_files(stream: CleanedStream) -> Iterable[Path]:
    return list_dropped_files(stream.folders.archive)


def _drop(stream: CleanedStream) -> None:
    if stream.declared is not None and stream.declared.archive is not None:
        keep = stream.declared.archive.keep
        if keep is not None:
            drop_old_messages(stream.folders, keep)


OLD_MESSAGES = CleanUpStep(name="archived messages past retention", list_files=_list_files, finish=_drop)
"""Deletes files that the housekeeping before has dropped, so that earlier readers can end, and then drops more."""
