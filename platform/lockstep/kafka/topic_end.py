"""How a topic ended: whether the stream had read all of its messages when it was deleted or re-created. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from lockstep.errors import format_some
from lockstep.kafka.admin import PartitionOffsets, Topic
from lockstep.model.position import Ending, Position, TopicIdPartition

NEVER_OBSERVED = "this run has not observed its end: messages may have arrived since the last batch"


class EndSnapshot(NamedTuple):
    """One read of the offsets of a topic, before the topic was found to be gone.

    Attributes:
        ends: Offsets by partition; partitions without an answer are missing.
        age_seconds: Time from the request for the offsets until the topic was found to be gone.
        is_certain: The offsets are those of this topic id. Kafka is asked for offsets by name: long after the last
            description, they may be those of a topic that was created again.
    """

    ends: Mapping[int, PartitionOffsets]
    age_seconds: float
    is_certain: bool


class GoneTopic(NamedTuple):
    """A topic that Kafka has shown to this run and has no more, or no more under this id.

    Attributes:
        topic: Its last description.
        looks: The last reads of its offsets, newest first.
        noticed_us: Time at which it was found to be gone, in microseconds since 1970 (UTC).
    """

    topic: Topic
    looks: tuple[EndSnapshot, ...]
    noticed_us: int


class TopicEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a topic that is gone.

    Attributes:
        loss: Why messages may be lost; empty if every message was read.
        ends: Last observed end of each partition; empty if this run has not observed them.
        age_seconds: Age of that observation when the topic was found to be gone.
        noticed_us: Time at which it was found to be gone, in microseconds since 1970 (UTC); None if this run has not
            observed the topic.
    """

    loss: str = NEVER_OBSERVED
    ends: Mapping[int, int] = {}
    age_seconds: float = 0.0
    noticed_us: int | None = None

    @property
    def is_event(self) -> bool:
        """Whether the deletion is an event and no fault: every message was read."""
        return not self.loss

    def make_ending(self, how: str, partition: int) -> Ending:
        """The end of a partition for its position and the ledger.

        Args:
            how: "deleted" or "re-created".
            partition: Partition number.
        """
        offset = self.ends.get(partition)
        if offset is None:
            return Ending(how)
        return Ending(how, offset, self.age_seconds)


def judge_topic_end(
    gone: GoneTopic | None,
    positions: Mapping[int, Position],
    verified_epochs: Mapping[TopicIdPartition, int],
    age_seconds_max: float,
) -> TopicEnd:
    """Judge the end of a topic: committed positions against the last reads of its offsets.

    Every message was read if no read shows an end beyond the position of its partition, and a recent one shows the
    position of each partition as its end.

    Args:
        gone: The topic; None if this run has not observed it.
        positions: Committed position of each partition.
        verified_epochs: Leader epochs under which a log was found to contain the records that were read.
        age_seconds_max: Age up to which a read counts: messages after it were lost unseen.
    """
    if gone is None:
        return TopicEnd()
    numbers = range(gone.topic.partitions)
    unread = _find_unread(gone, positions)
    if unread is not None:
        return unread
    looks = [look for look in gone.looks if look.ends.keys() >= set(numbers)]
    for look in looks:
        if look.is_certain and all(_is_at_end(positions[n], look.ends[n], verified_epochs) for n in numbers):
            age = look.age_seconds
            loss = ""
            if age > age_seconds_max:  # messages of that time were lost unseen
                loss = f"its end was last observed {age:.0f} s before it was missed, more than {age_seconds_max:g} s"
            return _make_end(gone, look, loss)
    if not looks:
        return TopicEnd(noticed_us=gone.noticed_us)
    return _make_end(gone, looks[0], "its end was not observed after its last message was read")


def _make_end(gone: GoneTopic, look: EndSnapshot, loss: str) -> TopicEnd:
    return TopicEnd(
        loss=loss,
        ends={number: ends.high_watermark for number, ends in sorted(look.ends.items())},
        age_seconds=look.age_seconds,
        noticed_us=gone.noticed_us,
    )


def _find_unread(gone: GoneTopic, positions: Mapping[int, Position]) -> TopicEnd | None:
    """The end that the newest read with offsets beyond the positions shows; None without one."""
    never = [f"partition {number} was not read" for number in range(gone.topic.partitions) if number not in positions]
    for look in gone.looks:
        unread = list[str]()
        for number, ends in look.ends.items():
            end = ends.high_watermark
            if number in positions and end > positions[number].next_offset:
                start = positions[number].next_offset
                unread.append(f"offsets {start} to {end - 1} of partition {number} were not read")
        if unread or never:
            return _make_end(gone, look, format_some([*unread, *never]))
    return None


def _is_at_end(position: Position, ends: PartitionOffsets, verified_epochs: Mapping[TopicIdPartition, int]) -> bool:
    """Whether a position is the end of the log from which it was read.

    After an accepted truncation the log ends before the position: records appended up to there are skipped anyway.
    """
    is_same_log = position.leader_epoch is None or ends.leader_epoch in (
        None,
        position.leader_epoch,
        verified_epochs.get(position.key),
    )
    is_cut = position.catching_up and ends.high_watermark < position.next_offset
    return is_same_log and (is_cut or ends.high_watermark == position.next_offset)
