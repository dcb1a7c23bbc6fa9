"""A stream of panels to try the harness on: numbered, with a total that must hold, closed at the end."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from lockstep import (
    Envelope,
    InitialState,
    Kind,
    NoIntegrity,
    Record,
    Sequence,
    Stream,
    Strict,
    Topics,
    Transform,
    Violation,
)


class Snapshot(msgspec.Struct, tag="snapshot", tag_field="type"):
    seq: int
    values: dict[str, float]


class Update(msgspec.Struct, tag="update", tag_field="type"):
    seq: int
    name: str
    value: float
    total: float | None = None


class Ping(msgspec.Struct, tag="ping", tag_field="type"):
    """A known message that the stream ignores."""


class Closed(msgspec.Struct, tag="closed", tag_field="type"):
    seq: int


Message = Snapshot | Update | Ping | Closed


class Panel(msgspec.Struct):
    values: dict[str, float]
    updates: int = 0


class Reading(msgspec.Struct, frozen=True):
    name: str
    value: float
    header: str | None = None


class Panels(Transform[Message, Panel, Reading]):
    def envelope(self, message: Message, record: Record) -> Envelope:
        session = record.key_text
        match message:
            case Snapshot():
                return Envelope(session, Kind.SNAPSHOT, sequence=message.seq, event_time_us=record.timestamp_ms * 1000)
            case Update():
                return Envelope(session, sequence=message.seq)
            case Ping():
                return Envelope(session, Kind.SKIP)
            case Closed():
                return Envelope(session, Kind.END, sequence=message.seq)

    def on_snapshot(
        self, message: Message, record: Record, previous: Panel | None
    ) -> Panel | InitialState[Panel, Reading]:
        if not isinstance(message, Snapshot):
            return Panel({})
        header = (dict(record.headers).get("site") or b"").decode() or None
        rows = [Reading(name, value, header) for name, value in message.values.items()]
        return InitialState(Panel(message.values), rows) if header else Panel(message.values)

    def on_update(self, state: Panel, message: Message, record: Record) -> Iterable[Reading]:
        assert isinstance(message, Update)
        state.updates += 1
        state.values[message.name] = message.value
        yield Reading(message.name, message.value)
        if message.total is not None and message.total != sum(state.values.values()):
            raise Violation(sum(state.values.values()), message.total, "total")


panels = Stream(
    name="panels",
    topics=Topics(pattern=r"panels\..+"),
    transform=Panels(),
    integrity=Strict(evidence=Sequence()),
)
loose = Stream(name="loose", topics=Topics(pattern=r"panels\..+"), transform=Panels(), integrity=NoIntegrity())
