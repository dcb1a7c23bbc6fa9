"""Lag and headroom of the partitions of a stream, as all read-only commands and assets show them."""

from __future__ import annotations

import time
from collections.abc import Iterable

import msgspec

from lockstep.kafka.admin import Place, find_oldest_unread
from lockstep.kafka.client import make_reader_configuration
from lockstep.kafka.progress import compute_headroom_seconds, compute_lag_messages
from lockstep.model.position import Key
from lockstep.operations.tables import StreamHandle

OLDEST_SECONDS_MAX = 5.0
"""Timeout for the first unread message of each partition with lag; without an answer its headroom is unknown."""


class PartitionFigures(msgspec.Struct, frozen=True):
    """How far a stream is behind one partition.

    Attributes:
        lag_messages: Offsets up to the high watermark.
        headroom_seconds: Time until retention deletes an unread message; see `compute_headroom_seconds`.
    """

    lag_messages: int
    headroom_seconds: float | None


def read_figures(handle: StreamHandle) -> dict[Key, PartitionFigures]:
    """Figures of all partitions of the topics selected or subscribed, by (topic id, partition).

    Where retention by age limits an unread message, the first one is read from Kafka for its timestamp.

    Raises:
        KafkaError: Kafka does not answer.
        TableError: A ledger file is missing or damaged.
    """
    view, positions = handle.view, {key: row.until for key, row in handle.positions.items()}
    lags = {key: compute_lag_messages(positions.get(key), ends) for key, ends in view.ends.items()}
    topics = {topic.topic_id: topic for topic in view.topics.values()}
    ending: dict[Place, int] = {
        (topics[key[0]].name, key[1]): positions.get(key, view.ends[key].start)
        for key, lag in lags.items()
        if lag and topics[key[0]].retention_ms is not None
    }
    configuration = make_reader_configuration(handle.settings.kafka)
    oldest_ms = find_oldest_unread(configuration, ending, min(handle.timeout_seconds, OLDEST_SECONDS_MAX))
    now_ms = time.time_ns() // 1_000_000
    found: dict[Key, PartitionFigures] = {}
    for (topic_id, partition), lag in lags.items():
        topic = topics[topic_id]
        oldest = oldest_ms.get((topic.name, partition))
        headroom = compute_headroom_seconds(topic.retention_ms, lag, oldest, now_ms)
        found[topic_id, partition] = PartitionFigures(lag, headroom)
    return found


def find_least_headroom(figures: Iterable[PartitionFigures]) -> float | None:
    """The smallest known headroom, in seconds; None without one."""
    return min((each.headroom_seconds for each in figures if each.headroom_seconds is not None), default=None)
