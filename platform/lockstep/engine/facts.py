"""What travels between driver and tasks: jobs out, facts back. Nothing else does."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from lockstep.declare.decoders.registry import Registry
from lockstep.engine.plan import PlannedRange
from lockstep.integrity.finding import Finding, Hole
from lockstep.integrity.suspending import SuspendedSession
from lockstep.state.address import SectionRef
from lockstep.table.files import DataFile
from lockstep.table.head import SideFile


class Job(msgspec.Struct, frozen=True, kw_only=True):
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


class BinTask(msgspec.Struct, frozen=True, kw_only=True):
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


class RangeFacts(msgspec.Struct, frozen=True, kw_only=True):
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
    state: SectionRef | None
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


class BinFacts(msgspec.Struct, frozen=True, tag=True):
    """What a task did: its ranges and the files it wrote, synced and named by nobody yet."""

    ranges: tuple[RangeFacts, ...]
    files: tuple[DataFile, ...]
    cpu_seconds: float
    quarantine: tuple[SideFile, ...] = ()
    late: tuple[SideFile, ...] = ()


class Failed(msgspec.Struct, frozen=True, tag=True):
    """A task ended before its bin did, of what lockstep has a name for. Nothing was written that counts.

    Attributes:
        error: The LockstepError, pickled: the driver raises it as it was, while Spark would only give its text.
    """

    error: bytes


def event_time(microseconds: int | None) -> datetime | None:
    """Microseconds since 1970 as a time; None stays None, and so does what no calendar holds."""
    if microseconds is None:
        return None
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)
    except OverflowError:
        return None
