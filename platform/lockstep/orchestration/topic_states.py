"""What is shown of each topic of a stream, and when it is looked at again. Pure: no Kafka, no Dagster, no clock."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from datetime import timedelta

    from lockstep.kafka.audit import Key
    from lockstep.kafka.discovery import ClusterView, Topic

SWEEP_SECONDS = 300.0
"""How often each topic is looked at. An event costs some 25 ms and 8 KB of Dagster's storage."""
AGAIN_SECONDS = 60.0
"""A new topic is looked at again after a minute, by which time the stream should read it."""
TOPICS_A_LOOK = 10
"""A tick of the sensor stays under a second; a thousand topics take a hundred ticks."""
IDLE_SECONDS = 600.0
"""Nothing for so long is shown as idle."""


class Life(Enum):
    """What a topic does, as far as one can see."""

    NEW = "new"
    """The stream does not read it yet."""
    ACTIVE = "active"
    """Messages come, or wait to be read."""
    IDLE = "idle"
    """All is read, and nothing came for a while."""
    DRAINED = "drained"
    """All is read, and nothing came for the stream's `Topics.inactive_after`."""


class TopicState(msgspec.Struct, frozen=True, kw_only=True):
    """One topic at one moment.

    Attributes:
        topic: Its name.
        life: What it does.
        partitions: Number of partitions.
        messages: Offsets written so far, of all partitions; transactions take some for themselves.
        lag_messages: Offsets written and not committed by the stream.
        newest_ms: Timestamp of the newest message, in ms since 1970 UTC; None without messages.
    """

    topic: str
    life: Life
    partitions: int
    messages: int
    lag_messages: int
    newest_ms: int | None


class Sweep(msgspec.Struct, frozen=True):
    """How far the looks at all topics have come.

    Attributes:
        ended_at: When the last round ended, in seconds since 1970 (UTC).
        after: The last topic looked at in this round; empty between rounds.
    """

    ended_at: float = 0.0
    after: str = ""


def due(wanted: Collection[str], registered: Collection[str], sweep: Sweep, now: float) -> tuple[list[str], Sweep]:
    """The topics to look at now: new ones at once, the others in rounds; and how far this comes."""
    new = sorted(set(wanted) - set(registered))[:TOPICS_A_LOOK]
    if new:
        soon = min(sweep.ended_at, now - SWEEP_SECONDS + AGAIN_SECONDS)
        return new, sweep if sweep.after else Sweep(ended_at=soon)
    if not sweep.after and 0 <= now - sweep.ended_at < SWEEP_SECONDS:
        return [], sweep
    left = sorted(name for name in wanted if name > sweep.after)
    if len(left) <= TOPICS_A_LOOK:
        return left, Sweep(ended_at=now)
    return left[:TOPICS_A_LOOK], msgspec.structs.replace(sweep, after=left[TOPICS_A_LOOK - 1])


def topic_state(
    topic: Topic,
    view: ClusterView,
    positions: Mapping[Key, int],
    newest_ms: Mapping[tuple[str, int], int],
    inactive_after: timedelta,
    now: float,
) -> TopicState:
    """Judge one topic.

    Args:
        topic: The topic.
        view: Its offsets.
        positions: Next offset to read by (topic id, partition); a partition without one is not read.
        newest_ms: Timestamp of the newest message by (topic, partition), of those that have any.
        inactive_after: From when on a silent topic counts as drained.
        now: Seconds since 1970 (UTC).
    """
    keys = [(topic.topic_id, partition) for partition in range(topic.partitions)]
    ends = {key: view.ends[key] for key in keys if key in view.ends}
    lag = sum(max(0, end.high_watermark - positions.get(key, end.start)) for key, end in ends.items())
    newest = max((when for (name, _), when in newest_ms.items() if name == topic.name), default=None)
    silent = None if newest is None else now - newest / 1000
    known = any(key in positions for key in keys)
    return TopicState(
        topic=topic.name,
        life=_life(lag, silent, inactive_after) if known else Life.NEW,
        partitions=topic.partitions,
        messages=sum(end.high_watermark for end in ends.values()),
        lag_messages=lag,
        newest_ms=newest,
    )


def _life(lag: int, silent_seconds: float | None, inactive_after: timedelta) -> Life:
    if lag > 0:
        return Life.ACTIVE
    if silent_seconds is None:
        return Life.IDLE  # never held a message: from when on it is silent nobody knows
    if silent_seconds >= inactive_after.total_seconds():
        return Life.DRAINED
    return Life.IDLE if silent_seconds >= IDLE_SECONDS else Life.ACTIVE
