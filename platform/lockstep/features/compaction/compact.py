"""One compaction of a stream: closes the hour of an idle stream, then compacts ledger and table, within a budget."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from lockstep.declare.stream import AnyStream
from lockstep.features.compaction.ledger_files import FilesCompaction, LedgerBin, compact_ledger, plan_ledger
from lockstep.features.compaction.plan import CompactionPlan, plan_open_hour
from lockstep.features.compaction.run import (
    UNLIMITED,
    CompactionBudget,
    CompactionResult,
    Rewriter,
    compact_in_process,
    compact_stream,
    plan_stream,
)
from lockstep.features.compaction.side_files import (
    SideTableBin,
    compact_side_tables,
    plan_side_tables,
)
from lockstep.model.commit_hour import find_current_hour
from lockstep.operations.inspect.health import read_health
from lockstep.operations.lifecycle import close_hour
from lockstep.operations.plan_frame import Description, Labelled, Records, Unit
from lockstep.operations.stream_handle import StreamHandle
from lockstep.operations.stream_table import has_table, open_table
from lockstep.settings import Settings
from lockstep.storage import find_storage
from lockstep.table import delta_log
from lockstep.table.head import Head
from lockstep.table.layout import StreamFolders
from lockstep.table.live_files import TARGET_BYTES, LiveFiles
from lockstep.table.side_files import list_live_files

IDLE_SECONDS = 3600.0
"""A stream that has committed nothing for so long is idle. A batch in progress for the hour would lose to the close
and be planned again; one that takes longer than this is stalled, and has an alarm."""
CLEANED_UP_SECONDS = 86_400.0
"""Age of a batch whose log entry is gone: retention is an hour at least."""
SPARK_CPU_SECONDS = 20.0
"""Less work is done in the process of the run: a start of Spark costs about half of it."""
RUN_BYTES = 64_000_000_000
RUN_SECONDS = 2_700.0
"""Budget of a scheduled run: it ends before the next one is due, and leaves the rest to it."""
KAFKA_SECONDS_MAX = 5.0
LIVE_SECONDS = 60.0
"""A writer whose heartbeat is older is gone, and needs no machine."""


class StreamCompactionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a compaction of a stream.

    Attributes:
        stream: Name of the stream.
        closes_hour: The open hour that it would close first, as the stream is idle; empty for none.
        table: The output table.
        ledger: Hours of the ledger that would become one file each.
        side_tables: Hours of quarantine and late table, likewise.
    """

    stream: str
    closes_hour: str
    table: CompactionPlan
    ledger: tuple[LedgerBin, ...]
    side_tables: tuple[SideTableBin, ...] = ()

    def describe(self) -> Description:
        """Return its description, with the newest hours first."""
        table = self.table
        facts = (
            Labelled("closes hour", self.closes_hour, note="as the stream is idle" if self.closes_hour else ""),
            Labelled("files of the table", table.files_before),
            Labelled("they become", table.files_after),
            Labelled("bytes to rewrite", table.bytes, Unit.BYTES),
            Labelled("expected CPU time", table.cpu_seconds, Unit.SECONDS),
            Labelled("files of the ledger", sum(len(part.files) for part in self.ledger)),
            Labelled("ledger files afterwards", len(self.ledger)),
            Labelled("files of quarantine and late table", sum(len(part.files) for part in self.side_tables)),
            Labelled("side table files afterwards", len(self.side_tables)),
        )
        return Description(title=f"{self.stream}: compaction", facts=facts, records=self.list_records())

    def list_records(self) -> tuple[Records, ...]:
        """Return the hours to rewrite, and the files that stay."""
        return (
            Records.of("plan", reversed(self.table.bins), "commit_hour is_minor files size rows"),
            Records.of("left", self.table.left, "reason hours files bytes oldest_hour newest_hour"),
        )


class Compacted(msgspec.Struct, frozen=True, kw_only=True):
    """Results of a compaction.

    Attributes:
        plan: Its plan.
        table: Result of the output table.
        ledger: Result of the ledger.
        side_tables: Result of quarantine and late table.
    """

    plan: StreamCompactionPlan
    table: CompactionResult
    ledger: FilesCompaction
    side_tables: FilesCompaction = FilesCompaction()

    def describe(self) -> Description:
        """Return its description."""
        table = self.table
        facts = (
            Labelled("hours", ", ".join(table.hours)),
            Labelled("rows", table.rows),
            Labelled("planned files", self.plan.table.files_before),
            Labelled("planned CPU time", self.plan.table.cpu_seconds, Unit.SECONDS),
            Labelled("files before", table.files_before),
            Labelled("files after", table.files_after),
            Labelled("bytes before", table.bytes_before, Unit.BYTES),
            Labelled("bytes after", table.bytes_after, Unit.BYTES),
            Labelled("bins", table.bins, note=f"{table.minor_bins} of the open hour"),
            Labelled("bins lost", table.bins_lost),
            Labelled("bins postponed", table.bins_postponed, note=table.postponed_because),
            Labelled("CPU time", table.cpu_seconds, Unit.SECONDS),
            Labelled("seconds", table.seconds, Unit.SECONDS),
            Labelled("closed idle hour", self.plan.closes_hour),
            *_list_facts("ledger", self.ledger),
            *_list_facts("side table", self.side_tables),
        )
        return Description(title=f"{self.plan.stream}: compacted", facts=facts, records=self.plan.list_records())


