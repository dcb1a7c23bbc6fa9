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
    left = {(each.topic, each.partition): key for key, each in read.items()}
    said: dict[TopicIdPartition, bool] = {}
    # A message or the log's end is the answer: fetches are minimal, and open transactions do not matter.
    asking = make_consumer({**configuration, "isolation.level": "read_uncommitted", "fetch.message.max.bytes": 1_024})
    try:
        asking.assign([_assigned(each) for each in read.values()])
        deadline = time.monotonic() + ANSWER_SECONDS_MAX
        while left and time.monotonic() < deadline:
            for message in asking.consume(len(left), POLL_SECONDS):
                place = _place(message)
                if place in left and (held := _held(message)) is not None:
                    said[left.pop(place)] = held
                    _done(asking, place)
    finally:
        asking.close()
    return TruncationCheck(
        holding=frozenset(key for key, held in said.items() if held),
        cut=frozenset(key for key, held in said.items() if not held),
    )


def _assigned(each: Position) -> TopicPartition:
    return TopicPartition(each.topic, each.partition, each.next_offset, leader_epoch=each.leader_epoch)


def _place(message: Message) -> TopicNamePartition:
    return message.topic(), message.partition()  # type: ignore[return-value]  # set on all messages of a consumer


def _held(message: Message) -> bool | None:
    """Whether a log contains the records that were read; None when the message proves nothing."""
    error = message.error()
    if error is None or error.code() == ClientError._PARTITION_EOF:  # noqa: SLF001  # the client's name
        return True
    return False if _TRUNCATED in error.str() else None


def _done(asking: RangeConsumer, place: TopicNamePartition) -> None:
    try:
        asking.incremental_unassign([TopicPartition(*place)])
    except KafkaException:
        return  # only saves fetching
