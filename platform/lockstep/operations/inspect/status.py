"""Status of a stream: desired state, writer, positions, lag, freshness, headroom, last halt."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import msgspec

from lockstep.engine.driver.handover import Phase, is_writer_alive, read_heartbeat
from lockstep.errors import KafkaError, LockstepError
from lockstep.integrity.resume_options import make_resume_command
from lockstep.kafka.admin import ClusterAdmin, ClusterView, find_oldest_unread, read_topic_settings
from lockstep.kafka.client import make_admin_client, make_reader_configuration
from lockstep.model.finding import Finding
from lockstep.operations.tables import NoTable, open_table
from lockstep.settings import KafkaSettings, Settings
from lockstep.table import delta_log
from lockstep.table.delta_log import Desired, Head, Resumption
from lockstep.table.layout import StreamFolders
from lockstep.table.ledger import LedgerRow, read_clock, read_positions

STREAMS_AT_ONCE = 16
"""Threads for streams: a status mostly waits for a heartbeat and for Kafka."""
OLDEST_SECONDS_MAX = 5.0
"""Timeout for the first unread message of each partition."""


class PartitionStatus(msgspec.Struct, frozen=True):
    """One partition.

    Attributes:
        topic: Name of the topic.
        partition: Partition number.
        position: Next offset to read.
        lag_messages: Offsets behind the high watermark; None while Kafka does not answer.
        headroom_seconds: Time until retention deletes the first unread message; None without one, without retention by
            time, or while Kafka does not answer.
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
        findings: The evidence, while halted.
        writer: "writing" or "draining" for a live writer, "gone" for one that stopped counting without recording its
            end, "ended", or "none" before the first run.
        generation: Generation of the lineage.
        epoch: Epoch of the writer that may commit.
        batch: Number of the last committed batch.
        hour: Its commit hour (UTC); empty before the first.
        closed_hour: Newest closed hour.
        lag_messages: Messages behind the high watermarks; None while Kafka does not answer.
        freshness_seconds: Age of the newest committed message; None without a recent one.
        headroom_seconds: The smallest of the partitions.
        last_resume: The last resume by an operator, from the ledger; None if never.
        partitions: Its partitions, by topic and number.
        kafka: Reason why Kafka did not answer; empty when it did.
        halted_at: Time of the halt's commit (UTC); None unless halted, or when the log no longer holds that entry.
        next_step: The command that ends the halt; empty unless halted.
    """

    stream: str
    desired: str
    reason: str
    findings: tuple[Finding, ...]
    writer: str
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
    halted_at: datetime | None = None
    next_step: str = ""


class StreamOverview(msgspec.Struct, frozen=True, kw_only=True):
    """Status of one stream in a list of all.

    Attributes:
        stream: Its name.
        desired: As in `Status`; "no table yet" before the first run, "unreadable" for a table that cannot be read.
        writer: As in `Status`.
        lag_messages: Messages behind the high watermarks; None while Kafka does not answer.
        freshness_seconds: Age of the newest committed message; None without a recent one.
        headroom_seconds: Time until retention deletes an unread message; None when none expires, or unknown.
        reason: Why it is halted, stopped or unreadable.
        next_step: The command that ends that.
        kafka: Reason why Kafka did not answer; empty when it did.
    """

    stream: str
    desired: str
    writer: str = "none"
    lag_messages: int | None = None
    freshness_seconds: float | None = None
    headroom_seconds: float | None = None
    reason: str = ""
    next_step: str = ""
    kafka: str = ""

    @property
    def needs_operator(self) -> bool:
        """Whether it is halted, or its table cannot be read."""
        return self.desired in {Desired.HALTED.value, UNREADABLE}


UNREADABLE = "unreadable"


class KafkaLook(msgspec.Struct, frozen=True):
    """Kafka's metadata of the topics of a ledger.

    Attributes:
        view: Ids and offsets; None while Kafka does not answer.
        expires_at: When retention removes the first unread message, in seconds since 1970, by (topic, partition).
        problem: Reason why Kafka did not answer; empty when it did.
    """

    view: ClusterView | None
    expires_at: Mapping[tuple[str, int], float]
    problem: str


def read_overview(streams: Iterable[str], settings: Settings) -> tuple[StreamOverview, ...]:
    """Status of all these streams, by name; read in parallel."""
    with ThreadPoolExecutor(max_workers=STREAMS_AT_ONCE, thread_name_prefix="status") as pool:
        return tuple(pool.map(lambda name: _overview(name, settings), sorted(streams)))


def _overview(stream: str, settings: Settings) -> StreamOverview:
    try:
        found = read_status(stream, settings)
    except NoTable as none:
        return StreamOverview(stream=stream, desired="no table yet", next_step=none.next_step)
    except LockstepError as error:
        return StreamOverview(stream=stream, desired=UNREADABLE, reason=error.problem, next_step=error.next_step)
    return StreamOverview(
        stream=stream,
        desired=found.desired,
        writer=found.writer,
        lag_messages=found.lag_messages,
        freshness_seconds=found.freshness_seconds,
        headroom_seconds=found.headroom_seconds,
        reason=found.reason,
        next_step=found.next_step,
        kafka=found.kafka,
    )


def read_status(stream: str, settings: Settings) -> Status:
    """Read the status of a stream. Takes one to three seconds, to see whether the writer's counter moves.

    Raises:
        NoTable: The stream has never run.
        TableError: The table does not match its head.
    """
    folders = StreamFolders(stream, settings.table_root)
    head = open_table(folders).base().head
    read = (row for row in read_positions(folders, head).values() if not row.retired)
    rows = sorted(read, key=lambda row: (row.topic, row.partition))
    seen = _look(settings.kafka, rows)
    partitions = tuple(_partition(row, seen) for row in rows)
    lags = [item.lag_messages for item in partitions if item.lag_messages is not None]
    headroom = [item.headroom_seconds for item in partitions if item.headroom_seconds is not None]
    return Status(
        stream=stream,
        desired=head.desired.value,
        reason=head.reason,
        findings=head.findings,
        writer=find_writer(folders, head.epoch),
        generation=head.generation,
        epoch=head.epoch,
        batch=head.batch,
        hour=head.hour,
        closed_hour=head.closed_hour,
        lag_messages=sum(lags) if seen.view is not None else None,
        freshness_seconds=_freshness(rows),
        headroom_seconds=min(headroom, default=None),
        last_resume=_last_resume(head.last_resumption),
        partitions=partitions,
        kafka=seen.problem,
        halted_at=_halted_at(folders, head),
        next_step=make_resume_command(stream, head.findings) if head.desired is Desired.HALTED else "",
    )


def _halted_at(folders: StreamFolders, head: Head) -> datetime | None:
    """Time of the halt. The halt is the last batch: only a resume is committed as a batch after it."""
    entry = delta_log.read_entry(folders.table, head.batch_version) if head.desired is Desired.HALTED else None
    return None if entry is None else entry.written_at


def find_writer(folders: StreamFolders, epoch: int) -> str:
    """State of an epoch's writer, after observing its counter."""
    last = read_heartbeat(folders.control, epoch)
    if last is None:
        return "none"
    if last.phase is Phase.ENDED:
        return Phase.ENDED.value
    if is_writer_alive(folders.control, epoch):
        return str(last.phase.value)
    after = read_heartbeat(folders.control, epoch)
    return Phase.ENDED.value if after is not None and after.phase is Phase.ENDED else "gone"


