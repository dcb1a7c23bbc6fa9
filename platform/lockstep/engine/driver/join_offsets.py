"""Offsets at which a stream joins logs that it does not read from their beginning, as `Topics.start` declares."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta

from lockstep.declare.options import Earliest, FromTime, GroupOffsets, Latest, StartingOffsets, Topics
from lockstep.errors import DeclarationError
from lockstep.integrity.base import EPOCH
from lockstep.kafka.admin import ClusterAdmin, ClusterView, Topic
from lockstep.model.position import TopicIdPartition, TopicNamePartition

CommittedOffsets = Callable[[str, Iterable[TopicNamePartition]], Mapping[TopicNamePartition, int]]
"""Committed offsets of a consumer group, by (topic, partition); partitions without one are left out."""


def read_join_offsets(
    declared: Topics,
    new: Iterable[Topic],
    view: ClusterView,
    cluster: ClusterAdmin,
    committed: CommittedOffsets,
    *,
    is_first_run: bool,
) -> dict[TopicIdPartition, int]:
    """The offset at which the stream joins each new partition; partitions read from their start are left out.

    A stream that starts with `Earliest` reads a log that it finds after its first batch from offset 0: messages that
    retention has deleted by then are a loss, and the integrity class decides.

    Args:
        declared: The topics of the stream.
        new: Topics that the stream has never read.
        view: Their offsets.
        cluster: The cluster.
        committed: Reads the offsets of a consumer group.
        is_first_run: The stream has read nothing yet.

    Raises:
        KafkaError: Kafka did not answer.
        DeclarationError: In the first run, a declared consumer group has no offset of the topics that start with it.
    """
    by_start: dict[StartingOffsets, list[Topic]] = {}
    for topic in new:
        by_start.setdefault(declared.find_start(topic.name), []).append(topic)
    joined: dict[TopicIdPartition, int] = {}
    for start, topics in by_start.items():
        readable = _list_readable(topics, view)
        cut = {key: view.ends[key].start for key in readable.values() if view.ends[key].start > 0}
        if isinstance(start, Earliest):
            if not is_first_run:  # messages that retention has deleted by now are a loss
                joined |= dict.fromkeys(cut, 0)
            continue
        joined |= cut
        match start:
            case Latest() if is_first_run:
                joined |= {key: view.ends[key].high_watermark for key in readable.values()}
            case FromTime():
                joined |= _at_time(start, readable, view, cluster)
            case GroupOffsets():
                joined |= _of_group(start, readable, committed, is_first_run=is_first_run)
            case _:
                pass
    return joined


def _list_readable(topics: Iterable[Topic], view: ClusterView) -> dict[TopicNamePartition, TopicIdPartition]:
    """The partitions with known offsets, by name."""
    readable = dict[TopicNamePartition, TopicIdPartition]()
    for topic in topics:
        for number in range(topic.partitions):
            key = TopicIdPartition(topic.topic_id, number)
            if key in view.ends:
                readable[TopicNamePartition(topic.name, number)] = key
    return readable


def _at_time(
    start: FromTime, readable: Mapping[TopicNamePartition, TopicIdPartition], view: ClusterView, cluster: ClusterAdmin
) -> dict[TopicIdPartition, int]:
    start_ms = (start.time - EPOCH) // timedelta(milliseconds=1)
    offsets = cluster.find_offsets_at(readable, start_ms)
    joined = dict[TopicIdPartition, int]()
    for place, key in readable.items():
        offset = offsets.get(place, view.ends[key].high_watermark)  # all messages are older
        if offset > 0:
            joined[key] = offset
    return joined


def _of_group(
    start: GroupOffsets,
    readable: Mapping[TopicNamePartition, TopicIdPartition],
    committed: CommittedOffsets,
    *,
    is_first_run: bool,
) -> dict[TopicIdPartition, int]:
    """Topics that appear later are unknown to the group; a first run without any of its offsets has a mistyped one."""
    offsets = committed(start.group, readable)
    if is_first_run and readable and not offsets:
        topics = ", ".join(sorted({topic for topic, _ in readable})[:3])
        raise DeclarationError(
            "Topics.start",
            start,
            f"has no committed offset of any topic that starts with it ({topics}, ...)",
            "the name of a group that `kafka-consumer-groups.sh --list` shows, or FirstSnapshot()",
        )
    return {readable[place]: offset for place, offset in offsets.items()}
