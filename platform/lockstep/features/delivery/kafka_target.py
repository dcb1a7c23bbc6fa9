"""Delivery to a Kafka topic, exactly once for consumers with isolation.level=read_committed.

Rows and token are in one transaction. The transactional id belongs to the topic, so a new run fences the one before,
whose open transaction the broker then aborts, or completes if it was being committed. After that the newest committed
token is the position: it settles an unknown outcome.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, cast

import msgspec
from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException, Message, Producer, TopicPartition
from confluent_kafka.cimpl import NewTopic

from lockstep.declare.delivery import KafkaTopic
from lockstep.declare.delivery_target import (
    DeliveredRow,
    DeliveryFenced,
    DeliveryToken,
    RowUndeliverable,
    TargetConnection,
    TargetInterrupted,
    TargetRefused,
)
from lockstep.errors import KafkaError, KafkaUnreachable, LockstepError
from lockstep.features.delivery.changeable_target import ChangeableTarget
from lockstep.features.delivery.erasures import ErasedSession
from lockstep.features.delivery.kafka_keys import KeyedRebuild, list_erased
from lockstep.features.delivery.kafka_message import MessageEncoder, OutgoingMessage, decode_headers
from lockstep.features.delivery.kafka_reading import KeyPlace, LastMessage, read_last_messages
from lockstep.features.delivery.kafka_setup import (
    PREFIX,
    TopicState,
    check_format,
    check_rows_topic,
    check_same_topic,
    check_token,
    check_token_topic,
    find_topics,
    start_producer,
)
from lockstep.features.delivery.kafka_tokens import TokenTopic
from lockstep.features.delivery.registered_schema import ValueSchema
from lockstep.kafka.admin import ClusterAdmin, Topic, read_topic_settings
from lockstep.kafka.client import ClusterClient, make_admin_client
from lockstep.settings import KafkaSettings
from lockstep.time_limit import describe_silence

COMMIT_SECONDS = 60.0
_TOO_LARGE = (ClientError.MSG_SIZE_TOO_LARGE, ClientError.RECORD_LIST_TOO_LARGE)
_FENCED = (
    *(ClientError._FENCED, ClientError.INVALID_PRODUCER_EPOCH),  # noqa: SLF001  # the client's name
    ClientError.PRODUCER_FENCED,
)


class KafkaConnection(ChangeableTarget):
    """A claimed topic."""

    def __init__(
        self,
        delivery: str,
        target: KafkaTopic,
        settings: KafkaSettings,
        schema: ValueSchema,
        *,
        rebuilds: bool = False,
    ) -> None:
        """Claim the topic.

        1. Find topic and token topic; create the latter if it does not exist.
        2. Fence earlier runs: their transactions end.
        3. Read the token up to the end of the token topic as of then.
        4. Refuse a topic that is not as the token has it; end a rebuild that was killed.
        5. Register the schema of the values, if they have one.

        Args:
            delivery: Name of the delivery.
            target: The topic.
            settings: The cluster.
            schema: The format of the values.
            rebuilds: All messages are to be deleted: a topic that grew or was created again is accepted.

        Raises:
            TargetRefused: The topic is missing, was re-created or grew, belongs to another delivery or has values of
                another format; Kafka refuses transactions, or the registry the schema.
            TargetInterrupted: Kafka or the registry did not answer in time.
        """
        self._delivery = delivery
        self._target = target
        self._settings = settings
        client = make_admin_client(settings)
        self._client = client
        self._admin = ClusterAdmin(client, settings.timeout_seconds)
        self._refused = list[LockstepError]()
        self._encoder: MessageEncoder | None = None
        try:
            self._topic = self._find_topic(client)  # 1
            self._tokens = TokenTopic(delivery, target, self._admin, settings)
            self._producer = self._fence_earlier()  # 2
            self._token = self._tokens.read_settled()  # 3
        except KafkaUnreachable as error:
            raise TargetInterrupted(delivery, error.problem) from error
        except KafkaError as error:
            raise TargetRefused(delivery, error.problem, next_step=error.next_step) from error
        self._state = TopicState(self._topic.topic_id, self._topic.partitions, format=target.format)
        self._epoch = 1 if self._token is None else self._token.epoch + 1
        if self._token is not None:
            self._check_topic(self._token, rebuilds=rebuilds)  # 4
        self._values = schema.register()  # 5
        self._schema = schema

    @property
    def token(self) -> DeliveryToken | None:
        """The newest committed token."""
        return self._token

    def write(self, rows: Sequence[DeliveredRow], token: DeliveryToken) -> None:
        """Write rows and token in one transaction. Raises as `TargetConnection.write`."""
        self._write(rows, token, self._state)

    def _write(self, rows: Sequence[DeliveredRow], token: DeliveryToken, state: TopicState) -> None:
        if self._encoder is None:
            self._encoder = self._make_encoder(token)
        encoder = self._encoder
        self._transact(lambda: self._produce(rows, encoder), token, state)

    def _transact(
        self, produce: Callable[[], None], token: DeliveryToken | None, state: TopicState | None = None
    ) -> None:
        """Produce messages and the token, if any, in one transaction."""
        try:
            self._producer.begin_transaction()
            produce()
            stamped = self._token
            if token is not None:
                encoded = msgspec.json.encode(state or self._state).decode()
                stamped = msgspec.structs.replace(token, epoch=self._epoch, target_state=encoded)
                key = self._target.topic.encode()
                self._produce_one(self._target.tokens, OutgoingMessage(key, msgspec.json.encode(stamped), 0, []))
            self._commit()
        except RowUndeliverable:
            self._abort()
            raise
        except KafkaException as error:
            explained = self._explain(error.args[0])
            if isinstance(explained, RowUndeliverable):
                self._abort()
            raise explained from error
        self._token = stamped

    def _abort(self) -> None:
        """Abort the transaction of a row that Kafka refuses: the next one may follow."""
        self._refused.clear()
        with suppress(KafkaException):
            self._producer.abort_transaction(self._settings.timeout_seconds)

    def _make_encoder(self, token: DeliveryToken) -> MessageEncoder:
        code = self._schema.digest_code(token.code)
        return MessageEncoder(token.table_id, code, self._topic.partitions, self._target, self._values)

    def erase(self, sessions: Sequence[ErasedSession], token: DeliveryToken) -> int | None:
        """Write tombstones for the keys of erased sessions; None if the key does not have the session."""
        if "_session" not in self._target.key:
            return None
        at = self._target.key.index("_session")
        tombstones = list_erased(self._read_last(), sessions, at, token.table_id)
        self._write_messages(tombstones, token)
        return len(tombstones)

    def retract(self, valid: Mapping[int, int], token: DeliveryToken) -> None:
        """Delete nothing: a topic cannot lose single messages."""

    @contextmanager
    def rebuild(self, token: DeliveryToken) -> Iterator[TargetConnection]:
        """Replace all rows.

        Of a compacted topic, the keys that differ are corrected. A rebuild that is killed is repeated. All messages of
        another topic are deleted: the token has their offsets first, so that the next run ends a rebuild that is
        killed.
        """
        if self._target.key:
            writer = KeyedRebuild(token, self._make_encoder(token))
            yield writer
            self._write_messages(list(writer.list_corrections(self._read_last())), writer.token)
            return
        ends = self._admin.view([self._target.topic]).ends
        deletes = {key.partition: each.high_watermark for key, each in ends.items()}
        self._write((), token, msgspec.structs.replace(self._state, deletes=deletes))
        self._delete_messages(deletes)
        yield self

    def _read_last(self) -> dict[KeyPlace, LastMessage]:
        """Read the last message of each key."""
        ends = {key.partition: each for key, each in self._admin.view([self._target.topic]).ends.items()}
        return read_last_messages(self._target.topic, ends, self._settings)

    def _write_messages(self, messages: Sequence[OutgoingMessage], token: DeliveryToken) -> None:
        """Write messages that may be repeated; the last transaction has the token."""
        size = self._target.transaction_rows
        for start in range(0, max(1, len(messages)), size):
            is_last = start + size >= len(messages)
            self._transact(partial(self._produce_all, messages[start : start + size]), token if is_last else None)

    def _produce_all(self, messages: Sequence[OutgoingMessage]) -> None:
        for each in messages:
            self._produce_one(self._topic.name, each)

    def _delete_messages(self, before: Mapping[int, int]) -> None:
        """Delete messages before an offset of each partition; repeating it does nothing."""
        wanted = [TopicPartition(self._target.topic, partition, offset) for partition, offset in before.items()]
        deleted = self._client.delete_records(wanted, request_timeout=self._settings.timeout_seconds)
        try:
            for each in deleted.values():
                each.result(self._settings.timeout_seconds)
        except KafkaException as error:
            problem = f"messages of topic {self._target.topic} cannot be deleted: {error.args[0].str()}"
            step = f"grant DELETE on {self._target.topic}; lockstep deliver {self._delivery} continues the rebuild"
            raise TargetRefused(self._delivery, problem, next_step=step) from error
        except TimeoutError as error:
            silence = describe_silence("Kafka", self._settings.timeout_seconds, self._target.topic)
            raise TargetInterrupted(self._delivery, silence) from error

    def close(self) -> None:
        """Abort the open transaction, if any."""
        with suppress(KafkaException):
            self._producer.abort_transaction(self._settings.timeout_seconds)

    def _produce(self, rows: Sequence[DeliveredRow], encoder: MessageEncoder) -> None:
        """Produce to pinned partitions: a topic that grows keeps the order of its keys until the next claim."""
        topic = self._topic.name
        for message, row in zip(encoder.encode_all(rows), rows, strict=True):
            try:
                self._produce_one(topic, message)
            except KafkaException as error:
                if error.args[0].code() in _TOO_LARGE:
                    raise _make_too_large(row.origin.identity, len(message.value or b"")) from error
                raise

    def _produce_one(self, topic: str, message: OutgoingMessage) -> None:
        key, value, partition, headers = message
        while True:
            try:
                self._producer.produce(topic, value, key, partition, headers=headers)  # type: ignore[arg-type]  # a list
            except BufferError:
                self._producer.poll(0.05)
            else:
                return

    def _note_refusal(self, error: ClientError | None, message: Message) -> None:
        """Note a row that the broker refuses; all other failures end the transaction, and it is tried again."""
        if error is not None and error.code() in _TOO_LARGE and message.topic() == self._topic.name:
            identity = decode_headers(cast("dict[str, bytes]", dict(message.headers() or []))).identity
            self._refused.append(_make_too_large(identity, len(message.value() or b"")))

    def _commit(self) -> None:
        self._producer.commit_transaction(COMMIT_SECONDS)

    def _explain(self, error: ClientError) -> LockstepError:
        if self._refused:
            return self._refused[0]
        if error.code() in _FENCED and self._was_overtaken():
            return DeliveryFenced(self._delivery)
        return TargetInterrupted(self._delivery, error.str())

    def _was_overtaken(self) -> bool:
        """Whether a newer run has claimed the topic: a broker fences a transaction that it timed out, too."""
        with suppress(LockstepError):
            newest = self._tokens.read_newest()
            return newest is not None and newest.epoch > self._epoch
        return False

    def _find_topic(self, client: ClusterClient) -> Topic:
        topics = find_topics(self._delivery, self._target, self._admin)
        topic = topics[self._target.topic]
        check_rows_topic(self._delivery, self._target, topic, client, self._settings.timeout_seconds)
        if self._target.tokens not in topics:
            self._create_tokens(client)
            topics |= self._admin.topics([self._target.tokens])
        check_token_topic(self._delivery, topics[self._target.tokens], client, self._settings.timeout_seconds)
        return topic

    def _create_tokens(self, client: ClusterClient) -> None:
        """Create the token topic, with as many replicas as the topic of the rows has."""
        (kept,) = read_topic_settings(client, [self._target.topic], self._settings.timeout_seconds)
        options = {"cleanup.policy": "compact", "segment.ms": "3600000", "segment.bytes": "16777216"}
        wanted = NewTopic(self._target.tokens, 1, kept.replicas, config=options)
        made = client.create_topics([wanted], request_timeout=self._settings.timeout_seconds)
        try:
            made[self._target.tokens].result(self._settings.timeout_seconds)
        except KafkaException as error:
            if error.args[0].code() != ClientError.TOPIC_ALREADY_EXISTS:
                step = f"create {self._target.tokens} with one partition and cleanup.policy=compact"
                problem = f"the token topic cannot be created: {error.args[0].str()}"
                raise TargetRefused(self._delivery, problem, next_step=step) from error
        self._await_tokens()

    def _await_tokens(self) -> None:
        """Wait until the cluster shows the new topic with its leader."""
        deadline = time.monotonic() + self._settings.timeout_seconds
        while not self._admin.view([self._target.tokens]).ends:
            if time.monotonic() > deadline:
                silence = describe_silence("Kafka", self._settings.timeout_seconds, self._target.tokens)
                raise TargetInterrupted(self._delivery, silence)
            time.sleep(0.1)

    def _fence_earlier(self) -> Producer:
        name = f"{PREFIX}{self._target.topic}"
        return start_producer(self._delivery, name, self._settings, self._note_refusal)

    def _check_topic(self, token: DeliveryToken, *, rebuilds: bool) -> None:
        check_token(self._delivery, self._topic.name, token)
        if self._target.key:  # its rebuild replaces the keys that differ one after the other
            check_format(self._delivery, self._topic.name, self._target.format, token)
        if not rebuilds:
            had = check_same_topic(self._delivery, self._topic, self._target.format, token)
            if had.deletes:
                self._delete_messages(had.deletes)


def _make_too_large(row: Any, size: int) -> RowUndeliverable:
    step = (
        "raise max.message.bytes of the topic and message.max.bytes of kafka.options, or let Delivery.select shorten it"
    )
    return RowUndeliverable(row, f"its message of {size} bytes is larger than Kafka takes", next_step=step)
