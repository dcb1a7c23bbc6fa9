"""The offsets at which a bounded run ends, and the errors that end it if it cannot read up to them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from lockstep.engine.driver.idle_partitions import Silence
from lockstep.errors import KafkaError, KafkaUnreachable
from lockstep.kafka.admin import ClusterView
from lockstep.model.position import Position, TopicIdPartition, TopicNamePartition
from lockstep.model.tuning import Tuning


class StopOffsets:
    """The last stable offset of each partition when the run first saw it with a leader; none in a never-ending run.

    Attributes:
        offsets: Stop offsets by partition.
    """

    def __init__(self, stream: str, tuning: Tuning, *, is_bounded: bool) -> None:
        """No partition is known yet.

        Args:
            stream: Name of the stream.
            tuning: Bounds the time without a leader.
            is_bounded: The run ends at these offsets.
        """
        self.offsets: dict[TopicIdPartition, int] = {}
        self._stream = stream
        self._is_bounded = is_bounded
        self._tuning = tuning
        self._leaderless_since = math.inf

    def note(self, view: ClusterView) -> None:
        """Add the partitions that a view shows with a leader for the first time."""
        if self._is_bounded:
            for key, ends in view.ends.items():
                self.offsets.setdefault(key, ends.stable_end)

    def is_reached(
        self,
        positions: Mapping[TopicIdPartition, Position],
        view: ClusterView,
        silences: Mapping[TopicIdPartition, Silence],
        now: float,
    ) -> bool:
        """Whether all partitions are committed up to their stop offsets, including those without a leader.

        Args:
            positions: Positions of the partitions that the run reads.
            view: Kafka's offsets now.
            silences: Partitions that have given no message for too long.
            now: Seconds of a monotonic clock.

        Raises:
            KafkaError: A partition that is not read yet has had no leader, or given no message, for too long.
        """
        stops = self._limit_to_logs(view)
        unread = {key for key, position in positions.items() if position.next_offset < stops.get(key, 0)}
        for key, silence in silences.items():
            if key in unread:
                raise self._make_silent_error(silence, now)
        leaderless = [place for place in view.unavailable if not self._is_read(place, positions, view)]
        if leaderless:
            self._leaderless_since = min(self._leaderless_since, now)
            if now - self._leaderless_since > self._tuning.patience_seconds:
                raise self._make_leaderless_error(leaderless)
            return False
        self._leaderless_since = math.inf
        return not unread

    def describe_lost(self, positions: Mapping[TopicIdPartition, Position], view: ClusterView) -> Iterator[str]:
        """The partitions whose logs end before their stop offsets now: a broker has lost messages."""
        for key, end in self._limit_to_logs(view).items():
            position = positions.get(key)
            if end < self.offsets[key] and position is not None:
                log = f"{position.topic}/{position.partition}: the log ends at offset {end} now"
                yield f"{log}, and at {self.offsets[key]} before: unread messages are gone"

    def _limit_to_logs(self, view: ClusterView) -> dict[TopicIdPartition, int]:
        """The stop offsets; of a log that was truncated since, its end: no messages are awaited beyond it."""
        limited = dict(self.offsets)
        for key, offset in self.offsets.items():
            if key in view.ends:
                limited[key] = min(offset, view.ends[key].high_watermark)
        return limited

    def _is_read(
        self, place: TopicNamePartition, positions: Mapping[TopicIdPartition, Position], view: ClusterView
    ) -> bool:
        """Whether a partition without a leader is committed up to its stop offset, which may be unknown."""
        key = (view.topics[place[0]].topic_id, place[1])
        return key in positions and key in self.offsets and positions[key].next_offset >= self.offsets[key]

    def _make_silent_error(self, silence: Silence, now: float) -> KafkaError:
        return KafkaUnreachable(
            f"{silence.place} gave no message for {now - silence.since:.0f} s ({silence.trouble}): "
            "its messages are not read; all others are",
            next_step=f"lockstep doctor asks for each topic; then: lockstep run {self._stream} --available-now",
        )

    def _make_leaderless_error(self, places: list[TopicNamePartition]) -> KafkaError:
        topic, partition = places[0]
        more = f", nor have {len(places) - 1} more" if len(places) > 1 else ""
        return KafkaUnreachable(
            f"{topic}/{partition} has no leader that answers{more}: its messages are not read; all others are",
            next_step="kafka-topics.sh --describe --unavailable-partitions, start the brokers that hold the "
            f"replicas, then: lockstep run {self._stream} --available-now",
        )