def _list_facts(table: str, done: FilesCompaction) -> tuple[Labelled, ...]:
    return (
        Labelled(f"{table} hours", done.hours),
        Labelled(f"{table} files before", done.files_before),
        Labelled(f"{table} files after", done.files_after),
        Labelled(f"{table} rows", done.rows),
        Labelled(f"{table} bytes deleted", done.bytes_deleted, Unit.BYTES),
    )


def plan_compaction(folders: StreamFolders, *, target_bytes: int = TARGET_BYTES) -> StreamCompactionPlan:
    """What `compact` would do now. Changes nothing.

    Raises:
        NoTable: The stream has never run.
        TableError: The table does not match its head.
    """
    head = open_table(folders).base().head
    closes = find_idle_hour(head, find_current_hour(), _count_idle_seconds(folders, head))
    after = msgspec.structs.replace(head, closed_hour=max(head.closed_hour, closes))
    return StreamCompactionPlan(
        stream=folders.stream,
        closes_hour=closes,
        table=plan_stream(folders, after, target_bytes=target_bytes),
        ledger=plan_ledger(list_live_files(delta_log.open_delta_table(folders.ledger)), after),
        side_tables=plan_side_tables(folders, after),
    )


def compact(
    folders: StreamFolders,
    *,
    make_rewriter: Callable[[], Rewriter] = compact_in_process,
    target_bytes: int = TARGET_BYTES,
    budget: CompactionBudget = UNLIMITED,
) -> Compacted:
    """Compact a stream; safe while a writer runs.

    1. Plan; close the open hour of an idle stream, as nothing else would.
    2. Compact ledger, quarantine and late table first: a refused hour of the table must not let them grow.
    3. Compact the open hour of the table, if it has many files, and its closed hours.

    Args:
        folders: Folders of the stream.
        make_rewriter: Called only if much must be rewritten: a start of Spark costs more than most hours.
        target_bytes: Size of a compacted file at most, about.
        budget: The rest is left to the next run.

    Raises:
        NoTable: The stream has never run.
        CompactionRefused: Some hours could not be compacted; the others are done.
        TableError: The table does not match its head.
    """
    plan = plan_compaction(folders, target_bytes=target_bytes)  # 1
    if plan.closes_hour:
        close_hour(folders, plan.closes_hour)
    head = open_table(folders).base().head
    ledger = compact_ledger(folders, head)  # 2
    sides = compact_side_tables(folders, head)
    table = CompactionResult()
    if plan.table.bins:  # 3
        is_cheap = plan.table.cpu_seconds < SPARK_CPU_SECONDS
        rewriter = compact_in_process() if is_cheap else make_rewriter()
        table = compact_stream(folders, rewriter=rewriter, target_bytes=target_bytes, budget=budget)
    return Compacted(plan=plan, table=table, ledger=ledger, side_tables=sides)


def make_run_budget(stream: AnyStream, settings: Settings) -> CompactionBudget:
    """The budget of a scheduled run, which ends when the stream needs the machine."""
    return CompactionBudget(
        bytes=RUN_BYTES, seconds=RUN_SECONDS, find_hindrance=lambda: find_lag_hindrance(stream, settings)
    )


def find_lag_hindrance(stream: AnyStream, settings: Settings) -> str:
    """Why compaction yields: a full batch and more waits for a live writer; empty for no reason, or an unknown lag."""
    facts = read_health(StreamHandle(stream, settings, kafka_seconds_max=KAFKA_SECONDS_MAX)).facts
    lag = facts.lag_messages or 0
    limit = stream.limits.range_messages
    # A lag below a full batch is gone with the next one.
    if facts.writer_seconds is None or facts.writer_seconds > LIVE_SECONDS or lag <= limit:
        return ""
    return f"the stream lags: {lag} messages wait, and a batch takes {limit}"


def has_large_open_hour(folders: StreamFolders, *, target_bytes: int = TARGET_BYTES) -> bool:
    """Whether the open hour has so many small files that a minor compaction is due; false without a table."""
    if not has_table(folders):
        return False
    base = open_table(folders).base()
    return bool(plan_open_hour(LiveFiles(folders.table).at(base.version), base.head, target_bytes=target_bytes))


def find_idle_hour(head: Head, clock_hour: str, idle_seconds: float) -> str:
    """The open hour of a stream that is over by the clock, and whose last batch is long ago; empty for none. Pure.

    The next batch of a live writer belongs to a later hour, so that the close does not disturb it.
    """
    is_over = head.closed_hour < head.hour < clock_hour
    return head.hour if is_over and idle_seconds >= IDLE_SECONDS else ""


def _count_idle_seconds(folders: StreamFolders, head: Head) -> float:
    """Time since the newest batch, by the storage's clock; a day if its entry was cleaned up."""
    entry = delta_log.make_entry_path(folders.table, head.batch_version)
    status = find_storage(entry).get_status(entry)
    if status is None:
        return CLEANED_UP_SECONDS
    return time.time() - status.modified_at
