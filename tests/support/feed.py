"""Sends messages to exact places (topic, partition, transaction), and computes the rows expected of them."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import IsolationLevel, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewPartitions, NewTopic

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from confluent_kafka import KafkaError, Message

ANSWER_SECONDS = 60.0
SILENT_SECONDS = 5
"""A broker that does not answer within this time is not asked again while another broker answers."""
GONE_SECONDS_MAX = 60.0
NEWEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # the library's own stub
COLUMNS = ("_offset", "_row", "_session", "_sequence", "name", "value", "total")


def snapshot(seq: int, **values: int) -> bytes:
    return json.dumps({"type": "snapshot", "seq": seq, "values": values}).encode()


def update(seq: int, total: int | None = None, **values: int) -> bytes:
    return json.dumps({"type": "update", "seq": seq, "values": values, "total": total}).encode()


def session(updates: int, first: int = 1) -> list[bytes]:
    """Make a snapshot, followed by updates of two values."""
    return [snapshot(first, a=1, b=2), *(update(first + n, a=n, b=-n) for n in range(1, updates + 1))]


def folded(messages: Sequence[tuple[int, str, bytes]]) -> list[tuple[object, ...]]:
    """Fold (offset, session, value) to rows as `COLUMNS`, without importing lockstep."""
    rows: list[tuple[object, ...]] = []
    states: dict[str, dict[str, int]] = {}
    for offset, key, value in messages:
        message = json.loads(value)
        if message["type"] == "snapshot":
            states[key] = dict(message["values"])
            continue
        state = states[key]
        for row, (name, added) in enumerate(message["values"].items()):
            state[name] = state.get(name, 0) + added
            rows.append((offset, row, key, message["seq"], name, state[name], sum(state.values())))
    return rows


def session_in(partition: int) -> str:
    """Return the session of values that are sent without key."""
    return f"s{partition}" if partition else "s"


class ProducerRecord(NamedTuple):
    """A message to send.

    Attributes:
        key: The message key.
        value: The message value; None for a tombstone.
        timestamp_ms: Its create time; 0 for now.
        headers: Its headers.
    """

    key: str | bytes | None
    value: bytes | None
    timestamp_ms: int = 0
    headers: tuple[tuple[str, bytes | None], ...] = ()


@cache
def kept_producer(bootstrap_servers: str) -> Producer:
    """Return the only producer of this process for a broker.

    With one broker, it keeps the order by one request at a time: an idempotent producer waits half a second for its id.
    With several brokers it is idempotent: a broker may fail before it acknowledges a stored message, and the message
    must not be stored twice. A restarted broker is found within half a second.
    """
    several = "," in bootstrap_servers
    order = {"acks": "all", "enable.idempotence": several, "max.in.flight.requests.per.connection": 1}
    patience = {"reconnect.backoff.max.ms": 500, **({"socket.timeout.ms": SILENT_SECONDS * 1000} if several else {})}
    return Producer({**order, **patience, "bootstrap.servers": bootstrap_servers, "log_level": 2})


@cache
def kept_admin(bootstrap_servers: str) -> AdminClient:
    """Return the process's only admin client for a broker: a client costs 50 ms, and 6 ms of CPU in the broker."""
    return _make_admin(bootstrap_servers)


def _make_admin(bootstrap_servers: str) -> AdminClient:
    patience = {"reconnect.backoff.max.ms": 500}  # as for the producer
    return AdminClient({**patience, "bootstrap.servers": bootstrap_servers, "log_level": 2})


def append(bootstrap_servers: str, topic: str, messages: Iterable[ProducerRecord], partition: int = 0) -> None:
    """Append messages to one partition, in order, and wait until the broker has acknowledged each."""
    producer = kept_producer(bootstrap_servers)
    refused: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            refused.append(error)

    _refresh(producer, topic)  # it may have grown or been re-created since the last call
    for key, value, timestamp_ms, headers in messages:
        producer.produce(
            topic, value, key, partition, timestamp=timestamp_ms, headers=list(headers) or None, on_delivery=delivered
        )
    assert producer.flush(ANSWER_SECONDS) == 0
    assert refused == []


def _refresh(producer: Producer, topic: str) -> None:
    """Request a topic until a broker answers: the first broker asked may be stopped."""
    deadline = time.monotonic() + ANSWER_SECONDS
    while True:
        try:
            producer.list_topics(topic, timeout=SILENT_SECONDS + 1)
        except KafkaException:
            if time.monotonic() > deadline:
                raise
        else:
            return


