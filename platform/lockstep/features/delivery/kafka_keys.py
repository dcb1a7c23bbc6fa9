"""Changes the keys of a compacted topic: messages that correct it after a rebuild, tombstones of erased sessions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from lockstep.declare.delivery_target import DeliveredRow, DeliveryToken, TargetConnection
from lockstep.features.delivery.erasures import ErasedSession
from lockstep.features.delivery.kafka_message import ROW, MessageEncoder, OutgoingMessage, decode_headers
from lockstep.features.delivery.kafka_reading import KeyPlace, LastMessage, digest_value
from lockstep.model.position import TopicIdPartition
from lockstep.table.session_digest import compute_session_digest


class KeyedRebuild(TargetConnection):
    """Takes the rows of a rebuild, and keeps the last message of each key: some 500 bytes of memory for each."""

    def __init__(self, token: DeliveryToken, encoder: MessageEncoder) -> None:
        """Take nothing yet.

        Args:
            token: The position before the first row.
            encoder: Encodes the rows.
        """
        self._token = token
        self._encoder = encoder
        self._wanted = dict[KeyPlace, OutgoingMessage]()

    @property
    def token(self) -> DeliveryToken:
        """The token of the newest write."""
        return self._token

    def write(self, rows: Sequence[DeliveredRow], token: DeliveryToken) -> None:
        """Take rows. Raises RowUndeliverable."""
        for message in self._encoder.encode_all(rows):
            self._wanted[KeyPlace(message.partition, message.key)] = message
        self._token = token

    def close(self) -> None:
        """Nothing is open."""

    def list_corrections(self, last: Mapping[KeyPlace, LastMessage]) -> Iterator[OutgoingMessage]:
        """List the messages that make the topic equal to the rows: tombstones first.

        Args:
            last: The last messages of the topic.
        """
        for place in last:
            if place not in self._wanted or self._wanted[place].value is None:
                yield OutgoingMessage(place.key, None, place.partition, [])
        for place, message in self._wanted.items():
            if message.value is not None and not _is_equal(message, message.value, last.get(place)):
                yield message


def _is_equal(message: OutgoingMessage, value: bytes, last: LastMessage | None) -> bool:
    if last is None or last.digest != digest_value(value):
        return False
    return last.headers.get(ROW) == message.headers[0][1]


def list_erased(
    last: Mapping[KeyPlace, LastMessage], sessions: Iterable[ErasedSession], session_at: int, table_id: str
) -> list[OutgoingMessage]:
    """List the tombstones of erased sessions.

    Args:
        last: The last messages of the topic.
        sessions: The erased sessions.
        session_at: The place of the session in the key.
        table_id: Delta's id of the table of the stream.
    """
    erased = dict[tuple[TopicIdPartition, str], int]()
    for each in sessions:
        erased[each.key, each.digest] = max(each.batch, erased.get((each.key, each.digest), 0))
    tombstones = list[OutgoingMessage]()
    for place, message in last.items():
        try:
            headers = decode_headers(message.headers)
            session = str(msgspec.json.decode(place.key)[session_at])
        except (KeyError, ValueError, IndexError, TypeError):
            continue  # a message of somebody else
        source = TopicIdPartition(headers.identity.topic_id, headers.identity.partition)
        if headers.batch < erased.get((source, compute_session_digest(table_id, session)), 0):
            tombstones.append(OutgoingMessage(place.key, None, place.partition, []))
    return tombstones
