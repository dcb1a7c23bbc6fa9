"""Asks the brokers whether a log was truncated and has regrown after a change of its leader.

By its offsets, a log that was truncated and has grown past the position again seems complete. Its records differ: each
carries the epoch of the leader that wrote it, and a broker knows the end of each epoch in its current log. The
client requests that when it learns of a leader that is newer than a position; only a client without a known leader
is sure to request it: each comparison needs a new consumer, half a second to a second on an idle broker.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec
from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException, Message, TopicPartition

from lockstep.kafka.client import Configuration, RangeConsumer, make_consumer
from lockstep.model.position import Position, TopicIdPartition, TopicNamePartition

ANSWER_SECONDS_MAX = 10.0
POLL_SECONDS = 0.05
_TRUNCATED = ClientError(ClientError._LOG_TRUNCATION).str()  # noqa: SLF001  # the client's name
"""The client reports it in the text of an error with another code: no offset to continue from."""


class TruncationCheck(msgspec.Struct, frozen=True):
    """The brokers' answers; partitions in neither set are unknown.

    Attributes:
        holding: Their logs contain the records that were read.
        cut: Their logs were truncated before the position.
    """

    holding: frozenset[TopicIdPartition]
    cut: frozenset[TopicIdPartition]


def check_truncation(configuration: Configuration, read: Mapping[TopicIdPartition, Position]) -> TruncationCheck:
    """Ask about all partitions at once, each by its key."""
    unanswered = {(position.topic, position.partition): key for key, position in read.items()}
    answers: dict[TopicIdPartition, bool] = {}
    # A message or the log's end is the answer: fetches are minimal, and open transactions do not matter.
    settings = {**configuration, "isolation.level": "read_uncommitted", "fetch.message.max.bytes": 1_024}
    # A new consumer: only one without a known leader is sure to ask the broker about the epoch.
    consumer = make_consumer(settings)
    try:
        consumer.assign([_assigned(position) for position in read.values()])
        deadline = time.monotonic() + ANSWER_SECONDS_MAX
        while unanswered and time.monotonic() < deadline:
            for message in consumer.consume(len(unanswered), POLL_SECONDS):
                place = _place(message)
                if place not in unanswered:
                    continue
                is_holding = _is_holding(message)
                if is_holding is not None:
                    answers[unanswered.pop(place)] = is_holding
                    _stop_fetching(consumer, place)
    finally:
        consumer.close()
    return TruncationCheck(
        holding=frozenset(key for key, is_holding in answers.items() if is_holding),
        cut=frozenset(key for key, is_holding in answers.items() if not is_holding),
    )


def _assigned(position: Position) -> TopicPartition:
    return TopicPartition(position.topic, position.partition, position.next_offset, leader_epoch=position.leader_epoch)


def _place(message: Message) -> TopicNamePartition:
    return message.topic(), message.partition()  # type: ignore[return-value]  # set on all messages of a consumer


def _is_holding(message: Message) -> bool | None:
    """Whether a log contains the records that were read; None when the message proves nothing."""
    error = message.error()
    if error is None or error.code() == ClientError._PARTITION_EOF:  # noqa: SLF001  # the client's name
        return True
    return False if _TRUNCATED in error.str() else None


def _stop_fetching(consumer: RangeConsumer, place: TopicNamePartition) -> None:
    try:
        consumer.incremental_unassign([TopicPartition(*place)])
    except KafkaException:
        return  # only saves fetching
