"""Streams whose states accept any value, such as a number of 70 bits or a time before the year 1."""

from __future__ import annotations

from datetime import datetime

import msgspec

from lockstep import Envelope, MapState, Record, Stream, Topics, Transform
from lockstep.integrity.base import IntegrityClass

LARGE = 2**70
BEFORE_YEAR_1 = "0001-01-01T00:00:00+14:00"
AFTER_YEAR_9999 = "9999-12-31T23:59:59-14:00"


class Measured(msgspec.Struct):
    """One value of a session."""

    seq: int
    value: int = 0
    at: datetime | None = None


class History(msgspec.Struct):
    """All values of a session, by number."""

    values: dict[int, int]
    times: list[datetime | None]


class Seen(msgspec.Struct):
    """The row of a message."""

    seq: int
    before: int


class KeepHistory(Transform[Measured, History, Seen]):
    """Stores all values; rows contain only the numbers."""

    def envelope(self, message: Measured, record: Record) -> Envelope:
        """The session is the key."""
        return Envelope(record.key_text, sequence=message.seq, event_time_us=message.seq * 1_000_000)

    def on_snapshot(self, message: Measured, record: Record, previous: History | None) -> History:
        """The first message of a session."""
        return History({message.seq: message.value}, [message.at])

    def on_update(self, state: History, message: Measured, record: Record) -> list[Seen]:
        """Emit the row of a message."""
        state.values[message.seq] = message.value
        state.times.append(message.at)
        return [Seen(message.seq, len(state.values) - 1)]


class Table(msgspec.Struct):
    """The values of a session in a table, whose rows are stored one by one."""

    values: MapState[int, int]


class KeepTable(Transform[Measured, Table, Seen]):
    """Stores only the values, without times."""

    def envelope(self, message: Measured, record: Record) -> Envelope:
        """The session is the key."""
        return Envelope(record.key_text, sequence=message.seq)

    def on_snapshot(self, message: Measured, record: Record, previous: Table | None) -> Table:
        """The first message of a session."""
        return Table(MapState({message.seq: message.value}))

    def on_update(self, state: Table, message: Measured, record: Record) -> list[Seen]:
        """Emit the row of a message."""
        state.values[message.seq] = message.value
        return [Seen(message.seq, len(state.values) - 1)]


def histories(integrity: IntegrityClass, pattern: str = "histories") -> Stream[Measured, History, Seen]:
    """Return the stream with the values in a dict."""
    return Stream(name="histories", topics=Topics(pattern=pattern), transform=KeepHistory(), integrity=integrity)


def tables(integrity: IntegrityClass) -> Stream[Measured, Table, Seen]:
    """Return the stream with the values in a table."""
    return Stream(name="histories", topics=Topics(pattern="histories"), transform=KeepTable(), integrity=integrity)
