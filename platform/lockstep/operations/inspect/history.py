"""Timeline of a stream: runs, halts, resumptions, rewinds, savepoints, closed hours, compactions. Reads only.

The output table's log is the record: each commit of lockstep has a kind, and each claim its cause. Housekeeping deletes
entries that are older than the retention of the log; the timeline starts with the log.
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
from lockstep.model.finding import Finding
from lockstep.operations.inspect.endings import read_ended_by_batch
from lockstep.operations.inspect.suspensions import read_first_batches
from lockstep.operations.stream_table import NoTable, try_read_head
from lockstep.storage import find_storage
from lockstep.table import commit_kinds, delta_log
from lockstep.table.commit_kinds import CommitKind, find_commit_kind
from lockstep.table.delta_log import LogEntry
from lockstep.table.head import Head
from lockstep.table.layout import StreamFolders, require_root

FOREIGN = "foreign commit"
NOTED = frozenset(kind.event for kind in (commit_kinds.BATCH, commit_kinds.HALT, commit_kinds.RESUME))
"""Events of batches: topics may end with a halt or its resumption, too."""
NOTES_SHOWN = 5


def _describe_desired(head: Head) -> str:
    return f"{head.desired.value}: {head.reason}"


def _describe_halt(head: Head) -> str:
    """The evidence of the halt; of a batch that halts topics alone, theirs."""
    new = list[Finding]()
    for topic in head.halted_topics:
        if topic.batch == head.batch:
            new += topic.findings
    return "; ".join(map(str, head.findings or new or head.all_findings))


def _describe_resumption(head: Head) -> str:
    if head.last_resumption is not None:
        return head.last_resumption.cause
    return head.reason


DETAILS: Mapping[CommitKind, Callable[[Head], str]] = {
    commit_kinds.HALT: _describe_halt,
    commit_kinds.RESUME: _describe_resumption,
    commit_kinds.DESIRE: _describe_desired,
    commit_kinds.CLOSE: lambda head: head.closed_hour,
    commit_kinds.FLOOR: lambda head: f"batch {head.rewind_floor}",
}
"""Why, and who, from the head after a commit of the core; the entry of a run's claim tells its cause itself."""


def _describe(kind: CommitKind, head: Head) -> str:
    """Why, and who; of a kind of a feature, as its field of the head tells it."""
    if kind in DETAILS:
        return DETAILS[kind](head)
    if not kind.explained_by:
        return ""
    field = getattr(head, kind.explained_by, None)
    if field is None:
        return ""
    return str(field.describe())


class StreamEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event, or batches without an event between them.

    Attributes:
        at: Time of the commit by the writer's clock (UTC); None if the entry does not have it. Of the last batch.
        event: The event of its kind of commit: "new writer" (a run, or a command that writes, has claimed the table),
            "batches", "halted", "rewound"; of an absent feature, the name of the kind; or "foreign commit".
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
        is_complete: The events start with that entry; else older events were left out.
        events: Oldest first.
    """

    stream: str
    first_version: int
    is_complete: bool
    events: tuple[StreamEvent, ...]


def read_history(folders: StreamFolders, last: int, entries_max: int | None = None) -> History:
    """The newest events of a stream.

    Costs one small read for each commit back to the oldest event that is listed, and four columns of the ledger where
    sessions of whole partitions were suspended.

    Args:
        folders: Folders of the stream's tables.
        last: Number of events.
        entries_max: Log entries in which they are searched, the newest ones; None for all.

    Raises:
        NoTable: The stream has no table yet.
        TableRootMissing: The table root does not exist.
    """
    versions = delta_log.list_versions(folders.table)
    if not versions:
        require_root(folders.root)
        raise NoTable(folders.stream, folders.root)
    searched = versions
    if entries_max is not None:
        searched = versions[-entries_max:]
    # One more than is shown: whether there are earlier events.
    newest = list(islice(_list_newest_first(folders.table, searched), last + 1))
    notes = _read_notes(folders)
    return History(
        stream=folders.stream,
        first_version=versions[0],
        is_complete=len(newest) <= last and len(searched) == len(versions),
        events=tuple(_add_notes(event, notes) for event in reversed(newest[:last])),
    )


def _read_notes(folders: StreamFolders) -> Mapping[int, list[str]]:
    """Suspensions that started and topics that ended with each batch.

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
    texts = list[str]()
    for batch in sorted(notes):
        if first <= batch <= event.batch:
            texts += notes[batch]
    shown = texts[:NOTES_SHOWN]
    if event.detail:
        shown.insert(0, event.detail)
    if len(texts) > NOTES_SHOWN:
        shown.append(f"and {len(texts) - NOTES_SHOWN} more")
    return msgspec.structs.replace(event, detail="; ".join(shown))


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
    return delta_log.is_of_kind(table, version, commit_kinds.BATCH.name)


def _group_batches(table: Path, versions: list[int]) -> Iterator[StreamEvent]:
    if not versions:
        return
    entry = delta_log.read_entry(table, versions[0])
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
    kind = find_commit_kind(entry.kind)
    if kind is commit_kinds.CLAIM and not entry.cause:
        kind = commit_kinds.DESIRE  # a command: the claim of a run, and of what writes a batch, has a cause
    event = entry.kind
    detail = entry.cause
    if kind is not None:  # else it is a kind of an absent feature
        event = kind.event
        detail = detail or _describe(kind, entry.head)
    return StreamEvent(
        at=entry.written_at,
        event=event,
        version=entry.version,
        epoch=entry.head.epoch,
        batch=entry.head.batch,
        detail=detail,
    )
