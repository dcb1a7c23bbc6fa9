"""The first messages of a topic, decoded, with their places."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import msgspec
from confluent_kafka import Message

from lockstep.errors import LockstepError
from lockstep.features.inference.evidence import SampledMessage, list_places
from lockstep.model.position import TopicNamePartition
from lockstep.settings import KafkaSettings
from lockstep.verify.kafka_reader import KafkaTopicLog, WantedRange

BYTES_MAX = 128_000_000
"""More is not held in memory: a sample ends there."""


class NothingToInfer(LockstepError):
    """A topic has no message from which a stream can be inferred."""

    def __init__(self, topic: str, problem: str) -> None:
        super().__init__(
            f"no stream can be inferred from topic {topic!r}: {problem}",
            next_step="name a topic with JSON messages, or write the file by hand: docs/add-a-stream.md",
        )


@dataclass(frozen=True)
class Sample:
    """Messages of a topic.

    Attributes:
        topic: The topic.
        messages: Its JSON messages, by partition in the order of the log.
        garbage: Partition and offset of messages other than JSON.
        tombstones: Partition and offset of messages without a value.
        is_from_start: Whether each partition was read from offset 0.
    """

    topic: str
    messages: tuple[SampledMessage, ...]
    garbage: tuple[tuple[int, int], ...] = ()
    tombstones: tuple[tuple[int, int], ...] = ()
    is_from_start: bool = True


@dataclass(frozen=True)
class RawMessage:
    """A message as Kafka has it.

    Attributes:
        partition: Its partition.
        offset: Its offset.
        key: Its key.
        value: Its value.
        timestamp_ms: Kafka's timestamp.
    """

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int


def read_sample(settings: KafkaSettings, topic: str, messages_max: int) -> Sample:
    """Read the first messages of a topic, shared among its partitions.

    Raises:
        NothingToInfer: The topic does not exist, or has no JSON message.
        KafkaError: Kafka does not answer.
    """
    log = KafkaTopicLog(settings)
    count = log.count_partitions(topic)
    if not count:
        raise NothingToInfer(topic, "there is no such topic")
    ranges = log.read_ranges(TopicNamePartition(topic, number) for number in range(count))
    share = max(1, messages_max // count)
    wanted = [
        WantedRange(topic, place.partition, each.first, min(each.end, each.first + share))
        for place, each in ranges.items()
        if each.end > each.first
    ]
    raw: list[RawMessage] = []
    size = 0
    for piece in log.read(wanted):
        raw += map(_to_raw, piece.messages)
        size += sum(len(message.value() or b"") for message in piece.messages)
        if size > BYTES_MAX:
            break
    sample = make_sample(topic, raw)
    return replace(sample, is_from_start=all(each.start == 0 for each in wanted))


def _to_raw(message: Message) -> RawMessage:
    partition = message.partition()
    offset = message.offset()
    if partition is None or offset is None:
        raise TypeError(message)  # a message of the log has both
    return RawMessage(partition, offset, _to_bytes(message.key()), _to_bytes(message.value()), message.timestamp()[1])


def _to_bytes(content: str | bytes | None) -> bytes | None:
    return content.encode() if isinstance(content, str) else content


def make_sample(topic: str, raw: Iterable[RawMessage]) -> Sample:
    """Decode messages.

    Raises:
        NothingToInfer: None of them is JSON.
    """
    messages: list[SampledMessage] = []
    garbage: list[tuple[int, int]] = []
    tombstones: list[tuple[int, int]] = []
    for each in sorted(raw, key=lambda message: (message.partition, message.offset)):
        if each.value is None:
            tombstones.append((each.partition, each.offset))
            continue
        try:
            decoded = msgspec.json.decode(each.value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            garbage.append((each.partition, each.offset))
            continue
        places = dict(list_places(decoded))
        scalars = {path: value for path, value in places.items() if isinstance(value, str | int | float | bool)}
        messages.append(
            SampledMessage(
                each.partition,
                each.offset,
                each.key,
                each.value,
                each.timestamp_ms,
                decoded,
                scalars,
                frozenset(places),
            )
        )
    if not messages:
        raise NothingToInfer(topic, _describe_absence(garbage, tombstones))
    return Sample(topic, tuple(messages), tuple(garbage), tuple(tombstones))


def _describe_absence(garbage: Sequence[object], tombstones: Sequence[object]) -> str:
    if garbage:
        return f"none of its first {len(garbage)} messages is JSON"
    return "its messages have no values" if tombstones else "it has no messages"
