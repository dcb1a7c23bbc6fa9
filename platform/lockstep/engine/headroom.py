"""How long until retention removes a message that is not committed yet. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from lockstep.kafka.audit import Key
from lockstep.kafka.discovery import ClusterView


def headroom_seconds(
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
