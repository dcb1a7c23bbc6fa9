"""Writes a size of the workload to Kafka, once for the life of the broker's folder."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_fixed

from benchmarks import workload
from benchmarks.systems import STREAM
from benchmarks.workload import Size

# Large batches and one connection: the feed is no part of any figure. Idempotent, so that a retry
# cannot write a message twice: the figures and the hash rest on exact counts.
_PRODUCER = {
    "enable.idempotence": True,
    "linger.ms": 50,
    "batch.num.messages": 10_000,
    "batch.size": 1_000_000,
    "queue.buffering.max.kbytes": 262_144,
    "queue.buffering.max.messages": 1_000_000,
}
_TIMEOUT_S = 60.0
_WAIT_S = 0.5
_POLL_MESSAGES = 1_000
_CREATE_AT_ONCE = 100


class FeedIncompleteError(Exception):
    """A topic does not hold what was fed.

    Attributes:
        topic: The topic's name.
        expected: Messages that were fed.
        found: Messages that the broker has.
    """

    def __init__(self, topic: str, expected: int, found: int) -> None:
        super().__init__(
            f"topic {topic}: {expected:,} messages were fed, the broker has {found:,}\n"
            "  next: remove the folder given with --keep, then run again"
        )
        self.topic = topic
        self.expected = expected
        self.found = found


def feed(bootstrap_servers: str, size: Size, folder: Path) -> bool:
    """Fill the topics of a size, unless the marker in `folder` says that they are full.

    1. Trust a marker of the same workload. 2. Drop what a broken feed left. 3. Create the topics.
    4. Produce. 5. Check the broker's own counts. 6. Leave the marker.

    Args:
        bootstrap_servers: The broker, as `host:port`.
        size: What to feed.
        folder: The broker's folder, whose life is the topics' life.

    Returns:
        Whether anything was written.

    Raises:
        FeedIncompleteError: The broker holds another number of messages than was fed.
        KafkaException: The broker refused something.
    """
    marker = folder / f"fed-{size.name}"
    if marker.exists() and marker.read_text() == _fingerprint(size):  # 1
        _check(bootstrap_servers, size)
        return False
    empty_topics(bootstrap_servers, size)  # 2, 3
    produce(bootstrap_servers, _in_blocks(size))  # 4
    _check(bootstrap_servers, size)  # 5
    marker.write_text(_fingerprint(size))  # 6
    return True


def _fingerprint(size: Size) -> str:
    """Another generator or another size, another fingerprint."""
    source = Path(workload.__file__).read_bytes()
    return f"{size} {hashlib.sha256(source).hexdigest()}\n"


def empty_topics(bootstrap_servers: str, size: Size) -> None:
    """Create the topics of a size, new where there are any."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    _drop(admin, size)
    _create(admin, size)


_patiently = retry(
    retry=retry_if_exception_type(KafkaException), wait=wait_fixed(0.5), stop=stop_after_delay(_TIMEOUT_S), reraise=True
)
"""A broker that has just started leads its thousands of partitions, and its groups, only after a while."""


@_patiently
def forget_positions(bootstrap_servers: str) -> None:
    """Delete the group to which lockstep publishes its positions.

    Every run of a benchmark begins with an empty folder. With positions in Kafka from the run before,
    lockstep would rightly take that for a lost table, and refuse to start.

    Raises:
        KafkaException: The broker refused it.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    groups = admin.list_consumer_groups(request_timeout=_TIMEOUT_S).result().valid
    if STREAM not in {group.group_id for group in groups}:
        return  # asking a new broker for a group's coordinator would make it create its topic of offsets first
    for deleted in admin.delete_consumer_groups([STREAM], request_timeout=_TIMEOUT_S).values():
        try:
            deleted.result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.GROUP_ID_NOT_FOUND:
                raise


def _drop(admin: AdminClient, size: Size) -> None:
    present = admin.list_topics(timeout=_TIMEOUT_S).topics.keys() & set(size.topic_names())
    if present:
        for done in admin.delete_topics(sorted(present), operation_timeout=_TIMEOUT_S).values():
            done.result()
        _wait_until(lambda: not admin.list_topics(timeout=_TIMEOUT_S).topics.keys() & present)


def _create(admin: AdminClient, size: Size) -> None:
    """Topics that keep everything: retention would eat a kept folder."""
    config = {"retention.ms": "-1", "retention.bytes": "-1"}
    wanted = [NewTopic(name, 1, 1, config=config) for name in size.topic_names()]
    for first in range(0, len(wanted), _CREATE_AT_ONCE):  # a thousand in one request take longer than it may
        some = wanted[first : first + _CREATE_AT_ONCE]
        for done in admin.create_topics(some, operation_timeout=_TIMEOUT_S).values():
            done.result()
    _wait_until(lambda: set(size.topic_names()) <= _list_led_topics(admin))


def _list_led_topics(admin: AdminClient) -> set[str]:
    """Topics whose partitions have a leader."""
    topics = admin.list_topics(timeout=_TIMEOUT_S).topics
    return {name for name, topic in topics.items() if _is_led(topic)}


def _is_led(topic: Any) -> bool:
    return all(partition.leader >= 0 for partition in topic.partitions.values())


def _wait_until(condition: Callable[[], bool]) -> None:
    """Wait for a broker that answers a request before it has carried it out for thousands of topics.

    Raises:
        TimeoutError: It has not.
    """
    deadline = time.monotonic() + _TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"topics have not changed within {_TIMEOUT_S:g} s")
        time.sleep(_WAIT_S)


def produce(bootstrap_servers: str, messages: Iterable[tuple[str, bytes, bytes]]) -> None:
    """Write messages, each its topic, key and value, as fast as the broker takes them.

    Raises:
        KafkaException: The broker refused something.
        TimeoutError: It did not take all of them in time.
    """
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            failures.append(error)

    producer = Producer({**_PRODUCER, "bootstrap.servers": bootstrap_servers, "on_delivery": delivered})
    for number, message in enumerate(messages):
        _produce_one(producer, *message)
        if number % _POLL_MESSAGES == 0:
            producer.poll(0)
            if failures:
                break
    left = producer.flush(_TIMEOUT_S)
    if failures:
        raise KafkaException(failures[0])
    if left:
        raise TimeoutError(f"{left:,} messages were not delivered within {_TIMEOUT_S:g} s")


def _in_blocks(size: Size) -> Iterator[tuple[str, bytes, bytes]]:
    for block in workload.blocks(size):
        for key, value in block.messages:
            yield block.topic, key, value


def _produce_one(producer: Producer, topic: str, key: bytes, value: bytes) -> None:
    while True:
        try:
            producer.produce(topic, key=key, value=value, partition=0)
        except BufferError:  # the local queue is full: let deliveries make room
            producer.poll(0.1)
        else:
            return


def _check(bootstrap_servers: str, size: Size) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "feed-check"})
    try:
        for name in size.topic_names():
            found = _end_of(consumer, TopicPartition(name, 0))
            if found != size.messages_per_topic:
                raise FeedIncompleteError(name, size.messages_per_topic, found)
    finally:
        consumer.close()


@_patiently
def _end_of(consumer: Consumer, place: TopicPartition) -> int:
    """End of a partition."""
    return consumer.get_watermark_offsets(place, timeout=_TIMEOUT_S)[1]
