"""Messages of a test: what a user gives, and what the fold sees of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Generic, Never, TypeVar, cast

import msgspec

from lockstep import Decoder, Json, MessagePack
from lockstep.declare.record import TimestampType
from lockstep.declare.transform import M
from lockstep.errors import LockstepError
from lockstep.integrity.time import EPOCH

M_co = TypeVar("M_co", covariant=True)


@dataclass(frozen=True, kw_only=True)
class Sent(Generic[M_co]):
    """A message with more than its value.

    Attributes:
        value: A message of the stream, or the bytes of any; None for no value.
        key: Its key; by default the key of the whole test.
        timestamp_ms: Kafka's timestamp, milliseconds since 1970 (UTC).
        headers: Its headers.
    """

    value: M_co | bytes | None
    key: str | bytes | None = None
    timestamp_ms: int = 0
    headers: Sequence[tuple[str, bytes]] = ()


@dataclass(frozen=True)
class InLog:
    """A message as a client library gives it (`KafkaMessage`), at its offset."""

    at: int
    sent_key: bytes | None
    sent_value: bytes | None
    timestamp_ms: int = 0
    sent_headers: Sequence[tuple[str, bytes]] = ()

    def offset(self) -> int:
        """Its place among the messages of the test, from 0."""
        return self.at

    def key(self) -> bytes | None:
        """The key."""
        return self.sent_key

    def value(self) -> bytes | None:
        """The value."""
        return self.sent_value

    def headers(self) -> object:
        """Pairs of name and value, or None."""
        return list(self.sent_headers) or None

    def timestamp(self) -> tuple[int, int]:
        """Type and milliseconds."""
        return int(TimestampType.CREATE_TIME), self.timestamp_ms

    def leader_epoch(self) -> int | None:
        """A test has no broker."""
        return None


AnySent = Sent[Never]
"""A message as bytes: of any stream."""


class _Header(msgspec.Struct):
    name: str
    value: bytes | None


class _Line(msgspec.Struct):
    value: bytes | None
    key: bytes | None = None
    timestamp: datetime | None = None
    headers: list[_Header] = []
    value_bytes: int | None = None


def read_messages(file: str | Path) -> list[AnySent]:
    """The messages of a file that `lockstep message --out` or `lockstep quarantine export` wrote, for `run`.

    Args:
        file: JSON lines: key, value and headers in base64, a timestamp.

    Raises:
        LockstepError: The file is none of these; or a value is cut, as quarantine does it beyond a megabyte.
    """
    path = Path(file)
    try:
        lines = msgspec.json.Decoder(_Line).decode_lines(path.read_bytes())
    except (OSError, msgspec.MsgspecError) as error:
        next_step = "lockstep message STREAM --out FILE, or lockstep quarantine export STREAM FILE.jsonl"
        raise LockstepError(f"{path}: no messages can be read: {error}", next_step=next_step) from error
    for number, line in enumerate(lines, 1):
        if line.value_bytes is not None and line.value_bytes > len(line.value or b""):
            problem = (
                f"{path}, line {number}: {len(line.value or b'')} of {line.value_bytes} bytes of the value are left"
            )
            raise LockstepError(problem, next_step="lockstep message STREAM TOPIC/PARTITION@OFFSET reads it from Kafka")
    return [_sent(line) for line in lines]


def _sent(line: _Line) -> AnySent:
    time_ms = 0 if line.timestamp is None else (line.timestamp - EPOCH) // timedelta(milliseconds=1)
    headers = tuple((header.name, header.value or b"") for header in line.headers)
    return AnySent(value=line.value, key=line.key, timestamp_ms=time_ms, headers=headers)


_ENCODERS: dict[type[Decoder], Callable[[object], bytes]] = {
    Json: msgspec.json.encode,
    MessagePack: msgspec.msgpack.encode,
}


def in_log(at: int, message: M | bytes | Sent[M], key: str | bytes | None, decoder: Decoder) -> InLog:
    """A message as it would lie in the topic, at an offset.

    Typed messages are encoded, so that the stream's decoder has its say on them as well.

    Raises:
        LockstepError: The message is typed, and the stream's decoder has no encoder here.
    """
    sent = cast("Sent[object]", message) if isinstance(message, Sent) else Sent[object](value=message)
    return InLog(
        at,
        _encoded_key(key if sent.key is None else sent.key),
        _encoded_value(sent.value, decoder),
        sent.timestamp_ms,
        sent.headers,
    )


def _encoded_key(key: str | bytes | None) -> bytes | None:
    return key.encode() if isinstance(key, str) else key


def _encoded_value(value: object, decoder: Decoder) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    encode = _ENCODERS.get(type(decoder))
    if encode is None:
        raise LockstepError(
            f"a {type(value).__name__} cannot be encoded for {type(decoder).__name__}",
            next_step="give the message as the bytes that a producer would send",
        )
    return encode(value)
