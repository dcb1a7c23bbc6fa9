"""Asks the brokers whether a log still holds what was read of it, although its leader has changed since.

A log that was cut and has grown past the position again looks whole by its offsets. Its records tell: each carries
the epoch of the leader that wrote it, and a broker knows where each epoch ends in the log that it has now. The
client asks for that when it learns of a leader that is newer than a position, so only one that knows no leader yet
is sure to ask: each comparison is a consumer's whole life, half a second to a second on an idle broker.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec
from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException, Message, TopicPartition

from lockstep.kafka.client import Configuration, RangeConsumer, make_consumer

Key = tuple[str, int]
ANSWER_SECONDS_MAX, POLL_SECONDS = 10.0, 0.05
_TRUNCATED = ClientError(ClientError._LOG_TRUNCATION).str()  # noqa: SLF001  # the client's name
"""The client says it in the text of an error that has another code: that no offset is there to go on from."""


class LastRead(msgspec.Struct, frozen=True):
    """How far a partition was read.

    Attributes:
        topic: Its topic.
        partition: Its number.
        next_offset: First offset not read.
        leader_epoch: Epoch of the leader that wrote the one before.
    """

    topic: str
    partition: int
    next_offset: int
    leader_epoch: int


class TruncationCheck(msgspec.Struct, frozen=True):
    """What the brokers said; of the partitions in neither nothing.

    Attributes:
        holding: Their logs hold what was read.
        cut: Their logs were cut before the position.
    """

    holding: frozenset[Key]
    cut: frozenset[Key]


def check_truncation(configuration: Configuration, read: Mapping[Key, LastRead]) -> TruncationCheck:
    """Ask about all partitions at once, each by its key."""
    left = {(each.topic, each.partition): key for key, each in read.items()}
    said: dict[Key, bool] = {}
    # A message or the log's end is the answer: as little as may be is fetched, and open transactions do not matter.
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


def _assigned(each: LastRead) -> TopicPartition:
    return TopicPartition(each.topic, each.partition, each.next_offset, leader_epoch=each.leader_epoch)


def _place(message: Message) -> tuple[str, int]:
    return message.topic(), message.partition()  # type: ignore[return-value]  # set on all that a consumer gives


def _held(message: Message) -> bool | None:
    """Whether a log holds what was read of it; None when this says nothing of it."""
    error = message.error()
    if error is None or error.code() == ClientError._PARTITION_EOF:  # noqa: SLF001  # the client's name
        return True
    return False if _TRUNCATED in error.str() else None


def _done(asking: RangeConsumer, place: tuple[str, int]) -> None:
    try:
        asking.incremental_unassign([TopicPartition(*place)])
    except KafkaException:
        return  # only saves fetching
