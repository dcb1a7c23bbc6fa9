"""Plans an export and carries it out, hour by hour."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from enum import Enum
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import cast

import msgspec
import pyarrow as pa

from lockstep.addresses import to_uri
from lockstep.declare.options import Export, OnRewind
from lockstep.declare.stream import AnyStream
from lockstep.errors import LockstepError
from lockstep.features.compaction.plan import plan_bins
from lockstep.features.export.dataset import (
    ExportOptions,
    check_options,
    check_source,
    delete_leftovers,
    find_folder,
    keep_options,
    list_batches,
    list_exported_hours,
    list_half_withdrawn_hours,
    list_whole_hours,
    make_options,
    record_source,
)
from lockstep.features.export.undone import find_last_batch, find_last_closed_hour, find_undone_hours, withdraw_undone
from lockstep.features.export.write import HourToExport, SourceTable, write_hour
from lockstep.operations.followers import record_failure
from lockstep.operations.plan_frame import Description, Labelled, Records, Unit
from lockstep.operations.stream_table import open_table
from lockstep.progress import report_items
from lockstep.table import delta_log
from lockstep.table.commit import Base, OutputLog
from lockstep.table.delta_log import find_head_of_batch
from lockstep.table.follower_positions import (
    FollowerPosition,
    Reads,
    SourceHistory,
    find_commit_time,
    find_generation,
    make_history,
    make_unread_history,
    write_position,
)
from lockstep.table.head import Head
from lockstep.table.layout import StreamFolders
from lockstep.table.live_files import TARGET_BYTES, LiveFile, LiveFiles, is_closed

KIND = "export"


class WaitReason(Enum):
    """Why an hour is not exported yet."""

    OPEN = "the hour is open"
    REWIND = "a rewind may go back to it (rewind_hours)"
    COMPACTION = "it waits for compaction"


class WaitingHours(msgspec.Struct, frozen=True):
    """Hours that are not exported yet, for one reason."""

    reason: WaitReason
    hours: int
    oldest_hour: str
    newest_hour: str


class ExportPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The hours that an export would write.

    Attributes:
        stream: Name of the stream.
        folder: Folder of the dataset.
        hours: Hours to write, oldest first.
        undone: Exported hours to withdraw first, newest first: a rewind or a promotion has undone their batches, or
            their withdrawal was killed.
        files: Files to read.
        rows: Rows to write.
        bytes: Bytes to read.
        exported: Number of hours that are exported.
        waiting: Hours that have to wait, by reason.
    """

    stream: str
    folder: str
    hours: tuple[HourToExport, ...]
    undone: tuple[str, ...]
    files: int
    rows: int
    bytes: int
    exported: int
    waiting: tuple[WaitingHours, ...]

    def describe(self) -> Description:
        """Return its description, with the newest hours first."""
        facts = (
            Labelled("folder", self.folder, Unit.PATH),
            Labelled("exported hours", self.exported),
            Labelled("hours to withdraw", len(self.undone)),
            Labelled("hours to write", len(self.hours)),
            Labelled("rows to write", self.rows),
            Labelled("bytes to read", self.bytes, Unit.BYTES),
        )
        records = (Records.of("hours", reversed(self.hours), "hour files rows bytes"), make_waiting(self.waiting))
        notes = describe_missing(self.undone, (hour.hour for hour in self.hours), self.waiting)
        return Description(title=f"{self.stream}: export", facts=facts, records=records, notes=notes)


def describe_missing(
    withdrawn: Sequence[str], written: Iterable[str], waiting: Iterable[WaitingHours]
) -> tuple[str, ...]:
    """Name the rows that readers miss after a withdrawal, until the hours in which they were read again are written.

    Args:
        withdrawn: The withdrawn hours.
        written: Hours that are written after the withdrawal.
        waiting: Hours that have to wait.
    """
    if not withdrawn:
        return ()
    first = min(withdrawn)
    text = f"rows of the withdrawn hours {first} to {max(withdrawn)} are missing in the dataset"
    later = set[str]()
    for hours in waiting:
        later.update(hour for hour in (hours.oldest_hour, hours.newest_hour) if hour > first)
    if later:
        return (f"{text} until hours {min(later)} to {max(later)} are written, which wait now",)
    if any(hour > first for hour in written):
        return ()
    return (f"{text} until the stream has read them again, and the hours of that are written",)


