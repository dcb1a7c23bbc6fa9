"""Streams of windows that list the values of each window, and the expected windows by their definition."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

from lockstep import (
    Envelope,
    EventTime,
    FuzzyWindow,
    Kind,
    LogOnly,
    Record,
    SessionStart,
    Stream,
    Strict,
    Suspend,
    Topics,
)
from lockstep.windows import CountWindows, SessionWindows, SlidingWindows, TumblingWindows, Window, WindowFold

if TYPE_CHECKING:
    from lockstep.folds.windows import Windows, WindowState
    from lockstep.integrity.base import IntegrityClass

SECOND = timedelta(seconds=1)
LATENESS = 10 * SECOND
REFUSED = 13
FUZZY = FuzzyWindow(lateness=LATENESS, session_start=SessionStart.FIRST_MESSAGE)


class Value(msgspec.Struct):
    """A value at a second of event time."""

    t: int
    v: int
    kind: Kind = Kind.UPDATE


class Values(msgspec.Struct):
    """The values of a window, in the order of arrival."""

    start: datetime
    end: datetime
    messages: int
    values: list[int]


class ListFold(WindowFold[Value, list[int], Values]):
    """Keeps all values of a window."""

    def envelope(self, message: Value, record: Record) -> Envelope:
        """The session is the key."""
        return Envelope(record.key_text, message.kind, event_time_us=message.t * 1_000_000)

    def create(self) -> list[int]:
        """Start without values."""
        return []

    def add(self, value: list[int], message: Value) -> list[int]:
        """Append the value."""
        return [*value, message.v]

    def merge(self, first: list[int], second: list[int]) -> list[int]:
        """Concatenate."""
        return first + second

    def emit(self, window: Window, value: list[int]) -> Values:
        """Emit all values."""
        return Values(window.start, window.end, window.messages, value)


class Tumbling(ListFold):
    """Windows of twenty seconds, from the third second on."""

    windows = TumblingWindows(20 * SECOND, offset=3 * SECOND, lateness=LATENESS)


class Sliding(ListFold):
    """Windows of thirty seconds, every twenty."""

    windows = SlidingWindows(30 * SECOND, 20 * SECOND, lateness=LATENESS)


class Silence(ListFold):
    """Sessions with up to fifteen seconds of silence."""

    windows = SessionWindows(15 * SECOND, lateness=LATENESS)


class Counting(ListFold):
    """Windows of three messages."""

    windows = CountWindows(3)


class Prompt(ListFold):
    """Windows that close at their end."""

    windows = TumblingWindows(20 * SECOND)


Sent = list[tuple[str, int, int]]
"""(session, second, value)."""


def a_stream(
    fold: ListFold,
    integrity: IntegrityClass = FUZZY,
    event_time: EventTime | None = None,
    pattern: str = "windows",
) -> Stream[Value, WindowState[list[int]], Values]:
    """Return the stream of a fold."""
    return Stream(
        name="windows",
        topics=Topics(pattern=pattern),
        transform=fold,
        integrity=integrity,
        event_time=event_time or EventTime(),
    )


STRICT = Strict(evidence=LogOnly(), on_violation=Suspend(), session_start=SessionStart.FIRST_MESSAGE)


def strict_windows(pattern: str) -> Stream[Value, WindowState[list[int]], Values]:
    """Return a stream that suspends a partition for a message that cannot be decoded."""
    return a_stream(Tumbling(), STRICT, pattern=pattern)


def accepting_windows(pattern: str) -> Stream[Value, WindowState[list[int]], Values]:
    """Return a stream that suspends a partition and accepts the loss."""
    return a_stream(Tumbling(), replace(STRICT, on_violation=Suspend(accept_loss=True)), pattern=pattern)


def disordered(steps: list[tuple[str, int, int]]) -> Sent:
    """Make messages from (session, step of the newest time, distance behind it), all within the lateness."""
    newest = 0
    sent = Sent()
    for number, (session, step, back) in enumerate(steps):
        newest += step
        sent.append((session, max(0, newest - back), number))
    return sent


def expected_of(windows: Windows, sent: Sent) -> Counter[tuple[int, int, tuple[int, ...]]]:
    """Return each window with its values, sorted."""
    found: Counter[tuple[int, int, tuple[int, ...]]] = Counter()
    for session in {each[0] for each in sent}:
        own = [(t, v) for name, t, v in sent if name == session]
        for start, end in _spans_of(windows, [t for t, _ in own]):
            found[start, end, tuple(sorted(v for t, v in own if start <= t < end))] += 1
    return found


def _spans_of(windows: Windows, times: list[int]) -> list[tuple[int, int]]:
    if isinstance(windows, TumblingWindows):
        return sorted({((t - 3) // 20 * 20 + 3, (t - 3) // 20 * 20 + 23) for t in times})
    if isinstance(windows, SlidingWindows):
        starts = range(-40, max(times) + 1, 20)
        return [(at, at + 30) for at in starts if any(at <= t < at + 30 for t in times)]
    found: list[tuple[int, int]] = []
    for t in sorted(times):
        if found and t < found[-1][1]:
            found[-1] = found[-1][0], t + 15
        else:
            found.append((t, t + 15))
    return found


class Picky(Silence):
    """Sessions that refuse some values."""

    def add(self, value: list[int], message: Value) -> list[int]:
        """Append the value, unless it is a multiple of 13."""
        if message.v % REFUSED == 0:
            raise ValueError(message.v)
        return super().add(value, message)
