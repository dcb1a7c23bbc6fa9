"""Messages held back: kept whole with the state of their partition until they are applied."""

from __future__ import annotations

from hashlib import blake2b
from typing import cast

import msgspec

from lockstep.declare.record import KafkaMessage, Record
from lockstep.errors import StateError
from lockstep.state.reserved import HELD, Reserved


class HeldMessage(msgspec.Struct, frozen=True, array_like=True):
    """A message as it came (`KafkaMessage`), with its offset."""

    at: int
    sent_key: bytes | None
    sent_value: bytes | None
    sent_headers: list[tuple[str, bytes | None]] | None
    sent_timestamp: tuple[int, int]
    sent_epoch: int | None

    def offset(self) -> int:
        """Its offset."""
        return self.at

    def key(self) -> bytes | None:
        """The key."""
        return self.sent_key

    def value(self) -> bytes | None:
        """The value."""
        return self.sent_value

    def headers(self) -> object:
        """Pairs of name and value, or None."""
        return self.sent_headers

    def timestamp(self) -> tuple[int, int]:
        """Type and milliseconds."""
        return self.sent_timestamp

    def leader_epoch(self) -> int | None:
        """Leader epoch, where the broker told it."""
        return self.sent_epoch


_ENCODER = msgspec.msgpack.Encoder()
_MESSAGES = msgspec.msgpack.Decoder(HeldMessage)


class Held:
    """The messages of one partition that are held back."""

    def __init__(self, reserved: Reserved) -> None:
        self._reserved = reserved

    def put(self, session: str, record: Record) -> None:
        """Keep a message."""
        source: KafkaMessage = record.source
        headers = cast("list[tuple[str, bytes | None]] | None", source.headers())
        message = HeldMessage(
            record.offset, source.key(), source.value(), headers, source.timestamp(), source.leader_epoch()
        )
        self._reserved.add(_key(session, record.offset), _ENCODER.encode(message))

    def take(self, session: str, offset: int) -> HeldMessage:
        """Take a message out.

        Raises:
            StateError: It is not there, and the state of the session says that it is.
        """
        key = _key(session, offset)
        stored = self._reserved.get(key)
        if stored is None:
            problem = f"the message at offset {offset} of session {session!r} is held back, but not stored"
            raise StateError(problem, next_step="restore the stream's `state` folder from a copy")
        self._reserved.remove(key)
        return _MESSAGES.decode(stored)


def _key(session: str, offset: int) -> bytes:
    return HELD + blake2b(session.encode("utf-8", "surrogatepass"), digest_size=16).digest() + offset.to_bytes(8, "big")