def make_waiting(waiting: Iterable[WaitingHours]) -> Records:
    """Return the table of the hours that have to wait."""
    return Records.of("waiting", waiting, "reason hours oldest_hour newest_hour")


class ExportResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of an export.

    Attributes:
        stream: Name of the stream.
        folder: Folder of the dataset.
        hours: Hours that it wrote.
        hours_withdrawn: Hours that it withdrew, because a rewind or a promotion had undone their batches.
        hours_lost: Hours that another export published first, or that an erasure or a rewind overtook; nothing is lost
            but work.
        files: Files written.
        rows: Rows written.
        bytes: Bytes written.
        stale_deleted: Staging folders deleted, left by killed exports.
        batch: The newest batch that hours of the dataset may hold.
        waiting: Hours that have to wait, by reason.
        cpu_seconds: CPU time.
    """

    stream: str
    folder: str
    hours: tuple[str, ...] = ()
    hours_withdrawn: tuple[str, ...] = ()
    hours_lost: int = 0
    files: int = 0
    rows: int = 0
    bytes: int = 0
    stale_deleted: int = 0
    batch: int = 0
    waiting: tuple[WaitingHours, ...] = ()
    cpu_seconds: float = 0.0

    def describe(self) -> Description:
        """Return its description."""
        facts = (
            Labelled("folder", self.folder, Unit.PATH),
            Labelled("hours", len(self.hours)),
            Labelled("hours withdrawn", len(self.hours_withdrawn)),
            Labelled("hours lost", self.hours_lost),
            Labelled("files", self.files),
            Labelled("rows", self.rows),
            Labelled("bytes", self.bytes, Unit.BYTES),
            Labelled("newest hour", self.hours[-1] if self.hours else ""),
            Labelled("batch", self.batch),
        )
        notes = describe_missing(self.hours_withdrawn, self.hours, self.waiting)
        records = (make_waiting(self.waiting),)
        return Description(title=f"{self.stream}: exported", facts=facts, records=records, notes=notes)


def sort_hours(
    files: Iterable[LiveFile],
    head: Head,
    floor_hour: str | None,
    exported: frozenset[str],
    target_bytes: int = TARGET_BYTES,
) -> tuple[tuple[HourToExport, ...], tuple[WaitingHours, ...]]:
    """The hours that can be exported, and those that have to wait, oldest first. Pure.

    Args:
        files: The live files.
        head: The head of the table.
        floor_hour: Hour of the batch at the rewind floor, before which hours are exported; empty if it is unknown, None
            if no hour waits for it.
        exported: Hours that are exported.
        target_bytes: Size of a compacted file, which decides what compaction would still rewrite.
    """
    listed = sorted(files, key=lambda file: (file.commit_hour, file.added_ms, file.lowest, file.path))
    small = {part.commit_hour for part in plan_bins(listed, head, target_bytes=target_bytes)}
    ready = list[HourToExport]()
    waiting = dict[WaitReason, list[str]]()
    for hour, group in groupby(listed, key=attrgetter("commit_hour")):
        # An hour that is exported stays as it is, also if its files were compacted again.
        if hour in exported:
            continue
        reason = _find_reason(hour, head, floor_hour, small)
        if reason is not None:
            waiting.setdefault(reason, []).append(hour)
            continue
        of_hour = tuple(group)
        rows = sum(file.rows for file in of_hour)
        size = sum(file.size for file in of_hour)
        ready.append(HourToExport(hour, of_hour, rows, size))
    return tuple(ready), tuple(WaitingHours(why, len(hours), hours[0], hours[-1]) for why, hours in waiting.items())


def _find_reason(hour: str, head: Head, floor_hour: str | None, small: set[str]) -> WaitReason | None:
    if not is_closed(hour, head):
        return WaitReason.OPEN
    if hour in small:
        return WaitReason.COMPACTION
    if floor_hour is not None and hour >= floor_hour:
        return WaitReason.REWIND
    return None


def _require_export(stream: AnyStream) -> Export:
    if stream.export is None:
        raise LockstepError(
            f"{stream.name} declares no export",
            next_step=f"declare Stream(name={stream.name!r}, ..., export=Export()) in assets/",
        )
    return stream.export


class _Export:
    """A table and its dataset, as they were read once."""

    def __init__(self, stream: AnyStream, folders: StreamFolders, target_bytes: int) -> None:
        export = _require_export(stream)
        output = open_table(folders)
        base = output.base()
        self.folders = folders
        self.folder = find_folder(export, folders)
        self.options: ExportOptions = make_options(export, stream.name, output.table_id)
        self.base = base
        self.rewrites = export.on_rewind is OnRewind.REWRITE
        self._waits = export.on_rewind is OnRewind.WAIT
        floor = find_head_of_batch(folders.table, base.head.rewind_floor)
        floor_hour = floor.hour if floor else ""
        # Before the hours are read: the folder may belong to another stream.
        check_options(self.folder, self.options)
        self.undone = _find_undone(export, self.folder, base, folders, floor_hour)
        self.exported = list_exported_hours(self.folder) - set(self.undone)
        # The mark of a rewind has no rows, and makes no hour.
        live = [file for file in LiveFiles(folders.table).at(base.version) if file.rows]
        waits_for = floor_hour if self._waits else None
        hours, self.waiting = sort_hours(live, base.head, waits_for, self.exported, target_bytes)
        self.below_batch = self._find_below(find_last_closed_hour(base.head), floor_hour)
        self.hours = tuple(self._with_below(hour, floor_hour) for hour in hours)
        schema = pa.schema(cast("pa.Schema", delta_log.open_delta_table(folders.table).schema().to_arrow()))
        self.source = SourceTable(folders.table, schema, base.version, base.head)

    def _with_below(self, hour: HourToExport, floor_hour: str) -> HourToExport:
        return msgspec.structs.replace(hour, below_batch=self._find_below(hour.hour, floor_hour))

    def _find_below(self, hour: str, floor_hour: str) -> int:
        """The batch before which all batches of an hour are, and of the hours before it."""
        floor = self.base.head.rewind_floor
        if self._waits or hour < floor_hour:
            return floor
        last = find_last_batch(self.folders.table, hour)
        # The log does not go back to the hour, so that any batch may be of it.
        if last is None:
            return self.base.head.batch + 1
        return max(floor, last + 1)

    def is_current(self, below_batch: int) -> bool:
        """Whether no session was erased since, and no batch of an hour was undone: its files have their rows."""
        planned = self.base.head
        now = OutputLog(self.source.folder).base().head
        # Only batches below it: a rewind of later batches changes no row of the hour.
        is_same = list_batches(now, below_batch) == list_batches(planned, below_batch)
        return is_same and now.erasure == planned.erasure

    @property
    def batch(self) -> int:
        """The newest batch that hours of the dataset may hold."""
        return max(0, self.below_batch - 1)

    def write_position(self) -> None:
        """Write how far the dataset has read."""
        head = self.base.head
        newest = head.rewind_floor if self._waits else self.batch
        committed_at = None
        past = find_head_of_batch(self.folders.table, newest)
        if past is not None:
            entry = delta_log.read_entry(self.folders.table, past.batch_version)
            committed_at = None if entry is None else find_commit_time(entry)
        history = msgspec.structs.replace(
            make_history(self.folders, self.base),
            batch=self.batch,
            batch_generation=find_generation(head, self.batch),
            committed_at=committed_at,
        )
        reads = Reads.HOURS if self._waits else Reads.CLOSED_HOURS
        write_position(self.folders.root, _make_position(self.folders.stream, history, reads, rebuilds=self.rewrites))

    def record(self) -> None:
        """Store the table as it is now, not as of the plan: another export may have stored a newer version since.

        Raises:
            ExportMismatch: Batches of exported hours were rewound since the plan, and the export waits for the floor.
        """
        keep_options(self.folder, self.options)
        base = open_table(self.folders).base()
        if self._waits:
            if list_exported_hours(self.folder):
                check_source(self.folder, base, self.folders.table)
            record_source(self.folder, base, self.folders.table, base.head.rewind_floor)
        elif self.is_current(self.below_batch):
            record_source(self.folder, base, self.folders.table, self.below_batch)


def plan_export(stream: AnyStream, folders: StreamFolders, *, target_bytes: int = TARGET_BYTES) -> ExportPlan:
    """Plan the hours that an export would write now. Changes nothing.

    Raises:
        NoTable: The stream has never run.
        ExportMismatch: The dataset is written otherwise, of another table, or of batches that were rewound.
        LockstepError: The stream declares no export.
    """
    export = _Export(stream, folders, target_bytes)
    return ExportPlan(
        stream=stream.name,
        folder=to_uri(export.folder),
        hours=export.hours,
        undone=export.undone,
        files=sum(len(hour.files) for hour in export.hours),
        rows=sum(hour.rows for hour in export.hours),
        bytes=sum(hour.bytes for hour in export.hours),
        exported=len(export.exported),
        waiting=export.waiting,
    )


def export_stream(stream: AnyStream, folders: StreamFolders, *, target_bytes: int = TARGET_BYTES) -> ExportResult:
    """Export the hours that can be exported, oldest first; safe while a writer, compactions and another export run.

    1. Plan.
    2. Withdraw the hours that a rewind has undone, newest first: the dataset ends earlier, and has no row twice. Record
       the batches that count. Delete what killed exports left.
    3. Write each hour, prove it, publish it; one that another export published, or that an erasure or a rewind
       overtook, is dropped.
    4. Write the position.

    Raises:
        NoTable: The stream has never run.
        ExportMismatch: The dataset is written otherwise, of another table, or of batches that were rewound.
        LockstepError: The stream declares no export.
        TableError: A file is damaged; the hours before are exported.
    """
    _require_export(stream)
    open_table(folders)
    unread = _make_position(stream.name, make_unread_history(stream.name))
    with record_failure(folders.root, unread):
        return _export_all(stream, folders, target_bytes)


def _export_all(stream: AnyStream, folders: StreamFolders, target_bytes: int) -> ExportResult:
    started = time.process_time()
    export = _Export(stream, folders, target_bytes)  # 1
    result = ExportResult(stream=stream.name, folder=to_uri(export.folder), batch=export.batch, waiting=export.waiting)
    withdrawn = withdraw_undone(export.folder, export.undone, export.base.head)  # 2
    # Without any of them no hour changes, and the record of the newest export stays true.
    if export.hours or export.undone:
        export.record()
    stale = delete_leftovers(export.folder)
    result = msgspec.structs.replace(result, hours_withdrawn=withdrawn, stale_deleted=stale)
    for hour in report_items(export.hours, "exporting hours", len(export.hours)):  # 3
        result = _with_hour(result, export, hour)
    export.write_position()  # 4
    return msgspec.structs.replace(result, cpu_seconds=round(time.process_time() - started, 3))


def _make_position(
    stream: str, history: SourceHistory, reads: Reads = Reads.HOURS, *, rebuilds: bool = False
) -> FollowerPosition:
    return FollowerPosition(
        kind=KIND,
        name=stream,
        command=f"lockstep export {stream}",
        reads=reads,
        rebuilds=rebuilds,
        sources=(history,),
        last_run=datetime.now(UTC),
    )


def _with_hour(result: ExportResult, export: _Export, hour: HourToExport) -> ExportResult:
    is_current = partial(export.is_current, hour.below_batch)
    manifest = write_hour(export.folder, hour, export.source, export.options, is_current)
    if manifest is None:
        return msgspec.structs.replace(result, hours_lost=result.hours_lost + 1)
    return msgspec.structs.replace(
        result,
        hours=(*result.hours, hour.hour),
        files=result.files + len(manifest.files),
        rows=result.rows + manifest.rows,
        bytes=result.bytes + sum(file.bytes for file in manifest.files),
    )


def list_proven_hours(export: Export, folders: StreamFolders) -> frozenset[str]:
    """The exported hours of a stream's table, which its retention may drop.

    Raises:
        ExportMismatch: The dataset is written otherwise, of another table, or of batches that were rewound.
    """
    output = open_table(folders)
    base = output.base()
    folder = find_folder(export, folders)
    check_options(folder, make_options(export, folders.stream, output.table_id))
    floor = find_head_of_batch(folders.table, base.head.rewind_floor)
    undone = _find_undone(export, folder, base, folders, floor.hour if floor else "")
    return list_whole_hours(folder, list_exported_hours(folder) - set(undone))


def _find_undone(export: Export, folder: Path, base: Base, folders: StreamFolders, floor_hour: str) -> tuple[str, ...]:
    """The exported hours to withdraw, newest first; none may be undone if hours wait for the rewind floor.

    An hour is half withdrawn there, too, if an erasure has overtaken its export.
    """
    if export.on_rewind is not OnRewind.WAIT:
        return find_undone_hours(folder, base, folders.table, floor_hour)
    if list_exported_hours(folder):
        check_source(folder, base, folders.table)
    return tuple(sorted(list_half_withdrawn_hours(folder), reverse=True))
