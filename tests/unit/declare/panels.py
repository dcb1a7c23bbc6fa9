"""A stream of sensor panels, declared as by a user; the tests here change one part at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from lockstep import Envelope, Kind, Record, Sequence, Stream, Strict, Topics, Transform

if TYPE_CHECKING:
    from collections.abc import Iterable


class Snapshot(msgspec.Struct, tag="snapshot", tag_field="type"):
    seq: int
    values: dict[str, float]


class Update(msgspec.Struct, tag="update", tag_field="type"):
    seq: int
    id: str
    value: float


class Panel(msgspec.Struct):
    values: dict[str, float]


class Reading(msgspec.Struct, frozen=True):
    id: str
    value: float
    previous: float | None


class PanelTransform(Transform[Snapshot | Update, Panel, Reading]):
    def __init__(self, unit: str = "volt") -> None:
        self.unit = unit

    def envelope(self, message: Snapshot | Update, record: Record) -> Envelope:
        kind = Kind.SNAPSHOT if isinstance(message, Snapshot) else Kind.UPDATE
        return Envelope(record.key_text, kind, sequence=message.seq)

    def on_snapshot(self, message: Snapshot | Update, record: Record, previous: Panel | None) -> Panel:
        del record
        return Panel(message.values if isinstance(message, Snapshot) else {})

    def on_update(self, state: Panel, message: Snapshot | Update, record: Record) -> Iterable[Reading]:
        del record
        if isinstance(message, Update):
            previous = state.values.get(message.id)
            state.values[message.id] = message.value
            yield Reading(message.id, message.value, previous)


def panels(**changed: object) -> Stream[Snapshot | Update, Panel, Reading]:
    """Return the stream with some of its parts changed, also to values that a type checker refuses."""
    parts: dict[str, object] = {
        "name": "panels",
        "topics": Topics(pattern=r"sensors\..+"),
        "transform": PanelTransform(),
        "integrity": Strict(evidence=Sequence()),
    }
    return Stream(**{**parts, **changed})  # type: ignore[arg-type]  # tests pass wrong parts
