"""Compares the ledger's positions with the current cluster. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from lockstep.kafka.admin import ClusterView, Topic
from lockstep.kafka.leader_epochs import LastRead
from lockstep.model.finding import Finding, Key

EXPIRED = "expired unread"
"""Retention removed offsets before they were read."""

GONE = "topic gone"
"""The topic was deleted."""

GREW = "partitions grew"
"""A topic has more partitions than when it was subscribed."""

RECREATED = "topic re-created"
"""The topic was re-created: same name, other topic id."""

TRUNCATED = "log truncated"
"""The log ends before the position, or was truncated there and has grown since: records that were read are gone."""

REGROWN = "other records: the log was cut and has grown again"
"""The finding's text for a truncated log that is as long as before."""


class KnownPosition(msgspec.Struct, frozen=True):
    """The ledger's position of a partition.

    Attributes:
        topic: Its topic.
        next_offset: The next offset to read.
        catching_up: The log is known to end before it, and an operator accepted that.
        leader_epoch: Epoch of the leader that wrote the last record read; None where it no longer applies.
    """

    topic: str
    next_offset: int
    catching_up: bool = False
    leader_epoch: int | None = None


def audit_positions(known: Mapping[Key, KnownPosition], view: ClusterView) -> tuple[Finding, ...]:
    """Every difference that means lost or replaced messages, sorted by topic and partition.

    Args:
        known: Partitions of the subscribed topics, by (topic id, partition).
        view: The cluster now.
    """
    findings: list[Finding] = []
    for (topic_id, partition), position in known.items():
        topic = view.topics.get(position.topic)
        finding = _topic_changed(topic_id, partition, position, topic) or _offsets_moved(
            topic_id, partition, position, view
        )
        if finding is not None:
            findings.append(finding)
    findings += _grown(known, view)
    return tuple(sorted(findings, key=lambda finding: (finding.topic, finding.partition, finding.cause)))


def need_epoch_check(
    known: Mapping[Key, KnownPosition], view: ClusterView, held: Mapping[Key, int]
) -> dict[Key, LastRead]:
    """The last record read of partitions whose leader has changed: their log may have been truncated and have regrown.

    Args:
        known: Partitions of the subscribed topics.
        view: The cluster now.
        held: Leader epochs under which a log was found to contain the records that were read.
    """
    return {
        key: LastRead(position.topic, key[1], position.next_offset, position.leader_epoch)
        for key, position in known.items()
        if (ends := view.ends.get(key)) is not None
        and position.leader_epoch is not None
        and ends.leader_epoch not in (None, position.leader_epoch, held.get(key))
        and ends.start <= position.next_offset <= ends.high_watermark
    }


def find_compacted(view: ClusterView) -> tuple[str, ...]:
    """Topics whose cleanup policy may remove messages in the middle."""
    return tuple(sorted(topic.name for topic in view.topics.values() if not topic.deletes_only))


def find_recreated_topics(before: ClusterView, after: Mapping[str, Topic]) -> tuple[str, ...]:
    """Topics re-created since the batch was planned."""
    return tuple(
        sorted(
            name for name, topic in before.topics.items() if name not in after or after[name].topic_id != topic.topic_id
        )
    )


def _topic_changed(topic_id: str, partition: int, position: KnownPosition, topic: Topic | None) -> Finding | None:
    if topic is None:
        return _finding(GONE, position, topic_id, partition, found="no such topic")
    if topic.topic_id != topic_id:
        return _finding(RECREATED, position, topic_id, partition, found=f"topic id {topic.topic_id}")
    return None


def _offsets_moved(topic_id: str, partition: int, position: KnownPosition, view: ClusterView) -> Finding | None:
    ends = view.ends.get((topic_id, partition))
    if (topic_id, partition) in view.cut:
        return _finding(TRUNCATED, position, topic_id, partition, found=REGROWN)
    if ends is None:
        return None  # no leader at the moment: unavailable, not lost
    if ends.start > position.next_offset:
        return _finding(EXPIRED, position, topic_id, partition, found=f"log start {ends.start}", until=ends.start)
    if ends.high_watermark < position.next_offset and not position.catching_up:
        return _finding(TRUNCATED, position, topic_id, partition, found=f"log end {ends.high_watermark}")
    return None


def _grown(known: Mapping[Key, KnownPosition], view: ClusterView) -> list[Finding]:
    """One finding per new partition, so that each can be accepted separately."""
    held: dict[str, set[int]] = {}
    for topic_id, partition in known:
        held.setdefault(topic_id, set()).add(partition)
    return [
        _new_partition(topic, len(held[topic.topic_id]), partition)
        for topic in view.topics.values()
        if topic.topic_id in held
        for partition in sorted(set(range(topic.partitions)) - held[topic.topic_id])
    ]


def _new_partition(topic: Topic, before: int, partition: int) -> Finding:
    return Finding(
        cause=GREW,
        topic=topic.name,
        topic_id=topic.topic_id,
        partition=partition,
        offset=0,
        until=0,
        expected=f"{before} partitions",
        found=f"{topic.partitions} partitions",
        detail="sessions may have moved to another partition, where their order cannot be known",
    )


def _finding(
    cause: str, position: KnownPosition, topic_id: str, partition: int, *, found: str, until: int | None = None
) -> Finding:
    expected = f"topic id {topic_id}" if "topic" in cause else f"offset {position.next_offset}"
    return Finding(
        cause=cause,
        topic=position.topic,
        topic_id=topic_id,
        partition=partition,
        offset=position.next_offset,
        until=until if until is not None else position.next_offset,
        expected=expected,
        found=found,
    )
