"""Messages between driver and executor: JobSpec, BatchIdentity, PlannedRange, TaskSpec, TaskResult."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from lockstep.declare.decoders.base import Registry
from lockstep.model.finding import Finding, Hole
from lockstep.model.lookup_version import LookupVersion
from lockstep.model.message_counts import MessageCounts
from lockstep.model.position import Position, TopicIdPartition
from lockstep.model.state_loss import StateLoss
from lockstep.model.tuning import DEFAULT_TUNING, Tuning
from lockstep.storage import FileStatus
from lockstep.table.archive import ArchivedRange, WantedMessages
from lockstep.table.head import SideFile
from lockstep.table.parquet import DataFile


class LearnedRates(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of each partition from earlier batches; empty at the start of a run.

    Attributes:
        seconds_a_message: CPU seconds a message.
        bytes_a_message: Bytes of Parquet a message.
        bins_before: Bin in the previous batch.
    """

    seconds_a_message: Mapping[TopicIdPartition, float] = {}
    bytes_a_message: Mapping[TopicIdPartition, float] = {}
    bins_before: Mapping[TopicIdPartition, int] = {}


class PlannedRange(msgspec.Struct, frozen=True, gc=False):
    """One partition's range of the batch: an upper bound; a task may end it early.

    A range that Kafka no longer has is read from the archive, as a whole.

    Attributes:
        position: Start of the range.
        until: First offset after it.
        watermark_us: Watermark to which a partition without messages advances; None for one with messages.
        killing: Offsets whose worker died on every attempt; treated as undecodable.
        leader_epoch: Leader epoch of the partition at planning.
        single_batches: Fetches return one record batch each, because jobs with this range have failed.
        patient: The partition was silent in earlier batches: it is waited for longer.
        beyond: Number of further offsets that the task may read, if they have arrived when it reads.
        archived: Where the archive has the range; None if Kafka has it.
    """

    position: Position
    until: int
    watermark_us: int | None = None
    killing: tuple[int, ...] = ()
    leader_epoch: int | None = None
    single_batches: bool = False
    patient: bool = False
    beyond: int = 0
    archived: WantedMessages | None = None

    @property
    def messages(self) -> int:
        """Offsets in the range; at least as many as messages."""
        return self.until - self.position.next_offset


class JobSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that all tasks of a run share.

    Attributes:
        stream: The declaration, pickled by name.
        kafka: Settings of the reading consumer.
        table: Folder of the output table.
        quarantine: Folder of the quarantine.
        late: Folder of the late table.
        archive: Folder of the archive table.
        state: Folder of the durable state files.
        local_root: Folder on the executor for the local stores.
        registry: The installation's schema registry, if any.
        lookups: Folder of each lookup's table, by name.
        tuning: Intervals, attempts and sizes.
        worker_memory_bytes: Maximum memory of a Python worker; None for half of its machine's.
    """

    stream: bytes
    kafka: dict[str, str | int | float | bool]
    table: Path
    quarantine: Path
    late: Path
    archive: Path
    state: Path
    local_root: Path
    registry: Registry | None = None
    lookups: Mapping[str, Path] = {}
    tuning: Tuning = DEFAULT_TUNING
    worker_memory_bytes: int | None = None


class BatchIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a batch that are fixed before it is planned, until it is committed.

    Attributes:
        generation: Generation of the writer.
        epoch: Epoch of the writer.
        number: Number of the batch.
        commit_hour: Hour of its rows, "YYYY-MM-DDTHH" UTC.
        planned_at_us: Planning time, microseconds since 1970 (UTC); event times are judged by it.
        lookups: The pinned version of each lookup table.
        lookup_entries: The log entries of these versions, as the driver saw them: a table that was restored from a
            copy has the id of before, and may have other rows in a version of the same number.
        archives: Its tasks archive the messages that they read.
    """

    generation: int
    epoch: int
    number: int
    commit_hour: str
    planned_at_us: int = 0
    lookups: tuple[LookupVersion, ...] = ()
    lookup_entries: tuple[FileStatus | None, ...] = ()
    archives: bool = False


class TaskSpec(msgspec.Struct, frozen=True):
    """The work of one task in one batch."""

    batch: BatchIdentity
    ranges: tuple[PlannedRange, ...]


class AcceptedLoss(msgspec.Struct, frozen=True):
    """Lost messages of a session, as the declaration accepts (`Suspend(accept_loss=True)`).

    The ledger stores it without the session's name, so that an erasure need not rewrite every batch.

    Attributes:
        start: Offset of the first lost message.
        until: Offset of the snapshot that restarted the session.
    """

    start: int
    until: int


class RangeResult(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Result of a task for one range.

    Attributes:
        range: The range as planned.
        reached: Position of the partition after it: at the planned end, or earlier.
        counts: Messages by outcome.
        rows: Rows written.
        holes: Offsets without messages, with causes.
        first_event_time_us: Smallest event time.
        last_event_time_us: Largest event time.
        newest_timestamp_ms: Kafka's timestamp of the last record with a plausible one; None without any.
        state_bytes: Bytes of state written.
        state_checksum: CRC-32 of the segment that was written; None without one.
        cpu_seconds: CPU time of fold and state, without the range's share of reading.
        opened: Digests of sessions that started in the range and did not end, if the topic has more partitions.
        closed: Digests of sessions that ended in the range.
        accepted: Losses that the declaration accepts.
        losses: States that were discarded, and nothing replaced or emitted them.
        archived: The offsets that it has archived; None if all were archived before, or the stream has no archive.
        finding: The violation at the end that stopped the range, if any.
        trouble: Reason for an early end without a violation.
    """

    range: PlannedRange
    reached: Position
    counts: MessageCounts
    rows: int
    holes: tuple[Hole, ...]
    first_event_time_us: int | None
    last_event_time_us: int | None
    newest_timestamp_ms: int | None
    state_bytes: int
    cpu_seconds: float
    state_checksum: int | None = None
    opened: tuple[bytes, ...] = ()
    closed: tuple[bytes, ...] = ()
    accepted: tuple[AcceptedLoss, ...] = ()
    losses: tuple[StateLoss, ...] = ()
    archived: ArchivedRange | None = None
    finding: Finding | None = None
    trouble: str | None = None


class TaskResult(msgspec.Struct, frozen=True, tag=True):
    """Result of a task: its ranges and the files it wrote, synced and not yet referenced by a commit.

    Attributes:
        ranges: Ranges of the task; after a limit of the engine some may be missing.
        files: Files with rows.
        cpu_seconds: CPU time of the task.
        quarantine: Files of the quarantine.
        late: Files of the late table.
        archive: Files of the archive.
        is_cut: A limit of the engine ended ranges earlier: the rest is due immediately.
    """

    ranges: tuple[RangeResult, ...]
    files: tuple[DataFile, ...]
    cpu_seconds: float
    quarantine: tuple[SideFile, ...] = ()
    late: tuple[SideFile, ...] = ()
    archive: tuple[SideFile, ...] = ()
    is_cut: bool = False


def list_results(tasks: Iterable[TaskResult]) -> list[RangeResult]:
    """The results of the ranges of all tasks, task by task."""
    results = list[RangeResult]()
    for task in tasks:
        results += task.ranges
    return results


class TaskFailure(msgspec.Struct, frozen=True, tag=True):
    """A task failed with an error of lockstep. Nothing that it wrote counts.

    Attributes:
        error: The pickled LockstepError: the driver raises it unchanged, while Spark would only pass its text on.
    """

    error: bytes
