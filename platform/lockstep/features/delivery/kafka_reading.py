"""Reads the committed messages of a topic to which rows were delivered."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

from confluent_kafka import KafkaError as ClientError
from confluent_kafka import Message, TopicPartition

from lockstep.errors import LockstepError
from lockstep.features.delivery.kafka_message import BATCH, ROW
from lockstep.kafka.admin import PartitionOffsets
from lockstep.kafka.client import make_consumer, make_reader_configuration
from lockstep.settings import KafkaSettings

SILENT_POLLS = 150
"""Polls of a fifth of a second without a message after which reading ends."""


def read_partition(start: TopicPartition, end: int, kafka: KafkaSettings) -> Iterator[Message]:
    """Read the committed messages of a partition up to its last stable offset.

    Raises:
        LockstepError: Kafka sends no further message.
    """
    if start.offset >= end:
        return
    consumer: Any = make_consumer(make_reader_configuration(kafka))
    reached = start.offset
    silent = 0
    try:
        consumer.assign([start])
        while reached < end:
            found = consumer.consume(5_000, 0.2)
            silent = 0 if found else silent + 1
            if silent > SILENT_POLLS:
                problem = f"topic {start.topic}, partition {start.partition}: no message from offset {reached} to {end}"
                raise LockstepError(problem, next_step="check the cluster; then run the command again")
            for message in found:
                error = message.error()
                if error is None:
                    yield message
                elif error.code() != ClientError._PARTITION_EOF:  # noqa: SLF001  # the client's name
                    raise LockstepError(f"topic {start.topic}: {error.str()}", next_step="run the command again")
                reached = max(reached, message.offset() + (error is None))
    finally:
        consumer.close()


class KeyPlace(NamedTuple):
    """A key in a partition."""

    partition: int
    key: bytes


class LastMessage(NamedTuple):
    """The last message of a key, without its value.

    Attributes:
        headers: Its headers `lockstep.row` and `lockstep.batch`; empty for a message without them.
        digest: Digest of its value.
    """

    headers: Mapping[str, bytes]
    digest: bytes


def read_last_messages(
    topic: str,
    ends: Mapping[int, PartitionOffsets],
    kafka: KafkaSettings,
    clear_id: Callable[[bytes], bytes] = bytes,
) -> dict[KeyPlace, LastMessage]:
    """Read the last message of each key, some 500 bytes of memory for each; tombstones are left out.

    Args:
        topic: The topic.
        ends: The offsets of its partitions.
        kafka: The cluster.
        clear_id: Clears the id of a schema in a value before its digest; by default the value is as it is.

    Raises:
        LockstepError: Kafka sends no further message.
    """
    last = dict[KeyPlace, LastMessage]()
    for partition, offsets in sorted(ends.items()):
        for message in read_partition(TopicPartition(topic, partition, offsets.start), offsets.stable_end, kafka):
            place = KeyPlace(partition, message.key() or b"")
            value = message.value()
            if value is None:
                last.pop(place, None)
                continue
            found: dict[str, Any] = dict(message.headers() or [])
            headers = {name: found[name] for name in (ROW, BATCH) if name in found}
            last[place] = LastMessage(headers, digest_value(clear_id(value)))
    return last


def digest_value(value: bytes) -> bytes:
    """The digest of a value."""
    return blake2b(value, digest_size=8).digest()
