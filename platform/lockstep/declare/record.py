"""A Kafka record as a transform sees it: read-only, and built without copying the message."""

from __future__ import annotations

from enum import IntEnum
from typing import Protocol, cast

import msgspec


class TimestampType(IntEnum):
    """What Kafka's record timestamp means (the topic's `message.timestamp.type`)."""

    NOT_AVAILABLE = 0
    CREATE_TIME = 1
    LOG_APPEND_TIME = 2


class KafkaMessage(Protocol):
    """The part of a client library's message that a record reads."""

    def key(self) -> bytes | None:
        """The key."""
        ...

    def value(self) -> bytes | None:
        """The value."""
        ...

    def headers(self) -> object:
        """Pairs of name and value, or None."""
        ...

    def timestamp(self) -> tuple[int, int]:
        """Type and milliseconds."""
        ...

    def leader_epoch(self) -> int | None:
        """Leader epoch, where the broker tells it."""
        ...


class Record(msgspec.Struct, frozen=True, gc=False):
    """One Kafka record.

    Attributes:
        topic: Name of the topic.
        topic_id: Kafka's id of this life of the topic; a re-created topic has another.
        partition: Partition number.
        offset: Offset in the partition.
        source: The client's own message; the properties below read it when asked.
    """

    topic: str
    topic_id: str
    partition: int
    offset: int
    source: KafkaMessage

    @property
    def key(self) -> bytes | None:
        """The record's key."""
        return self.source.key()

    @property
    def value(self) -> bytes | None:
        """The record's value, as sent."""
        return self.source.value()

    @property
    def headers(self) -> tuple[tuple[str, bytes], ...]:
        """The record's headers, in order."""
        return tuple(cast("list[tuple[str, bytes]] | None", self.source.headers()) or ())

    @property
    def timestamp_ms(self) -> int:
        """Kafka's timestamp in milliseconds since 1970 (UTC); `timestamp_type` says whose clock."""
        return self.source.timestamp()[1]

    @property
    def timestamp_type(self) -> TimestampType:
        """Whether the producer or the broker set the timestamp."""
        return TimestampType(self.source.timestamp()[0])

    @property
    def leader_epoch(self) -> int | None:
        """Leader epoch under which the record was written, where the broker tells it."""
        return self.source.leader_epoch()
