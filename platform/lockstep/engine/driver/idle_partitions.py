"""How long a backlog has waited, and how long partitions have been silent or idle, by this machine's monotonic clock.

The loop updates these clocks with each poll of Kafka and each batch; a plan receives their values as part of its input.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping

import msgspec

from lockstep.declare.options import EventTime
from lockstep.engine.protocol import RangeResult
from lockstep.integrity.base import to_microseconds
from lockstep.kafka.admin import PartitionOffsets
from lockstep.model.position import Position, TopicIdPartition
from lockstep.model.tuning import Tuning


class BacklogClock(msgspec.Struct, frozen=True):
    """Time since when the oldest message of the backlog waits, for the file-size trigger.

    Attributes:
        since: Seconds of the process's monotonic clock; infinity without a backlog. A run does not know how long
            messages have waited before its start, so it starts with minus infinity.
    """

    since: float = -math.inf

    def note_poll(self, lag_messages: int, now: float) -> BacklogClock:
        """Update from the lag that Kafka shows."""
        if lag_messages == 0:
            return BacklogClock(math.inf)
        return BacklogClock(min(self.since, now))

    def note_batch(self, share: float, now: float) -> BacklogClock:
        """Update after a batch that took a share, 0 to 1, of the backlog: the oldest messages of each partition.

        The rest of the backlog from a run's start waits since before the run.
        """
        if share >= 1:
            return BacklogClock(now)
        if math.isinf(self.since):
            return self
        return BacklogClock(self.since + share * (now - self.since))

    def left_seconds(self, at_most: float, now: float) -> float:
        """Seconds until the oldest message has waited for `at_most` seconds."""
        return self.since + at_most - now


REST_RATIO = 10
"""A silent partition is left out for so many times the duration of the last wait for it: it delays the other partitions
for at most a tenth of the time."""


class Silence(msgspec.Struct, frozen=True):
    """A partition of which the last batches read nothing.

    Attributes:
        count: Number of these batches.
        since: Start of the first batch, in seconds of a monotonic clock.
        at: End of the last batch.
        waited: Duration of the last batch in seconds.
        place: Topic and partition.
        trouble: Why it read nothing.
    """

    count: int
    since: float
    at: float
    waited: float
    place: str
    trouble: str


class SilentPartitions:
    """Partitions of which the last batches read nothing, although Kafka shows messages to read."""

    def __init__(self, tuning: Tuning) -> None:
        self._tuning = tuning
        self._silences: dict[TopicIdPartition, Silence] = {}

    def note(self, results: Iterable[RangeResult], began: float, clock: float) -> list[str]:
        """Note the results of a batch; returns warnings of partitions that are newly silent, or for another reason.

        Args:
            results: Results of its ranges.
            began: Start of the batch, in seconds of a monotonic clock.
            clock: Its end.
        """
        news: list[str] = []
        for result in results:
            if result.trouble is None and not self._silences:
                continue  # mostly: a batch has thousands of ranges
            position = result.range.position
            trouble = result.trouble
            silence = self._silences.pop(position.key, None)
            if trouble is None:
                continue
            place = f"{position.topic}/{position.partition}"
            if result.reached.next_offset == position.next_offset:
                count = 0 if silence is None else silence.count
                since = began if silence is None else silence.since
                self._silences[position.key] = Silence(count + 1, since, clock, clock - began, place, trouble)
            if silence is None or silence.trouble != trouble:
                news.append(f"{place}: {trouble}")
        return news

    def find_patient(self) -> frozenset[TopicIdPartition]:
        """Partitions that a task waits for longer: silent in `straggler_batches` batches."""
        most = self._tuning.straggler_batches
        return frozenset(key for key, silence in self._silences.items() if silence.count >= most)

    def find_resting(self, clock: float) -> frozenset[TopicIdPartition]:
        """Partitions to leave out of the next batch: for long after a long wait, briefly after an immediate error."""
        most = self._tuning.straggler_batches
        resting = set[TopicIdPartition]()
        for key, silence in self._silences.items():
            if silence.count > most and clock - silence.at < self._rest_seconds(silence):
                resting.add(key)
        return frozenset(resting)

    def find_lasting(self, clock: float) -> dict[TopicIdPartition, Silence]:
        """Partitions that have been silent for longer than `patience_seconds`."""
        since = clock - self._tuning.patience_seconds
        return {key: silence for key, silence in self._silences.items() if silence.since < since}

    def _rest_seconds(self, silence: Silence) -> float:
        rest = max(self._tuning.retry_seconds, REST_RATIO * silence.waited)
        return min(rest, self._tuning.straggler_rest_seconds)


class IdlePartitions:
    """Partitions that are read to their ends, with the time since when: their watermarks advance by the clock."""

    def __init__(self, event_time: EventTime) -> None:
        self._advance_us: int | None = None
        if event_time.idle_advance is not None:
            self._advance_us = to_microseconds(event_time.idle_advance)
        self._since: dict[TopicIdPartition, tuple[int, float]] = {}

    def advance_watermarks(
        self,
        positions: Mapping[TopicIdPartition, Position],
        ends: Mapping[TopicIdPartition, PartitionOffsets],
        now_us: int,
        clock: float | None = None,
    ) -> dict[TopicIdPartition, int]:
        """The watermarks to which idle partitions advance; each advances once per idle timeout.

        Args:
            positions: Positions of the partitions.
            ends: End offsets in Kafka.
            now_us: Current time, microseconds since 1970 (UTC).
            clock: Seconds of a monotonic clock; by default this machine's.
        """
        if self._advance_us is None:
            return {}
        if clock is None:
            clock = time.monotonic()
        moved = dict[TopicIdPartition, int]()
        if len(self._since) > len(positions):  # some were retired
            self._since = {key: since for key, since in self._since.items() if key in positions}
        for key, position in positions.items():
            offset, since = self._since.get(key, (-1, clock))
            is_drained = key in ends and ends[key].high_watermark <= position.next_offset
            if not is_drained or offset != position.next_offset:
                self._since[key] = (position.next_offset, clock)
            elif (clock - since) * 1_000_000 >= self._advance_us:
                self._since[key] = (position.next_offset, clock)
                if position.watermark_us is not None and now_us - self._advance_us > position.watermark_us:
                    moved[key] = now_us - self._advance_us
        return moved
