"""The topics of a stream: what is wanted, what is subscribed, and where each is in its life. Reads only."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from enum import Enum

import msgspec

from lockstep.engine.hands import AnyStream
from lockstep.kafka.client import admin_client
from lockstep.kafka.discovery import ClusterView, Discovery, Topic
from lockstep.kafka.newest import newest_timestamps
from lockstep.kafka.topic_settings import topic_settings
from lockstep.operations.opened import head_or_none
from lockstep.settings import Settings
from lockstep.table import ledger
from lockstep.table.layout import StreamFolders
from lockstep.table.ledger import LedgerRow

ACTIVE_SECONDS = 60.0
"""A topic that is read to its end and had no message for so long is idle; shorter, it is between two messages."""


class Life(Enum):
    """Where a topic is in its life, as the stream sees it."""

    NEW = "new"
    """Wanted, and not in the ledger yet: the next run reads it from its first offset."""
    ACTIVE = "active"
    """Behind, or with a message within the last minute."""
    IDLE = "idle"
    """Read to its end, and quiet."""
    DRAINED = "drained"
    """Read to its end, and quiet for longer than `Topics(inactive_after=...)`."""
    UNWANTED = "unwanted"
    """In the ledger, and not selected by the pattern any more; its position is kept."""
    DELETED = "deleted"
    """In the ledger, and not in Kafka."""
    RECREATED = "re-created"
    """In Kafka under another topic id than in the ledger."""


class TopicStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One topic.

    Attributes:
        topic: Its name.
        state: Where it is in its life: see `Life`.
        partitions: Number of partitions in Kafka; in the ledger when it is not in Kafka.
        position: Messages and holes read, summed over its partitions' next offsets.
        lag_messages: Behind the high watermarks; None when it is not in Kafka.
        retention_seconds: How long messages stay; None for ever, or when it is not in Kafka.
        last_message: Time of the newest message (UTC); None without one.
        topic_id: Kafka's id of the life that is read, or would be.
    """

    topic: str
    state: str
    partitions: int
    position: int
    lag_messages: int | None
    retention_seconds: float | None
    last_message: datetime | None
    topic_id: str


class TopicsOfStream(msgspec.Struct, frozen=True):
    """All topics of a stream.

    Attributes:
        stream: Name of the stream.
        pattern: What a topic's name must match.
        wanted: Number of topics in Kafka that the pattern selects.
        subscribed: Number of topics in the ledger.
        topics: By name.
    """

    stream: str
    pattern: str
    wanted: int
    subscribed: int
    topics: tuple[TopicStatus, ...]


class _Cluster(msgspec.Struct, frozen=True):
    """What Kafka says: ids and offsets, retention by topic, newest message by topic."""

    view: ClusterView
    retention: dict[str, float | None]
    newest: dict[str, datetime]


def topics_of(stream: AnyStream, settings: Settings) -> TopicsOfStream:
    """Compare the ledger with Kafka, topic by topic.

    Raises:
        KafkaError: Kafka does not answer; that is never "no topics".
        TableError: The table is not as its head says.
    """
    folders = StreamFolders(stream.name, settings.table_root)
    head = head_or_none(folders)
    known = ledger.positions(folders.ledger, head) if head is not None else {}
    held: dict[str, list[LedgerRow]] = {}
    for row in known.values():
        held.setdefault(row.topic, []).append(row)
    admin, timeout = admin_client(settings.kafka), settings.kafka.timeout_seconds
    discovery = Discovery(admin, timeout)
    wanted = stream.topics.select(discovery.topic_names())
    view = discovery.view(wanted | held.keys())
    places = [(topic.name, partition) for topic in view.topics.values() for partition in range(topic.partitions)]
    kept = topic_settings(admin, view.topics, timeout)
    newest: dict[str, datetime] = {}
    for (topic, _), milliseconds in newest_timestamps(admin, places, timeout).items():
        moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
        newest[topic] = max(moment, newest.get(topic, moment))
    retention = {item.topic: _retention(item.settings.get("retention.ms", "-1")) for item in kept}
    cluster = _Cluster(view, retention, newest)
    listed = tuple(_topic(name, held.get(name, []), stream, cluster) for name in sorted(wanted | held.keys()))
    return TopicsOfStream(stream.name, stream.topics.pattern, len(wanted), len(held), listed)


def life(rows: Iterable[LedgerRow], topic: Topic | None, stream: AnyStream, *, lag: int, quiet: timedelta) -> Life:
    """Where a topic is in its life. Pure.

    Args:
        rows: Its newest ledger rows; those of an earlier life too.
        topic: The topic in Kafka; None when there is none.
        stream: The stream that reads it.
        lag: Messages behind.
        quiet: Time since its newest message; very long without one.
    """
    held = {row.topic_id for row in rows}
    if not held:
        return Life.NEW
    if topic is None:
        return Life.DELETED
    if topic.topic_id not in held:
        return Life.RECREATED
    if not stream.topics.select([topic.name]):
        return Life.UNWANTED
    if lag > 0 or quiet.total_seconds() < ACTIVE_SECONDS:
        return Life.ACTIVE
    return Life.DRAINED if quiet > stream.topics.inactive_after else Life.IDLE


def _topic(name: str, rows: list[LedgerRow], stream: AnyStream, cluster: _Cluster) -> TopicStatus:
    topic = cluster.view.topics.get(name)
    current = [row for row in rows if topic is None or row.topic_id == topic.topic_id]
    lag = _lag(current, topic, cluster.view)
    newest = cluster.newest.get(name)
    quiet = timedelta.max if newest is None else datetime.now(UTC) - newest
    return TopicStatus(
        topic=name,
        state=life(rows, topic, stream, lag=lag or 0, quiet=quiet).value,
        partitions=topic.partitions if topic is not None else len(rows),
        position=sum(row.until for row in current),
        lag_messages=lag,
        retention_seconds=cluster.retention.get(name),
        last_message=newest,
        topic_id=topic.topic_id if topic is not None else rows[-1].topic_id,
    )


def _lag(rows: list[LedgerRow], topic: Topic | None, view: ClusterView) -> int | None:
    """Of a topic that is not read yet: all that it holds."""
    if topic is None:
        return None
    stands = {row.partition: row.until for row in rows}
    ends = {n: view.ends[topic.topic_id, n] for n in range(topic.partitions) if (topic.topic_id, n) in view.ends}
    return sum(max(0, end.high_watermark - stands.get(n, end.start)) for n, end in ends.items())


def _retention(milliseconds: str) -> float | None:
    return None if int(milliseconds) < 0 else int(milliseconds) / 1000
