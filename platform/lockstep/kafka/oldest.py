"""How old the first unread message of each partition is: one message of each is fetched, nothing is committed."""

from __future__ import annotations

import time
from collections.abc import Mapping

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, KafkaException, TopicPartition

from lockstep.errors import KafkaError
from lockstep.kafka.client import Configuration, consumer

POLL_SECONDS = 0.2
LITTLE = {"queued.min.messages": 1, "fetch.message.max.bytes": 65_536, "queued.max.messages.kbytes": 4_096}
"""One message a partition is wanted; what is fetched beyond it is thrown away."""

Place = tuple[str, int]
"""(topic, partition)."""


def oldest_unread(configuration: Configuration, positions: Mapping[Place, int], seconds: float) -> dict[Place, int]:
    """The timestamp, in milliseconds, of the first message at or after each position.

    Partitions without such a message, without timestamps, or that did not answer in time are left out.

    Args:
        configuration: Of a reader.
        positions: Offset by (topic, partition).
        seconds: How long to wait at most.

    Raises:
        KafkaError: The client could not be made.
    """
    if not positions:
        return {}
    try:
        reader = consumer({**configuration, **LITTLE})
        reader.assign([TopicPartition(topic, partition, offset) for (topic, partition), offset in positions.items()])
    except KafkaException as error:
        raise KafkaError(f"Kafka could not be read: {error.args[0].str()}", next_step="lockstep doctor") from error
    answered: set[Place] = set()
    found: dict[Place, int] = {}
    deadline = time.monotonic() + seconds
    try:
        while len(answered) < len(positions) and time.monotonic() < deadline:
            for message in reader.consume(len(positions), POLL_SECONDS):
                topic, partition = message.topic(), message.partition()
                if topic is None or partition is None or (topic, partition) in answered:
                    continue
                answered.add((topic, partition))
                reader.pause([TopicPartition(topic, partition)])
                kind, timestamp = message.timestamp()
                if message.error() is None and kind != TIMESTAMP_NOT_AVAILABLE:
                    found[topic, partition] = timestamp
    finally:
        reader.close()
    return found
