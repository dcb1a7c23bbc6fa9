"""A stream that sums values by minute of event time, with an accumulator for each session, as users write it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

import msgspec

from lockstep import Envelope, EventTime, FuzzyWindow, Kind, Record, SessionStart, Stream, Topics, Transform
from lockstep.integrity.base import IntegrityClass

SECOND = 1_000_000
LATENESS = timedelta(seconds=10)
FIRST = SessionStart.FIRST_MESSAGE


class Value(msgspec.Struct):
    """A value at a second of event time, with a number if the producer sends it."""

    t: int
    v: int
    n: int | None = None


class Minute(msgspec.Struct):
    """The open minute of a session."""

    end: int | None = None
    total: int = 0


class Window(msgspec.Struct):
    """A closed minute, or the total after a message."""

    what: str
    end: int | None
    total: int


class Totals(Transform[Value, Minute, Window]):
    """Sums the values since the start of the minute; emits a row after each message."""

    def envelope(self, message: Value, record: Record) -> Envelope:
        """The session is the key; any message starts it."""
        session = record.key_text
        return Envelope(session, Kind.UPDATE, sequence=message.n, event_time_us=message.t * SECOND)

    def on_snapshot(self, message: Value, record: Record, previous: Minute | None) -> Minute:
        """The first message of a session."""
        state = Minute()
        list(self.on_update(state, message, record))
        return state

    def on_update(self, state: Minute, message: Value, record: Record) -> Iterable[Window]:
        """Add to the open minute."""
        if state.end is None:
            state.end = (message.t // 60 + 1) * 60
        state.total += message.v
        yield Window("value", None, state.total)


class Minutes(Totals):
    """Closes a minute after the lateness; a late message opens it again."""

    def on_update(self, state: Minute, message: Value, record: Record) -> Iterable[Window]:
        """Emit no row before the minute closes."""
        list(super().on_update(state, message, record))
        return ()

    def deadline(self, state: Minute) -> int | None:
        """The end of the minute plus the lateness."""
        return None if state.end is None else state.end * SECOND + LATENESS // timedelta(microseconds=1)

    def on_timer(self, state: Minute, deadline_us: int) -> Iterable[Window]:
        """Emit the sum of the minute."""
        del deadline_us
        yield Window("minute", state.end, state.total)
        state.end = None
        state.total = 0

    def on_late(self, state: Minute, message: Value, record: Record) -> Iterable[Window]:
        """A correction has its own timer."""
        return self.on_update(state, message, record)


class WrongDeadline(Minutes):
    """A deadline in microseconds as a float."""

    def deadline(self, state: Minute) -> int | None:
        """Return a float instead of an int."""
        return None if state.end is None else state.end * 1e6  # type: ignore[return-value]  # the fault


def totals(pattern: str, integrity: IntegrityClass, transform: Totals | None = None) -> Stream[Value, Minute, Window]:
    """Return the stream with an integrity class."""
    return Stream(
        name="totals",
        topics=Topics(pattern=pattern),
        transform=transform or Totals(),
        integrity=integrity,
        event_time=EventTime(session_idle=timedelta(hours=1)),
    )


def minutes(*, reorder: bool) -> Stream[Value, Minute, Window]:
    """Return windows with a lateness of ten seconds."""
    return totals("minutes", FuzzyWindow(lateness=LATENESS, reorder=reorder, session_start=FIRST), Minutes())
