"""Meters with a fold by hand, a timer, and the strict class."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from lockstep import EnvelopeFields, InitialState, Record, Sequence, SessionStart, Stream, Strict, Topics, Transform


class Reading(msgspec.Struct):
    """A message."""

    number: int
    value: float


class Meter(msgspec.Struct):
    """The state of a session."""

    value: float
    count: int


class ReadingRow(msgspec.Struct, frozen=True):
    """A row."""

    value: float
    change: float | None
    count: int


class Meters(Transform[Reading, Meter, ReadingRow]):
    """One row for each reading."""

    envelope_fields = EnvelopeFields(sequence="number")

    def on_snapshot(self, message: Reading, record: Record, previous: Meter | None) -> InitialState[Meter, ReadingRow]:
        """The first reading of a session."""
        return InitialState(Meter(message.value, 1), [ReadingRow(message.value, None, 1)])

    def on_update(self, state: Meter, message: Reading, record: Record) -> Iterable[ReadingRow]:
        """A reading and its change."""
        state.count += 1
        yield ReadingRow(message.value, message.value - state.value, state.count)
        state.value = message.value


meters = Stream(
    name="meters",
    topics=Topics(pattern=r"meters\..+"),
    transform=Meters(),
    integrity=Strict(evidence=Sequence(), session_start=SessionStart.FIRST_MESSAGE),
)
