"""The part of `lockstep verify` about deliveries: the topic is compared with the table, row by row.

Each row of the table up to the token is in the topic once, with the key, value and partition that the functions make
of it now; the topic has no other rows; and rows of one source partition follow each other in each target partition. A
message takes 50 bytes of memory.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from confluent_kafka import KafkaError as ClientError
from confluent_kafka import Message, TopicPartition

from lockstep.declare.delivery import Delivery, KafkaTopic
from lockstep.declare.delivery_target import DeliveredRow, DeliveryToken
from lockstep.declare.stream import AnyStream
from lockstep.errors import LockstepError, TableError
from lockstep.features.delivery.decode import RowDecoder
from lockstep.features.delivery.deliver import KIND
from lockstep.features.delivery.kafka_message import ROW, MessageEncoder, RowHeaders, decode_headers
from lockstep.features.delivery.kafka_tokens import TokenTopic
from lockstep.features.delivery.position import find_common_batch
from lockstep.features.delivery.steps import TableSnapshot, plan_steps, read_ends
from lockstep.kafka.admin import ClusterAdmin, PartitionOffsets
from lockstep.kafka.client import make_admin_client, make_consumer, make_reader_configuration
from lockstep.model.position import TopicIdPartition
from lockstep.operations.stream_table import open_table
from lockstep.settings import KafkaSettings
from lockstep.table.commit import Base
from lockstep.table.layout import StreamFolders
from lockstep.verify.report import FollowerProof, InvariantStatus

Digests = npt.NDArray[np.uint64]
SILENT_POLLS = 150
"""Polls of a fifth of a second without a message after which the proof ends."""


class TopicDifference(msgspec.Struct, frozen=True, kw_only=True):
    """Differences between a topic and a table.

    Attributes:
        messages: Messages that were compared.
        missing: Rows of the table that are not in the topic.
        extra: Messages whose rows the table does not have.
        repeated: Rows that are in the topic twice.
        changed: Messages with another key, value or partition.
        disordered: Messages before which a later row of their source partition is.
        foreign: Messages that this delivery did not write.
        undone: Messages of batches that were undone; a halt was accepted.
        other_code: Messages of other functions, of which only identity and order were compared.
        first: The first difference, with its place.
    """

    messages: int = 0
    missing: int = 0
    extra: int = 0
    repeated: int = 0
    changed: int = 0
    disordered: int = 0
    foreign: int = 0
    undone: int = 0
    other_code: int = 0
    first: str = ""


class _Expected(NamedTuple):
    """The delivered rows as they were read: history, position and digest of the functions now."""

    base: Base
    token: DeliveryToken
    code: str


def prove_deliveries(stream: AnyStream, folders: StreamFolders, kafka: KafkaSettings) -> Iterator[FollowerProof]:
    """Compare the topic of each delivery of a stream with its table; other targets are not read back."""
    for delivery in stream.deliveries:
        if isinstance(delivery.target, KafkaTopic):
            try:
                yield _prove(delivery, delivery.target, stream, folders, kafka)
            except TableError:
                raise
            except LockstepError as error:
                yield _make_proof(
                    delivery, InvariantStatus.NOT_PROVEN, "unknown", f"{error.problem}; {error.next_step}"
                )


def _prove(
    delivery: Delivery, target: KafkaTopic, stream: AnyStream, folders: StreamFolders, kafka: KafkaSettings
) -> FollowerProof:
    admin = ClusterAdmin(make_admin_client(kafka), kafka.timeout_seconds)
    topics = admin.topics([target.topic, target.tokens])
    tokens = TokenTopic(delivery.name, target, admin, kafka)
    token = tokens.read_newest() if len(topics) == len({target.topic, target.tokens}) else None
    base = open_table(folders).base()
    if token is None or token.delivery != delivery.name or token.table_id != base.head.table_id:
        return _make_proof(delivery, InvariantStatus.NOT_CLAIMED, "no row of this table", "")
    topic = topics[target.topic]
    comparison = _Comparison(_Expected(base, token, delivery.digest_code()))
    ends = {key.partition: each for key, each in admin.view([target.topic]).ends.items()}
    comparison.read_topic(target.topic, ends, kafka)
    comparison.compare_rows(delivery, stream, folders, topic.partitions)
    keeps_all = topic.deletes_only and all(each.start == 0 for each in ends.values())
    return judge_difference(
        delivery, token, comparison.result(), keeps_all=keeps_all, erased=base.head.erasure is not None
    )


def judge_difference(
    delivery: Delivery, token: DeliveryToken, found: TopicDifference, *, keeps_all: bool, erased: bool
) -> FollowerProof:
    """Judge the differences between a topic and a table. Pure.

    Args:
        delivery: The delivery.
        token: Its position.
        found: The differences.
        keeps_all: The topic has all messages that were ever delivered.
        erased: Sessions were erased from the table.
    """
    claim = f"{delivery.target.address}: {found.messages} messages, up to batch {token.batch}"
    counts = {
        name: getattr(found, name) for name in ("missing", "extra", "repeated", "changed", "disordered", "foreign")
    }
    excused = list[str]()
    if counts["missing"] and (not keeps_all or found.other_code):
        why = "functions of the delivery were changed" if keeps_all else "Kafka has removed messages from the topic"
        excused.append(f"{counts.pop('missing')} rows are not in the topic, and {why}")
    if counts["extra"] and (erased or found.other_code):
        why = "they may be of an erased session, to be erased there" if erased else "functions were changed"
        excused.append(f"{counts.pop('extra')} messages have no row: {why}")
    wrong = [f"{count} {name}" for name, count in counts.items() if count]
    if wrong:
        return _make_proof(delivery, InvariantStatus.VIOLATED, claim, f"{', '.join(wrong)}; first: {found.first}")
    if found.undone:
        excused.append(f"{found.undone} messages are of undone batches, which was accepted")
    if found.other_code:
        excused.append(f"{found.other_code} messages were made by other functions: their values were not compared")
    status = InvariantStatus.NOT_PROVEN if excused else InvariantStatus.PROVEN
    return _make_proof(delivery, status, claim, "; ".join(excused))


def _make_proof(delivery: Delivery, status: InvariantStatus, claim: str, reason: str) -> FollowerProof:
    step = f"lockstep deliver {delivery.name} --plan" if reason else ""
    return FollowerProof(kind=KIND, name=delivery.name, status=status, claim=claim, reason=reason, next_step=step)


class _Comparison:
    """One comparison of a topic with a table."""

    def __init__(self, expected: _Expected) -> None:
        self._expected = expected
        self._valid = expected.base.head.valid_batches
        retention = expected.base.head.retention
        self._since = max(expected.token.since, 0 if retention is None else retention.batch)
        self._until = min(expected.token.batch, find_common_batch(expected.token, expected.base.head))
        self._counts = dict[str, int]()
        self._first = ""
        self._kept = (array("Q"), array("Q"), bytearray())
        self._identities: Digests = np.empty(0, np.uint64)
        self._contents: Digests = np.empty(0, np.uint64)
        self._compares: npt.NDArray[np.bool_] = np.empty(0, np.bool_)
        self._met: npt.NDArray[np.bool_] = np.empty(0, np.bool_)

    def read_topic(self, topic: str, ends: Mapping[int, PartitionOffsets], kafka: KafkaSettings) -> None:
        """Read all committed messages, and compare the order of those in each partition."""
        for partition, offsets in sorted(ends.items()):
            last = dict[TopicIdPartition, tuple[int, int, int]]()
            for message in _read_partition(TopicPartition(topic, partition, offsets.start), offsets.stable_end, kafka):
                self._take_message(message, last)
        identities, contents, compares = self._kept
        order = np.argsort(np.frombuffer(identities, np.uint64), kind="stable")
        self._identities = np.frombuffer(identities, np.uint64)[order]
        self._contents = np.frombuffer(contents, np.uint64)[order]
        self._compares = np.frombuffer(compares, np.bool_)[order]
        self._met = np.zeros(len(order), np.bool_)
        repeated = int(np.count_nonzero(self._identities[1:] == self._identities[:-1]))
        if repeated:
            self._note("repeated", "two messages have one identity", repeated)

    def _take_message(self, message: Message, last: dict[TopicIdPartition, tuple[int, int, int]]) -> None:
        where = f"partition {message.partition()}, offset {message.offset()}"
        raw: dict[str, Any] = dict(message.headers() or [])
        try:
            headers = decode_headers(raw)
        except (KeyError, ValueError, AttributeError):
            self._note("foreign", f"{where}: a message without the headers of a delivery")
            return
        if headers.table_id != self._expected.token.table_id:
            self._note("foreign", f"{where}: a message of the table with id {headers.table_id}")
            return
        if headers.batch > self._valid.get(headers.generation, -1):
            self._note("undone", "")
            return
        self._check_order(headers, where, last)
        if self._since < headers.batch <= self._until:
            is_of_code = headers.code == self._expected.code
            if not is_of_code:
                self._note("other_code", "")
            content = _digest_content(message.key() or b"", message.value() or b"", message.partition() or 0)
            identities, contents, compares = self._kept
            identities.append(_digest(raw[ROW]))
            contents.append(content)
            compares.append(is_of_code)

    def _check_order(self, headers: RowHeaders, where: str, last: dict[TopicIdPartition, tuple[int, int, int]]) -> None:
        row = headers.identity
        key = TopicIdPartition(row.topic_id, row.partition)
        place = (headers.generation, row.emit_offset, row.row)
        if key in last and place <= last[key]:
            self._note("disordered", f"{where}: row {row} behind emit offset {last[key][1]}, row {last[key][2]}")
        last[key] = max(place, last.get(key, place))

    def compare_rows(self, delivery: Delivery, stream: AnyStream, folders: StreamFolders, partitions: int) -> None:
        """Read the rows of the batches that are delivered, and compare each with its message."""
        base = self._expected.base
        decoder = RowDecoder(stream.types.row)
        encoder = MessageEncoder(self._expected.token.table_id, self._expected.code, partitions)
        snapshot = TableSnapshot(folders, base)
        since = min(self._since, self._until)
        for step in plan_steps(folders, base.head, since, self._until, read_ends(folders, base.head, since)):
            for placed in snapshot.read_rows(step):
                for row, origin in zip(*decoder.decode(placed), strict=True):
                    value = delivery.choose(row, origin)
                    if value is not None:
                        self._compare(encoder, DeliveredRow(value, origin))

    def _compare(self, encoder: MessageEncoder, row: DeliveredRow) -> None:
        key, value, partition, headers = encoder.encode(row)
        identity = np.uint64(_digest(headers[0][1]))
        at = int(np.searchsorted(self._identities, identity))
        if at == len(self._identities) or self._identities[at] != identity:
            self._note("missing", f"row {row.origin.identity} of batch {row.origin.batch} is not in the topic")
            return
        self._met[at] = True
        if self._compares[at] and self._contents[at] != np.uint64(_digest_content(key, value, partition)):
            self._note("changed", f"row {row.origin.identity}: key, value or partition differ from {value[:100]!r}")

    def result(self) -> TopicDifference:
        """The differences that were found."""
        is_new = np.concatenate([[True], self._identities[1:] != self._identities[:-1]])[: len(self._identities)]
        extra = int(np.count_nonzero(~self._met & is_new))
        if extra:
            self._note("extra", "a message has no row in the table", extra)
        return TopicDifference(messages=len(self._identities), first=self._first, **self._counts)

    def _note(self, kind: str, example: str, count: int = 1) -> None:
        self._counts[kind] = self._counts.get(kind, 0) + count
        self._first = self._first or example


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


def _digest_content(key: bytes, value: bytes, partition: int) -> int:
    return _digest(b"%d/%d/%b/%b" % (partition, len(key), key, value))


def _digest(content: bytes) -> int:
    return int.from_bytes(blake2b(content, digest_size=8).digest(), "little")
