"""Copies a topic to another cluster as MirrorMaker 2 does, with checkpoints in its binary format.

The original runs in Kafka Connect, which is too heavy for a test. The tests need only its output: messages with key,
value, headers and create time at other offsets, and translated group offsets that are lower bounds.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, cast

from confluent_kafka import Consumer, Message, Producer, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Sequence

ANSWER_SECONDS = 60.0


def read_source(bootstrap_servers: str, topic: str, start: int, until: int, partition: int = 0) -> list[Message]:
    """Read the messages of a partition from `start` to before `until`."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap_servers, "group.id": "mirror", "enable.auto.commit": False, "log_level": 2}
    )
    consumer.assign([TopicPartition(topic, partition, start)])
    found: list[Message] = []
    while len(found) < until - start:
        polled = consumer.consume(until - start - len(found), ANSWER_SECONDS)
        assert polled, f"{topic} has no more than {len(found)} messages from {start} on"
        found += polled
    consumer.close()
    return found


def append_copies(
    bootstrap_servers: str, topic: str, messages: Sequence[Message], *, transaction: str = "", partition: int = 0
) -> None:
    """Append copies of messages in order; if a transaction is named, append them in it, followed by its marker."""
    extra = {"transactional.id": transaction} if transaction else {"max.in.flight.requests.per.connection": 1}
    producer = Producer({"bootstrap.servers": bootstrap_servers, "log_level": 2, **extra})
    if transaction:
        producer.init_transactions(ANSWER_SECONDS)
        producer.begin_transaction()
    for message in messages:
        _, created_ms = message.timestamp()
        headers = cast("list[tuple[str, str | bytes | None]]", message.headers() or [])
        producer.produce(topic, message.value(), message.key(), partition, timestamp=created_ms, headers=headers)
    assert producer.flush(ANSWER_SECONDS) == 0
    if transaction:
        producer.commit_transaction(ANSWER_SECONDS)


def append_checkpoint(
    bootstrap_servers: str, source: str, group: str, place: tuple[str, int], upstream: int, downstream: int
) -> None:
    """Append a record to the checkpoint topic, as `Checkpoint.recordKey` and `recordValue` of MirrorMaker make them."""
    topic, partition = place
    names = b"".join(struct.pack(">h", len(name)) + name for name in (group.encode(), topic.encode()))
    producer = Producer({"bootstrap.servers": bootstrap_servers, "log_level": 2})
    value = struct.pack(">hqqh", 0, upstream, downstream, 0)
    producer.produce(f"{source}.checkpoints.internal", value, names + struct.pack(">i", partition))
    assert producer.flush(ANSWER_SECONDS) == 0
