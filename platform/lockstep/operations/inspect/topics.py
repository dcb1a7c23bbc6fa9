"""Topics of a stream: selected, subscribed, and their lifecycle states. Reads only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import msgspec

from lockstep.declare.stream import AnyStream
from lockstep.kafka.admin import ClusterView, read_newest_timestamps, read_oldest_timestamps
from lockstep.kafka.progress import TopicFacts, TopicLifecycle, judge_lifecycle
from lockstep.model.position import TopicIdPartition, TopicNamePartition
from lockstep.model.readable_times import to_event_time
from lockstep.operations.inspect.endings import EndedTopic, list_ended
from lockstep.operations.inspect.health import find_freshness_seconds
from lockstep.operations.inspect.partition_figures import PartitionFigures, find_least_headroom, read_figures
from lockstep.operations.stream_handle import StreamHandle
from lockstep.table.ledger import LedgerRow


class TopicStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One topic.

    Attributes:
        topic: Its name.
        state: Its lifecycle state: see `TopicLifecycle`.
        partitions: Number of partitions in Kafka; in the ledger when it is not in Kafka.
        position: Offsets read, summed over its partitions.
        messages: Offsets that Kafka holds; None when the topic is not in Kafka.
        lag_messages: Messages behind the high watermarks; None when it is not in Kafka.
        freshness_seconds: Age of the newest committed message, by Kafka's timestamp; None without one.
        retention_seconds: Retention of messages; None if unlimited, or when it is not in Kafka.
        headroom_seconds: Time until retention deletes an unread message, the smallest of its partitions; None without
            a limit, or while the age of unread messages is unknown.
        first_message: Time of the oldest message that Kafka holds (UTC); None without one.
        last_message: Time of the newest message (UTC); None without one.
        topic_id: Kafka's id of the topic that is read, or would be.
        ending: Of a deleted topic that the stream has left: the known facts about its messages; empty otherwise.
    """

    topic: str
    state: TopicLifecycle
    partitions: int
    position: int
    messages: int | None
    lag_messages: int | None
    freshness_seconds: float | None
    retention_seconds: float | None
    headroom_seconds: float | None
    first_message: datetime | None
    last_message: datetime | None
    topic_id: str
    ending: str = ""


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

    @property
    def lag_messages(self) -> int:
        """Messages behind, in the topics that the stream reads or will read."""
        return sum(topic.lag_messages or 0 for topic in self.topics if topic.state.is_read)


class _Cluster(msgspec.Struct, frozen=True):
    """Kafka's metadata: ids and offsets, figures by partition, oldest and newest message by topic."""

    view: ClusterView
    figures: Mapping[TopicIdPartition, PartitionFigures]
    oldest: Mapping[str, datetime]
    newest: Mapping[str, datetime]


def read_topics(handle: StreamHandle) -> TopicsOfStream:
    """Compare the ledger with Kafka, topic by topic.

    Raises:
        KafkaError: Kafka does not answer; that is never "no topics".
        TableError: The table does not match its head.
    """
    stream = handle.stream
    rows_of = dict[str, list[LedgerRow]]()
    retired = dict[str, list[LedgerRow]]()
    for row in handle.positions.values():
        by_topic = retired if row.retired else rows_of
        by_topic.setdefault(row.topic, []).append(row)
    cluster = _read_cluster(handle)
    names = handle.selected | rows_of.keys()
    listed = [_make_status(name, rows_of.get(name, []), retired.get(name, []), stream, cluster) for name in names]
    ended = {each.topic: each for each in list_ended(handle.positions.values())}
    listed += [_make_deleted(each) for name, each in ended.items() if name not in names]
    topics = tuple(sorted(listed, key=lambda each: each.topic))
    return TopicsOfStream(stream.name, stream.topics.pattern, len(handle.selected), len(rows_of), topics)


def _make_deleted(ended: EndedTopic) -> TopicStatus:
    """A deleted topic that the stream has left; it is listed until it is forgotten."""
    return TopicStatus(
        topic=ended.topic,
        state=TopicLifecycle.DELETED,
        partitions=ended.partitions,
        position=ended.position,
        messages=None,
        lag_messages=None,
        freshness_seconds=None,
        retention_seconds=None,
        headroom_seconds=None,
        first_message=None,
        last_message=None,
        topic_id=ended.topic_id,
        ending=ended.evidence,
    )


def _read_cluster(handle: StreamHandle) -> _Cluster:
    view = handle.view
    timeout = handle.timeout_seconds
    places = list[TopicNamePartition]()
    for topic in view.topics.values():
        for partition in range(topic.partitions):
            # The leader of a partition without offsets has just been silent.
            if TopicIdPartition(topic.topic_id, partition) in view.ends:
                places.append(TopicNamePartition(topic.name, partition))
    return _Cluster(
        view=view,
        figures=read_figures(handle),
        oldest=_by_topic(read_oldest_timestamps(handle.admin, places, timeout), min),
        newest=_by_topic(read_newest_timestamps(handle.admin, places, timeout), max),
    )


def _make_status(
    name: str, rows: list[LedgerRow], retired: list[LedgerRow], stream: AnyStream, cluster: _Cluster
) -> TopicStatus:
    topic = cluster.view.topics.get(name)
    newest = cluster.newest.get(name)
    keys = list[TopicIdPartition]()
    if topic is not None:
        keys = [TopicIdPartition(topic.topic_id, partition) for partition in range(topic.partitions)]
    ends = [cluster.view.ends[key] for key in keys if key in cluster.view.ends]
    figures = [cluster.figures[key] for key in keys if key in cluster.figures]
    lag = sum(each.lag_messages for each in figures)
    now = datetime.now(UTC)
    facts = TopicFacts(
        read_ids=frozenset(row.topic_id for row in rows),
        retired_ids=frozenset(row.topic_id for row in retired),
        topic=topic,
        is_selected=bool(stream.topics.select([name])),
        lag_messages=lag,
        newest_message=newest,
        inactive_after=stream.topics.inactive_after,
    )
    return TopicStatus(
        topic=name,
        state=judge_lifecycle(facts, now),
        partitions=topic.partitions if topic is not None else len(rows),
        position=sum(row.until for row in (*rows, *retired) if topic is None or row.topic_id == topic.topic_id),
        messages=None if topic is None else sum(end.high_watermark - end.start for end in ends),
        lag_messages=None if topic is None else lag,
        freshness_seconds=find_freshness_seconds((*rows, *retired), now.timestamp()),
        retention_seconds=None if topic is None or topic.retention_ms is None else topic.retention_ms / 1000,
        headroom_seconds=find_least_headroom(figures),
        first_message=cluster.oldest.get(name),
        last_message=newest,
        topic_id=topic.topic_id if topic is not None else rows[-1].topic_id,
    )


def _by_topic(
    timestamps_ms: Mapping[TopicNamePartition, int], choose: Callable[[datetime, datetime], datetime]
) -> dict[str, datetime]:
    """One time per topic, from those of its partitions; without times outside the calendar, from wrong clocks."""
    times: dict[str, datetime] = {}
    for (topic, _), milliseconds in timestamps_ms.items():
        if (moment := to_event_time(milliseconds * 1000)) is not None:
            times[topic] = choose(moment, times.get(topic, moment))
    return times
