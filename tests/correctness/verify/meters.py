"""A stream with late messages, held-back messages and timers: all of event time that a proof must follow."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

import msgspec

from lockstep import Envelope, EventTime, Kind, Record, Stream, Topics, Transform
from lockstep.integrity.base import IntegrityClass

POISON = 666
"""The transform fails at this value, after it has changed its state."""
FATAL = 777
"""`on_late` fails at this value."""
SECOND = 1_000_000
BEGINNING = 1_700_000_000
"""Start of these meters, in seconds since 1970."""


class Reading(msgspec.Struct):
    """A message.

    Attributes:
        kind: "snapshot", "part", "update", "end" or "skip".
        second: Event time, in seconds since `BEGINNING`; None if only Kafka has a time.
        number: The producer's number, if it has any.
        value: The reading.
        restarts_sequence: Of a snapshot: the numbers restart.
    """

    kind: str
    second: int | None = None
    number: int | None = None
    value: int = 0
    restarts_sequence: bool = False


class Meter(msgspec.Struct):
    """The state of a session: the values since its last timer."""

    values: list[int] = []
    due_us: int | None = None
    fired: int = 0


class Total(msgspec.Struct, frozen=True):
    """A row."""

    what: str
    number: int | None
    values: list[int]


class Meters(Transform[Reading, Meter, Total]):
    """Emits a row for each message except zero, and a row at the end."""

    def envelope(self, message: Reading, record: Record) -> Envelope:
        """The session is the key."""
        assert record.key is not None
        time = None if message.second is None else (BEGINNING + message.second) * SECOND
        return Envelope(
            record.key.decode(),
            Kind(message.kind),
            sequence=message.number,
            event_time_us=time,
            id=message.number,
            restarts_sequence=message.restarts_sequence,
        )

    def on_snapshot(self, message: Reading, record: Record, previous: Meter | None) -> Meter:
        """Return a meter with one value."""
        self._fail_at(message, POISON)
        return Meter([message.value])

    def on_update(self, state: Meter, message: Reading, record: Record) -> Iterable[Total]:
        """Yield a row with the last five values, except for zero."""
        state.values.append(message.value)
        if message.value:
            yield Total(message.kind, message.number, state.values[-5:])
        self._fail_at(message, POISON)

    def on_end(self, state: Meter) -> Iterable[Total]:
        """Yield the last five values."""
        yield Total("end", None, state.values[-5:])

    @staticmethod
    def _fail_at(message: Reading, value: int) -> None:
        if message.value == value:
            raise ZeroDivisionError("poison")


class TimedMeters(Meters):
    """Emits a row for each ten seconds with readings."""

    def on_update(self, state: Meter, message: Reading, record: Record) -> Iterable[Total]:
        """Yield the same rows; the first reading sets the timer."""
        yield from super().on_update(state, message, record)
        if state.due_us is None and message.second is not None:
            state.due_us = (BEGINNING + message.second // 10 * 10 + 10) * SECOND

    def deadline(self, state: Meter) -> int | None:
        """Return the end of the ten seconds."""
        return state.due_us

    def on_timer(self, state: Meter, deadline_us: int) -> Iterable[Total]:
        """Yield the values of the ten seconds; after a single value the timer first fires once more, 5 s later."""
        state.fired += 1
        if len(state.values) == 1 and state.fired % 2:
            state.due_us = deadline_us + 5 * SECOND
            return
        yield Total("timer", state.fired, state.values[-5:])
        state.values = []
        state.due_us = None


class LateMeters(TimedMeters):
    """Late messages have rows too."""

    def on_late(self, state: Meter, message: Reading, record: Record) -> Iterable[Total]:
        """Yield a row, except for zero, and change the state, too."""
        state.fired += 100
        if message.value:
            yield Total("late", message.number, [message.value])
        self._fail_at(message, FATAL)


class WatermarkedMeters(TimedMeters):
    """Only messages with even values move the watermark."""

    def watermark(self, message: Reading, record: Record) -> int | None:
        """Return a time two seconds before that of a message with an even value."""
        if message.second is None or message.value % 2:
            return None
        return (BEGINNING + message.second - 2) * SECOND


TRANSFORMS: dict[str, Transform[Reading, Meter, Total]] = {
    "plain": Meters(),
    "timed": TimedMeters(),
    "late": LateMeters(),
    "watermarked": WatermarkedMeters(),
}
SILENT = EventTime(session_idle=timedelta(seconds=40))


def metering(
    pattern: str, integrity: IntegrityClass, transform: str, event_time: EventTime | None = None
) -> Stream[Reading, Meter, Total]:
    """Return the stream over the topics of one table."""
    return Stream(
        name="metering",
        topics=Topics(pattern=pattern),
        transform=TRANSFORMS[transform],
        integrity=integrity,
        event_time=event_time or EventTime(),
    )
