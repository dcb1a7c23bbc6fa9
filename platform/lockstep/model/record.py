"""Record and Envelope: a message for all packages."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, IntEnum
from operator import methodcaller
from typing import Any, Final, Protocol, cast

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
        """Leader epoch, if the broker sends it."""
        ...


UNREADABLE_HEADERS: Final = (("a name is not UTF-8: the client library reads no header of this message", None),)
"""Replaces the headers if the client library fails on them. Kafka takes any bytes for a name."""


_ask_headers: Callable[[KafkaMessage], list[tuple[str, bytes | None]] | None] = methodcaller("headers")
"""Not a plain call: confluent-kafka returns a list and sets an error, and the interpreter's fast call misses that."""


def read_headers(source: KafkaMessage) -> tuple[tuple[str, bytes | None], ...]:
    """The headers of a message, in order; `UNREADABLE_HEADERS` if the client library cannot read them."""
    try:
        return tuple(_ask_headers(source) or ())
    except (SystemError, UnicodeDecodeError):
        # Asked again, confluent-kafka returns names that are null pointers: reading such a name ends the process.
        cast("Any", source).set_headers(list(UNREADABLE_HEADERS))
        return UNREADABLE_HEADERS


class Record(msgspec.Struct, frozen=True, gc=False):
    """One Kafka record.

    Attributes:
        topic_id: Kafka's topic id; a re-created topic has another.
        offset: Offset in the partition.
        source: The client's own message.
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
    def key_text(self) -> str:
        """The record's key as text: the session of most streams.

        Raises:
            ValueError: The record has no key, or its key is not UTF-8.
        """
        if (key := self.key) is None:
            raise ValueError("the message has no key")
        return key.decode()

    @property
    def value(self) -> bytes | None:
        """The record's value, as sent."""
        return self.source.value()

    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]:
        """The record's headers, in order.

        Raises:
            ValueError: The name of a header is not UTF-8.
        """
        headers = read_headers(self.source)
        if headers == UNREADABLE_HEADERS:
            raise ValueError(UNREADABLE_HEADERS[0][0])
        return headers

    @property
    def timestamp_ms(self) -> int:
        """Kafka's timestamp in milliseconds since 1970 (UTC)."""
        return self.source.timestamp()[1]

    @property
    def timestamp_type(self) -> TimestampType:
        """The clock of the timestamp."""
        return TimestampType(self.source.timestamp()[0])

    @property
    def leader_epoch(self) -> int | None:
        """Leader epoch under which the record was written, if the broker sends it."""
        return self.source.leader_epoch()


class Kind(Enum):
    """The effect of a message on its session."""

    SNAPSHOT = "snapshot"
    """Sets the whole state."""
    UPDATE = "update"
    """Changes part of the state."""
    END = "end"
    """Closes the session: its state is removed."""
    SKIP = "skip"
    """Known and not wanted: counted, no row, evidence not read."""
    SNAPSHOT_PART = "part"
    """Part of a snapshot in several messages, which a message of kind SNAPSHOT completes. The first is applied by
    `Transform.on_snapshot`, the others by `Transform.on_update`, in order.
    """


class Link(msgspec.Struct, frozen=True, gc=False):
    """Ids by which messages of a session name each other (evidence `Linked`).

    Attributes:
        last: The newest id that this message covers.
        first: The oldest id that this message covers; lets the first update after a snapshot overlap it.
        previous: `last` of the preceding message.
    """

    last: int
    first: int | None = None
    previous: int | None = None


class Envelope(msgspec.Struct, frozen=True, gc=False):
    """Session, order and time of one message, as `Transform.envelope` extracts them.

    Attributes:
        session: The unit of order inside a partition; usually the message key (`Record.key_text`).
        kind: The effect of the message on the session.
        sequence: The producer's number of the message in its session (evidence `Sequence`).
        link: The producer's ids of the message (evidence `Linked`).
        event_time_us: Event time, in microseconds since 1970 (UTC).
        id: Identifies the message in its session, independent of its order (class `Once`).
        count: Of an END: number of messages of the session, including the snapshot and the END. `Once`, `Checksum` and
            `LogOnly` compare it.
        restarts_sequence: The producer restarts the numbering with this snapshot: earlier numbers are void.
    """

    session: str
    kind: Kind = Kind.UPDATE
    sequence: int | None = None
    link: Link | None = None
    event_time_us: int | None = None
    id: str | int | None = None
    count: int | None = None
    restarts_sequence: bool = False
