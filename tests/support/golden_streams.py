"""The streams of the golden cases: tanks whose levels rise and fall, under every class."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

import msgspec

from lockstep import (
    Envelope,
    EventTime,
    FuzzyWindow,
    InitialState,
    Kind,
    Link,
    NoIntegrity,
    Once,
    Ordered,
    Record,
    Sequence,
    SessionStart,
    Stream,
    Strict,
    Topics,
    Transform,
    Violation,
)
from lockstep.integrity.base import IntegrityClass, Suspend
from lockstep.integrity.strict import Checksum, Linked, LogOnly, Repeats

LEAK = 666
"""The fold fails if this much is added, after it has changed the level."""
SECOND_US = 1_000_000
MINUTE_S = 60


class Change(msgspec.Struct):
    """A message: a snapshot of the level, a part of a snapshot, a change, the end, or a note that is ignored.

    Attributes:
        type: The kind of message.
        number: The producer's number.
        level: The level of a snapshot; the level that a part adds.
        add: The difference of a change.
        total: The level after it, if the producer states it.
        count: Number of messages of the session, in an end.
        restarts_sequence: Whether a snapshot restarts the numbers.
    """

    type: Kind
    number: int
    level: int = 0
    add: int = 0
    total: int | None = None
    count: int | None = None
    restarts_sequence: bool = False


class Tank(msgspec.Struct):
    """The level of a tank, and its open minute."""

    level: int
    minute: int | None = None


class Level(msgspec.Struct, frozen=True):
    """A level and its cause."""

    what: str
    level: int


class Tanks(Transform[Change, Tank, Level]):
    """Emits a row for each change."""

    def envelope(self, message: Change, record: Record) -> Envelope:
        return Envelope(
            record.key_text,
            message.type,
            sequence=message.number,
            event_time_us=record.timestamp_ms * 1000,
            count=message.count,
            restarts_sequence=message.restarts_sequence,
        )

    def on_snapshot(self, message: Change, record: Record, previous: Tank | None) -> Tank | InitialState[Tank, Level]:
        return Tank(message.level + message.add)

    def on_update(self, state: Tank, message: Change, record: Record) -> Iterable[Level]:
        state.level += message.level + message.add
        state.minute = record.timestamp_ms // 1000 // MINUTE_S if state.minute is None else state.minute
        yield Level("change", state.level)
        if message.add == LEAK:
            raise ZeroDivisionError("leak")
        if message.total not in {None, state.level}:
            raise Violation(state.level, message.total, "total")


class ById(Tanks):
    """The number is an id without order."""

    def envelope(self, message: Change, record: Record) -> Envelope:
        return msgspec.structs.replace(super().envelope(message, record), id=message.number, sequence=None)


class ByLink(Tanks):
    """Each message names its predecessor."""

    def envelope(self, message: Change, record: Record) -> Envelope:
        link = Link(last=message.number, previous=message.number - 1)
        return msgspec.structs.replace(super().envelope(message, record), link=link, sequence=None)


class Minutes(Tanks):
    """Emits a row for each closed minute and at the end."""

    def deadline(self, state: Tank) -> int | None:
        return None if state.minute is None else (state.minute + 1) * MINUTE_S * SECOND_US

    def on_timer(self, state: Tank, deadline_us: int) -> Iterable[Level]:
        yield Level(f"minute {state.minute}", state.level)
        state.minute = None

    def on_end(self, state: Tank) -> Iterable[Level]:
        yield Level("end", state.level)


class WithLate(Tanks):
    """Emits a row for each late message."""

    def on_late(self, state: Tank, message: Change, record: Record) -> Iterable[Level]:
        yield Level("late", message.add)


def _stream(
    name: str, integrity: IntegrityClass, transform: Tanks | None = None, event_time: EventTime | None = None
) -> Stream[Change, Tank, Level]:
    return Stream(
        name=name,
        topics=Topics(pattern=r"tanks\..+"),
        transform=transform or Tanks(),
        integrity=integrity,
        event_time=event_time or EventTime(),
    )


class Added(Tanks):
    """A tank without snapshots: it starts empty, and its first message is applied as a change."""

    def on_snapshot(self, message: Change, record: Record, previous: Tank | None) -> InitialState[Tank, Level]:
        tank = Tank(0)
        return InitialState(tank, self.on_update(tank, message, record))


class AddedById(Added, ById):
    """A tank without snapshots whose messages have ids."""


class AddedByLink(Added, ByLink):
    """A tank without snapshots whose messages name their predecessors."""


_FIRST = SessionStart.FIRST_MESSAGE
_BOUND = timedelta(seconds=10)
_SUSPENDS = Suspend()
_ACCEPTS_LOSS = Suspend(accept_loss=True)
STREAMS = {
    stream.name: stream
    for stream in (
        _stream("none", NoIntegrity()),
        _stream("once", Once(keep_ids=100), ById()),
        _stream("ordered", Ordered()),
        _stream("window", FuzzyWindow(lateness=_BOUND), WithLate()),
        _stream("reorder", FuzzyWindow(lateness=_BOUND, reorder=True)),
        _stream("strict", Strict(evidence=Sequence())),
        _stream("suspends", Strict(evidence=Sequence(), on_violation=_SUSPENDS)),
        _stream("accepts_loss", Strict(evidence=Sequence(), on_violation=_ACCEPTS_LOSS)),
        _stream("drops", Strict(evidence=Sequence(), repeats=Repeats.DROP)),
        _stream("wraps", Strict(evidence=Sequence(wraps_at=256))),
        _stream("linked", Strict(evidence=Linked()), ByLink()),
        _stream("checksum", Strict(evidence=Checksum())),
        _stream("counted", Strict(evidence=LogOnly())),
        _stream("minutes", Strict(evidence=Sequence()), Minutes(), EventTime(session_idle=timedelta(minutes=5))),
        _stream("buffers", Strict(evidence=Sequence(), buffer_until_snapshot=True)),
        _stream("buffers_wrapping", Strict(evidence=Sequence(wraps_at=256), buffer_until_snapshot=True)),
        _stream("buffers_links", Strict(evidence=Linked(), repeats=Repeats.DROP, buffer_until_snapshot=True), ByLink()),
        _stream("buffers_suspends", Strict(evidence=Sequence(), on_violation=_SUSPENDS, buffer_until_snapshot=True)),
        _stream("first_none", NoIntegrity(session_start=_FIRST), Added()),
        _stream("first_once", Once(keep_ids=100, session_start=_FIRST, on_violation=_SUSPENDS), AddedById()),
        _stream("first_ordered", Ordered(session_start=_FIRST), Added()),
        _stream("first_window", FuzzyWindow(lateness=_BOUND, session_start=_FIRST), Added()),
        _stream("first_reorder", FuzzyWindow(lateness=_BOUND, reorder=True, session_start=_FIRST), Added()),
        _stream("first_strict", Strict(evidence=Sequence(), session_start=_FIRST), Added()),
        _stream(
            "first_suspends", Strict(evidence=Sequence(), session_start=_FIRST, on_violation=_ACCEPTS_LOSS), Added()
        ),
        _stream("first_linked", Strict(evidence=Linked(), session_start=_FIRST), AddedByLink()),
        _stream("first_counted", Strict(evidence=LogOnly(), session_start=_FIRST), Added()),
    )
}
