"""Reads the rows of a peer whose output is a topic: the committed records, as a reader downstream sees them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks import bare
from benchmarks.verify import COLUMNS, Digest, digest_of_batch

PARTITIONS = 8
TIMEOUT_S = 60.0
_CONSUME_MESSAGES = 10_000
_SETTINGS = {
    "group.id": "peer-rows",
    "enable.auto.commit": False,
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    "enable.partition.eof": True,
}
_FILE = "application"


def open_application(bootstrap_servers: str, output: Path, peer: str) -> str:
    """The name of the application whose output folder this is, with its topic of rows; both new, or those of before.

    The name is part of all its topics' names, and a file in the folder has it for `digest_of_topic`.

    Raises:
        KafkaException: The broker refused it.
    """
    file = output / _FILE
    if file.exists():
        return file.read_text()
    application = f"peer-{peer}-{uuid.uuid4().hex[:8]}"
    rows = NewTopic(f"{application}-rows", num_partitions=PARTITIONS, replication_factor=1)
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    for created in admin.create_topics([rows]).values():
        created.result(TIMEOUT_S)
    output.mkdir(parents=True)
    file.write_text(application)
    return application


def digest_of_topic(bootstrap_servers: str, output: Path) -> Digest:
    """The digest of all committed rows of the application whose output folder this is; removes its topics.

    Raises:
        KafkaException: The broker refused something.
    """
    application = (output / _FILE).read_text()
    total = Digest(0, 0)
    for values in _read_values(bootstrap_servers, f"{application}-rows"):
        total += digest_of_values(values)
    _drop(bootstrap_servers, application)
    return total


def digest_of_values(values: list[bytes]) -> Digest:
    """The digest of rows as MessagePack arrays of the columns of the bare loop."""
    columns = list(zip(*map(msgspec.msgpack.decode, values), strict=True))
    places = {name: n for n, name in enumerate(bare.SCHEMA.names)}
    arrays: list[pa.Array[Any]] = [pa.array(columns[places[name]], bare.SCHEMA.field(name).type) for name in COLUMNS]
    return digest_of_batch(pa.RecordBatch.from_arrays(arrays, names=list(COLUMNS)))


def _read_values(bootstrap_servers: str, topic: str) -> Iterator[list[bytes]]:
    consumer = Consumer({**_SETTINGS, "bootstrap.servers": bootstrap_servers})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    ended: set[int | None] = set()
    while len(ended) < PARTITIONS:
        records = consumer.consume(_CONSUME_MESSAGES, 1.0)
        for record in records:
            problem = record.error()
            if problem is not None and problem.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001  # its public name
                raise KafkaException(problem)
            if problem is not None:
                ended.add(record.partition())
        values = [value for record in records if record.error() is None and (value := record.value()) is not None]
        if values:
            yield values
    consumer.close()


def _drop(bootstrap_servers: str, application: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    topics = [name for name in admin.list_topics(timeout=TIMEOUT_S).topics if application in name]
    for done in admin.delete_topics(topics, operation_timeout=TIMEOUT_S).values():
        done.result()
