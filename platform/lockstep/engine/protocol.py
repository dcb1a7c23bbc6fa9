"""What travels between driver and executor: JobSpec, TaskSpec, TaskResult, Position, PlannedRange."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from lockstep.declare.decoders.base import Registry
from lockstep.integrity.suspension import SuspendedSession
from lockstep.model.finding import Finding, Hole, Key
from lockstep.state.changelog import SegmentRef
from lockstep.table.delta_log import SideFile
from lockstep.table.parquet import DataFile


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a partition before a batch.

    Attributes:
        topic: Name of the topic.
        topic_id: Id of this life of the topic.
        partition: Partition number.
        next_offset: First offset not yet committed.
        leader_epoch: Leader epoch of the last record read.
        state: The section that holds the newest change of its state; None while it has none.
        suspended_from: Sessions that began before this offset are suspended until their next snapshot.
        watermark_us: Event time that the partition has come to; None while it has seen none.
        rows_emitted: Rows that timers emitted at `next_offset` already, while nothing had come.
        is_only: The topic has no other partition.
        suspended_sessions: Those that an operator skips until their next snapshot.
        catching_up: The log was cut below this position, and an operator accepted that: what is appended below it
            is passed over.
    """

    topic: str
    topic_id: str
    partition: int
    next_offset: int
    leader_epoch: int | None = None
    state: SegmentRef | None = None
    suspended_from: int = 0
    watermark_us: int | None = None
    rows_emitted: int = 0
    is_only: bool = True
    suspended_sessions: tuple[SuspendedSession, ...] = ()
    catching_up: bool = False

    @property
    def key(self) -> Key:
        """(topic id, partition)."""
        return self.topic_id, self.partition


class LearnedRates(msgspec.Struct, frozen=True, kw_only=True):
    """What the batches before have shown of each partition; empty at the start of a run.

    Attributes:
        seconds_a_message: CPU seconds a message.
        bytes_a_message: Bytes of Parquet a message.
        bins_before: Bin in the batch before.
    """

    seconds_a_message: Mapping[Key, float] = {}
    bytes_a_message: Mapping[Key, float] = {}
    bins_before: Mapping[Key, int] = {}


class PlannedRange(msgspec.Struct, frozen=True):
    """One partition's part of the batch: an upper bound; a task may end it early.

    Attributes:
        position: Where it begins.
        until: First offset after it.
        watermark_us: Event time to which a partition without messages moves on; None for one with messages.
        killing: Offsets in it that ended their worker each time; they are handled as undecodable.
        leader_epoch: Of the partition's leader when it was planned.
        single_batches: It is read one record batch a fetch, because jobs with it have failed.
    """

    position: Position
    until: int
    watermark_us: int | None = None
    killing: tuple[int, ...] = ()
    leader_epoch: int | None = None
    single_batches: bool = False

    @property
    def messages(self) -> int:
        """Offsets in the range; at least as many as messages."""
        return self.until - self.position.next_offset


class JobSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What all tasks of a run share.

    Attributes:
        stream: The declaration, pickled by name.
        kafka: Settings of the reading consumer.
        table: Folder of the output table.
        quarantine: Folder of the quarantine.
        late: Folder of the late table.
        state: Folder of the durable state files.
        hot: Folder on the executor for the hot copy of state.
        registry: The installation's schema registry, where it has one.
    """

    stream: bytes
    kafka: dict[str, str | int | float | bool]
    table: Path
    quarantine: Path
    late: Path
    state: Path
    hot: Path
    registry: Registry | None = None


class TaskSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The work of one task in one batch."""

    generation: int
    epoch: int
    number: int
    commit_hour: str
    planned_at_us: int
    ranges: tuple[PlannedRange, ...]


