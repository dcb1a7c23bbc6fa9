"""The workload as a stream: the fold of the bare loop as a user declares it, by code and by names of fields."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping
from typing import TypeVar

import msgspec
from msgspec import UNSET
from msgspec.structs import astuple

from benchmarks.messages import Change, Message, Snapshot
from benchmarks.systems import STREAM
from lockstep import (
    ColumnFold,
    EnvelopeFields,
    MapState,
    NoIntegrity,
    Record,
    Sequence,
    Stream,
    Strict,
    TableFields,
    TableFold,
    Topics,
    Transform,
)
from lockstep.declare.stream import AnyStream

Values = tuple[str, str, float, float, float, float, int, bool]
State = dict[int, Values]
Table = TypeVar("Table", bound=MutableMapping[int, Values])


class ChangedRows(Transform[Message, Table, Change]):
    """Rows of 8 columns by id; an update changes some columns of some rows."""

    envelope_fields = EnvelopeFields(snapshot=Snapshot, session="session", sequence="seq", event_time_us="ts")

    def on_update(self, state: Table, message: Message, record: Record) -> Iterable[Change]:
        """One output row per changed row."""
        changed = []
        for change in message.rows:
            row, s, n, a, b, c, d, q, f = astuple(change)
            previous = state[row]
            ps, pn, pa, pb, pc, pd, pq, pf = previous
            state[row] = new = (
                ps if s is UNSET else s,
                pn if n is UNSET else n,
                pa if a is UNSET else a,
                pb if b is UNSET else b,
                pc if c is UNSET else c,
                pd if d is UNSET else d,
                pq if q is UNSET else q,
                pf if f is UNSET else f,
            )
            changed.append(Change(row, *new, *previous))
        return changed


class Sensors(ChangedRows[State]):
    """The state is a dict, which is saved whole."""

    def on_snapshot(self, message: Message, record: Record, previous: State | None) -> State:
        """All rows of the snapshot."""
        return {row.id: astuple(row)[1:] for row in message.rows}


class MapSensors(ChangedRows[MapState[int, Values]]):
    """The state is saved row by row."""

    def on_snapshot(
        self, message: Message, record: Record, previous: MapState[int, Values] | None
    ) -> MapState[int, Values]:
        """All rows of the snapshot."""
        return MapState({row.id: astuple(row)[1:] for row in message.rows})


def sensors(pattern: str) -> AnyStream:
    """The stream over the topics of one size of the workload."""
    return Stream(
        name=STREAM, topics=Topics(pattern=pattern), transform=Sensors(), integrity=Strict(evidence=Sequence())
    )


def map_sensors(pattern: str) -> AnyStream:
    """The stream with a state by row."""
    return Stream(
        name=STREAM, topics=Topics(pattern=pattern), transform=MapSensors(), integrity=Strict(evidence=Sequence())
    )


class UncheckedSensors(Sensors):
    """The same fold without any evidence of order."""

    envelope_fields = EnvelopeFields(snapshot=Snapshot, session="session", event_time_us="ts")


def unchecked_sensors(pattern: str) -> AnyStream:
    """The stream without any check of order."""
    return Stream(name=STREAM, topics=Topics(pattern=pattern), transform=UncheckedSensors(), integrity=NoIntegrity())


class Columns(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The columns of a row, without its id."""

    status: str
    name: str
    v0: float
    v1: float
    v2: float
    v3: float
    q: int
    flag: bool


class TableChange(msgspec.Struct, frozen=True, gc=False):
    """A changed row of the table; without values the row is gone, without previous ones it is new."""

    id: int
    status: str | None
    name: str | None
    v0: float | None
    v1: float | None
    v2: float | None
    v3: float | None
    q: int | None
    flag: bool | None
    previous_status: str | None
    previous_name: str | None
    previous_v0: float | None
    previous_v1: float | None
    previous_v2: float | None
    previous_v3: float | None
    previous_q: int | None
    previous_flag: bool | None


class ReadySensors(ColumnFold[Message, int, Columns, TableChange]):
    """The same fold by names of fields."""

    fields = TableFields(
        snapshot=Snapshot,
        rows="rows",
        key="id",
        session="session",
        sequence="seq",
        event_time_us="ts",
        emits_unchanged=True,
    )


def ready_sensors(pattern: str) -> AnyStream:
    """The stream with the ready fold."""
    return Stream(
        name=STREAM, topics=Topics(pattern=pattern), transform=ReadySensors(), integrity=Strict(evidence=Sequence())
    )


class PartialColumns(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The columns of a row, without its id; None for a column that an update leaves unchanged."""

    status: str | None
    name: str | None
    v0: float | None
    v1: float | None
    v2: float | None
    v3: float | None
    q: int | None
    flag: bool | None


NO_ROW = (None,) * 8


class TableSensors(TableFold[Message, int, PartialColumns, TableChange]):
    """The same fold as a table of rows."""

    key = ("id",)
    removed = "status"
    envelope_fields = ChangedRows.envelope_fields

    def changes(self, message: Message) -> Iterator[tuple[int, PartialColumns]]:
        """The rows of the message."""
        for row in message.rows:
            key, *values = astuple(row)
            yield key, PartialColumns(*(None if value is UNSET else value for value in values))

    def merge(self, previous: PartialColumns | None, change: PartialColumns) -> PartialColumns:
        """The previous row with the changed columns."""
        if previous is None:
            return change
        pairs = zip(astuple(previous), astuple(change), strict=True)
        return PartialColumns(*(old if new is None else new for old, new in pairs))

    def emit(
        self, message: Message | None, key: int, new: PartialColumns | None, previous: PartialColumns | None
    ) -> TableChange:
        """The row before and after."""
        values = NO_ROW if new is None else astuple(new)
        return TableChange(key, *values, *(NO_ROW if previous is None else astuple(previous)))


def table_sensors(pattern: str) -> AnyStream:
    """The stream with the fold of a table of rows."""
    return Stream(
        name=STREAM, topics=Topics(pattern=pattern), transform=TableSensors(), integrity=Strict(evidence=Sequence())
    )
