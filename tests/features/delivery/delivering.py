"""Deliveries of the tests, the messages of their topics, and the expected rows read plainly from the table."""

from __future__ import annotations

import dataclasses
import json
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from confluent_kafka import Consumer, Message, TopicPartition
from deltalake import DeltaTable

from lockstep.delivery import Delivery, KafkaTopic, RowFormat, RowSource
from lockstep.features.delivery.deliver import DeliveryRun
from lockstep.features.delivery.deliver import run_delivery as deliver_rows
from lockstep.features.delivery.targets import DeclaredDelivery
from tests.support.adding_stream import Reading
from tests.support.feed import ProducerRecord, session, update

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstep.declare.stream import AnyStream
    from lockstep.settings import Settings
    from lockstep.table.layout import StreamFolders
    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns

Identity = tuple[str, int, int, int]


UNLUCKY = 7
PARTITIONS = 3
"""Partitions of a target topic."""


class StopAfter(threading.Event):
    """A stop that is set after a number of polls, for example in the middle of a step."""

    def __init__(self, questions: int) -> None:
        super().__init__()
        self._left = questions

    def is_set(self) -> bool:
        """Return whether the run must end."""
        self._left -= 1
        return self._left < 0


class Arrived(NamedTuple):
    """A message of a target topic, as read by a read_committed consumer."""

    partition: int
    key: str
    value: dict[str, Any]
    identity: Identity
    generation: int
    batch: int


def send(feed: Feed, topic: str, sessions: str, updates: int, first: int = 1) -> None:
    """Send snapshots and updates of sessions, each session to one partition."""
    for partition, name in enumerate(sessions):
        values = session(updates) if first == 1 else [update(first + n, a=n, b=-n) for n in range(updates)]
        feed.append(topic, [ProducerRecord(name, value) for value in values], partition % 2)


def create_target(feed: Feed, name: str = "") -> str:
    """Create a topic outside the family, which the stream does not read."""
    beside = type(feed)(feed.bootstrap_servers, f"to_{feed.family}")
    return beside.create(f"readings{name}", PARTITIONS)


def is_positive(row: Reading, origin: RowSource) -> bool:
    """Select rows with a positive value."""
    del origin
    return row.value > 0


def is_wanted(row: Reading, origin: RowSource) -> bool:
    """Select all rows; raise ValueError at one value."""
    del origin
    if row.value == UNLUCKY:
        raise ValueError("unlucky")
    return True


def to_doubled(row: Reading, origin: RowSource) -> Reading:
    """Double the value and use the session as the name."""
    return Reading(origin.session, row.value * 2, row.total)


def to_large(row: Reading, origin: RowSource) -> Reading:
    """Make the name of one value too large for a message."""
    del origin
    return Reading(row.name * 2_000_000 if row.value == UNLUCKY else row.name, row.value, row.total)


def declare(stream: AnyStream, topic: str, **options: Any) -> DeclaredDelivery:
    """Declare a delivery named readings from a stream to a topic."""
    rows = options.pop("transaction_rows", 10_000)
    form = options.pop("format", RowFormat.JSON)
    target = KafkaTopic(topic=topic, tokens=f"{topic}.tokens", transaction_rows=rows, format=form)
    delivery = Delivery(name="readings", target=target, **options)
    return DeclaredDelivery(delivery, dataclasses.replace(stream, deliveries=(delivery,)))


def run(
    declared: DeclaredDelivery, settings: Settings, *, accepts: bool = False, stop: threading.Event | None = None
) -> DeliveryRun:
    """Deliver the current rows."""
    return deliver_rows(declared, settings, stop=stop or threading.Event(), accepts=accepts)


def run_delivery(runs: LocalRuns, topic: str, **options: Any) -> DeliveryRun:
    """Deliver the rows of a stream to a topic."""
    accepts = options.pop("accepts", False)
    stop = options.pop("stop", None)
    return run(declare(runs.stream, topic, **options), runs.settings, accepts=accepts, stop=stop)


def read_topic(servers: str, topic: str, partitions: int) -> list[Arrived]:
    """Return the committed messages of a topic, decoded, by partition."""
    return read_encoded(servers, topic, partitions, json.loads)


def read_encoded(servers: str, topic: str, partitions: int, decode: Callable[[bytes], Any]) -> list[Arrived]:
    """Return the committed messages of a topic whose values have another format."""
    return [_decode(message, decode) for message in read_messages(servers, topic, partitions)]


def read_messages(servers: str, topic: str, partitions: int) -> list[Message]:
    """Return the committed messages of a topic by partition."""
    options = {"group.id": "none", "isolation.level": "read_committed", "enable.partition.eof": True, "log_level": 2}
    consumer = Consumer({"bootstrap.servers": servers, "auto.offset.reset": "earliest", **options})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    arrived = list[Message]()
    ended = set[int]()
    try:
        while len(ended) < partitions:
            for message in consumer.consume(1_000, 0.5):
                if message.error() is not None:
                    ended.add(message.partition() or 0)
                else:
                    arrived.append(message)
    finally:
        consumer.close()
    return sorted(arrived, key=lambda each: each.partition() or 0)  # stable: keeps the order within a partition


def _decode(message: Message, decode: Callable[[bytes], Any]) -> Arrived:
    headers: dict[str, Any] = dict(message.headers() or ())
    history, partition, offset, row = headers["lockstep.row"].decode().rsplit("/", 3)
    _, generation, topic_id = history.split("/", 2)
    batch = int(headers["lockstep.batch"].decode().split("/")[0])
    identity = (topic_id, int(partition), int(offset), int(row))
    value = decode(message.value() or b"")
    return Arrived(message.partition() or 0, (message.key() or b"").decode(), value, identity, int(generation), batch)


def read_rows(folders: StreamFolders, columns: tuple[str, ...] = ("name", "value", "total")) -> dict[Identity, Any]:
    """Return session and value of the rows of the table by identity."""
    table = DeltaTable(folders.table).to_pyarrow_table().to_pylist()
    rows = dict[Identity, Any]()
    for row in table:
        identity = (row["_topic_id"], row["_partition"], row["_emit_offset"], row["_row"])
        rows[identity] = (row["_session"], {name: row[name] for name in columns})
    return rows


def assert_delivered(arrived: list[Arrived], rows: dict[Identity, Any]) -> None:
    """Assert that each row arrived once with key and value, ordered by source partition in each target partition."""
    assert sorted(each.identity for each in arrived) == sorted(rows)
    assert {each.identity: (each.key, each.value) for each in arrived} == rows
    last = dict[tuple[int, str, int], Identity]()
    homes = dict[str, int]()
    for each in arrived:
        place = (each.partition, *each.identity[:2])
        assert last.get(place, ("", 0, -1, 0))[2:] < each.identity[2:]
        last[place] = each.identity
        assert homes.setdefault(each.key, each.partition) == each.partition
