"""Releases of a stream with different types of state and rows. Executors import them by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Generic, TypeVar

import msgspec

from lockstep import Envelope, InitialState, MapState, Record, Sequence, Stream, Strict, Topics, Transform
from tests.support.adding_stream import Panel, Reading, Snapshot, Update

S = TypeVar("S")
R = TypeVar("R", bound=msgspec.Struct)


class Summed(msgspec.Struct):
    """The state of a later release: a renamed field and a stored sum."""

    held: dict[str, int]
    total: int


class SummedMore(msgspec.Struct):
    """The state of the third release, which can read the state of the second without a migration."""

    held: dict[str, int]
    total: int
    note: str | None = None


class WiderReading(msgspec.Struct):
    """The row of a later release: two more columns, and a column that may be null."""

    name: str
    value: int | None
    total: int
    unit: str | None = None
    weight: int = 7


class NarrowReading(msgspec.Struct):
    """A row that lacks a column of the table."""

    name: str
    value: int


class RenamedReading(msgspec.Struct):
    """A row with a renamed column."""

    name: str
    value: int
    sum_of_all: int


class RetypedReading(msgspec.Struct):
    """A row with a column of another type."""

    name: str
    value: int
    total: str


class RequiredReading(msgspec.Struct):
    """A row with a new column that older rows cannot have."""

    name: str
    value: int
    total: int
    unit: str


class Releases(Transform[Snapshot | Update, S, R], Generic[S, R]):
    """The common part of all releases: add values by name."""

    def envelope(self, message: Snapshot | Update, record: Record) -> Envelope:
        """The session is the key."""
        from lockstep import Kind

        kind = Kind.SNAPSHOT if isinstance(message, Snapshot) else Kind.UPDATE
        return Envelope(record.key_text, kind, sequence=message.seq)

    def row(self, name: str, value: int, total: int) -> Any:
        """Make a row of this release."""
        return Reading(name, value, total)

    def added(self, held: dict[str, int], message: Snapshot | Update) -> Iterable[R]:
        """Add the values and return a row for each."""
        for name, more in message.values.items():
            held[name] = held.get(name, 0) + more
            yield self.row(name, held[name], sum(held.values()))


class First(Releases[Panel, Reading]):
    """The first release."""

    def on_snapshot(
        self, message: Snapshot | Update, record: Record, previous: Panel | None
    ) -> Panel | InitialState[Panel, Reading]:
        """Start with all values."""
        return Panel(dict(message.values))

    def on_update(self, state: Panel, message: Snapshot | Update, record: Record) -> Iterable[Reading]:
        """Return a row for each value."""
        return self.added(state.values, message)


class Unmigrated(Releases[Summed, Reading]):
    """Another state type without a migration from the first."""

    def on_snapshot(
        self, message: Snapshot | Update, record: Record, previous: Summed | None
    ) -> Summed | InitialState[Summed, Reading]:
        """Start with all values."""
        return Summed(dict(message.values), sum(message.values.values()))

    def on_update(self, state: Summed, message: Snapshot | Update, record: Record) -> Iterable[Reading]:
        """Return a row for each value."""
        rows = list(self.added(state.held, message))
        state.total = sum(state.held.values())
        return rows


class Second(Unmigrated):
    """The second release, which migrates."""

    def migrate(self, old: Mapping[str, Any]) -> Summed:
        """Migrate the state of the first release."""
        return Summed(dict(old["values"]), sum(old["values"].values()))


class Failing(Unmigrated):
    """A migration that fails."""

    def migrate(self, old: Mapping[str, Any]) -> Summed:
        """Read a field that the old state lacks."""
        return Summed(dict(old["held"]), 0)


class Third(Releases[SummedMore, Reading]):
    """The third release: reads the second's state without a migration and migrates the first's."""

    def on_snapshot(
        self, message: Snapshot | Update, record: Record, previous: SummedMore | None
    ) -> SummedMore | InitialState[SummedMore, Reading]:
        """Start with all values."""
        return SummedMore(dict(message.values), sum(message.values.values()))

    def on_update(self, state: SummedMore, message: Snapshot | Update, record: Record) -> Iterable[Reading]:
        """Return a row for each value."""
        rows = list(self.added(state.held, message))
        state.total = sum(state.held.values())
        state.note = "third"
        return rows

    def migrate(self, old: Mapping[str, Any]) -> SummedMore:
        """Migrate the state of the first release."""
        return SummedMore(dict(old["values"]), sum(old["values"].values()))


class OtherRows(Releases[Panel, R], Generic[R]):
    """The first release's state with other rows."""

    made: type[msgspec.Struct]

    def on_snapshot(
        self, message: Snapshot | Update, record: Record, previous: Panel | None
    ) -> Panel | InitialState[Panel, R]:
        """Start with all values."""
        return Panel(dict(message.values))

    def on_update(self, state: Panel, message: Snapshot | Update, record: Record) -> Iterable[R]:
        """Return a row for each value."""
        return self.added(state.values, message)


class Wider(OtherRows[WiderReading]):
    """Rows with more columns."""

    def row(self, name: str, value: int, total: int) -> WiderReading:
        """Leave the value out if it is zero."""
        return WiderReading(name, value or None, total, unit="V")


class Narrow(OtherRows[NarrowReading]):
    """Rows that lack a column."""


class Renamed(OtherRows[RenamedReading]):
    """Rows with a renamed column."""


class Retyped(OtherRows[RetypedReading]):
    """Rows with a column of another type."""


class Required(OtherRows[RequiredReading]):
    """A new column that is neither optional nor has a default."""


def release(pattern: str, transform: Transform[Any, Any, Any]) -> Stream[Any, Any, Any]:
    """Return the stream as one of its releases declares it."""
    return Stream(
        name="adding", topics=Topics(pattern=pattern), transform=transform, integrity=Strict(evidence=Sequence())
    )


class TableState(msgspec.Struct):
    """The state of a release that stores its values row by row."""

    held: MapState[str, int]
    note: str = ""


class InRows(Releases[TableState, Reading]):
    """The release after the first, with another state layout."""

    def on_snapshot(
        self, message: Snapshot | Update, record: Record, previous: TableState | None
    ) -> TableState | InitialState[TableState, Reading]:
        """Start with all values."""
        return TableState(MapState(message.values))

    def on_update(self, state: TableState, message: Snapshot | Update, record: Record) -> Iterable[Reading]:
        """Return a row for each value."""
        for name, more in message.values.items():
            state.held[name] = state.held.get(name, 0) + more
            yield Reading(name, state.held[name], sum(state.held.values()))

    def migrate(self, old: Mapping[str, Any]) -> TableState:
        """Migrate the state of the first release."""
        return TableState(MapState(old["values"]), "migrated")


class FromRows(First):
    """The first release again, which restores a dict from the rows."""

    def migrate(self, old: Mapping[str, Any]) -> Panel:
        """Migrate the state in rows."""
        return Panel(dict(old["held"]))
