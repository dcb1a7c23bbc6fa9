"""Status of a stream: desired state, writer, positions, lag, freshness, headroom, last halt."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import msgspec

from lockstep.control.heartbeat import WriterState, find_writer
from lockstep.control.live_report import LiveRates, compute_rates, read_live_report
from lockstep.declare.derived import Derived
from lockstep.declare.stream import AnyStream
from lockstep.integrity.resume_options import make_resume_command
from lockstep.model.code_version import CodeVersion
from lockstep.model.finding import Finding
from lockstep.model.position import TopicIdPartition
from lockstep.operations.alarms import (
    CLOCK_SECONDS_MAX,
    NO_DEBT,
    Alarm,
    AlarmKind,
    CompactionDebt,
    make_unreadable_alarm,
)
from lockstep.operations.followers import DeclaredFollowers, FollowerStatus, read_followers
from lockstep.operations.growth import DiskGrowth, read_growth
from lockstep.operations.inspect.endings import EndedTopic, list_ended
from lockstep.operations.inspect.health import UNREADABLE_ERRORS, describe_unreadable, read_known_health
from lockstep.operations.inspect.lookups import LookupStatus, read_lookups
from lockstep.operations.inspect.partition_figures import PartitionFigures
from lockstep.operations.inspect.suspensions import PartitionSuspension, list_suspensions
from lockstep.operations.inspect.undeclared import UndeclaredTable, find_undeclared_tables
from lockstep.operations.stream_handle import StreamHandle
from lockstep.operations.stream_table import NoTable
from lockstep.settings import Settings
from lockstep.table import delta_log
from lockstep.table.head import Desired, Head, Resumption
from lockstep.table.layout import StreamFolders
from lockstep.table.ledger import LedgerRow
from lockstep.table.losses import NONE_LOST, LostStates

RATE_SECONDS = 60.0
"""Window of the rates."""
STREAMS_AT_ONCE = 16
"""Threads for streams: a status mostly waits for a heartbeat and for Kafka."""


class PartitionStatus(msgspec.Struct, frozen=True):
    """One partition.

    Attributes:
        topic: Name of the topic.
        partition: Partition number.
        position: Next offset to read.
        lag_messages: Offsets behind the high watermark; None while Kafka does not answer.
        headroom_seconds: Time until retention deletes an unread message; None without retention by age, or while Kafka
            does not answer.
    """

    topic: str
    partition: int
    position: int
    lag_messages: int | None
    headroom_seconds: float | None


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """One stream.

    Attributes:
        stream: Its name.
        desired: "running", "bounded", "stopped", "held" or "halted".
        reason: Reason of the desired state.
        findings: The evidence, while the stream or topics of it are halted.
        halted_topics: Names of the topics that are halted by themselves, while the stream continues.
        writer: State of the writer of the head's epoch.
        generation: Generation of the lineage.
        epoch: Epoch of the writer that may commit.
        batch: Number of the last committed batch.
        hour: Its commit hour (UTC); empty before the first.
        closed_hour: Newest closed hour.
        lag_messages: Messages behind the high watermarks, in the topics that it reads or will read; None while Kafka
            does not answer.
        freshness_seconds: Age of the newest committed message; None without a recent one.
        headroom_seconds: The smallest of their partitions.
        last_resume: The last resume by an operator, from the ledger; None if never.
        partitions: Its partitions, by topic and number.
        kafka: Reason why Kafka did not answer; empty when it did.
        alarms: What somebody must act on, errors first (docs/health.md).
        unknown: Alarms that could neither be raised nor ruled out, because Kafka did not answer.
        halted_at: Time of the halt's commit (UTC); None unless halted, or when the log no longer holds that entry.
        next_step: The command that ends the halt, or those of topics; empty unless halted.
        dropped: Rows that retention has dropped, why and by whom; empty while none were.
        dropped_messages: Messages that retention has dropped from quarantine and late table, likewise.
        debt: Closed hours that wait for compaction.
        growth: Files and bytes by kind, with a forecast, as of the newest housekeeping; None before the first.
        followers: The derived tables, exports and other followers that read it.
        suspensions: Partitions all of whose sessions were suspended, each until its next snapshot.
        ahead_seconds: How far the timestamp of the newest committed message is in the future: freshness means nothing
            until then. 0 if it is not.
        lookups: The tables that it looks up.
        lost: States that were lost, and the unaccepted part of them.
        code: The version of the user's code that the newest run imports; None if it imports files that may change.
        ended: Topics that were deleted or re-created, until they are forgotten.
        rates: The work of the writer over the last minute; None without a live one.
        absurd_timestamps: See `HealthFacts`.
        absent_removals: See `HealthFacts`.
    """

    stream: str
    desired: str
    reason: str
    findings: tuple[Finding, ...]
    writer: WriterState
    generation: int
    epoch: int
    batch: int
    hour: str
    closed_hour: str
    lag_messages: int | None
    freshness_seconds: float | None
    headroom_seconds: float | None
    last_resume: str | None
    partitions: tuple[PartitionStatus, ...]
    kafka: str
    alarms: tuple[Alarm, ...] = ()
    unknown: tuple[AlarmKind, ...] = ()
    halted_at: datetime | None = None
    next_step: str = ""
    dropped: str = ""
    dropped_messages: str = ""
    debt: CompactionDebt = NO_DEBT
    growth: DiskGrowth | None = None
    followers: tuple[FollowerStatus, ...] = ()
    suspensions: tuple[PartitionSuspension, ...] = ()
    ahead_seconds: float = 0.0
    absurd_timestamps: int = 0
    absent_removals: int = 0
    lookups: tuple[LookupStatus, ...] = ()
    halted_topics: tuple[str, ...] = ()
    lost: LostStates = NONE_LOST
    ended: tuple[EndedTopic, ...] = ()
    code: CodeVersion | None = None
    rates: LiveRates | None = None


class StreamOverview(msgspec.Struct, frozen=True, kw_only=True):
    """Status of one stream in a list of all.

    Attributes:
        stream: Its name.
        desired: As in `Status`; "no table yet" before the first run, "unreadable" for a table that cannot be read.
        writer: As in `Status`.
        lag_messages: Messages behind the high watermarks; None while Kafka does not answer.
        freshness_seconds: Age of the newest committed message; None without a recent one.
        headroom_seconds: Time until retention deletes an unread message; None without retention by age, or unknown.
        reason: Why it is halted, stopped or unreadable.
        next_step: The command that ends that.
        kafka: Reason why Kafka did not answer; empty when it did.
        alarms: As in `Status`.
        unknown: As in `Status`.
        followers: As in `Status`.
        is_declared: Whether assets/ declares it: a table whose declaration is gone is listed, too.
    """

    stream: str
    desired: str
    writer: WriterState = WriterState.NONE
    lag_messages: int | None = None
    freshness_seconds: float | None = None
    headroom_seconds: float | None = None
    reason: str = ""
    next_step: str = ""
    kafka: str = ""
    alarms: tuple[Alarm, ...] = ()
    unknown: tuple[AlarmKind, ...] = ()
    followers: tuple[FollowerStatus, ...] = ()
    is_declared: bool = True

    @property
    def needs_operator(self) -> bool:
        """Whether it is halted, or its table cannot be read."""
        return self.desired in {Desired.HALTED.value, UNREADABLE}


UNREADABLE = "unreadable"


def read_overview(
    streams: Iterable[AnyStream], settings: Settings, derived: Iterable[Derived] = ()
) -> tuple[StreamOverview, ...]:
    """Status of all these streams, by name, and of their followers; read in parallel.

    Tables of no declared stream follow, as far as their heads tell.
    """
    handles = [StreamHandle(stream, settings) for stream in sorted(streams, key=lambda stream: stream.name)]
    # Threads: a status mostly waits for a heartbeat and for Kafka.
    with ThreadPoolExecutor(max_workers=STREAMS_AT_ONCE, thread_name_prefix="status") as pool:
        of_root = DeclaredFollowers(
            tuple(each.stream for each in handles), tuple(derived), settings.table_root, settings.target_file_bytes
        )
        followers = pool.submit(read_followers, of_root)
        undeclared = pool.submit(find_undeclared_tables, {each.stream.name for each in handles}, settings.table_root)
        overviews = list[StreamOverview]()
        for overview in list(pool.map(_overview, handles)):
            of_stream = _choose_from(followers.result(), overview.stream)
            overviews.append(msgspec.structs.replace(overview, followers=of_stream))
        return (*overviews, *map(_show_undeclared, undeclared.result()))


def _show_undeclared(found: UndeclaredTable) -> StreamOverview:
    return StreamOverview(
        stream=found.name,
        desired=found.desired,
        writer=found.writer,
        reason=found.problem,
        next_step=found.next_step,
        is_declared=False,
    )


def _choose_from(followers: Iterable[FollowerStatus], stream: str) -> tuple[FollowerStatus, ...]:
    return tuple(each for each in followers if stream in each.sources)


def _overview(handle: StreamHandle) -> StreamOverview:
    stream = handle.stream.name
    try:
        status = read_status(handle)
    except NoTable as none:
        return StreamOverview(stream=stream, desired="no table yet", next_step=none.next_step)
    except UNREADABLE_ERRORS as error:
        problem, step = describe_unreadable(error, stream)
        alarms = (make_unreadable_alarm(problem, step),)
        return StreamOverview(stream=stream, desired=UNREADABLE, reason=problem, next_step=step, alarms=alarms)
    return StreamOverview(
        stream=stream,
        desired=status.desired,
        writer=status.writer,
        lag_messages=status.lag_messages,
        freshness_seconds=status.freshness_seconds,
        headroom_seconds=status.headroom_seconds,
        reason=status.reason,
        next_step=status.next_step,
        kafka=status.kafka,
        alarms=status.alarms,
        unknown=status.unknown,
    )


def read_status(handle: StreamHandle, derived: Iterable[Derived] = ()) -> Status:
    """Read the status of a stream. Takes one to three seconds, to see whether the writer's counter moves.

    Args:
        handle: The stream.
        derived: The declared derived tables; those that read the stream are shown.

    Raises:
        NoTable: The stream has never run.
        TableError: The table does not match its head.
    """
    head = handle.require_head()
    facts = (health := read_known_health(handle, head)).facts
    return Status(
        stream=head.stream,
        desired=head.desired.value,
        reason=head.reason,
        findings=head.all_findings,
        halted_topics=tuple(sorted(each.topic for each in head.halted_topics)),
        writer=find_writer(handle.folders.control, head.epoch),
        generation=head.generation,
        epoch=head.epoch,
        batch=head.batch,
        hour=head.hour,
        closed_hour=head.closed_hour,
        lag_messages=facts.lag_messages,
        freshness_seconds=facts.freshness_seconds,
        headroom_seconds=facts.headroom_seconds,
        last_resume=_last_resume(head.last_resumption),
        partitions=tuple(_partition(row, health.figures) for row in handle.subscribed),
        kafka=facts.kafka,
        alarms=health.alarms,
        unknown=facts.unknown,
        halted_at=_halted_at(handle.folders, head),
        next_step=make_resume_command(head.stream, head.all_findings) if head.all_findings else facts.next_step,
        dropped="" if head.retention is None else head.retention.describe(),
        dropped_messages="" if head.quarantine_retention is None else head.quarantine_retention.describe(),
        debt=facts.debt,
        growth=read_growth(handle.folders),
        followers=_read_followers(handle, derived),
        suspensions=() if handle.stream.integrity.passes_unknown_sessions else list_suspensions(handle.subscribed),
        ahead_seconds=_find_ahead_seconds(handle.subscribed),
        absurd_timestamps=facts.absurd_timestamps,
        absent_removals=facts.absent_removals,
        lookups=read_lookups(handle),
        lost=head.lost,
        code=head.code_version,
        ended=list_ended(handle.positions.values()),
        rates=_read_rates(handle.folders, head) if facts.is_written else None,
    )


def _read_followers(handle: StreamHandle, derived: Iterable[Derived]) -> tuple[FollowerStatus, ...]:
    """The followers of one stream."""
    settings = handle.settings
    declared = DeclaredFollowers((handle.stream,), tuple(derived), settings.table_root, settings.target_file_bytes)
    return _choose_from(read_followers(declared), handle.stream.name)


def _read_rates(folders: StreamFolders, head: Head) -> LiveRates | None:
    report = read_live_report(folders.control, head.epoch)
    if report is None:
        return None
    return compute_rates(report, time.time(), RATE_SECONDS)


def _halted_at(folders: StreamFolders, head: Head) -> datetime | None:
    """Time of the halt. The halt is the last batch: only a resume is committed as a batch after it."""
    entry = delta_log.read_entry(folders.table, head.batch_version) if head.desired is Desired.HALTED else None
    return None if entry is None else entry.written_at


def _find_ahead_seconds(rows: Iterable[LedgerRow]) -> float:
    newest = max((row.newest_timestamp for row in rows if row.newest_timestamp is not None), default=None)
    ahead = 0.0 if newest is None else (newest - datetime.now(UTC)).total_seconds()
    return ahead if ahead > CLOCK_SECONDS_MAX else 0.0


def _partition(row: LedgerRow, known: Mapping[TopicIdPartition, PartitionFigures]) -> PartitionStatus:
    figures = known.get(row.key)
    if figures is None:
        return PartitionStatus(row.topic, row.partition, row.until, None, None)
    return PartitionStatus(row.topic, row.partition, row.until, figures.lag_messages, figures.headroom_seconds)


def _last_resume(last: Resumption | None) -> str | None:
    if last is None:
        return None
    return f"batch {last.batch}, {datetime.fromtimestamp(last.at, UTC):%Y-%m-%d %H:%M:%S} UTC: {last.cause}"
