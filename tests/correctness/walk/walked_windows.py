"""A stream of windows that can replace the plain stream in a walk, and its expected content by plain Python."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from lockstep import Envelope, EventTime, FuzzyWindow, Kind, Record, SessionStart, Stream, Suspend, Topics
from lockstep.derived import Export
from lockstep.windows import TumblingWindows, Window, WindowFold
from tests.correctness.walk.walked_stream import POISON, Fold

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from tests.correctness.walk.producing import Log
    from tests.correctness.walk.walked_stream import Release, Segment

LATENESS, IDLE, SIZES = 10, 70, (20, 30)
"""Seconds; the second size is that of the biased release."""
COLUMNS = ("_emit_offset", "_session", "start", "messages", "values")


class Timed(msgspec.Struct):
    """A value at a second of event time."""

    t: int
    v: int
    kind: Kind = Kind.UPDATE


class Filled(msgspec.Struct):
    """The values of a window, in the order in which they were added."""

    start: int
    messages: int
    values: list[int]


class Filling(WindowFold[Timed, list[int], Filled]):
    """Keeps all values of a window."""

    windows = TumblingWindows(timedelta(seconds=SIZES[0]), lateness=timedelta(seconds=LATENESS))

    def envelope(self, message: Timed, record: Record) -> Envelope:
        """The session is the key."""
        return Envelope(record.key_text, message.kind, event_time_us=message.t * 1_000_000)

    def create(self) -> list[int]:
        """Start without values."""
        return []

    def add(self, value: list[int], message: Timed) -> list[int]:
        """Add a value."""
        value.append(message.v)
        if message.v == POISON:
            raise ZeroDivisionError("poison")
        return value

    def emit(self, window: Window, value: list[int]) -> Filled:
        """Emit all values."""
        return Filled(window.start_us // 1_000_000, window.messages, value)


class FillingLonger(Filling):
    """Windows of another size; open windows keep their size."""

    windows = TumblingWindows(timedelta(seconds=SIZES[1]), lateness=timedelta(seconds=LATENESS))


def declare_windows(release: Release, pattern: str, name: str) -> Stream[Any, Any, Any]:
    """Return the declaration."""
    integrity = FuzzyWindow(
        lateness=timedelta(seconds=LATENESS),
        reorder=release.reorders,
        session_start=SessionStart.FIRST_MESSAGE,
        on_violation=Suspend(),
    )
    return Stream(
        name=name,
        topics=Topics(pattern=pattern),
        transform=FillingLonger() if release.is_biased else Filling(),
        integrity=integrity,
        event_time=EventTime(session_idle=timedelta(seconds=IDLE)),
        export=Export() if name == "walked" else None,
    )


def make_timed(log: Log, choose: random.Random, *, ends: bool) -> tuple[str, bytes]:
    """Return mostly a value within the bound, else a value after silence, a late value, an end, or a fault."""
    key = f"{choose.choice('abcd')}{log.partition}"
    chance = choose.random()
    now = log.numbers.get("now", 1_000_000)
    if chance < 0.02:
        return key, b"{"
    now += choose.randint(0, 9) if chance < 0.95 else choose.randint(50, 100)
    back = choose.randint(0, LATENESS + 4) if chance < 0.7 else 0
    log.numbers["now"] = now
    value = {"t": now - back, "v": choose.randint(1, 99)}
    if 0.7 < chance < 0.72:
        value["v"] = POISON
    return key, json.dumps({**value, "kind": "end"} if ends and 0.75 < chance < 0.79 else value).encode()


@dataclass
class Filler:
    """A session: its windows by (start, end), whether a value was added, and its held-back values."""

    open: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    waiting: list[tuple[int, int, int]] = field(default_factory=list)
    has_begun: bool = False


class FoldWindows(Fold):
    """A plain fold of one partition: all sessions share the watermark, which closes windows and ends sessions."""

    def __init__(self, *, reorders: bool) -> None:
        super().__init__()
        self.reorders = reorders
        self.now = 0
        self.fillers, self.seen, self.suspended = dict[str, Filler](), dict[str, int](), set[str]()

    def apply(self, offset: int, key: str, value: bytes, segment: Segment) -> None:
        """Apply a message after all that expires by its time; a refused message has no time."""
        try:
            message = json.loads(value)
        except ValueError:
            self.out.quarantined[offset] = key  # alone: a gap costs no state under this class
            return
        t = message["t"]
        size = SIZES[segment.release.is_biased]
        if message["v"] == POISON and not self.reorders and t >= self.now - LATENESS:
            self.suspend(offset, key)
            return
        self.now = max(self.now, t)

        def emit(session: str, span: tuple[int, int], values: list[int]) -> None:
            self.out.rows.append((segment.batch, (offset, session, span[0], len(values), values)))

        self.expire(size, emit)
        if t < self.now - LATENESS:
            self.out.late[offset] = key
        elif message.get("kind") == "end" and key in self.suspended:
            self.out.quarantined[offset] = key
        elif message.get("kind") == "end":
            self.end(key, emit)
        else:
            self.take_in(key, (t, offset, message["v"]), size)
        self.show()

    def take_in(self, key: str, timed: tuple[int, int, int], size: int) -> None:
        """Add a value to its window, or to the values that are held back."""
        self.suspended.discard(key)
        filler, self.seen[key] = self.fillers.setdefault(key, Filler()), max(self.seen.get(key, 0), timed[0])
        if self.reorders:
            filler.waiting = sorted([*filler.waiting, timed])
        else:
            self.add(filler, timed, size)

    def add(self, filler: Filler, timed: tuple[int, int, int], size: int) -> None:
        """Add a value to its window."""
        start = timed[0] // size * size
        filler.has_begun = True
        filler.open.setdefault((start, start + size), []).append(timed[2])

    def expire(self, size: int, emit: Callable[[str, tuple[int, int], list[int]], None]) -> None:
        """In the order of their times, release held-back values, close windows and end sessions."""
        while due := sorted((self.find_due(key), key) for key in self.fillers):
            at, key = due[0]
            if at > self.now:
                return
            filler = self.fillers[key]
            for span in sorted(span for span in filler.open if span[1] + LATENESS <= at):
                emit(key, span, filler.open.pop(span))
            while filler.waiting and filler.waiting[0][0] + LATENESS <= at:
                timed = filler.waiting.pop(0)
                if timed[2] == POISON:
                    self.suspend(timed[1], key)
                    break
                self.add(filler, timed, size)
            if key in self.fillers and self.seen[key] + IDLE <= at:
                self.end(key, emit)

    def find_due(self, key: str) -> int:
        """Return the next time at which something happens to a session, in seconds."""
        filler = self.fillers[key]
        ends = [end + LATENESS for _, end in filler.open]
        return min([self.seen[key] + IDLE, *ends, *(each[0] + LATENESS for each in filler.waiting)])

    def end(self, key: str, emit: Callable[[str, tuple[int, int], list[int]], None]) -> None:
        """Emit the windows of a session, full or not."""
        for span, values in self.fillers.pop(key, Filler()).open.items():
            emit(key, span, values)
        self.seen.pop(key, None)

    def forget(self, session: str) -> None:
        """Erase a session."""
        super().forget(session)
        self.fillers.pop(session, None)
        self.seen.pop(session, None)
        self.suspended.discard(session)
        self.out.rows[:] = [row for row in self.out.rows if row[1][1] != session]
        self.out.late.update({at: "" for at, key in self.out.late.items() if key == session})
        self.show()

    def suspend_all(self) -> None:
        """Drop all open windows; each session restarts with its next message."""
        self.suspended |= self.fillers.keys()
        self.fillers.clear()
        self.show()

    def suspend(self, offset: int, key: str) -> None:
        """Quarantine the message, and drop the open windows of its session."""
        if self.fillers.pop(key, None) is not None:
            self.suspended.add(key)
        self.states.pop(key, None)
        self.out.quarantined[offset] = key

    def show(self) -> None:
        """Set the states as they are stored."""
        self.states.clear()
        for key, filler in ((key, each) for key, each in self.fillers.items() if each.has_begun):
            spans = sorted((end, start) for start, end in filler.open)
            self.states[key] = [make_open(start, end, filler.open[start, end]) for end, start in spans]


def make_open(start: int, end: int, values: list[int]) -> dict[str, Any]:
    """Return an open window as it is stored."""
    window = {"start_us": start * 1_000_000, "end_us": end * 1_000_000, "messages": len(values)}
    return {"window": window, "value": values}
