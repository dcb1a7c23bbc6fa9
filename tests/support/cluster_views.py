"""Views of a cluster, made by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.kafka.admin import ClusterView, PartitionOffsets, Topic
from lockstep.model.position import TopicIdPartition

if TYPE_CHECKING:
    from collections.abc import Mapping


def topic(name: str, topic_id: str, partitions: int = 1, *, deletes_only: bool = True) -> Topic:
    return Topic(name=name, topic_id=topic_id, partitions=partitions, deletes_only=deletes_only)


def view(*topics: Topic, ends: Mapping[TopicIdPartition, tuple[int, int, int]]) -> ClusterView:
    """Make a view of a cluster with these topics; ends are (log start, stable end, high watermark)."""
    return ClusterView(
        cluster_id="cluster",
        topics={each.name: each for each in topics},
        ends={key: PartitionOffsets(*offsets) for key, offsets in ends.items()},
    )
