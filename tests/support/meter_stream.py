"""Meters whose readings have event times: windows, alarms and ends, for tests of event time."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

import msgspec

from lockstep import Envelope, EventTime, FuzzyWindow, Kind, Record, Sequence, Stream, Strict, Topics, Transform

MINUTE = 60_000_000


class Start(msgspec.Struct, tag="start", tag_field="type"):
    """The snapshot of a meter. `more`: the next message continues it; `again`: the numbers restart."""

    number: int
    second: int
    more: bool = False
    again: bool = False


class Read(msgspec.Struct, tag="read", tag_field="type"):
    number: int
    second: int
    value: int


class Close(msgspec.Struct, tag="close", tag_field="type"):
    """The end of a meter, optionally with the number of its messages."""

    number: int
    second: int
    count: int | None = None


Message = Start | Read | Close


class Meter(msgspec.Struct):
    """Readings of the open minute."""

    minute: int | None = None
    values: list[int] = []
    started: int = 1


class Total(msgspec.Struct, frozen=True):
    what: str
    minute: int | None
    values: str


class Meters(Transform[Message, Meter, Total]):
    """Emits a row for each closed minute; raises an error for a negative value."""

    def envelope(self, message: Message, record: Record) -> Envelope:
        session = record.key_text
        at_us = message.second * 1_000_000
        number = message.number
        match message:
            case Start():
                kind = Kind.SNAPSHOT_PART if message.more else Kind.SNAPSHOT
                return Envelope(session, kind, sequence=number, event_time_us=at_us, restarts_sequence=message.again)
            case Close():
                return Envelope(session, Kind.END, sequence=number, event_time_us=at_us, count=message.count)
            case Read():
                return Envelope(session, Kind.UPDATE, sequence=number, event_time_us=at_us)

    def on_snapshot(self, message: Message, record: Record, previous: Meter | None) -> Meter:
        return Meter()

    def on_update(self, state: Meter, message: Message, record: Record) -> Iterable[Total]:
        if isinstance(message, Start):
            state.started += 1
            return
        assert isinstance(message, Read)
        if message.value < 0:
            raise ValueError("negative")
        state.minute = message.second // 60 if state.minute is None else state.minute
        state.values.append(message.value)
        if message.value == 0:
            yield Total("zero", state.minute, "")

    def deadline(self, state: Meter) -> int | None:
        return None if state.minute is None else (state.minute + 1) * MINUTE

    def on_timer(self, state: Meter, deadline_us: int) -> Iterable[Total]:
        yield Total("minute", state.minute, _shown(state.values))
        state.minute = None
        state.values = []

    def on_end(self, state: Meter) -> Iterable[Total]:
        yield Total("end", state.minute, _shown(state.values))


def _shown(values: list[int]) -> str:
    return " ".join(map(str, values))


meters = Stream(
    name="meters",
    topics=Topics(pattern=r"meters\..+"),
    transform=Meters(),
    integrity=Strict(evidence=Sequence()),
    event_time=EventTime(session_idle=timedelta(minutes=10)),
)
reordered = Stream(
    name="reordered",
    topics=Topics(pattern=r"meters\..+"),
    transform=Meters(),
    integrity=FuzzyWindow(lateness=timedelta(seconds=30), reorder=True),
)
