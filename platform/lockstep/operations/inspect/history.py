"""Timeline of a stream: runs, halts, resumptions, rewinds, savepoints, closed hours, compactions. Reads only.

The output table's log is the record: each commit of lockstep has a kind, and each claim its cause. Housekeeping deletes
entries that are older than the retention of the log; the timeline begins where the log does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import partial
from itertools import islice
from pathlib import Path

import msgspec
from deltalake.exceptions import DeltaError

from lockstep.errors import TableError
from lockstep.operations.inspect.endings import read_ended_by_batch
from lockstep.operations.inspect.suspensions import read_first_batches
from lockstep.operations.tables import NoTable, try_read_head
from lockstep.storage import find_storage
from lockstep.table import delta_log
from lockstep.table.commit_kind import CommitKind
from lockstep.table.delta_log import LogEntry
from lockstep.table.head import Erasure, Head, QuarantineRetention, Retention
from lockstep.table.layout import StreamFolders, require_root

EVENTS = {
    CommitKind.CREATE: "created",
    CommitKind.CLAIM: "new writer",
    CommitKind.BATCH: "batches",
    CommitKind.HALT: "halted",
    CommitKind.RESUME: "resumed",
    CommitKind.CLOSE: "hour closed",
    CommitKind.DESIRE: "desired state",
    CommitKind.COMPACTION: "compacted",
    CommitKind.SCHEMA: "columns changed",
    CommitKind.FLOOR: "rewind floor",
    CommitKind.RETENTION: "rows dropped",
    CommitKind.QUARANTINE_RETENTION: "messages dropped",
    CommitKind.REWIND: "rewound",
    CommitKind.SAVEPOINT: "savepoint",
    CommitKind.ERASE: "session erased",
    CommitKind.ERASE_END: "erasure finished",
    CommitKind.SHADOW: "shadow begun",
    CommitKind.PROMOTE: "shadow promoted",
    CommitKind.IMPORT: "savepoint imported",
    CommitKind.ACCEPT: "loss accepted",
    CommitKind.MARK: "mark",
}
FOREIGN = "foreign commit"
NOTED = frozenset({EVENTS[CommitKind.BATCH], EVENTS[CommitKind.HALT], EVENTS[CommitKind.RESUME]})
"""Events of batches: topics may end with a halt or its resumption, too."""
NOTES_SHOWN = 5


def _no_detail(head: Head) -> str:
    del head
    return ""


def _describe_desired(head: Head) -> str:
    return f"{head.desired.value}: {head.reason}"


def _describe_halt(head: Head) -> str:
    """The evidence of the halt; of a batch that halts topics alone, theirs."""
    of_topics = (each for each in head.halted_topics if each.batch == head.batch)
    new = [finding for topic in of_topics for finding in topic.findings]
    return "; ".join(map(str, head.findings or new or head.all_findings))


DETAILS: Mapping[CommitKind, Callable[[Head], str]] = {
    CommitKind.HALT: _describe_halt,
    CommitKind.RESUME: lambda head: head.last_resumption.cause if head.last_resumption is not None else head.reason,
    CommitKind.DESIRE: _describe_desired,
    CommitKind.CLOSE: lambda head: head.closed_hour,
    CommitKind.FLOOR: lambda head: f"batch {head.rewind_floor}",
    CommitKind.RETENTION: lambda head: describe_retention(head.retention),
    CommitKind.QUARANTINE_RETENTION: lambda head: describe_quarantine_retention(head.quarantine_retention),
    CommitKind.ERASE: lambda head: describe_erasure(head.erasure),
    CommitKind.ERASE_END: lambda head: describe_erasure(head.erasure),
}
"""Why, and who, from the head after a commit; the entry of a run's claim tells its cause itself."""


def describe_retention(retention: Retention | None) -> str:
    """What was dropped, why and by whom, in one line; empty while nothing was."""
    return f"rows of hours before {retention.hour} ({retention.cause})" if retention is not None else ""


def describe_quarantine_retention(retention: QuarantineRetention | None) -> str:
    """Which messages were dropped, why and by whom, in one line; empty while none were."""
    if retention is None:
        return ""
    return f"quarantined and late messages of batches up to {retention.batch} ({retention.cause})"


def describe_erasure(erasure: Erasure | None) -> str:
    """Which session was erased, why and by whom, in one line; empty while none was."""
    if erasure is None:
        return ""
    where = f" of topic {erasure.topic}" if erasure.topic else ""
    unfinished = "" if erasure.is_finished else "; quarantine and late table follow"
    return f"session with digest {erasure.digest}{where} ({erasure.cause}){unfinished}"


class StreamEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event, or batches without an event between them.

    Attributes:
        at: Time of the commit by the writer's clock (UTC); None where the entry does not tell. Of the last batch.
        event: "new writer" (a run, or a command that writes, has claimed the table), "batches", "halted", "resumed",
            "desired state", "hour closed", "compacted", "columns changed", "rewind floor", "rows dropped",
            "messages dropped", "rewound", "savepoint", "session erased", "erasure finished", "shadow begun",
            "shadow promoted", "savepoint imported", "loss accepted", "created", or "foreign commit".
        version: Version of the output table; of the last batch.
        epoch: Epoch of the writer then; None for a foreign commit.
        batch: Number of the last batch then; None for a foreign commit.
        count: Number of commits: more than 1 for batches only.
        detail: Why, and who; of batches, which partitions' sessions they suspended and which topics ended.
    """

    at: datetime | None
    event: str
    version: int
    epoch: int | None
    batch: int | None
    count: int = 1
    detail: str = ""


class History(msgspec.Struct, frozen=True, kw_only=True):
    """The timeline of a stream.

    Attributes:
        stream: Its name.
        first_version: Oldest version with an entry in the log.
        is_complete: The events begin with that entry; else older ones were left out.
        events: Oldest first.
    """

    stream: str
    first_version: int
    is_complete: bool
    events: tuple[StreamEvent, ...]


def read_history(folders: StreamFolders, last: int) -> History:
    """The newest events of a stream.

    Costs one small read for each commit back to the oldest event that is listed, and four columns of the ledger where
    sessions of whole partitions were suspended.

    Args:
        folders: Folders of the stream's tables.
        last: Number of events.

    Raises:
        NoTable: The stream has no table yet.
        TableRootMissing: The table root does not exist.
    """
    versions = delta_log.list_versions(folders.table)
    if not versions:
        require_root(folders.root)
        raise NoTable(folders.stream, folders.root)
    found = list(islice(_list_newest_first(folders.table, versions), last + 1))
    notes = _read_notes(folders)
    return History(
        stream=folders.stream,
        first_version=versions[0],
        is_complete=len(found) <= last,
        events=tuple(_add_notes(event, notes) for event in reversed(found[:last])),
    )


def _read_notes(folders: StreamFolders) -> Mapping[int, list[str]]:
    """Suspensions that began and topics that ended with each batch.

    None if ledger or head cannot be read: the log tells what damaged them.
    """
    notes: dict[int, list[str]] = {}
    try:
        head = try_read_head(folders)
        if head is None:
            return {}
        for suspension, batch in sorted(read_first_batches(folders, head).items()):
            notes.setdefault(batch, []).append(str(suspension))
        for batch, ended in read_ended_by_batch(folders, head).items():
            notes.setdefault(batch, []).extend(map(str, ended))
    except (TableError, DeltaError, OSError):
        return {}
    return notes


def _add_notes(event: StreamEvent, notes: Mapping[int, list[str]]) -> StreamEvent:
    """An event of batches, with the notes of these batches."""
    if event.event not in NOTED or event.batch is None:
        return event
    first = event.batch - event.count + 1
    texts = [text for batch in sorted(notes) if first <= batch <= event.batch for text in notes[batch]]
    more = [f"and {len(texts) - NOTES_SHOWN} more"] if len(texts) > NOTES_SHOWN else []
    detail = "; ".join([*filter(None, [event.detail]), *texts[:NOTES_SHOWN], *more])
    return msgspec.structs.replace(event, detail=detail)


def _list_newest_first(table: Path, versions: list[int]) -> Iterator[StreamEvent]:
    """The events; an entry that housekeeping deletes meanwhile is passed over."""
    batches: list[int] = []
    newest_first = versions[::-1]
    looks = find_storage(table).map_files(partial(_is_batch, table), newest_first)
    for version, is_batch in zip(newest_first, looks, strict=True):
        if is_batch:
            batches.append(version)
            continue
        yield from _group_batches(table, batches)
        batches = []
        entry = delta_log.read_entry(table, version)
        if entry is not None:
            yield _make_event(entry)
    yield from _group_batches(table, batches)


def _is_batch(table: Path, version: int) -> bool:
    return delta_log.is_of_kind(table, version, CommitKind.BATCH.value)


def _group_batches(table: Path, versions: list[int]) -> Iterator[StreamEvent]:
    entry = delta_log.read_entry(table, versions[0]) if versions else None
    if entry is not None:
        yield msgspec.structs.replace(_make_event(entry), count=len(versions))


def _make_event(entry: LogEntry) -> StreamEvent:
    if entry.kind is None or entry.head is None:
        return StreamEvent(
            at=entry.written_at,
            event=FOREIGN,
            version=entry.version,
            epoch=None,
            batch=None,
            detail=f"{entry.operation} by {entry.author}",
        )
    kind = CommitKind(entry.kind)
    if kind is CommitKind.CLAIM and not entry.cause:
        kind = CommitKind.DESIRE  # a command: the claim of a run, and of what writes a batch, has a cause
    return StreamEvent(
        at=entry.written_at,
        event=EVENTS[kind],
        version=entry.version,
        epoch=entry.head.epoch,
        batch=entry.head.batch,
        detail=entry.cause or DETAILS.get(kind, _no_detail)(entry.head),
    )
