"""WindowFold: one row for each window of a session, by event time or by a number of messages.

The windows are those of Flink and Kafka Streams: tumbling, sliding (hopping), session and count windows. All that is
open is in the session's state, and the session's timer closes it, so a window is saved, recovered, rewound and
proven like any other state.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Generic, TypeVar

import msgspec
from typing_extensions import override

from lockstep.declare.transform import InitialState, M, R, Transform, require_first_message
from lockstep.errors import DeclarationError, Violation
from lockstep.integrity.base import (
    EPOCH,
    LATEST_US,
    LONGEST,
    MICROSECOND,
    IntegrityClass,
    find_event_time,
    to_microseconds,
)
from lockstep.model.declaration import Declaration
from lockstep.model.field_types import check_class
from lockstep.model.record import Kind, Record

A = TypeVar("A")
Span = tuple[int, int]
"""[start, end) in microseconds since 1970 (UTC)."""

LAST_US = (datetime.max.replace(tzinfo=UTC) - EPOCH) // MICROSECOND
WINDOWS_OF_A_MESSAGE_MAX = 10_000


class Window(msgspec.Struct):
    """One window of a session.

    Attributes:
        start_us: In microseconds since 1970 (UTC); of session and count windows the earliest message.
        end_us: Exclusive; of count windows the latest message.
        messages: How many messages it has.
    """

    start_us: int
    end_us: int
    messages: int = 0

    @property
    def start(self) -> datetime:
        """Its start, in UTC."""
        return EPOCH + self.start_us * MICROSECOND

    @property
    def end(self) -> datetime:
        """Its end, in UTC; at most the last moment of 9999."""
        return EPOCH + min(self.end_us, LAST_US) * MICROSECOND


class OpenWindow(msgspec.Struct, Generic[A]):
    """A window that is not closed yet.

    Attributes:
        window: Its times.
        value: The aggregate of its messages.
    """

    window: Window
    value: A


class WindowState(msgspec.Struct, Generic[A]):
    """The state of a session of a `WindowFold`.

    Attributes:
        open: Its open windows, in order of (end, start).
    """

    open: list[OpenWindow[A]] = []


@dataclass(frozen=True, kw_only=True)
class _TimeWindows(Declaration):
    """Windows of event time.

    Attributes:
        lateness: How long a window stays open after its end; under `FuzzyWindow` that of the class.
    """

    lateness: timedelta = timedelta(0)

    def __post_init__(self) -> None:
        _check_duration(self, "lateness", self.lateness, least=timedelta(0))


@dataclass(frozen=True)
class TumblingWindows(_TimeWindows):
    """Windows of one size, one after another: each message is in one window.

    Example: `TumblingWindows(timedelta(minutes=1), lateness=timedelta(seconds=30))`

    Attributes:
        size: Their length.
        offset: Moves their starts, which are multiples of the size since 1970 (UTC); for days of another time zone.
        lateness: How long a window stays open after its end; under `FuzzyWindow` that of the class.

    Raises:
        DeclarationError: A duration makes no sense.
    """

    size: timedelta
    offset: timedelta = timedelta(0)

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        _check_duration(self, "size", self.size)
        _check_duration(self, "offset", self.offset, least=timedelta.min)

    def list_spans(self, time_us: int) -> list[Span]:
        """The windows of a message, by its event time."""
        size = to_microseconds(self.size)
        start = time_us - (time_us - to_microseconds(self.offset)) % size
        return [(start, start + size)]


@dataclass(frozen=True)
class SlidingWindows(_TimeWindows):
    """Windows of one size that overlap (hopping windows): each message is in size / slide windows.

    Example: `SlidingWindows(timedelta(hours=1), slide=timedelta(minutes=5))`

    Attributes:
        size: Their length.
        slide: Time from the start of a window to the start of the next.
        offset: Moves their starts, which are multiples of the slide since 1970 (UTC).
        lateness: How long a window stays open after its end; under `FuzzyWindow` that of the class.

    Raises:
        DeclarationError: A duration makes no sense, or a message would be in no window, or in more than 10,000.
    """

    size: timedelta
    slide: timedelta
    offset: timedelta = timedelta(0)

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("size", "slide"):
            _check_duration(self, name, getattr(self, name))
        _check_duration(self, "offset", self.offset, least=timedelta.min)
        if self.slide > self.size:
            raise _refuse(self, "slide", self.slide, "leaves messages between windows out", "at most the size")
        if self.size > self.slide * WINDOWS_OF_A_MESSAGE_MAX:
            problem = f"puts each message into more than {WINDOWS_OF_A_MESSAGE_MAX} windows"
            raise _refuse(self, "slide", self.slide, problem, f"for example {self.size / 60!r}")

    def list_spans(self, time_us: int) -> list[Span]:
        """The windows of a message, by its event time."""
        size = to_microseconds(self.size)
        slide = to_microseconds(self.slide)
        last = time_us - (time_us - to_microseconds(self.offset)) % slide
        return [(start, start + size) for start in range(last, time_us - size, -slide)]


@dataclass(frozen=True)
class SessionWindows(_TimeWindows):
    """Windows that end with silence (Flink's session windows), over the messages of one session of the stream.

    Example: `SessionWindows(timedelta(minutes=30))`

    Attributes:
        gap: Silence after which the next message is in another window.
        lateness: How long a window stays open after its end; under `FuzzyWindow` that of the class.

    Raises:
        DeclarationError: A duration makes no sense.
    """

    gap: timedelta

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        _check_duration(self, "gap", self.gap)


@dataclass(frozen=True)
class CountWindows(Declaration):
    """Windows of a number of messages of a session, in the order in which they are applied.

    Example: `CountWindows(100)`

    Attributes:
        size: Messages of a window.

    Raises:
        DeclarationError: It is not at least 1.
    """

    size: int

    def __post_init__(self) -> None:
        if type(self.size) is not int or self.size < 1:
            raise _refuse(self, "size", self.size, "is not a number of messages", "for example 100")


Windows = TumblingWindows | SlidingWindows | SessionWindows | CountWindows


class WindowFold(Transform[M, WindowState[A], R], Generic[M, A, R]):
    """Aggregates the messages of each session by windows, and emits one row R when a window closes.

    A user sets `windows`, and defines `envelope`, `create`, `add`, `emit`, and of session windows `merge`. The time of
    a message is its event time.

    A window of event time closes when the watermark of the partition is `lateness` behind its end, a count window with
    its last message, and all of a session when the session ends. An empty window has no row. Under another class than
    `FuzzyWindow` a message of a closed window opens it again, which adds a row.

    A session starts with its first message (`SessionStart.FIRST_MESSAGE`, `Once` or `NoIntegrity`). A snapshot is a
    violation.

    Attributes:
        windows: Set by the class.
    """

    windows: ClassVar[Windows]

    def __init__(self) -> None:
        """Check the declaration.

        Raises:
            DeclarationError: No windows are declared, or session windows without `merge`.
        """
        kind = type(self)
        windows = getattr(type(self), "windows", None)
        check_class(f"{kind.__name__}.windows", windows)
        if not isinstance(windows, Windows):
            right = "windows = TumblingWindows(timedelta(minutes=1))"
            raise DeclarationError(f"{kind.__name__}.windows", windows, "are not windows", right)
        if isinstance(windows, SessionWindows) and kind.merge is WindowFold[Any, Any, Any].merge:
            problem = "joins windows when a message falls between them, and merge is not defined"
            raise DeclarationError(f"{kind.__name__}.windows", windows, problem, "define merge(self, first, second)")

    @abstractmethod
    def create(self) -> A:
        """The aggregate of a window without messages."""

    @abstractmethod
    def add(self, value: A, message: M) -> A:
        """The aggregate with one more message: `value` changed in place, or a new object."""

    @abstractmethod
    def emit(self, window: Window, value: A) -> R:
        """The output row of a closed window."""

    def merge(self, first: A, second: A) -> A:
        """The aggregate of two session windows that a message has joined, the earlier first."""
        raise NotImplementedError

    @override
    def check_integrity(self, integrity: IntegrityClass) -> None:
        """Refuse a class under which no session would start, or windows and messages would disagree on lateness."""
        name = type(self).__name__
        windows = self.windows
        require_first_message(integrity, f"{name} has none: its windows start with any message")
        promised: timedelta | None = getattr(integrity, "lateness", None)
        if isinstance(windows, _TimeWindows) and promised is not None and windows.lateness != promised:
            problem = f"is not the lateness of the stream's {type(integrity).__name__}"
            raise DeclarationError(f"{name}.windows.lateness", windows.lateness, problem, f"lateness={promised!r}")

    @override
    def on_snapshot(
        self, message: M, record: Record, previous: WindowState[A] | None
    ) -> InitialState[WindowState[A], R]:
        """Start a session with its first message."""
        kind = self.envelope(message, record).kind
        if kind in {Kind.SNAPSHOT, Kind.SNAPSHOT_PART}:
            raise Violation("a message of kind UPDATE, as windows have no snapshots", kind.name, "snapshot of windows")
        state = WindowState[A]()
        return InitialState(state, self.on_update(state, message, record))

    @override
    def on_update(self, state: WindowState[A], message: M, record: Record) -> Iterable[R]:
        """Add a message to its windows; returns the row of a count window that is full."""
        time_us = find_event_time(self.envelope(message, record), record)
        windows = self.windows
        if not 0 <= time_us <= LATEST_US:
            raise Violation("an event time from 1970 to 9998", time_us, "absurd event time")
        if isinstance(windows, CountWindows):
            return self._count(state, message, time_us, windows.size)
        if isinstance(windows, SessionWindows):
            self._join(state, message, time_us, time_us + to_microseconds(windows.gap))
        else:
            for start_us, end_us in windows.list_spans(time_us):
                self._put(state, message, start_us, end_us)
        return ()

    @override
    def deadline(self, state: WindowState[A]) -> int | None:
        """When the first open window closes."""
        if not state.open or isinstance(self.windows, CountWindows):
            return None
        return state.open[0].window.end_us + to_microseconds(self.windows.lateness)

    @override
    def on_timer(self, state: WindowState[A], deadline_us: int) -> Iterable[R]:
        """Close the windows that are due: those that end with the first window."""
        del deadline_us
        end_us = state.open[0].window.end_us
        closed = bisect_right(state.open, end_us, key=_get_end)
        rows = [self.emit(opened.window, opened.value) for opened in state.open[:closed]]
        del state.open[:closed]
        return rows

    @override
    def on_end(self, state: WindowState[A]) -> Iterable[R]:
        """Close all windows of a session that ends."""
        return [self.emit(opened.window, opened.value) for opened in state.open]

    @override
    def pending(self, state: WindowState[A]) -> int:
        """Messages in open windows."""
        return sum(opened.window.messages for opened in state.open)

    def _put(self, state: WindowState[A], message: M, start_us: int, end_us: int) -> None:
        """Add a message to the window of these times."""
        place = bisect_left(state.open, (end_us, start_us), key=_get_order)
        if place == len(state.open) or _get_order(state.open[place]) != (end_us, start_us):
            state.open.insert(place, OpenWindow(Window(start_us, end_us), self.create()))
        self._take(state.open[place], message)

    def _join(self, state: WindowState[A], message: M, start_us: int, end_us: int) -> None:
        """Add a message to the session window that it continues; it may join two."""
        first = bisect_right(state.open, start_us, key=_get_end)
        until = bisect_left(state.open, end_us, lo=first, key=_get_start)
        joined, *others = state.open[first:until] or [OpenWindow(Window(start_us, end_us), self.create())]
        for other in others:
            joined.value = self.merge(joined.value, other.value)
            joined.window.messages += other.window.messages
        joined.window.start_us = min(joined.window.start_us, start_us)
        joined.window.end_us = max(end_us, *(opened.window.end_us for opened in (joined, *others)))
        state.open[first:until] = [joined]
        self._take(joined, message)

    def _count(self, state: WindowState[A], message: M, time_us: int, size: int) -> Iterable[R]:
        """Add a message to the one open window."""
        if not state.open:
            state.open = [OpenWindow(Window(time_us, time_us), self.create())]
        (counted,) = state.open
        window = counted.window
        window.start_us = min(window.start_us, time_us)
        window.end_us = max(window.end_us, time_us)
        self._take(counted, message)
        if window.messages < size:
            return ()
        state.open = []
        return (self.emit(window, counted.value),)

    def _take(self, opened: OpenWindow[A], message: M) -> None:
        opened.value = self.add(opened.value, message)
        opened.window.messages += 1


def _get_start(opened: OpenWindow[A]) -> int:
    return opened.window.start_us


def _get_end(opened: OpenWindow[A]) -> int:
    return opened.window.end_us


def _get_order(opened: OpenWindow[A]) -> tuple[int, int]:
    return opened.window.end_us, opened.window.start_us


def _check_duration(windows: object, name: str, value: object, least: timedelta = MICROSECOND) -> None:
    if not isinstance(value, timedelta):
        raise _refuse(windows, name, value, "is not a timedelta", f"{name}=timedelta(minutes=1)")
    if not least <= value <= LONGEST:
        problem = "is too short" if value < least else "is more than a century"
        raise _refuse(windows, name, value, problem, f"{name}=timedelta(minutes=1)")


def _refuse(windows: object, name: str, value: object, problem: str, instead: str) -> DeclarationError:
    return DeclarationError(f"{type(windows).__name__}.{name}", value, problem, instead)
