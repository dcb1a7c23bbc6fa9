"""Where a stream stands: the head, and each partition's position and lag."""

from __future__ import annotations

import msgspec

from lockstep.engine.liveness import Phase, pulse
from lockstep.errors import KafkaError, LockstepError
from lockstep.kafka.client import admin_client
from lockstep.kafka.discovery import ClusterView, Discovery
from lockstep.settings import Settings
from lockstep.table import log
from lockstep.table.commit import OutputLog
from lockstep.table.head import Head
from lockstep.table.layout import StreamFolders
from lockstep.table.ledger import LedgerRow, positions


class PartitionStatus(msgspec.Struct, frozen=True):
    """One partition.

    Attributes:
        topic: Name of the topic.
        partition: Partition number.
        position: Next offset to read.
        lag_messages: Offsets behind the high watermark; None while Kafka does not answer.
    """

    topic: str
    partition: int
    position: int
    lag_messages: int | None


class Status(msgspec.Struct, frozen=True):
    """One stream.

    Attributes:
        head: The head of its table.
        writer: What the holder of the epoch last said of itself: "writing", "draining", "ended"
            or "none". A writer that was killed cannot take its word back.
        partitions: Its partitions, by topic and number.
        kafka: Why Kafka could not be asked; empty when it was.
    """

    head: Head
    writer: str
    partitions: tuple[PartitionStatus, ...]
    kafka: str


def status(stream: str, settings: Settings) -> Status:
    """Read the status of a stream.

    Raises:
        LockstepError: The stream has no table yet.
        TableError: The table is not as its head says.
    """
    folders = StreamFolders(stream, settings.table_root)
    if not log.exists(folders.table):
        raise LockstepError(
            f"stream {stream} has no table yet in {settings.table_root}", next_step=f"lockstep run {stream}"
        )
    head = OutputLog(folders.table).base().head
    rows = sorted(positions(folders.ledger, head).values(), key=lambda row: (row.topic, row.partition))
    view, problem = _view(settings, frozenset(row.topic for row in rows))
    last = pulse(folders.control, head.epoch)
    return Status(
        head=head,
        writer=(last.phase if last is not None else Phase.ENDED).value,
        partitions=tuple(_partition(row, view) for row in rows),
        kafka=problem,
    )


def _view(settings: Settings, topics: frozenset[str]) -> tuple[ClusterView | None, str]:
    try:
        return Discovery(admin_client(settings.kafka), settings.kafka.timeout_seconds).view(topics), ""
    except KafkaError as error:
        return None, error.problem


def _partition(row: LedgerRow, view: ClusterView | None) -> PartitionStatus:
    ends = view.ends.get((row.topic_id, row.partition)) if view is not None else None
    lag = None if ends is None else max(0, ends.high_watermark - row.until)
    return PartitionStatus(row.topic, row.partition, row.until, lag)
