"""The recorded connection, as received and as numbered by its producer; loaded without code of the product."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PATH = Path(__file__).parents[2] / "recordings" / "exchange_ws" / "dydx_v3_connection_message_id_offset.txt.gz"
META = "wss"
"""Prefix of lines about the collector's own actions."""


@dataclass(frozen=True)
class Message:
    """One message, as `lockstep.features.localdev.producer` accepts it.

    Attributes:
        value: The bytes of the line, unchanged.
        timestamp_ms: Receive time, milliseconds since 1970 (UTC).
        number: Its `message_id`.
        key: The connection.
    """

    value: bytes
    timestamp_ms: int
    number: int
    key: bytes


@cache
def as_received() -> tuple[Message, ...]:
    """Return all messages in the order of the file."""
    with gzip.open(PATH, "rt", encoding="utf-8") as lines:
        told = [line.rstrip("\n").split(": ", 1) for line in lines if line.strip() and not line.startswith(META)]
    return tuple(_message(float(seconds), text) for seconds, text in told)


@cache
def as_numbered() -> tuple[Message, ...]:
    """Return all messages as a correct producer sends them: in the order of their numbers."""
    return tuple(sorted(as_received(), key=lambda message: message.number))


def _message(seconds: float, text: str) -> Message:
    head = json.loads(text)
    return Message(text.encode(), int(seconds * 1000), head["message_id"], head["connection_id"].encode())
