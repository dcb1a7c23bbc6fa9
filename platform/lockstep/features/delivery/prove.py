"""The part of `lockstep verify` about deliveries: the target is compared with the table, row by row.

Each row of the table up to the token is in a topic once, with the key, value and partition that the functions make of
it now; the topic has no other rows; and rows of one source partition follow each other in each target partition. A
message takes 50 bytes of memory. Tables are in prove_postgres.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from confluent_kafka import KafkaError as ClientError
from confluent_kafka import Message, TopicPartition

from lockstep.declare.delivery import Delivery, KafkaTopic
from lockstep.declare.delivery_target import DeliveryToken
from lockstep.declare.postgres_table import PostgresTable
from lockstep.declare.stream import AnyStream
from lockstep.errors import LockstepError, TableError
from lockstep.features.delivery.compare import (
    ComparedBatches,
    DigestComparison,
    choose_batches,
    judge_difference,
    make_proof,
)
from lockstep.features.delivery.expected_rows import ExpectedRows, TableReading
from lockstep.features.delivery.kafka_message import ROW, MessageEncoder, RowHeaders, decode_headers
from lockstep.features.delivery.kafka_tokens import TokenTopic
from lockstep.features.delivery.targets import require_driver
from lockstep.kafka.admin import ClusterAdmin, PartitionOffsets
from lockstep.kafka.client import make_admin_client, make_consumer, make_reader_configuration
from lockstep.model.position import TopicIdPartition
from lockstep.operations.stream_table import open_table
from lockstep.settings import KafkaSettings
from lockstep.table.layout import StreamFolders
from lockstep.verify.report import FollowerProof, InvariantStatus

SILENT_POLLS = 150
"""Polls of a fifth of a second without a message after which the proof ends."""


def prove_deliveries(stream: AnyStream, folders: StreamFolders, kafka: KafkaSettings) -> Iterator[FollowerProof]:
    """Compare the target of each delivery of a stream with its table; targets of users are not read back."""
    for delivery in stream.deliveries:
        try:
            if isinstance(delivery.target, KafkaTopic):
                yield _prove_topic(delivery, delivery.target, stream, folders, kafka)
            elif isinstance(delivery.target, PostgresTable):
                require_driver(delivery.name)
                from lockstep.features.delivery.prove_postgres import prove_table

                yield prove_table(delivery, delivery.target, stream, folders)
        except TableError:
            raise
        except LockstepError as error:
            reason = f"{error.problem}; {error.next_step}"
            yield make_proof(delivery, InvariantStatus.NOT_PROVEN, "unknown", reason)


def _prove_topic(
    delivery: Delivery, target: KafkaTopic, stream: AnyStream, folders: StreamFolders, kafka: KafkaSettings
) -> FollowerProof:
    admin = ClusterAdmin(make_admin_client(kafka), kafka.timeout_seconds)
    topics = admin.topics([target.topic, target.tokens])
    tokens = TokenTopic(delivery.name, target, admin, kafka)
    token = tokens.read_newest() if len(topics) == len({target.topic, target.tokens}) else None
    base = open_table(folders).base()
    if token is None or token.delivery != delivery.name or token.table_id != base.head.table_id:
        return make_proof(delivery, InvariantStatus.NOT_CLAIMED, "no row of this table", "")
    topic = topics[target.topic]
    comparison = _TopicComparison(token, choose_batches(token, base.head), delivery.digest_code())
    ends = {key.partition: each for key, each in admin.view([target.topic]).ends.items()}
    comparison.read_topic(target.topic, ends, kafka)
    comparison.compare_rows(ExpectedRows(delivery, stream, TableReading(folders, base)), topic.partitions)
    found = comparison.digests.result()
    excuses = dict[str, str]()
    if not (topic.deletes_only and all(each.start == 0 for each in ends.values())):
        excuses["missing"] = "Kafka has removed messages from the topic"
    elif found.other_code:
        excuses["missing"] = "functions of the delivery were changed"
    if base.head.erasure is not None or found.other_code:
        erased = "they may be of an erased session, to be erased there"
        excuses["extra"] = erased if base.head.erasure is not None else "functions of the delivery were changed"
    return judge_difference(delivery, token, found, "messages", excuses)


class _TopicComparison:
    """One comparison of a topic with a table."""

    def __init__(self, token: DeliveryToken, batches: ComparedBatches, code: str) -> None:
        self._token = token
        self._batches = batches
        self._code = code
        self.digests = DigestComparison()

    def read_topic(self, topic: str, ends: Mapping[int, PartitionOffsets], kafka: KafkaSettings) -> None:
        """Read all committed messages, and compare the order of those in each partition."""
        for partition, offsets in sorted(ends.items()):
            last = dict[TopicIdPartition, tuple[int, int, int]]()
            for message in _read_partition(TopicPartition(topic, partition, offsets.start), offsets.stable_end, kafka):
                self._take_message(message, last)
        self.digests.settle()

    def _take_message(self, message: Message, last: dict[TopicIdPartition, tuple[int, int, int]]) -> None:
        where = f"partition {message.partition()}, offset {message.offset()}"
        raw: dict[str, Any] = dict(message.headers() or [])
        try:
            headers = decode_headers(raw)
        except (KeyError, ValueError, AttributeError):
            self.digests.note("foreign", f"{where}: a message without the headers of a delivery")
            return
        if headers.table_id != self._token.table_id:
            self.digests.note("foreign", f"{where}: a message of the table with id {headers.table_id}")
            return
        if not self._batches.counts(headers.generation, headers.batch):
            self.digests.note("undone", "")
            return
        self._check_order(headers, where, last)
        if self._batches.has(headers.batch):
            content = _join_content(message.key() or b"", message.value() or b"", message.partition() or 0)
            self.digests.add(raw[ROW], content, compares=headers.code == self._code)

    def _check_order(self, headers: RowHeaders, where: str, last: dict[TopicIdPartition, tuple[int, int, int]]) -> None:
        row = headers.identity
        key = TopicIdPartition(row.topic_id, row.partition)
        place = (headers.generation, row.emit_offset, row.row)
        if key in last and place <= last[key]:
            self.digests.note("disordered", f"{where}: row {row} behind emit offset {last[key][1]}, row {last[key][2]}")
        last[key] = max(place, last.get(key, place))

    def compare_rows(self, expected: ExpectedRows, partitions: int) -> None:
        """Read the rows of the batches that are delivered, and compare each with its message."""
        encoder = MessageEncoder(self._token.table_id, self._code, partitions)
        for row in expected.read_batches(self._batches):
            key, value, partition, headers = encoder.encode(row)
            named = f"row {row.origin.identity} of batch {row.origin.batch}"
            self.digests.compare(headers[0][1], _join_content(key, value, partition), named)


def _read_partition(start: TopicPartition, end: int, kafka: KafkaSettings) -> Iterator[Message]:
    """The committed messages of a partition up to its last stable offset."""
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
                raise LockstepError(problem, next_step="check the cluster; then lockstep verify again")
            for message in found:
                error = message.error()
                if error is None:
                    yield message
                elif error.code() != ClientError._PARTITION_EOF:  # noqa: SLF001  # the client's name
                    raise LockstepError(f"topic {start.topic}: {error.str()}", next_step="lockstep verify again")
                reached = max(reached, message.offset() + (error is None))
    finally:
        consumer.close()


def _join_content(key: bytes, value: bytes, partition: int) -> bytes:
    return b"%d/%d/%b/%b" % (partition, len(key), key, value)
