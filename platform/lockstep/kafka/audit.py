"""Compares the ledger's positions with the current cluster. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec

from lockstep.kafka.admin import ClusterView, PartitionOffsets, Topic
from lockstep.kafka.topic_end import TopicEnd
from lockstep.model.fault import Fault
from lockstep.model.finding import Finding
from lockstep.model.position import Position, TopicIdPartition

REGROWN = "other records: the log was cut and has grown again"
"""The finding's text for a truncated log that is as long as before."""
ENDINGS = frozenset({Fault.TOPIC_DELETED, Fault.RECREATED})
"""Faults of a topic that ended; if every message of it was read, the end is an event under every class."""


def audit_positions(known: Mapping[TopicIdPartition, Position], view: ClusterView) -> tuple[Finding, ...]:
    """Every difference that means lost or replaced messages, sorted by topic and partition.

    Args:
        known: Partitions of the subscribed topics, by (topic id, partition).
        view: The cluster now.
    """
    findings: list[Finding] = []
    for key, position in known.items():
        topic = view.topics.get(position.topic)
        ends = view.ends.get(key)
        is_same = topic is not None and topic.topic_id == position.topic_id and key not in view.cut
        if is_same and (ends is None or ends.start <= position.next_offset <= ends.high_watermark):
            continue  # mostly: a stream has thousands of partitions
        finding = _topic_changed(position, view.topics.get(position.topic)) or _offsets_moved(position, view)
        if finding is not None:
            findings.append(finding)
    findings += _grown(known, view)
    return tuple(sorted(findings, key=lambda finding: (finding.topic, finding.partition, finding.cause)))


def explain_end(finding: Finding, ends: Mapping[str, TopicEnd]) -> Finding:
    """The finding of a topic that ended, with the offsets that were not read and the reason why it is a fault.

    Args:
        finding: Any finding; those of other faults stay as they are.
        ends: Ends of the topics that were deleted or re-created, by topic id.
    """
    end = ends.get(finding.topic_id)
    if end is None or finding.cause not in ENDINGS:
        return finding
    until = max(finding.until, end.ends.get(finding.partition, 0))
    return msgspec.structs.replace(finding, until=until, detail=end.loss)


def need_epoch_check(
    known: Mapping[TopicIdPartition, Position], view: ClusterView, held: Mapping[TopicIdPartition, int]
) -> dict[TopicIdPartition, Position]:
    """The partitions whose leader has changed: their log may have been truncated and have regrown.

    Args:
        known: Partitions of the subscribed topics.
        view: The cluster now.
        held: Leader epochs under which a log was found to contain the records that were read.
    """
    unverified = dict[TopicIdPartition, Position]()
    for key, position in known.items():
        if _needs_check(position, view.ends.get(key), held.get(key)):
            unverified[key] = position
    return unverified


def _needs_check(position: Position, ends: PartitionOffsets | None, verified_epoch: int | None) -> bool:
    if ends is None or position.leader_epoch is None:
        return False
    if ends.leader_epoch in (None, position.leader_epoch, verified_epoch):
        return False
    is_within_log = ends.start <= position.next_offset <= ends.high_watermark  # otherwise its offsets show the loss
    return is_within_log and not ends.is_archived(position.next_offset)


def find_compacted(topics: Mapping[str, Topic]) -> tuple[str, ...]:
    """Topics whose cleanup policy may remove messages in the middle."""
    return tuple(sorted(topic.name for topic in topics.values() if not topic.deletes_only))


def find_recreated_topics(before: ClusterView, after: Mapping[str, Topic]) -> tuple[str, ...]:
    """Topics re-created since the batch was planned."""
    recreated = list[str]()
    for name, topic in before.topics.items():
        if name not in after or after[name].topic_id != topic.topic_id:
            recreated.append(name)
    return tuple(sorted(recreated))


def _topic_changed(position: Position, topic: Topic | None) -> Finding | None:
    expected = f"topic id {position.topic_id}"
    if topic is None:
        return Finding.at(position, Fault.TOPIC_DELETED, expected=expected, found="no such topic")
    if topic.topic_id != position.topic_id:
        return Finding.at(position, Fault.RECREATED, expected=expected, found=f"topic id {topic.topic_id}")
    return None


def _offsets_moved(position: Position, view: ClusterView) -> Finding | None:
    ends = view.ends.get(position.key)
    expected = f"offset {position.next_offset}"
    if position.key in view.cut:
        return Finding.at(position, Fault.TRUNCATED, expected=expected, found=REGROWN)
    if ends is None:
        return None  # no leader at the moment: unavailable, not lost
    if ends.start > position.next_offset:
        return Finding.at(position, Fault.EXPIRED, until=ends.start, expected=expected, found=f"log start {ends.start}")
    if ends.high_watermark < position.next_offset and not position.catching_up:
        return Finding.at(position, Fault.TRUNCATED, expected=expected, found=f"log end {ends.high_watermark}")
    return None


def _grown(known: Mapping[TopicIdPartition, Position], view: ClusterView) -> list[Finding]:
    """One finding per new partition, so that each can be accepted separately."""
    counts = Counter(topic_id for topic_id, _ in known)
    grown = {topic.topic_id: topic for topic in view.topics.values() if 0 < counts[topic.topic_id] < topic.partitions}
    if not grown:  # nearly always
        return []
    partitions: dict[str, set[int]] = {topic_id: set() for topic_id in grown}
    for topic_id, partition in known:
        if topic_id in partitions:
            partitions[topic_id].add(partition)
    findings = list[Finding]()
    for topic_id, topic in grown.items():
        for partition in sorted(set(range(topic.partitions)) - partitions[topic_id]):
            findings.append(_new_partition(topic, counts[topic_id], partition))
    return findings


def _new_partition(topic: Topic, before: int, partition: int) -> Finding:
    return Finding.at(
        Position(topic=topic.name, topic_id=topic.topic_id, partition=partition, next_offset=0),
        Fault.PARTITIONS_ADDED,
        expected=f"{before} partitions",
        found=f"{topic.partitions} partitions",
        detail="sessions may have moved to another partition, where their order cannot be known",
    )