class Counts(msgspec.Struct):
    """Messages of a range by what became of them; they add up to `messages` and `released`.

    Attributes:
        messages: Read.
        with_rows: Accepted, gave rows.
        without_rows: Accepted, gave none.
        skipped: Of kind SKIP.
        dropped: Neither applied nor kept: repeated, late, or undecodable under NoIntegrity.
        quarantined: Kept in quarantine, not applied.
        repeats: Noticed as repeated or going back, accepted or dropped.
        gaps: Noticed as following a gap: accepted, or in quarantine where it suspends its session.
        refused: Of the quarantined: undecodable, or the transform raised.
        late: Kept in the late table, not applied.
        buffered: Held back, for a later range to apply.
        released: Held back by an earlier range, and no longer: they are counted under what became of them, too.
        timer_rows: Times that a timer, or the end of a silent session, emitted rows.
    """

    messages: int = 0
    with_rows: int = 0
    without_rows: int = 0
    skipped: int = 0
    dropped: int = 0
    quarantined: int = 0
    repeats: int = 0
    gaps: int = 0
    refused: int = 0
    late: int = 0
    buffered: int = 0
    released: int = 0
    timer_rows: int = 0

    @property
    def accounted(self) -> int:
        """Messages of this range of which it is known what became of them."""
        became = self.with_rows + self.without_rows + self.skipped + self.dropped + self.quarantined
        return became + self.late + self.buffered - self.released


class AcceptedLoss(msgspec.Struct, frozen=True):
    """Messages of a session that are lost, as the declaration accepts (`Suspend(accept_loss=True)`).

    Attributes:
        session: The session.
        start: The first offset at which one was lost.
        until: Offset of the snapshot that began the session anew.
    """

    session: str
    start: int
    until: int


class RangeResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a task did with one range.

    Attributes:
        range: The range as planned.
        until: First offset not processed; the planned one, or earlier.
        counts: Messages by what became of them.
        rows: Rows written.
        holes: Offsets without messages, each with its cause.
        leader_epoch: Leader epoch of the last record.
        first_event_time_us: Smallest event time.
        last_event_time_us: Largest event time.
        newest_timestamp_ms: Kafka's timestamp of the last record.
        state: The section of its newest state change.
        state_bytes: Bytes written for its state.
        cpu_seconds: CPU time of fold and state, its share of the reading left out.
        suspended_from: Sessions that began before this offset are suspended.
        watermark_us: Event time that the partition has come to.
        rows_emitted: Rows that timers emitted at `until`.
        opened: Digests of the sessions that began in the range and did not end, where the topic has more partitions.
        closed: Digests of those that ended.
        accepted: Losses that the declaration accepts.
        suspended_sessions: Those that an operator skips, and that no snapshot has begun anew yet.
        finding: The violation at `until`, where the range stopped for one.
        trouble: Why the range ended early without a violation.
    """

    range: PlannedRange
    until: int
    counts: Counts
    rows: int
    holes: tuple[Hole, ...]
    leader_epoch: int | None
    first_event_time_us: int | None
    last_event_time_us: int | None
    newest_timestamp_ms: int | None
    state: SegmentRef | None
    state_bytes: int
    cpu_seconds: float
    suspended_from: int = 0
    watermark_us: int | None = None
    rows_emitted: int = 0
    opened: tuple[bytes, ...] = ()
    closed: tuple[bytes, ...] = ()
    accepted: tuple[AcceptedLoss, ...] = ()
    suspended_sessions: tuple[SuspendedSession, ...] = ()
    finding: Finding | None = None
    trouble: str | None = None


class TaskResult(msgspec.Struct, frozen=True, tag=True):
    """What a task did: its ranges and the files it wrote, synced and named by nobody yet."""

    ranges: tuple[RangeResult, ...]
    files: tuple[DataFile, ...]
    cpu_seconds: float
    quarantine: tuple[SideFile, ...] = ()
    late: tuple[SideFile, ...] = ()


class TaskFailure(msgspec.Struct, frozen=True, tag=True):
    """A task ended before its bin did, of what lockstep has a name for. Nothing was written that counts.

    Attributes:
        error: The LockstepError, pickled: the driver raises it as it was, while Spark would only give its text.
    """

    error: bytes


def to_event_time(microseconds: int | None) -> datetime | None:
    """Microseconds since 1970 as a time; None stays None, and so does what no calendar holds."""
    if microseconds is None:
        return None
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)
    except OverflowError:
        return None
