"""A user's stream module for strict type checkers: it must pass without an ignore."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Annotated

import msgspec

from lockstep import (
    AvailableNow,
    DecimalType,
    Envelope,
    Every,
    Halt,
    InitialState,
    Kind,
    Limits,
    Link,
    Linked,
    Lookup,
    NoIntegrity,
    Record,
    Sequence,
    Stream,
    Strict,
    TableFold,
    Topics,
    Transform,
    Violation,
)
from lockstep.decoders import Function, MessagePack


class Row(msgspec.Struct):
    id: str
    value: float


class Snapshot(msgspec.Struct, tag="snapshot", tag_field="type"):
    seq: int
    ts: datetime
    rows: list[Row]


class Update(msgspec.Struct, tag="update", tag_field="type"):
    seq: int
    ts: datetime
    row: Row
    total: float | None = None


class Closed(msgspec.Struct, tag="closed", tag_field="type"):
    seq: int


Message = Snapshot | Update | Closed


class Panel(msgspec.Struct):
    values: dict[str, float] = {}

    def total(self) -> float:
        return sum(self.values.values())


class Reading(msgspec.Struct, frozen=True):
    id: str
    value: float | None
    previous: float | None
    price: Annotated[Decimal, DecimalType(18, 8)] | None = None


class PanelTransform(Transform[Message, Panel, Reading]):
    """Readings of panels; a wrong total is a violation."""

    def envelope(self, message: Message, record: Record) -> Envelope:
        session = record.key.decode() if record.key is not None else record.topic
        match message:
            case Snapshot():
                return Envelope(session, Kind.SNAPSHOT, sequence=message.seq, event_time_us=microseconds(message.ts))
            case Update():
                return Envelope(session, sequence=message.seq, event_time_us=microseconds(message.ts))
            case Closed():
                return Envelope(session, Kind.END, sequence=message.seq)

    def on_snapshot(
        self, message: Message, record: Record, previous: Panel | None
    ) -> Panel | InitialState[Panel, Reading]:
        if not isinstance(message, Snapshot):
            return Panel()
        values = {row.id: row.value for row in message.rows}
        return InitialState(Panel(values), [Reading(key, value, None) for key, value in values.items()])

    def on_update(self, state: Panel, message: Message, record: Record) -> Iterable[Reading]:
        if not isinstance(message, Update):
            return
        row = message.row
        previous, state.values[row.id] = state.values.get(row.id), row.value
        if message.total is not None and message.total != state.total():
            raise Violation(state.total(), message.total, "total of the panel")
        yield Reading(row.id, row.value, previous)


class Level(msgspec.Struct):
    first: int
    last: int
    price: str
    quantity: str | None


class LevelChange(msgspec.Struct):
    price: str
    quantity: str | None
    previous: str | None


class Book(TableFold[Level, str, str, LevelChange]):
    """The quantity at each price."""

    key = ("price",)
    removed = "quantity"

    def envelope(self, message: Level, record: Record) -> Envelope:
        return Envelope(record.topic, link=Link(message.last, first=message.first))

    def changes(self, message: Level) -> Iterable[tuple[str, str | None]]:
        yield message.price, message.quantity

    def emit(self, message: Level | None, key: str, new: str | None, previous: str | None) -> LevelChange:
        return LevelChange(key, new, previous)


def microseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000_000)


def decode_level(value: bytes) -> Level:
    return msgspec.msgpack.decode(value, type=Level)


class Plant(msgspec.Struct, frozen=True):
    id: str
    offset: float


PLANTS = Lookup("plants", "plants", key="id", row=Plant)


def correct(row: Row) -> float:
    plant = PLANTS.get(row.id)
    return row.value if plant is None else row.value + plant.offset


panels = Stream(
    name="panels",
    topics=Topics(pattern=r"sensors\..+", exclude=r".*\.test", inactive_after=timedelta(days=1)),
    transform=PanelTransform(),
    integrity=Strict(evidence=Sequence(), on_violation=Halt()),
    trigger=Every(seconds=1),
    limits=Limits(batch_messages=50_000),
    lookups=(PLANTS,),
    description="Readings of all panels.",
)

book = Stream(
    name="book",
    topics=Topics(pattern=r"books\..+"),
    transform=Book(),
    integrity=Strict(evidence=Linked()),
    decoder=MessagePack(),
    trigger=AvailableNow(),
)

loose = Stream(
    name="loose",
    topics=Topics(pattern=r"books\..+"),
    transform=Book(),
    integrity=NoIntegrity(),
    decoder=Function(decode_level),
)

typed: Stream[Message, Panel, Reading] = panels
folded: Stream[Level, dict[str, str], LevelChange] = book
