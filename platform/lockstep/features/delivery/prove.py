"""The part of `lockstep verify` about deliveries: the target is compared with the table, row by row.

Each row of the table up to the token is in a topic once, with the key, value and partition that the functions make of
it now; the topic has no other rows; and rows of one source partition follow each other in each target partition. A
message takes 50 bytes of memory. A topic with a key has the last row of each key. prove_postgres.py has
tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from confluent_kafka import Message, TopicPartition

from lockstep.declare.delivery import KafkaTopic
from lockstep.declare.delivery_target import DeliveredRow, DeliveryToken
from lockstep.declare.postgres_table import PostgresTable
from lockstep.declare.stream import AnyStream
from lockstep.errors import LockstepError, TableError
from lockstep.features.delivery.compare import (
    ComparedBatches,
    DigestComparison,
    TargetDifference,
    choose_batches,
    judge_difference,
    make_proof,
)
from lockstep.features.delivery.expected_rows import EncodedRow, ExpectedRows, TableReading
from lockstep.features.delivery.kafka_message import ROW, MessageEncoder, RowHeaders, decode_headers
from lockstep.features.delivery.kafka_reading import (
    KeyPlace,
    LastMessage,
    digest_value,
    read_last_messages,
    read_partition,
)
from lockstep.features.delivery.kafka_tokens import TokenTopic
from lockstep.features.delivery.registered_schema import ValueSchema
from lockstep.features.delivery.row_values import ValueEncoder
from lockstep.features.delivery.targets import DeclaredDelivery, require_driver
from lockstep.kafka.admin import ClusterAdmin, PartitionOffsets
from lockstep.kafka.client import make_admin_client
from lockstep.model.position import TopicIdPartition
from lockstep.operations.stream_table import open_table
from lockstep.settings import KafkaSettings
from lockstep.table.head import Head
from lockstep.table.layout import StreamFolders
from lockstep.verify.report import FollowerProof, InvariantStatus


def prove_deliveries(stream: AnyStream, folders: StreamFolders, kafka: KafkaSettings) -> Iterator[FollowerProof]:
    """Compare the target of each delivery of a stream with its table; targets of users are not read back."""
    for delivery in stream.deliveries:
        try:
            if isinstance(delivery.target, KafkaTopic):
                schema = ValueSchema(delivery, delivery.target, stream.types.row, None)
                yield _prove_topic(DeclaredDelivery(delivery, stream), delivery.target, folders, kafka, schema)
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
    declared: DeclaredDelivery, target: KafkaTopic, folders: StreamFolders, kafka: KafkaSettings, schema: ValueSchema
) -> FollowerProof:
    delivery = declared.delivery
    admin = ClusterAdmin(make_admin_client(kafka), kafka.timeout_seconds)
    topics = admin.topics([target.topic, target.tokens])
    tokens = TokenTopic(delivery.name, target, admin, kafka)
    token = tokens.read_newest() if len(topics) == len({target.topic, target.tokens}) else None
    base = open_table(folders).base()
    if token is None or token.delivery != delivery.name or token.table_id != base.head.table_id:
        return make_proof(delivery, InvariantStatus.NOT_CLAIMED, "no row of this table", "")
    topic = topics[target.topic]
    code = delivery.digest_code()
    codes = frozenset({schema.digest_code(code), code})  # 0.1.0 wrote the digest of the functions alone
    values = schema.make_comparable()
    comparison = _TopicComparison(token, choose_batches(token, base.head), codes, target, values)
    ends = {key.partition: each for key, each in admin.view([target.topic]).ends.items()}
    expected = ExpectedRows(delivery, declared.stream, TableReading(folders, base), token.dead)
    if target.key:
        comparison.read_keys(read_last_messages(target.topic, ends, kafka, values.clear_id))
        comparison.compare_keys(expected, topic.partitions)
    else:
        comparison.read_topic(target.topic, ends, kafka)
        comparison.compare_rows(expected, topic.partitions)
    found = comparison.digests.result()
    is_whole = bool(target.key) or (topic.deletes_only and all(each.start == 0 for each in ends.values()))
    excuses = _find_excuses(found, token, base.head, target)
    if not is_whole:
        excuses["missing"] = "Kafka has removed messages from the topic"
    return judge_difference(delivery, token, found, "messages", excuses)


def _find_excuses(found: TargetDifference, token: DeliveryToken, head: Head, target: KafkaTopic) -> dict[str, str]:
    """The reasons for which messages may differ from the rows."""
    excuses = dict[str, str]()
    if found.other_code:
        excuses["missing"] = "functions of the delivery or the row type were changed"
    if head.erasure is not None and ("_session" not in target.key or token.erasure < head.erasure.batch):
        excuses["extra"] = "they may be of an erased session, to be erased there"
        if target.key:
            excuses["changed"] = excuses["extra"]
    elif target.key and head.retention is not None:
        excuses["extra"] = "retention has dropped the last rows of some keys"
    elif found.other_code:
        excuses["extra"] = "functions of the delivery or the row type were changed"
    return excuses


class _TopicComparison:
    """One comparison of a topic with a table."""

    def __init__(
        self,
        token: DeliveryToken,
        batches: ComparedBatches,
        codes: frozenset[str],
        target: KafkaTopic,
        values: ValueEncoder,
    ) -> None:
        self._target = target
        self._values = values
        self._token = token
        self._batches = batches
        self._codes = codes
        self.digests = DigestComparison()

    def read_topic(self, topic: str, ends: Mapping[int, PartitionOffsets], kafka: KafkaSettings) -> None:
        """Read all committed messages, and compare the order of those in each partition."""
        for partition, offsets in sorted(ends.items()):
            last = dict[TopicIdPartition, tuple[int, int, int]]()
            for message in read_partition(TopicPartition(topic, partition, offsets.start), offsets.stable_end, kafka):
                self._take_message(message, last)
        self.digests.settle()

    def read_keys(self, last: Mapping[KeyPlace, LastMessage]) -> None:
        """Take the last message of each key."""
        for place, message in last.items():
            try:
                headers = decode_headers(message.headers)
            except (KeyError, ValueError):
                self.digests.note("foreign", f"partition {place.partition}: the last message of a key has no headers")
                continue
            if headers.table_id != self._token.table_id:
                self.digests.note("foreign", f"a message of the table with id {headers.table_id}")
            elif not self._batches.counts(headers.generation, headers.batch):
                self.digests.note("undone", "")
            else:
                content = message.headers[ROW] + message.digest
                self.digests.add(_join_key(place), content, compares=headers.code in self._codes)
        self.digests.settle()

    def compare_keys(self, expected: ExpectedRows, partitions: int) -> None:
        """Read the rows that are delivered, and compare the last of each key with its message."""
        encoder = self._make_encoder(partitions)

        def encode(row: DeliveredRow) -> EncodedRow:
            key, value, partition, headers = encoder.encode(row)
            content = None if value is None else headers[0][1] + digest_value(self._values.clear_id(value))
            return EncodedRow(_join_key(KeyPlace(partition, key)), content)

        for key, newest in expected.find_newest(self._batches, self._token, encode).items():
            if newest.content is not None:
                self.digests.compare(key, newest.content, newest.row)

    def _make_encoder(self, partitions: int) -> MessageEncoder:
        return MessageEncoder(self._token.table_id, self._token.code, partitions, self._target, self._values)

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
            cleared = self._values.clear_id(message.value() or b"")
            content = _join_content(message.key() or b"", cleared, message.partition() or 0)
            self.digests.add(raw[ROW], content, compares=headers.code in self._codes)

    def _check_order(self, headers: RowHeaders, where: str, last: dict[TopicIdPartition, tuple[int, int, int]]) -> None:
        row = headers.identity
        key = TopicIdPartition(row.topic_id, row.partition)
        place = (headers.generation, row.emit_offset, row.row)
        if key in last and place <= last[key]:
            self.digests.note("disordered", f"{where}: row {row} behind emit offset {last[key][1]}, row {last[key][2]}")
        last[key] = max(place, last.get(key, place))

    def compare_rows(self, expected: ExpectedRows, partitions: int) -> None:
        """Read the rows of the batches that are delivered, and compare each with its message."""
        encoder = self._make_encoder(partitions)
        for row in expected.read_batches(self._batches):
            key, value, partition, headers = encoder.encode(row)
            named = f"row {row.origin.identity} of batch {row.origin.batch}"
            cleared = self._values.clear_id(value or b"")
            self.digests.compare(headers[0][1], _join_content(key, cleared, partition), named)


def _join_key(place: KeyPlace) -> bytes:
    return b"%d/%b" % (place.partition, place.key)


def _join_content(key: bytes, value: bytes, partition: int) -> bytes:
    return b"%d/%d/%b/%b" % (partition, len(key), key, value)
