"""A read beyond the end of a range never extends the wait for another range."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, cast

import msgspec
from confluent_kafka import Message, TopicPartition

from lockstep.kafka.reader import MessageRun, Range, UnreadableRange, read_ranges
from lockstep.model.tuning import DEFAULT_TUNING

if TYPE_CHECKING:
    from lockstep.kafka.client import RangeConsumer

QUICK = msgspec.structs.replace(DEFAULT_TUNING, straggler_seconds_max=0.2)


class EndlessBesideSilent:
    """A consumer that returns messages of one partition without end, and no messages of the others."""

    def __init__(self, topic: str) -> None:
        self._topic, self._offsets = topic, count()
        self.dropped: list[str] = []

    def assign(self, partitions: list[TopicPartition]) -> None:
        pass

    def consume(self, most: int, timeout: float) -> list[Message]:
        del timeout
        if self._topic in self.dropped:
            return []
        return [Message(topic=self._topic, partition=0, offset=next(self._offsets), value=b"x") for _ in range(most)]

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        self.dropped += [partition.topic for partition in partitions]

    def unassign(self) -> None:
        pass

    def clear_log(self) -> None:
        pass

    def explain_silence(self) -> str:
        return ""


def read(ranges: list[Range]) -> tuple[EndlessBesideSilent, list[MessageRun | UnreadableRange]]:
    consumer = EndlessBesideSilent("loud")
    return consumer, list(read_ranges(cast("RangeConsumer", consumer), ranges, QUICK))


def test_a_partition_that_is_silent_is_given_up_whatever_comes_beyond_the_others() -> None:
    _, (*runs, last) = read([Range("loud", 0, 0, 10, beyond=10**9), Range("silent", 0, 0, 5)])
    assert isinstance(last, UnreadableRange)
    assert last.index == 1
    assert all(isinstance(run, MessageRun) and run.index == 0 and not run.gaps for run in runs)


def test_a_range_that_has_all_that_it_may_take_is_fetched_no_more() -> None:
    consumer, (*runs, last) = read([Range("loud", 0, 0, 10, beyond=25), Range("silent", 0, 0, 5)])
    assert isinstance(last, UnreadableRange)
    assert [run.reached for run in runs if isinstance(run, MessageRun)][-1] == 35
    assert consumer.dropped == ["loud"]


def test_what_is_beyond_all_ranges_is_taken_once_and_not_waited_for() -> None:
    consumer, runs = read([Range("loud", 0, 0, 10, beyond=10**9)])
    assert [(len(run.messages), run.reached) for run in runs if isinstance(run, MessageRun)] == [
        (10, 10),
        (1_000, 1_010),
    ]
    assert consumer.dropped == []
