"""Reads offset ranges of many partitions at once, each in offset order.

All ranges are assigned together: one after another, each assignment would wait for a fetch of its
own (a second each, measured). Offsets of a partition only ever rise, so a run of messages has no
hole exactly when its length says so: no look at each message is needed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import msgspec
from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException, Message, TopicPartition

from lockstep.kafka.client import RangeConsumer

MESSAGES_A_CALL = 1_000
"""What is decoded while still in the processor's cache; 10,000 a call cost about 1 us a message more."""
POLL_SECONDS = 0.5
SILENCE_SECONDS_MAX = 30.0
"""Without a message for so long the partitions that are left count as unavailable in this batch."""


_CORRUPT = frozenset(
    {
        ClientError.INVALID_MSG,  # the broker's words: it takes headers apart to find an offset
        ClientError.INVALID_RECORD,
        ClientError._BAD_MSG,  # noqa: SLF001  # the client's names: a checksum, a codec, a version, a length
        ClientError._BAD_COMPRESSION,  # noqa: SLF001
        ClientError._NOT_IMPLEMENTED,  # noqa: SLF001
        ClientError._UNDERFLOW,  # noqa: SLF001
    }
)


class Range(msgspec.Struct, frozen=True):
    """Offsets [start, until) of one partition.

    Attributes:
        topic: Name of the topic.
        partition: Partition number.
        start: First offset to read.
        until: First offset not to read.
        leader_epoch: Epoch of the last record read before `start`, so that a log that was cut and
            grew again is seen.
        single_batches: Each fetch is to give one record batch.
    """

    topic: str
    partition: int
    start: int
    until: int
    leader_epoch: int | None = None
    single_batches: bool = False


class Run(msgspec.Struct):
    """Messages of one range, in offset order, next to those given before.

    Attributes:
        index: Which of the ranges.
        messages: The messages; empty when only offsets without messages were passed.
        gaps: (start, until) of offsets in front of, between or behind these messages that held none.
        reached: First offset not covered any more.
    """

    index: int
    messages: list[Message]
    gaps: list[tuple[int, int]]
    reached: int


class Unreadable(msgspec.Struct, frozen=True):
    """A range that could not be read on.

    Attributes:
        index: Which of the ranges.
        reason: The client's words.
        is_corrupt: What the broker has there cannot be taken apart.
    """

    index: int
    reason: str
    is_corrupt: bool = False


def read(consumer: RangeConsumer, ranges: Sequence[Range]) -> Iterator[Run | Unreadable]:
    """Read all ranges to their ends; the runs of a range come in order.

    The caller may send nothing back, but may stop iterating: the assignment is dropped either way.
    """
    reading = _Reading(consumer, ranges)
    try:
        yield from reading.runs()
    finally:
        consumer.unassign()


