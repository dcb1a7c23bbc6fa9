"""Message types and Avro schemas of the decoders' tests, and a stream of each kind."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal
from enum import Enum

import msgspec

from lockstep import Envelope, Kind, Record, Transform
from tests.support.decoders.panel_pb2 import Snapshot as ProtoSnapshot
from tests.support.decoders.panel_pb2 import Update as ProtoUpdate


class Side(Enum):
    BUY = "BUY"
    SELL = "SELL"


class Where(msgspec.Struct):
    room: str
    floor: int | None = None


class Trade(msgspec.Struct):
    """A column of every kind that Avro has."""

    seq: int
    id: str
    price: Decimal
    at: datetime
    side: Side
    value: float
    raw: bytes
    where: Where
    tags: list[str]
    counts: dict[str, int]
    flag: bool
    note: str | None = None


TRADE = {
    "type": "record",
    "name": "Trade",
    "namespace": "acme",
    "fields": [
        {"name": "seq", "type": "long"},
        {"name": "id", "type": "string"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 18, "scale": 4}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "side", "type": {"type": "enum", "name": "Side", "symbols": ["BUY", "SELL"]}},
        {"name": "value", "type": "double"},
        {"name": "raw", "type": "bytes"},
        {
            "name": "where",
            "type": {
                "type": "record",
                "name": "Where",
                "fields": [{"name": "room", "type": "string"}, {"name": "floor", "type": ["null", "int"]}],
            },
        },
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": "long"}},
        {"name": "flag", "type": "boolean"},
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}


class Snapshot(msgspec.Struct, tag=True):
    seq: int
    values: dict[str, float]


class Update(msgspec.Struct, tag=True):
    seq: int
    id: str
    value: float


SNAPSHOT = {
    "type": "record",
    "name": "Snapshot",
    "namespace": "acme",
    "fields": [{"name": "seq", "type": "long"}, {"name": "values", "type": {"type": "map", "values": "double"}}],
}
UPDATE = {
    "type": "record",
    "name": "Update",
    "namespace": "acme",
    "fields": [
        {"name": "seq", "type": "long"},
        {"name": "id", "type": "string"},
        {"name": "value", "type": "double"},
    ],
}


class Panel(msgspec.Struct):
    values: dict[str, float]


class Reading(msgspec.Struct):
    id: str
    value: float
    previous: float | None


class Panels(Transform[Snapshot | Update, Panel, Reading]):
    """The values of a panel; a row for each changed value."""

    def envelope(self, message: Snapshot | Update, record: Record) -> Envelope:
        kind = Kind.SNAPSHOT if isinstance(message, Snapshot) else Kind.UPDATE
        return Envelope(record.key_text, kind, sequence=message.seq)

    def on_snapshot(self, message: Snapshot | Update, record: Record, previous: Panel | None) -> Panel:
        return Panel(dict(message.values) if isinstance(message, Snapshot) else {})

    def on_update(self, state: Panel, message: Snapshot | Update, record: Record) -> Iterable[Reading]:
        if isinstance(message, Update):
            previous = state.values.get(message.id)
            state.values[message.id] = message.value
            yield Reading(message.id, message.value, previous)


class ProtoPanels(Transform[ProtoSnapshot | ProtoUpdate, Panel, Reading]):
    """The panels with generated message classes."""

    def envelope(self, message: ProtoSnapshot | ProtoUpdate, record: Record) -> Envelope:
        kind = Kind.SNAPSHOT if isinstance(message, ProtoSnapshot) else Kind.UPDATE
        return Envelope(record.key_text, kind, sequence=message.seq)

    def on_snapshot(self, message: ProtoSnapshot | ProtoUpdate, record: Record, previous: Panel | None) -> Panel:
        return Panel(dict(message.values) if isinstance(message, ProtoSnapshot) else {})

    def on_update(self, state: Panel, message: ProtoSnapshot | ProtoUpdate, record: Record) -> Iterable[Reading]:
        if isinstance(message, ProtoUpdate):
            previous = state.values.get(message.id)
            state.values[message.id] = message.value
            yield Reading(message.id, message.value, previous)


class Lengths(Transform[bytes, int, Where]):
    """The length of each value; the topic is the only session of each partition."""

    def envelope(self, message: bytes, record: Record) -> Envelope:
        return Envelope(record.topic, Kind.UPDATE)

    def on_snapshot(self, message: bytes, record: Record, previous: int | None) -> int:
        return len(message)

    def on_update(self, state: int, message: bytes, record: Record) -> Iterable[Where]:
        yield Where(record.topic, len(message))
