"""Position: the progress of a partition, for each module that reads, plans, audits, folds or records it."""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class TopicIdPartition(NamedTuple):
    """A partition of one topic, in which a topic of the same name that replaced it has no part.

    Attributes:
        topic_id: Id of the topic.
        partition: Partition number.
    """

    topic_id: str
    partition: int


class TopicNamePartition(NamedTuple):
    """A partition as clients and people name it: after its topic was re-created, of the new topic.

    Attributes:
        topic: Name of the topic.
        partition: Partition number.
    """

    topic: str
    partition: int


def make_key(topic_id: str, partition: int) -> TopicIdPartition:
    """Make the key of a partition, in half the time of its constructor: a batch makes several of each partition."""
    return _new(TopicIdPartition, (topic_id, partition))


_new = tuple.__new__


class SegmentRef(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Address of one partition's segment in a durable state file.

    Attributes:
        file: Name of the file, relative to the stream's state folder.
        start: First byte of the segment.
        length: Length of the segment in bytes.
    """

    file: str
    start: int
    length: int

    def __str__(self) -> str:
        return f"{self.file} bytes {self.start} to {self.start + self.length}"


class SuspendedSession(msgspec.Struct, frozen=True):
    """A session that an operator skips until its next snapshot.

    Attributes:
        session: The session.
        before: It is suspended if it started before this offset.
    """

    session: str
    before: int


class Ending(msgspec.Struct, frozen=True, gc=False):
    """The end of a partition whose topic was deleted or re-created.

    Attributes:
        how: "deleted" or "re-created".
        offset: Its high watermark as last observed before; None if no run has observed it.
        age_seconds: Age of that observation when the topic was missed; None without one.
    """

    how: str
    offset: int | None = None
    age_seconds: float | None = None


class Position(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """State of a partition between two batches.

    Attributes:
        topic: Name of the topic.
        topic_id: Id of the topic; a re-created topic has another id.
        partition: Partition number.
        next_offset: First offset not yet committed.
        leader_epoch: Leader epoch of the last record read; None if it no longer applies.
        state: Segment with the newest state change; None without state.
        suspended_from: Sessions that started before this offset are suspended until their next snapshot.
        watermark_us: Watermark of the partition; None before its first event time.
        rows_emitted: Rows that timers already emitted at `next_offset`, while no message arrived.
        is_only: The topic has no other partition.
        suspended_sessions: Sessions that an operator skips until their next snapshot.
        catching_up: The log was truncated below this position and an operator accepted it: records appended below the
            position are skipped.
        joined_at: First offset that was read, if the stream does not read the log from its start
            (`Topics.start`): sessions may have started before. 0 otherwise.
        gone_since_us: Since when Kafka has not had the retired topic; None while it has, or before a run has checked.
        ending: The end of a topic that was deleted or re-created; None while it lives, or is only retired.
        discarded_by: Why states of the partition were discarded that no batch has counted yet (`StateLoss.cause`);
            empty without any.
        uncounted_skips: Skipped sessions whose states no batch has counted yet.
        lost_before: Sessions that are suspended because they started before this offset are counted as lost.
        archived_until: Offset after the last archived one, which a rewind does not set back; None if none was archived.
    """

    topic: str
    topic_id: str
    partition: int
    next_offset: int
    leader_epoch: int | None = None
    state: SegmentRef | None = None
    suspended_from: int = 0
    watermark_us: int | None = None
    rows_emitted: int = 0
    is_only: bool = True
    suspended_sessions: tuple[SuspendedSession, ...] = ()
    catching_up: bool = False
    joined_at: int = 0
    gone_since_us: int | None = None
    ending: Ending | None = None
    discarded_by: str = ""
    uncounted_skips: tuple[str, ...] = ()
    lost_before: int = 0
    archived_until: int | None = None

    @property
    def key(self) -> TopicIdPartition:
        """The partition, by the id of its topic."""
        return _new(TopicIdPartition, (self.topic_id, self.partition))

    @property
    def is_uncounted(self) -> bool:
        """Whether states of it may have been discarded that no batch has counted yet."""
        return bool(self.discarded_by) or bool(self.uncounted_skips)
