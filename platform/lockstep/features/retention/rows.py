"""Retention: drops the rows of whole closed hours, by a commit of a separate kind, while the stream continues.

The head records the drop: the hour, the last batch concerned, when, why and by whom. So proofs and checks
know which rows of the ledger have none in the table any more. The files are deleted by housekeeping, once no rewind can
go back to them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pyarrow.parquet as pq

from lockstep.declare.stream import RETENTION_MAX
from lockstep.errors import CommitUnknown, TableError
from lockstep.features.retention.commit_kinds import RETENTION
from lockstep.model.commit_hour import find_current_hour, format_hour, parse_hour
from lockstep.model.position import TopicIdPartition
from lockstep.model.table_schema import IDENTITY
from lockstep.operations.plan_frame import Description, Labelled, Plan, Prepared, Unit, refuse_changed
from lockstep.operations.stream_table import open_table
from lockstep.storage import find_storage
from lockstep.table import ledger, side_tables
from lockstep.table.commit import Base, Proposal
from lockstep.table.head import Head, Retention
from lockstep.table.layout import StreamFolders
from lockstep.table.live_files import LiveFile, LiveFiles, make_removal
from lockstep.table.row_order import RowPlace, find_segments

AGREED = ("rows", "hours")
"""Fields of a plan in which the commit agrees with the plan; a compaction changes the files."""
PLANS_MAX = 20
"""A compaction that replaces the files meanwhile makes a new plan necessary; so many in a row have another cause."""
BATCHES_A_READ = 2_000
"""Of the ledger at a time: an hour at a trigger of 5 s has 720, and a retention drops one at a time, mostly."""


class RetentionPlan(Plan, frozen=True, kw_only=True):
    """Rows that a retention drops.

    Attributes:
        before_hour: Rows of commit hours before it are dropped, "YYYY-MM-DDTHH" UTC; empty before the first batch.
        files: The files.
        hours: Number of hours.
        rows: Rows.
        bytes: Bytes.
        dropped_before: The rows dropped earlier.
    """

    PLAN: ClassVar[str] = "the retention"

    before_hour: str
    files: tuple[LiveFile, ...] = ()
    hours: int = 0
    rows: int = 0
    bytes: int = 0
    dropped_before: Retention | None = None

    @property
    def is_due(self) -> bool:
        """Whether there are rows to drop."""
        return bool(self.files)

    def describe(self) -> Description:
        """Return its description."""
        return self.make_description("rows to drop", self.list_facts())

    def list_facts(self) -> tuple[Labelled, ...]:
        """Return the facts of the plan and of its result."""
        return (
            Labelled("rows", self.rows),
            Labelled("hours", self.hours),
            Labelled("before hour", self.before_hour),
            Labelled("files", len(self.files)),
            Labelled("bytes", self.bytes, Unit.BYTES),
        )


class Retained(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a retention.

    Attributes:
        plan: The dropped rows; none without files.
        retention: Its record in the head; None while nothing was ever dropped.
    """

    plan: RetentionPlan
    retention: Retention | None

    def describe(self) -> Description:
        """Return its description."""
        return Description(title=f"{self.plan.stream}: rows dropped", facts=self.plan.list_facts())


class _Overtaken(TableError):
    """The files of the plan are not the live ones any more."""


def find_oldest_hour(head: Head, clock_hour: str, keep: timedelta) -> str:
    """The first hour whose rows stay; empty before the first batch. Pure.

    Counted from the hour of the newest batch, or the clock's if that is earlier: one wrong clock, on any
    machine, drops nothing that is younger.
    """
    newest = min(head.hour, clock_hour)
    if not newest:
        return ""
    return format_hour(parse_hour(newest) - min(keep, RETENTION_MAX))


def plan_retention(folders: StreamFolders, keep: timedelta, *, exported: frozenset[str] | None = None) -> RetentionPlan:
    """The plan of a retention now; as `drop_old_rows`. Changes nothing.

    Raises:
        NoTable: The stream has never run.
        TableError: The table does not match its head.
    """
    base = open_table(folders).base()
    return _plan(folders, base, LiveFiles(folders.table), keep, exported)


def prepare_retention(folders: StreamFolders, keep: timedelta, *, cause: str) -> Prepared[RetentionPlan, Retained]:
    """Plan a retention as `plan_retention`; its commit drops the rows of the hours that were planned, and no others.

    The commit raises:
        Refused: Other rows of these hours are in the table now.
        TableError: The table does not match its head, or a file is damaged.
    """
    plan = plan_retention(folders, keep)
    return Prepared(plan, partial(drop_old_rows, folders, keep, cause=cause, shown=plan))