def _look(kafka: KafkaSettings, rows: Iterable[LedgerRow]) -> KafkaLook:
    """Read offsets; then, for partitions with lag, age and expiry of their first unread message."""
    rows = list(rows)
    admin = make_admin_client(kafka)
    try:
        view = ClusterAdmin(admin, kafka.timeout_seconds).view({row.topic for row in rows})
        lagging = {(row.topic, row.partition): row.until for row in rows if _lag(row, view)}
        retained = {
            kept.topic: int(kept.settings.get("retention.ms", "-1"))
            for kept in read_topic_settings(admin, {topic for topic, _ in lagging}, kafka.timeout_seconds)
        }
        ending = {place: offset for place, offset in lagging.items() if retained[place[0]] >= 0}
        oldest = find_oldest_unread(make_reader_configuration(kafka), ending, OLDEST_SECONDS_MAX)
    except KafkaError as error:
        return KafkaLook(None, {}, error.problem)
    expires = {place: (timestamp + retained[place[0]]) / 1000 for place, timestamp in oldest.items()}
    return KafkaLook(view, expires, "")


def _partition(row: LedgerRow, seen: KafkaLook) -> PartitionStatus:
    lag = _lag(row, seen.view) if seen.view is not None else None
    expires = seen.expires_at.get((row.topic, row.partition))
    headroom = None if expires is None else expires - time.time()
    return PartitionStatus(row.topic, row.partition, row.until, lag, headroom)


def _lag(row: LedgerRow, view: ClusterView) -> int | None:
    ends = view.ends.get((row.topic_id, row.partition))
    return None if ends is None else ends.compute_lag(row.until)


def _freshness(rows: Iterable[LedgerRow]) -> float | None:
    newest: list[datetime] = [row.newest_timestamp for row in rows if row.newest_timestamp is not None]
    return max(0.0, (read_clock() - max(newest)).total_seconds()) if newest else None


def _last_resume(last: Resumption | None) -> str | None:
    if last is None:
        return None
    return f"batch {last.batch}, {datetime.fromtimestamp(last.at, UTC):%Y-%m-%d %H:%M:%S} UTC: {last.cause}"
