"""Lag, headroom and waiting time of the partitions of a stream, as all read-only commands and assets show them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import timedelta
from typing import Final

import msgspec

from lockstep.errors import DeclarationError, KafkaError
from lockstep.kafka.admin import find_oldest_unread
from lockstep.kafka.client import make_reader_configuration
from lockstep.kafka.progress import compute_headroom_seconds, compute_lag_messages
from lockstep.kafka.timestamps import is_plausible_timestamp
from lockstep.model.position import TopicIdPartition, TopicNamePartition
from lockstep.operations.stream_handle import StreamHandle

MILLISECOND: Final = timedelta(milliseconds=1)
OLDEST_SECONDS_MAX = 5.0
"""Timeout for the first unread message of each partition with lag; without an answer its headroom is unknown."""


class PartitionFigures(msgspec.Struct, frozen=True, kw_only=True):
    """How far a stream is behind one partition.

    Attributes:
        topic: Name of the topic.
        partition: Partition number.
        lag_messages: Offsets up to the high watermark.
        headroom_seconds: Time until retention deletes an unread message; see `compute_headroom_seconds`.
        retention_seconds: Retention by age; None for unlimited.
        waiting_seconds: Age of the first unread message, by Kafka's timestamp; None without a plausible one.
        readable_messages: Those of the lag that no open transaction hides.
        expired_messages: Offsets that retention deleted before they were read, and that no batch has accounted for.
    """

    topic: str
    partition: int
    lag_messages: int
    headroom_seconds: float | None
    retention_seconds: float | None = None
    waiting_seconds: float | None = None
    readable_messages: int = 0
    expired_messages: int = 0


def read_figures(handle: StreamHandle) -> dict[TopicIdPartition, PartitionFigures]:
    """Figures of all partitions of the topics selected or subscribed, by (topic id, partition).

    The first unread message of each partition with lag is read from Kafka for its timestamp.

    Raises:
        KafkaError: Kafka does not answer.
        TableError: A ledger file is missing or damaged.
    """
    view = handle.view
    positions = _joined(handle) | {key: row.until for key, row in handle.positions.items()}
    lags = {key: compute_lag_messages(positions.get(key), ends) for key, ends in view.ends.items()}
    topics = {topic.topic_id: topic for topic in view.topics.values()}
    # Offsets that retention has deleted are no unread messages.
    first = {key: max(positions.get(key, ends.start), ends.start) for key, ends in view.ends.items()}
    oldest_ms = read_first_timestamps(
        handle,
        {TopicNamePartition(topics[key.topic_id].name, key.partition): first[key] for key, lag in lags.items() if lag},
    )
    now_ms = time.time_ns() // 1_000_000
    figures: dict[TopicIdPartition, PartitionFigures] = {}
    for key, lag in lags.items():
        topic = topics[key.topic_id]
        oldest = oldest_ms.get(TopicNamePartition(topic.name, key.partition))
        figures[key] = PartitionFigures(
            topic=topic.name,
            partition=key.partition,
            lag_messages=lag,
            headroom_seconds=compute_headroom_seconds(topic.retention_ms, lag, oldest, now_ms),
            retention_seconds=None if topic.retention_ms is None else topic.retention_ms / 1000,
            waiting_seconds=find_age_seconds(oldest, now_ms, handle.stream.event_time.max_skew),
            readable_messages=max(0, view.ends[key].stable_end - first[key]),
            expired_messages=first[key] - positions.get(key, first[key]),
        )
    return figures


def find_age_seconds(timestamp_ms: int | None, now_ms: int, max_skew: timedelta) -> float | None:
    """Age of a message; None if no clock can have shown its timestamp."""
    if timestamp_ms is None or not is_plausible_timestamp(timestamp_ms, now_ms + max_skew // MILLISECOND):
        return None
    return max(0, now_ms - timestamp_ms) / 1000


def _joined(handle: StreamHandle) -> dict[TopicIdPartition, int]:
    """The offsets at which a run would join new topics; their start if the declaration cannot be followed now."""
    try:
        return dict(handle.joined)
    except (DeclarationError, KafkaError):  # the coordinator of a group may be silent while the leaders answer
        return {}


def read_first_timestamps(
    handle: StreamHandle, offsets: dict[TopicNamePartition, int]
) -> dict[TopicNamePartition, int]:
    """The timestamp, in milliseconds, of the first message at or after each offset, committed or not.

    A message of an open transaction counts: it waits, and retention deletes it as any other.

    Raises:
        KafkaError: The client could not be created.
    """
    configuration = {**make_reader_configuration(handle.settings.kafka), "isolation.level": "read_uncommitted"}
    return find_oldest_unread(configuration, offsets, min(handle.timeout_seconds, OLDEST_SECONDS_MAX))


def find_least_headroom(figures: Iterable[PartitionFigures]) -> float | None:
    """The smallest known headroom, in seconds; None without one."""
    return min((each.headroom_seconds for each in figures if each.headroom_seconds is not None), default=None)
