"""Progress of a stream in its topics: lifecycle, lag, headroom, freshness.

Pure: facts of the ledger, facts of Kafka and the clock. The command line, the assets, the sensors and a run all take
their figures from here, so that they cannot contradict each other.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from enum import Enum

import msgspec

from lockstep.kafka.admin import PartitionOffsets, Topic

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
    RETIRED = "retired"
    """Drained, and neither read nor audited until a message arrives; its position is kept."""
    UNWANTED = "unwanted"
    """In the ledger, and no longer selected by the pattern; its position is kept."""
    DELETED = "deleted"
    """In the ledger, and not in Kafka."""
    RECREATED = "re-created"
    """In Kafka under another topic id than in the ledger."""

    @property
    def is_read(self) -> bool:
        """Whether the stream reads the topic, or will: only its lag is lag of the stream."""
        return self not in {TopicLifecycle.UNWANTED, TopicLifecycle.DELETED}


class TopicFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What decides the lifecycle state of a topic.

    Attributes:
        read_ids: Topic ids of this name that the ledger has a position for, without the retired ones.
        retired_ids: Topic ids of this name that are retired.
        topic: The topic in Kafka; None when there is none.
        is_selected: Whether the pattern selects it.
        lag_messages: Messages behind, over its partitions.
        newest_message: Time of its newest message; None without one, as the start of the silence is unknown.
        inactive_after: `Topics(inactive_after=...)`.
    """

    read_ids: frozenset[str]
    topic: Topic | None
    is_selected: bool
    lag_messages: int
    newest_message: datetime | None
    inactive_after: timedelta
    retired_ids: frozenset[str] = frozenset()


def judge_lifecycle(facts: TopicFacts, now: datetime) -> TopicLifecycle:
    """Lifecycle state of a topic."""
    if not facts.read_ids:
        is_retired = facts.topic is not None and facts.topic.topic_id in facts.retired_ids
        return TopicLifecycle.RETIRED if is_retired else TopicLifecycle.NEW
    if facts.topic is None:
        return TopicLifecycle.DELETED
    if facts.topic.topic_id not in facts.read_ids:
        return TopicLifecycle.RECREATED
    if not facts.is_selected:
        return TopicLifecycle.UNWANTED
    return _judge_activity(facts, now)


def _judge_activity(facts: TopicFacts, now: datetime) -> TopicLifecycle:
    if facts.lag_messages > 0:
        return TopicLifecycle.ACTIVE
    if facts.newest_message is None:
        return TopicLifecycle.IDLE
    silence = now - facts.newest_message
    if silence >= facts.inactive_after:
        return TopicLifecycle.DRAINED
    return TopicLifecycle.IDLE if silence >= IDLE_AFTER else TopicLifecycle.ACTIVE


def compute_lag_messages(next_offset: int | None, ends: PartitionOffsets) -> int:
    """Offsets of a partition from its position to the high watermark.

    Messages of open transactions and offsets that expired unread count, too: both are still to be accounted for.

    Args:
        next_offset: Next offset to read; None for a partition that was never read, which starts at its first offset.
        ends: Offsets of the partition.
    """
    start = ends.start if next_offset is None else next_offset
    return max(0, ends.high_watermark - start)


def compute_headroom_seconds(
    retention_ms: int | None, lag_messages: int, oldest_unread_ms: int | None, now_ms: int
) -> float | None:
    """Time until retention by age deletes an unread message of a partition; negative once it may.

    Without lag that is the whole retention: a message that arrives now is kept that long. None if no retention by
    age limits it, or while the age of the unread messages is unknown. `retention.bytes`, which deletes by size and at
    no foreseeable time, is left out.

    Args:
        retention_ms: Retention by age; None for unlimited.
        lag_messages: Messages behind.
        oldest_unread_ms: Timestamp of the first unread message, in ms since 1970 UTC. A run does not read ahead of
            its plan and passes the newest message that it committed, which is older: headroom is then a lower bound.
        now_ms: The time now, in ms since 1970 UTC.
    """
    if retention_ms is None:
        return None
    if not lag_messages:
        return retention_ms / 1000
    if oldest_unread_ms is None:
        return None
    age_ms = max(0, now_ms - oldest_unread_ms)  # a producer's clock may be ahead
    return (retention_ms - age_ms) / 1000


def compute_freshness_seconds(newest_committed_ms: Iterable[int | None], now_ms: int) -> float | None:
    """Age of the newest committed message, by Kafka's timestamp, at least 0; None when none has a timestamp.

    Args:
        newest_committed_ms: Timestamp of the newest committed message of each partition, in ms since 1970 UTC.
        now_ms: The time now, in ms since 1970 UTC.
    """
    newest = max(filter(None, newest_committed_ms), default=None)
    if newest is None:
        return None
    return max(0, now_ms - newest) / 1000
