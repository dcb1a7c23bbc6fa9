"""Topics of a stream: selected, subscribed, and their lifecycle states. Reads only."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from enum import Enum

import msgspec

from lockstep.declare.stream import AnyStream
from lockstep.engine.driver.alarms import compute_headroom_seconds
from lockstep.kafka.admin import (
    ClusterAdmin,
    ClusterView,
    PartitionOffsets,
    Place,
    Topic,
    read_newest_timestamps,
    read_oldest_timestamps,
)
from lockstep.kafka.client import make_admin_client
from lockstep.operations.tables import try_read_head
from lockstep.settings import Settings
from lockstep.table import ledger
from lockstep.table.layout import StreamFolders
from lockstep.table.ledger import LedgerRow

IDLE_AFTER = timedelta(minutes=10)
"""A topic without lag and without a message for this long is idle; for less, it is between two messages."""


class TopicLifecycle(Enum):
    """Lifecycle state of a topic in a stream; the same on the command line and in Dagster."""

    NEW = "new"
    """Selected, and not in the ledger yet: the next run reads it from its first offset."""
    ACTIVE = "active"
    """With lag, or with a message within the last ten minutes."""
    IDLE = "idle"
    """Without lag, and without a message for longer, or without any message."""
    DRAINED = "drained"
    """Without lag, and without a message for `Topics(inactive_after=...)`."""
    UNWANTED = "unwanted"
    """In the ledger, and no longer selected by the pattern; its position is kept."""
    DELETED = "deleted"
    """In the ledger, and not in Kafka."""
    RECREATED = "re-created"
    """In Kafka under another topic id than in the ledger."""


class TopicStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One topic.

    Attributes:
        topic: Its name.
        state: Its lifecycle state: see `TopicLifecycle`.
        partitions: Number of partitions in Kafka; in the ledger when it is not in Kafka.
        position: Offsets read, summed over its partitions.
        messages: Offsets that Kafka holds; None when the topic is not in Kafka.
        lag_messages: Messages behind the high watermarks; None when it is not in Kafka.
        retention_seconds: Retention of messages; None if unlimited, or when it is not in Kafka.
        headroom_seconds: Lower bound of the time until retention deletes a message that is not committed; None without
            a limit, or when the age of unread messages is unknown.
        first_message: Time of the oldest message that Kafka holds (UTC); None without one.
        last_message: Time of the newest message (UTC); None without one.
        topic_id: Kafka's id of the topic that is read, or would be.
    """

    topic: str
    state: TopicLifecycle
    partitions: int
    position: int
    messages: int | None
    lag_messages: int | None
    retention_seconds: float | None
    headroom_seconds: float | None
    first_message: datetime | None
    last_message: datetime | None
    topic_id: str


class TopicsOfStream(msgspec.Struct, frozen=True):
    """All topics of a stream.

    Attributes:
        stream: Name of the stream.
        pattern: Pattern of topic names.
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
    """Kafka's metadata: ids and offsets, oldest and newest message by topic."""

    view: ClusterView
    oldest: Mapping[str, datetime]
    newest: Mapping[str, datetime]


def read_topics(stream: AnyStream, settings: Settings, *, timeout_seconds: float | None = None) -> TopicsOfStream:
    """Compare the ledger with Kafka, topic by topic.

    Args:
        stream: The stream.
        settings: Addresses of Kafka and the tables.
        timeout_seconds: Timeout of one request to Kafka, where that is less than the setting.

    Raises:
        KafkaError: Kafka does not answer; that is never "no topics".
        TableError: The table does not match its head.
    """
    folders = StreamFolders(stream.name, settings.table_root)
    head = try_read_head(folders)
    known = ledger.read_positions(folders, head) if head is not None else {}
    held: dict[str, list[LedgerRow]] = {}
    for row in known.values():
        if not row.retired:  # an operator accepted that this topic id is gone
            held.setdefault(row.topic, []).append(row)
    timeout = min(settings.kafka.timeout_seconds, timeout_seconds or math.inf)
    admin = make_admin_client(settings.kafka)
    discovery = ClusterAdmin(admin, timeout)
    wanted = stream.topics.select(discovery.topic_names())
    view = discovery.view(wanted | held.keys())
    places = [(topic.name, partition) for topic in view.topics.values() for partition in range(topic.partitions)]
    cluster = _Cluster(
        view=view,
        oldest=_by_topic(read_oldest_timestamps(admin, places, timeout), min),
        newest=_by_topic(read_newest_timestamps(admin, places, timeout), max),
    )
    listed = tuple(_topic(name, held.get(name, []), stream, cluster) for name in sorted(wanted | held.keys()))
    return TopicsOfStream(stream.name, stream.topics.pattern, len(wanted), len(held), listed)


