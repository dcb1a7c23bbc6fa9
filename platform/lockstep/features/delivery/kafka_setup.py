"""The requirements of a delivery to Kafka: topics, their settings, and transactions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException, Message, Producer

from lockstep.declare.delivery import KafkaTopic, RowFormat
from lockstep.declare.delivery_target import DeliveryToken, TargetInterrupted, TargetRefused
from lockstep.kafka.admin import ClusterAdmin, Topic, read_topic_settings
from lockstep.kafka.client import ClusterClient, make_producer
from lockstep.model.decoding import decode_json
from lockstep.settings import KafkaSettings

TRANSACTION_MS = 60_000
"""After this time without an end the broker aborts a transaction, so that it blocks readers no longer."""
PREFIX = "lockstep.delivery."
"""Of the transactional ids."""
_NO_TRANSACTIONS = {
    ClientError.INVALID_TRANSACTION_TIMEOUT: (
        f"the brokers allow no transactions of {TRANSACTION_MS // 1000} s",
        f"set transaction.max.timeout.ms of the brokers to {TRANSACTION_MS} at least",
    ),
    ClientError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: (
        "this user may not use its transactional id",
        f"grant WRITE and DESCRIBE on the transactional ids with the prefix {PREFIX}",
    ),
    ClientError._UNSUPPORTED_FEATURE: (  # noqa: SLF001  # the client's name
        "the brokers have no transactions",
        "deliver to a cluster with transactions: Kafka 0.11 or later",
    ),
}


class TopicState(msgspec.Struct, frozen=True):
    """The topic to which a token belongs.

    Attributes:
        topic_id: Its id.
        partitions: Number of its partitions.
        deletes: Messages of a rebuild that are still to be deleted: those before an offset, by partition.
        format: Format of the values.
    """

    topic_id: str
    partitions: int
    deletes: dict[int, int] = {}
    format: RowFormat = RowFormat.JSON


def find_topics(delivery: str, target: KafkaTopic, admin: ClusterAdmin) -> dict[str, Topic]:
    """Find the topic of the rows, and the token topic if it exists. Raises TargetRefused without the former."""
    topics = admin.topics([target.topic, target.tokens])
    if target.topic not in topics:
        step = (
            f"create it, with the number of partitions that it keeps: kafka-topics.sh --create --topic {target.topic}"
        )
        raise TargetRefused(delivery, f"topic {target.topic} does not exist", next_step=step)
    return topics


def check_rows_topic(delivery: str, target: KafkaTopic, topic: Topic, client: ClusterClient, seconds: float) -> None:
    """Refuse a topic that would lose rows, or keep the rows that others have replaced. Raises TargetRefused."""
    if not target.key and not topic.deletes_only:
        problem = f"topic {topic.name} is compacted: Kafka would keep the last row of each session alone"
        step = f"set cleanup.policy=delete on {topic.name}; or declare a key: KafkaTopic(key=...)"
        raise TargetRefused(delivery, problem, next_step=step)
    if target.key:
        (kept,) = read_topic_settings(client, [topic.name], seconds)
        policy = kept.settings.get("cleanup.policy")
        if policy != "compact":
            problem = f"topic {topic.name} has cleanup.policy {policy}: it would lose keys that do not change"
            step = f"set cleanup.policy=compact on {topic.name}; or declare no key"
            raise TargetRefused(delivery, problem, next_step=step)


def check_token_topic(delivery: str, topic: Topic, client: ClusterClient, seconds: float) -> None:
    """Refuse a token topic that would lose tokens. Raises TargetRefused."""
    if topic.partitions != 1:
        problem = f"the token topic {topic.name} has {topic.partitions} partitions, not one"
        raise TargetRefused(delivery, problem, next_step="name another topic: KafkaTopic(tokens=...)")
    (kept,) = read_topic_settings(client, [topic.name], seconds)
    policy = kept.settings.get("cleanup.policy")
    if policy != "compact":
        problem = (
            f"the token topic {topic.name} has cleanup.policy {policy}: Kafka would delete the position of the delivery"
        )
        raise TargetRefused(delivery, problem, next_step=f"set cleanup.policy=compact on {topic.name}")


def check_token(delivery: str, name: str, token: DeliveryToken) -> None:
    """Refuse the token of another delivery. Raises TargetRefused."""
    if token.delivery != delivery:
        problem = f"topic {name} is the target of delivery {token.delivery}, whose rows it has"
        step = f"name another topic; or continue that delivery by its name, {token.delivery}"
        raise TargetRefused(delivery, problem, next_step=step)


def check_same_topic(delivery: str, topic: Topic, form: RowFormat, token: DeliveryToken) -> TopicState:
    """Refuse a topic that was created again or grew, or has values of another format. Raises TargetRefused.

    Args:
        delivery: Name of the delivery.
        topic: The topic.
        form: The declared format.
        token: The position, with the state of the topic that is returned.
    """
    had = decode_json(token.target_state, TopicState)
    rebuild = f"lockstep delivery rebuild {delivery} --plan; or "
    if had.topic_id != topic.topic_id:
        problem = f"topic {topic.name} was deleted and created again: the rows that were delivered are gone"
        step = f"{rebuild}deliver by another name to another topic, from the first row on"
        raise TargetRefused(delivery, problem, next_step=step)
    if had.partitions != topic.partitions:
        problem = f"topic {topic.name} had {had.partitions} partitions, and has {topic.partitions}: keys would move"
        step = f"{rebuild}deliver by another name to a topic of that number, from the first row on"
        raise TargetRefused(delivery, problem, next_step=step)
    check_format(delivery, topic.name, form, token)
    return had


def check_format(delivery: str, topic: str, form: RowFormat, token: DeliveryToken) -> None:
    """Refuse a topic with values of another format. Raises TargetRefused."""
    had = decode_json(token.target_state, TopicState).format
    if had is not form:
        problem = f"topic {topic} has values of the format {had.value}, and {form.value} is declared"
        step = (
            f"deliver by another name to another topic; without a key also: lockstep delivery rebuild {delivery} --plan"
        )
        raise TargetRefused(delivery, problem, next_step=step)


def start_producer(
    delivery: str,
    transactional_id: str,
    settings: KafkaSettings,
    on_failure: Callable[[ClientError | None, Message], None],
) -> Producer:
    """Start a producer with transactions; an earlier producer of the same transactional id is fenced.

    Args:
        delivery: Name of the delivery.
        transactional_id: The id.
        settings: The cluster.
        on_failure: Takes messages that were not delivered.

    Raises:
        TargetRefused: The brokers refuse transactions.
        TargetInterrupted: They did not answer.
        KafkaError: No client can be made of the settings.
    """
    options: dict[str, Any] = {
        "transactional.id": transactional_id,
        "transaction.timeout.ms": TRANSACTION_MS,
        "delivery.timeout.ms": TRANSACTION_MS,
        "linger.ms": 5,
        "compression.type": "lz4",
        "allow.auto.create.topics": False,
        "log_level": 2,
        # Reports of all messages would cost more than their encoding.
        "delivery.report.only.error": True,
        "on_delivery": on_failure,
    }
    producer = make_producer(settings, options)
    try:
        producer.init_transactions(settings.timeout_seconds)
    except KafkaException as error:
        found = error.args[0]
        problem, step = _NO_TRANSACTIONS.get(found.code(), ("", ""))
        if problem:
            raise TargetRefused(delivery, f"{problem}: {found.str()}", next_step=step) from error
        problem = f"the coordinator of transactions gave no producer id ({found.str()})"
        raise TargetInterrupted(delivery, problem) from error
    return producer