def drop_old_rows(
    folders: StreamFolders,
    keep: timedelta,
    *,
    cause: str,
    find_exported: Callable[[], frozenset[str]] | None = None,
    shown: RetentionPlan | None = None,
) -> Retained:
    """Drop the rows of all hours that are older than the retention; safe while a writer, readers and compaction run.

    1. Plan: the live files of the hours before.
    2. Find the last batch that they hold: rows of it and of all before it are dropped.
    3. Commit, if on the base these are still the live files of the hours, all exported; else again from 1. An erasure
       withdraws hours from an export, and so does its preparation: their rows are then in the table alone.

    Args:
        folders: Folders of the stream.
        keep: How long rows stay, in whole hours, counted from the newest batch.
        cause: Why, and who.
        find_exported: Hours that are exported now, if the stream declares an export: no other is dropped.
        shown: The plan that was shown: its hours, not those that are older now.

    Raises:
        Refused: The plan differs from the plan that was shown.
        NoTable: The stream has never run.
        TableError: The table does not match its head, or a file is damaged.
    """
    output = open_table(folders)
    live = LiveFiles(folders.table)
    for _ in range(PLANS_MAX):
        base = output.base()
        if shown is None:
            exported = None if find_exported is None else find_exported()
            plan = _plan(folders, base, live, keep, exported)  # 1
        else:
            plan = _plan_before(folders.stream, base, live.at(base.version), shown.before_hour)
            refuse_changed(shown, plan, AGREED)
        if not plan.files:
            return Retained(plan=plan, retention=base.head.retention)
        last = _find_last_batch(folders, base.head, plan.files)  # 2
        dropped = Retention(hour=plan.before_hour, batch=last, at=time.time(), cause=cause)
        try:
            output.commit(_propose(plan, dropped, live, base.head.generation, find_exported))  # 3
        except _Overtaken:
            continue
        return Retained(plan=plan, retention=dropped)
    raise CommitUnknown(f"{folders.table}: compactions overtook {PLANS_MAX} plans", next_step="try again")


def _plan(
    folders: StreamFolders, base: Base, live: LiveFiles, keep: timedelta, exported: frozenset[str] | None
) -> RetentionPlan:
    files = live.at(base.version)
    before_hour = find_oldest_hour(base.head, find_current_hour(), keep)
    if exported is not None:
        # Only hours before the first that is not exported: the rows that stay are those of all later hours.
        before_hour = min([before_hour, *(_list_hours(files) - exported)])
    return _plan_before(folders.stream, base, files, before_hour)


def _plan_before(stream: str, base: Base, live: Iterable[LiveFile], before_hour: str) -> RetentionPlan:
    files = tuple(file for file in live if file.commit_hour < before_hour)
    return RetentionPlan(
        stream=stream,
        before_hour=before_hour,
        files=files,
        hours=len({file.commit_hour for file in files}),
        rows=sum(file.rows for file in files),
        bytes=sum(file.size for file in files),
        dropped_before=base.head.retention,
    )


def _list_hours(files: Iterable[LiveFile]) -> set[str]:
    """The hours with rows: the mark of a rewind has none."""
    return {file.commit_hour for file in files if file.rows}


def _propose(
    plan: RetentionPlan,
    dropped: Retention,
    live: LiveFiles,
    generation: int,
    find_exported: Callable[[], frozenset[str]] | None,
) -> Proposal:
    planned = {file.path for file in plan.files}
    hours = _list_hours(plan.files)

    def next_head(base: Base) -> Head:
        current = {file.path for file in live.at(base.version) if file.commit_hour < dropped.hour}
        if current != planned or base.head.generation != generation:
            raise _Overtaken("the files of the hours have changed", next_step="nothing: it is planned again")
        if find_exported is not None and not hours <= find_exported():
            raise _Overtaken("an hour is not exported any more", next_step="nothing: it is planned again")
        return msgspec.structs.replace(base.head, retention=dropped)

    return Proposal(kind=RETENTION, next_head=next_head, removes=tuple(map(make_removal, plan.files)))


def _find_last_batch(folders: StreamFolders, head: Head, files: tuple[LiveFile, ...]) -> int:
    """The last batch with rows in these files: one of the newest hour, as the hours of batches only rise."""
    newest = max(_list_hours(files), default="")
    last = _find_last_rows(folders.table, [file for file in files if file.commit_hour == newest])
    # The last batch of the hour may not be in the ledger yet.
    side_tables.catch_up_alongside_writer(folders, head)
    last_batch = head.retention.batch if head.retention is not None else 0
    for row in _read_counting(folders, head):
        if not last:
            break
        key = (row["topic_id"], row["partition"])
        if key in last and last[key] < RowPlace(row["until"], row["rows_emitted"]):
            last_batch = max(last_batch, row["batch"])
            del last[key]
    if last:
        raise TableError(
            f"{folders.table}: rows of {next(iter(last))} have no batch in the ledger; nothing was dropped",
            next_step=f"lockstep verify {folders.stream}",
        )
    return last_batch


def _read_counting(folders: StreamFolders, head: Head) -> Iterator[dict[str, Any]]:
    """The ledger rows that count, some batches at a time, after those of which retention has dropped the rows."""
    columns = ["generation", "batch", "topic_id", "partition", "until", "rows_emitted"]
    start = head.retention.batch + 1 if head.retention is not None else 0
    last_batches = head.valid_batches
    for first in range(start, head.batch + 1, BATCHES_A_READ):
        last = min(first + BATCHES_A_READ - 1, head.batch)
        rows = ledger.read_columns(folders.ledger, columns, first_batch=first, last_batch=last)
        yield from (row for row in rows.to_pylist() if row["batch"] <= last_batches.get(row["generation"], -1))


def _find_last_rows(table: Path, files: list[LiveFile]) -> dict[TopicIdPartition, RowPlace]:
    """The last row of each partition in some files."""
    last: dict[TopicIdPartition, RowPlace] = {}
    for file in files:
        path = table / file.path
        with pq.ParquetFile(find_storage(table).open_source(path), pre_buffer=False) as parquet:
            # The mark of a rewind has no rows, and so no segments.
            groups = parquet.num_row_groups if parquet.metadata.num_rows else 0
            for group in range(groups):
                segments = find_segments(parquet.read_row_group(group, columns=list(IDENTITY), use_threads=False))
                for number in range(len(segments.key)):
                    key = segments.partition(number)
                    last[key] = max(last.get(key, segments.closes(number)), segments.closes(number))
    return last
