"""Gauges in columns: two streams whose messages are folded in chunks, and messages that are folded one by one."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from msgspec import UNSET, UnsetType

from lockstep import ColumnFold, Envelope, Halt, Record, Sequence, Stream, Strict, Suspend, TableFields, Topics


class Whole(msgspec.Struct, tag="whole"):
    """A whole row."""

    name: str
    text: str
    level: float
    count: int
    is_open: bool


class Part(msgspec.Struct, rename="camel"):
    """The changed fields of a row."""

    name: str
    text: str | UnsetType = UNSET
    level: float | UnsetType = UNSET
    count: int | UnsetType = UNSET
    is_open: bool | UnsetType = UNSET


class Snapshot(msgspec.Struct, tag="snapshot"):
    """Sets all rows."""

    number: int
    at: int
    rows: list[Whole]


class Update(msgspec.Struct, tag="update"):
    """Changes rows."""

    number: int
    at: int
    rows: list[Part]


class End(msgspec.Struct, tag="end"):
    """Ends a session."""

    number: int
    at: int


Message = Snapshot | Update | End


class Gauge(msgspec.Struct, frozen=True, array_like=True):
    """The columns."""

    text: str
    level: float
    count: int
    is_open: bool


class GaugeChange(msgspec.Struct, frozen=True):
    """A changed row."""

    level: float | None
    previous_level: float | None
    name: str
    text: str | None
    previous_text: str | None
    count: int | None
    is_open: bool | None
    previous_is_open: bool | None


class Gauges(ColumnFold[Message, str, Gauge, GaugeChange]):
    """Emits a row for each change."""

    fields = TableFields(snapshot=Snapshot, end=End, rows="rows", key="name", sequence="number", event_time_us="at")


class AllGauges(Gauges):
    """Emits a row for each update, even without a change."""

    fields = replace(Gauges.fields, emits_unchanged=True)


class OwnEnvelope(Gauges):
    """A fold with a user-defined envelope."""

    def envelope(self, message: Message, record: Record) -> Envelope:
        return super().envelope(message, record)


def make_gauges(transform: Gauges, *, suspends: bool = False) -> Stream[Message, dict[str, Gauge], GaugeChange]:
    """Return the stream."""
    return Stream(
        name="gauges",
        topics=Topics(pattern=r"gauges\..+"),
        transform=transform,
        integrity=Strict(evidence=Sequence(), on_violation=Suspend() if suspends else Halt()),
    )


GAUGES = {"changes": make_gauges(Gauges()), "all": make_gauges(AllGauges())}
