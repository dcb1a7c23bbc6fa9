"""Stuck transactions, retention headroom; pure.

Nothing is lost, and nothing looks wrong but the lag: without an alarm a stream that waits for a producer which died
in a transaction looks like one that is slow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from lockstep.declare.options import Every, Trigger
from lockstep.engine.driver.planner import IDLE_SECONDS
from lockstep.kafka.admin import ClusterView, PartitionOffsets, Topic
from lockstep.model.finding import Key

STALL_SECONDS_MIN, STALL_TRIGGERS = 60.0, 3
"""Transactions of a minute are usual (the client's own limit is one); in shorter ones nothing is to be seen."""


class StuckTransaction(msgspec.Struct, frozen=True):
    """A partition whose stable end stands still below its high watermark.

    Attributes:
        topic: Its topic.
        partition: Its number.
        stable_end: Where reading ends.
        high_watermark: Where the log ends.
        seconds: For how long the stable end has stood there, as far as this run has seen.
    """

    topic: str
    partition: int
    stable_end: int
    high_watermark: int
    seconds: float

    @property
    def place(self) -> tuple[str, int, int]:
        """What makes it another stall than one before: topic, partition and stable end."""
        return self.topic, self.partition, self.stable_end

    def __str__(self) -> str:
        return (
            f"{self.topic}/{self.partition}: {self.high_watermark - self.stable_end} offsets from {self.stable_end} on "
            f"wait behind an open transaction, for {self.seconds:.0f} s now"
        )


def compute_stuck_patience_seconds(trigger: Trigger) -> float:
    """How long a stable end may stand still."""
    pace = trigger.seconds if isinstance(trigger, Every) else IDLE_SECONDS
    return max(STALL_SECONDS_MIN, STALL_TRIGGERS * pace)


class LastStableOffsets(msgspec.Struct, frozen=True):
    """Since when stable ends stand where they are, by a monotonic clock.

    Attributes:
        since: By partition, of those below their high watermark: the stable end, and when it was first seen there.
    """

    since: dict[Key, tuple[int, float]] = {}

    def looked(self, view: ClusterView, clock: float) -> LastStableOffsets:
        """After another look at Kafka. A partition that does not answer keeps what was known of it."""
        seen = {key: self._since(key, ends, clock) for _, key, ends in _partitions(view)}
        unseen = {key: known for key, known in self.since.items() if key not in view.ends}
        return LastStableOffsets(unseen | {key: since for key, since in seen.items() if since is not None})

    def stalls(self, view: ClusterView, clock: float, patience_seconds: float) -> tuple[StuckTransaction, ...]:
        """Those that have stood still for longer than that, in the order of topics."""
        return tuple(
            StuckTransaction(topic.name, key[1], ends.stable_end, ends.high_watermark, clock - self.since[key][1])
            for topic, key, ends in _partitions(view)
            if key in self.since and clock - self.since[key][1] > patience_seconds
        )

    def _since(self, key: Key, ends: PartitionOffsets, clock: float) -> tuple[int, float] | None:
        if ends.stable_end >= ends.high_watermark:
            return None
        known = self.since.get(key)
        return known if known is not None and known[0] == ends.stable_end else (ends.stable_end, clock)


def _partitions(view: ClusterView) -> Iterator[tuple[Topic, Key, PartitionOffsets]]:
    for _, topic in sorted(view.topics.items()):
        for partition in range(topic.partitions):
            if (ends := view.ends.get((topic.topic_id, partition))) is not None:
                yield topic, (topic.topic_id, partition), ends


def compute_headroom_seconds(
    positions: Mapping[Key, int], newest_committed_ms: Mapping[Key, int], view: ClusterView, now_ms: int
) -> float | None:
    """The time of the partition that has least; None where no topic's retention is limited in time.

    A partition that is all read has its whole retention: a message that comes now is kept for so long. Of one that
    is behind, the oldest unread message is no older than the newest committed one, so the figure errs on the safe
    side. A partition of which nothing was ever committed is left out, as its messages' age is not known before they
    are read; so is `retention.bytes`, which removes by size and at no foreseeable time.

    Args:
        positions: Next offset to read.
        newest_committed_ms: Timestamp of the newest committed message, in ms since 1970 UTC.
        view: The cluster now.
        now_ms: The time now, in ms since 1970 UTC.
    """
    left: list[float] = []
    for topic in view.topics.values():
        if topic.retention_ms is None:
            continue
        for partition in range(topic.partitions):
            key = (topic.topic_id, partition)
            ends, position = view.ends.get(key), positions.get(key)
            if ends is None or position is None:
                continue
            behind = position < ends.high_watermark
            if behind and key not in newest_committed_ms:
                continue
            age_ms = max(0, now_ms - newest_committed_ms[key]) if behind else 0
            left.append((topic.retention_ms - age_ms) / 1000)
    return min(left, default=None)