def judge_lifecycle(
    rows: Iterable[LedgerRow], topic: Topic | None, stream: AnyStream, *, lag: int, quiet: timedelta | None
) -> TopicLifecycle:
    """Lifecycle state of a topic. Pure.

    Args:
        rows: Its newest ledger rows, including those of an earlier topic id.
        topic: The topic in Kafka; None when there is none.
        stream: The stream that reads it.
        lag: Messages behind.
        quiet: Time since its newest message; None without one, as the start of the silence is unknown.
    """
    held = {row.topic_id for row in rows}
    if not held:
        return TopicLifecycle.NEW
    if topic is None:
        return TopicLifecycle.DELETED
    if topic.topic_id not in held:
        return TopicLifecycle.RECREATED
    if not stream.topics.select([topic.name]):
        return TopicLifecycle.UNWANTED
    return _activity(lag, quiet, stream.topics.inactive_after)


def _activity(lag: int, quiet: timedelta | None, inactive_after: timedelta) -> TopicLifecycle:
    """Lifecycle state of a topic that is read."""
    if lag > 0:
        return TopicLifecycle.ACTIVE
    if quiet is None:
        return TopicLifecycle.IDLE
    if quiet >= inactive_after:
        return TopicLifecycle.DRAINED
    return TopicLifecycle.IDLE if quiet >= IDLE_AFTER else TopicLifecycle.ACTIVE


def _topic(name: str, rows: list[LedgerRow], stream: AnyStream, cluster: _Cluster) -> TopicStatus:
    topic = cluster.view.topics.get(name)
    current = [row for row in rows if topic is None or row.topic_id == topic.topic_id]
    ends = _ends(topic, cluster.view)
    lag = _lag(current, ends)
    newest, now = cluster.newest.get(name), datetime.now(UTC)
    return TopicStatus(
        topic=name,
        state=judge_lifecycle(rows, topic, stream, lag=lag or 0, quiet=None if newest is None else now - newest),
        partitions=topic.partitions if topic is not None else len(rows),
        position=sum(row.until for row in current),
        messages=None if ends is None else sum(end.high_watermark - end.start for end in ends.values()),
        lag_messages=lag,
        retention_seconds=None if topic is None or topic.retention_ms is None else topic.retention_ms / 1000,
        headroom_seconds=_headroom(current, topic, cluster.view, now),
        first_message=cluster.oldest.get(name),
        last_message=newest,
        topic_id=topic.topic_id if topic is not None else rows[-1].topic_id,
    )


def _ends(topic: Topic | None, view: ClusterView) -> dict[int, PartitionOffsets] | None:
    """Number of offsets of each partition of a topic; None when it is not in Kafka."""
    if topic is None:
        return None
    return {n: view.ends[topic.topic_id, n] for n in range(topic.partitions) if (topic.topic_id, n) in view.ends}


def _lag(rows: list[LedgerRow], ends: Mapping[int, PartitionOffsets] | None) -> int | None:
    """Lag of a topic that is not read yet: all its messages."""
    if ends is None:
        return None
    positions = {row.partition: row.until for row in rows}
    return sum(end.compute_lag(positions.get(n, end.start)) for n, end in ends.items())


def _headroom(rows: Iterable[LedgerRow], topic: Topic | None, view: ClusterView, now: datetime) -> float | None:
    if topic is None:
        return None
    positions = {(row.topic_id, row.partition): row.until for row in rows}
    committed = {
        (row.topic_id, row.partition): int(row.newest_timestamp.timestamp() * 1000)
        for row in rows
        if row.newest_timestamp is not None
    }
    alone = msgspec.structs.replace(view, topics={topic.name: topic})
    return compute_headroom_seconds(positions, committed, alone, int(now.timestamp() * 1000))


def _by_topic(
    timestamps_ms: Mapping[Place, int], choose: Callable[[datetime, datetime], datetime]
) -> dict[str, datetime]:
    """One time per topic, from those of its partitions."""
    found: dict[str, datetime] = {}
    for (topic, _), milliseconds in timestamps_ms.items():
        moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
        found[topic] = choose(moment, found.get(topic, moment))
    return found
