"""The messages of a delivery to a Kafka topic: key, value, headers, and the partition of a key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import NamedTuple

import msgspec

from lockstep.declare.delivery import KafkaTopic
from lockstep.declare.delivery_target import DeliveredRow, RowIdentity, RowUndeliverable
from lockstep.declare.row_key import SESSION_COLUMNS
from lockstep.features.delivery.row_values import UNENCODABLE, ValueEncoder

ROW = "lockstep.row"
"""Header with the identity of the row: `<table id>/<generation>/<topic id>/<partition>/<emit offset>/<row>`."""
BATCH = "lockstep.batch"
"""Header with its batch, the digest of the functions and the source topic: `<batch>/<code>/<topic>`."""
KEYS_CACHED = 100_000
_MULTIPLIER = 0x5BD1E995
_MASK = 0xFFFFFFFF
_SEED = 0x9747B28C

Header = tuple[str, bytes]


class OutgoingMessage(NamedTuple):
    """A message to produce; without a value, a tombstone."""

    key: bytes
    value: bytes | None
    partition: int
    headers: list[Header]


class RowHeaders(NamedTuple):
    """The headers of a message, decoded.

    Attributes:
        table_id: Delta's id of the table.
        generation: The generation that wrote the row.
        identity: The identity of the row inside the generation.
        batch: Its batch.
        code: Digest of the functions that chose and made it.
    """

    table_id: str
    generation: int
    identity: RowIdentity
    batch: int
    code: str


class MessageEncoder:
    """Encodes the rows of one table for a topic."""

    def __init__(self, table_id: str, code: str, partitions: int, target: KafkaTopic, values: ValueEncoder) -> None:
        """Encode nothing yet.

        Args:
            table_id: Delta's id of the table.
            code: Digest of the functions of the delivery.
            partitions: Number of partitions of the topic.
            target: The topic, with the fields of its key.
            values: Encodes the values.
        """
        self._readers = [_make_reader(name) for name in target.key]
        self._removed = target.removed
        self._key_encoder = msgspec.json.Encoder()
        self._values = values
        self._table_id = table_id
        self._code = code
        self._partitions = partitions

    def encode(self, row: DeliveredRow) -> OutgoingMessage:
        """Encode a row. Raises RowUndeliverable for a value that the format cannot hold."""
        return next(self.encode_all([row]))

    def encode_all(self, rows: Sequence[DeliveredRow]) -> Iterator[OutgoingMessage]:
        """Encode rows. Raises RowUndeliverable at a value that the format cannot hold."""
        shared: tuple[int, int, str, int] | None = None
        prefix = b""
        of_batch = (BATCH, b"")
        for row, value in zip(rows, self._encode_values(rows), strict=True):
            origin = row.origin
            here = (origin.batch, origin.generation, origin.topic_id, origin.partition)
            if here != shared:
                shared = here
                prefix = f"{self._table_id}/{origin.generation}/{origin.topic_id}/{origin.partition}/".encode()
                of_batch = (BATCH, f"{origin.batch}/{self._code}/{origin.topic}".encode())
            key, digest = self._encode_key(row) if self._readers else _encode_session(origin.session)
            identity = b"%b%d/%d" % (prefix, origin.emit_offset, origin.row)
            yield OutgoingMessage(key, value, digest % self._partitions, [(ROW, identity), of_batch])

    def _encode_values(self, rows: Sequence[DeliveredRow]) -> Iterable[bytes | None]:
        """Encode the values in one call, which takes a third of the time, or one by one up to that which fails."""
        if not self._removed:
            try:
                encoded = self._values.encode_lines([row.value for row in rows])
            except UNENCODABLE:
                encoded = ()
            if len(encoded) == len(rows):
                return encoded
        return map(self._encode_value, rows)

    def _encode_value(self, row: DeliveredRow) -> bytes | None:
        if self._removed and getattr(row.value, self._removed) is None:
            return None
        try:
            return self._values.encode(row.value)
        except UNENCODABLE as error:
            raise _make_undeliverable(row, self._values.format, error) from error

    def _encode_key(self, row: DeliveredRow) -> tuple[bytes, int]:
        """The declared key of a row, and its positive hash."""
        try:
            key = self._key_encoder.encode([read(row) for read in self._readers])
        except UNENCODABLE as error:
            raise _make_undeliverable(row, "JSON", error) from error
        return key, _hash(key) & 0x7FFFFFFF


def _make_undeliverable(row: DeliveredRow, form: str, error: Exception) -> RowUndeliverable:
    step = f"let Delivery.select make a value that {form} can hold"
    return RowUndeliverable(row.origin.identity, f"{form} cannot hold it: {error}", next_step=step)


def _make_reader(name: str) -> Callable[[DeliveredRow], object]:
    """Read a part of the key."""
    if name in SESSION_COLUMNS:
        return attrgetter(f"origin.{name[1:]}")
    return attrgetter(f"value.{name}")


def decode_headers(headers: Mapping[str, bytes]) -> RowHeaders:
    """Decode the headers of a message. Raises KeyError or ValueError for a message that no delivery wrote."""
    history, partition, emit_offset, row = headers[ROW].decode().rsplit("/", 3)
    table_id, generation, topic_id = history.split("/", 2)  # a topic id may have slashes
    batch, code, _ = headers[BATCH].decode().split("/")
    identity = RowIdentity(topic_id, int(partition), int(emit_offset), int(row))
    return RowHeaders(table_id, int(generation), identity, int(batch), code)


@lru_cache(KEYS_CACHED)
def _encode_session(session: str) -> tuple[bytes, int]:
    """The key of a session, and its positive hash."""
    key = session.encode()
    return key, _hash(key) & 0x7FFFFFFF


def choose_partition(key: bytes, partitions: int) -> int:
    """The partition of a key among so many, as the default partitioner of Kafka's Java producer chooses it."""
    return (_hash(key) & 0x7FFFFFFF) % partitions


def _hash(key: bytes) -> int:
    """MurmurHash2 of 32 bits, with the seed of Kafka's Java producer."""
    whole = len(key) & ~3
    state = _SEED ^ len(key)
    for at in range(0, whole, 4):
        word = int.from_bytes(key[at : at + 4], "little") * _MULTIPLIER & _MASK
        word = (word ^ word >> 24) * _MULTIPLIER & _MASK
        state = (state * _MULTIPLIER & _MASK) ^ word
    if whole < len(key):
        state = (state ^ int.from_bytes(key[whole:], "little")) * _MULTIPLIER & _MASK
    state = (state ^ state >> 13) * _MULTIPLIER & _MASK
    return state ^ state >> 15