def await_partitions(admin: AdminClient, topic: str, partitions: int) -> None:
    """Wait until the broker shows a new topic or partition: it answers before its cache is updated."""
    deadline = time.monotonic() + GONE_SECONDS_MAX
    while len(admin.list_topics(topic, timeout=ANSWER_SECONDS).topics[topic].partitions) < partitions:
        assert time.monotonic() < deadline, f"{topic} does not show {partitions} partitions"
        time.sleep(0.1)


@dataclass(frozen=True)
class Feed:
    """The producer of one test.

    Attributes:
        bootstrap_servers: The broker.
        family: Prefix of the test's topics.
    """

    bootstrap_servers: str
    family: str

    @property
    def pattern(self) -> str:
        """Matches only the topics of this test."""
        return rf"{self.family}\..+"

    def create(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        """Create a topic, wait until the broker shows it, and return its full name."""
        topic = f"{self.family}.{name}"
        wanted = NewTopic(topic, num_partitions=partitions, config={"retention.ms": "-1", **(config or {})})
        admin = kept_admin(self.bootstrap_servers)
        admin.create_topics([wanted])[topic].result(ANSWER_SECONDS)
        await_partitions(admin, topic, partitions)
        return topic

    def configure(self, topic: str, setting: str, value: str) -> None:
        """Change a setting of a topic."""
        entry = ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        admin = kept_admin(self.bootstrap_servers)
        admin.incremental_alter_configs([resource])[resource].result(ANSWER_SECONDS)

    def grow(self, topic: str, partitions: int) -> None:
        """Add partitions to a topic, and wait until the broker shows them."""
        admin = kept_admin(self.bootstrap_servers)
        admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(ANSWER_SECONDS)
        await_partitions(admin, topic, partitions)

    def expire(self, topic: str, until: int, partition: int = 0) -> None:
        """Remove the messages before an offset, as retention does."""
        place = TopicPartition(topic, partition, until)
        admin = kept_admin(self.bootstrap_servers)
        admin.delete_records([place])[place].result(ANSWER_SECONDS)

    def delete(self, topic: str) -> None:
        """Delete a topic and wait until the broker no longer shows it."""
        admin = kept_admin(self.bootstrap_servers)
        admin.delete_topics([topic])[topic].result(ANSWER_SECONDS)
        deadline = time.monotonic() + GONE_SECONDS_MAX
        while topic in admin.list_topics(timeout=ANSWER_SECONDS).topics:
            assert time.monotonic() < deadline, f"{topic} is still there"
            time.sleep(0.1)

    def create_again(self, name: str) -> str:
        """Re-create a topic that was just deleted, as soon as the broker allows it."""
        deadline = time.monotonic() + GONE_SECONDS_MAX
        while True:
            try:
                return self.create(name)
            except KafkaException:
                assert time.monotonic() < deadline
                time.sleep(0.2)

    def send(self, topic: str, values: Iterable[bytes | None], *, key: str | None = None, partition: int = 0) -> None:
        """Append values to one partition, in order; a session belongs to one partition."""
        self.append(topic, [ProducerRecord(key or session_in(partition), value) for value in values], partition)

    def append(self, topic: str, messages: Iterable[ProducerRecord], partition: int = 0) -> None:
        """Append messages of any keys and times to one partition, in order."""
        append(self.bootstrap_servers, topic, messages, partition)

    def transactional(self) -> Producer:
        """Return a producer that is ready to start a transaction."""
        producer = Producer(
            {"bootstrap.servers": self.bootstrap_servers, "transactional.id": self.family, "log_level": 2}
        )
        producer.init_transactions(ANSWER_SECONDS)
        return producer

    def end_transaction(self, producer: Producer, topic: str, *, commits: bool = True) -> None:
        """Commit or abort, and wait for the marker: the broker answers before it has written the marker."""
        if commits:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
        admin = _make_admin(self.bootstrap_servers)  # the broker may have restarted since the last answer
        deadline = time.monotonic() + GONE_SECONDS_MAX
        while _end(admin, topic, IsolationLevel.READ_COMMITTED) < _end(admin, topic, IsolationLevel.READ_UNCOMMITTED):
            assert time.monotonic() < deadline, f"the transaction in {topic} does not end"
            time.sleep(0.01)


def _end(admin: AdminClient, topic: str, isolation: IsolationLevel) -> int:
    """Return the end of the first partition at an isolation level."""
    place = TopicPartition(topic, 0)
    asked = admin.list_offsets({place: NEWEST}, isolation_level=isolation)
    return int(asked[place].result(ANSWER_SECONDS).offset)


def send_within(producer: Producer, topic: str, values: Iterable[bytes], key: str = "s") -> None:
    """Append values inside the open transaction, and wait until the broker has stored them."""
    for value in values:
        producer.produce(topic, value=value, key=key, partition=0)
    assert producer.flush(ANSWER_SECONDS) == 0