class _Reading:
    """One pass over the ranges of a bin."""

    def __init__(self, consumer: RangeConsumer, ranges: Sequence[Range]) -> None:
        self._consumer, self._ranges = consumer, ranges
        self._next = [item.start for item in ranges]
        self._open = {
            (item.topic, item.partition): index for index, item in enumerate(ranges) if item.start < item.until
        }
        self._alive = set(self._open.values())

    def runs(self) -> Iterator[Run | Unreadable]:
        """All runs until every range is done or Kafka stays silent."""
        if not self._open:
            return
        self._consumer.assign([_assigned(self._ranges[index]) for index in self._alive])
        silent_since = time.monotonic()
        while self._open:
            messages = self._consumer.consume(min(MESSAGES_A_CALL, self._left()), POLL_SECONDS)
            if messages:
                silent_since = time.monotonic()
                self._consumer.answered()
            elif time.monotonic() - silent_since > SILENCE_SECONDS_MAX:
                why = self._consumer.silence()
                yield from self._give_up(f"nothing was heard of the partition for 30 seconds{why and f': {why}'}")
                return
            yield from self._sorted(messages)

    def _left(self) -> int:
        """Asking for more than is left would wait for messages that nobody wants."""
        return max(1, sum(self._ranges[index].until - self._next[index] for index in self._alive))

    def _sorted(self, messages: list[Message]) -> Iterator[Run | Unreadable]:
        """Messages by range, then the ends of partitions that came with them.

        The client hands out what it fetched partition by partition, so nearly always all are of one.
        """
        place = _same_place(messages)
        if place is None:
            yield from self._mixed(messages)
        elif place in self._open:
            yield self._run(self._open[place], messages)

    def _mixed(self, messages: list[Message]) -> Iterator[Run | Unreadable]:
        by_range: dict[int, list[Message]] = {}
        events: list[tuple[int, Message]] = []
        known = self._open
        # Mapped methods: this loop sees every message, and a bound call costs twice as much.
        places = zip(map(Message.topic, messages), map(Message.partition, messages), strict=True)
        for place, error, message in zip(places, map(Message.error, messages), messages, strict=True):
            index = known.get(place)  # type: ignore[arg-type]  # topic and partition are set on every message
            if index is None:
                continue  # over-fetched after its range was done
            if error is not None:
                events.append((index, message))
            elif index in by_range:
                by_range[index].append(message)
            else:
                by_range[index] = [message]
        for index, found in by_range.items():
            yield self._run(index, found)
        for index, event in events:
            yield from self._event(index, event)

    def _event(self, index: int, event: Message) -> Iterator[Run | Unreadable]:
        error = event.error()
        if index not in self._alive or error is None:
            return
        if error.code() == ClientError._PARTITION_EOF:  # noqa: SLF001  # the client's name of the event
            yield from self._end(index, int(event.offset() or 0))
        elif error.code() in _CORRUPT or not error.retriable():  # the client would try a corrupt batch for ever
            self._finish(index)
            yield Unreadable(index, error.str(), error.code() in _CORRUPT)

    def _run(self, index: int, messages: list[Message]) -> Run:
        start, until = self._next[index], self._ranges[index].until
        past = _offset(messages[-1]) >= until - 1
        if past:
            messages = _before(messages, until)
        gaps = _gaps(messages, start, until if past else None)
        self._next[index] = until if past else _offset(messages[-1]) + 1
        if past:
            self._finish(index)
        return Run(index=index, messages=messages, gaps=gaps, reached=self._next[index])

    def _end(self, index: int, position: int) -> Iterator[Run]:
        """The partition ends at `position`: what lies before it and held no message is a gap."""
        if position <= self._next[index]:
            return
        reached = min(position, self._ranges[index].until)
        gap = (self._next[index], reached)
        self._next[index] = reached
        if reached == self._ranges[index].until:
            self._finish(index)
        yield Run(index=index, messages=[], gaps=[gap], reached=reached)

    def _finish(self, index: int) -> None:
        done = self._ranges[index]
        del self._open[done.topic, done.partition]
        self._alive.discard(index)
        if self._open:
            try:
                self._consumer.incremental_unassign([TopicPartition(done.topic, done.partition)])
            except KafkaException:
                return  # only saves fetching: what still comes is dropped

    def _give_up(self, reason: str) -> Iterator[Unreadable]:
        for index in sorted(self._alive):
            yield Unreadable(index, reason)
        self._open = {}


def _same_place(messages: list[Message]) -> tuple[str, int] | None:
    """Topic and partition of messages that are all of one, without an event among them; else None."""
    topics, partitions = list(map(Message.topic, messages)), list(map(Message.partition, messages))
    alike = (
        messages
        and topics.count(topics[0]) == len(messages)
        and partitions.count(partitions[0]) == len(messages)
        and not any(map(Message.error, messages))
    )
    return (topics[0], partitions[0]) if alike else None  # type: ignore[return-value]  # set on every message


def _assigned(item: Range) -> TopicPartition:
    if item.leader_epoch is None or item.leader_epoch < 0:
        return TopicPartition(item.topic, item.partition, item.start)
    return TopicPartition(item.topic, item.partition, item.start, leader_epoch=item.leader_epoch)


def _offset(message: Message) -> int:
    return message.offset()  # type: ignore[return-value]  # always set on a consumed message


def _before(messages: list[Message], until: int) -> list[Message]:
    """Drop what was fetched past the end of the range."""
    keep = len(messages)
    while keep and _offset(messages[keep - 1]) >= until:
        keep -= 1
    return messages[:keep] if keep < len(messages) else messages


def _gaps(messages: list[Message], start: int, until: int | None) -> list[tuple[int, int]]:
    """Offsets without a message between `start`, the messages, and `until` where it is reached."""
    end = until if until is not None else _offset(messages[-1]) + 1
    if end - start == len(messages):
        return []
    gaps, expected = [], start
    for message in messages:
        offset = _offset(message)
        if offset > expected:
            gaps.append((expected, offset))
        expected = offset + 1
    if end > expected:
        gaps.append((expected, end))
    return gaps
