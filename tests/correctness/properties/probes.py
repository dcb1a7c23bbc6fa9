"""A small stream with every hook, under every class, for tests with random messages."""

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
    Stream,
    Strict,
    Topics,
    Transform,
)
from lockstep.integrity.base import Suspend
from lockstep.integrity.strict import Checksum, Linked, LogOnly, Repeats

REFUSED, PLACELESS, WRONG_ROW = -1, -2, -3
"""Values that the fold refuses: it raises, `envelope` raises, or it emits a row that no column can hold."""
WINDOW_S = 10


class Sent(msgspec.Struct):
    """A message: its kind, number, second, and value."""

    kind: Kind
    n: int
    t: int
    v: int
    count: int | None = None
    restarts_sequence: bool = False


class Held(msgspec.Struct):
    """The values of a session, and the time at which they are due."""

    values: list[int]
    due_s: int | None = None


class Seen(msgspec.Struct, frozen=True):
    """An action, and all values after it."""

    what: str
    values: list[int]
    size: int = 0


class Probe(Transform[Sent, Held, Seen]):
    """Collects values; raises for refused values after it has changed the state."""

    numbered = True

    def envelope(self, message: Sent, record: Record) -> Envelope:
        if message.v == PLACELESS:
            raise ValueError("no place")
        session = record.key_text
        number = message.n if self.numbered else None
        link = Link(last=message.n, previous=message.n - 1)
        return Envelope(
            session,
            message.kind,
            sequence=number,
            link=link,
            event_time_us=message.t * 1_000_000,
            id=message.n,
            count=message.count,
            restarts_sequence=message.restarts_sequence,
        )

    def on_snapshot(self, message: Sent, record: Record, previous: Held | None) -> InitialState[Held, Seen]:
        held = Held([message.v], message.t + WINDOW_S)
        return InitialState(held, list(self._seen("open", held, message.v)))

    def on_update(self, state: Held, message: Sent, record: Record) -> Iterable[Seen]:
        state.values.append(message.v)
        if state.due_s is None:
            state.due_s = message.t + WINDOW_S
        yield from self._seen("apply", state, message.v)

    def _seen(self, what: str, state: Held, value: int) -> Iterable[Seen]:
        yield Seen(what, list(state.values), 2**64 if value == WRONG_ROW else 0)
        if value == REFUSED:
            raise ValueError("refused")


class Unnumbered(Probe):
    numbered = False


class Timed(Probe):
    """With every hook."""

    def deadline(self, state: Held) -> int | None:
        return None if state.due_s is None else state.due_s * 1_000_000

    def on_timer(self, state: Held, deadline_us: int) -> Iterable[Seen]:
        yield Seen(f"timer {deadline_us // 1_000_000}", list(state.values))
        state.values = []
        state.due_s = None

    def on_end(self, state: Held) -> Iterable[Seen]:
        yield Seen("end", list(state.values))


class Late(Timed):
    """And with a hook for late messages."""

    def on_late(self, state: Held, message: Sent, record: Record) -> Iterable[Seen]:
        yield Seen(f"late {message.v}", list(state.values))


class LateUnnumbered(Late):
    numbered = False


_LATENESS = timedelta(seconds=8)
_CLASSES = {
    "none": NoIntegrity(),
    "once": Once(keep_ids=4),
    "ordered": Ordered(),
    "ordered-accepts-loss": Ordered(on_violation=Suspend(accept_loss=True)),
    "ordered-wraps": Ordered(wraps_at=8),
    "window": FuzzyWindow(lateness=_LATENESS),
    "reorder": FuzzyWindow(lateness=_LATENESS, reorder=True),
    "strict": Strict(evidence=Sequence()),
    "strict-suspends": Strict(evidence=Sequence(), on_violation=Suspend()),
    "strict-accepts-loss": Strict(evidence=Sequence(), on_violation=Suspend(accept_loss=True)),
    "strict-drops": Strict(evidence=Sequence(), on_violation=Suspend(), repeats=Repeats.DROP),
    "strict-wraps": Strict(evidence=Sequence(wraps_at=8), on_violation=Suspend()),
    "linked": Strict(evidence=Linked(), on_violation=Suspend()),
    "checksum": Strict(evidence=Checksum(), on_violation=Suspend()),
    "log-only": Strict(evidence=LogOnly(), on_violation=Suspend()),
    "once-suspends": Once(keep_ids=4, on_violation=Suspend()),
}
_LATE = ("window", "reorder")
_IDLE = EventTime(session_idle=timedelta(seconds=25))


def _stream(name: str, transform: Probe, event_time: EventTime) -> Stream[Sent, Held, Seen]:
    class_name = name.split("/", maxsplit=1)[0]
    return Stream(
        name=class_name.replace("-", "_"),
        topics=Topics(pattern=r"probes\..+"),
        transform=transform,
        integrity=_CLASSES[class_name],
        event_time=event_time,
    )


STREAMS = {
    **{name: _stream(name, Probe(), EventTime()) for name in _CLASSES},
    **{f"{name}/timed": _stream(name, Late() if name in _LATE else Timed(), _IDLE) for name in _CLASSES},
    "reorder/unnumbered": _stream("reorder", Unnumbered(), EventTime()),
    "reorder/timed/unnumbered": _stream("reorder", LateUnnumbered(), _IDLE),
    "window/unnumbered": _stream("window", LateUnnumbered(), _IDLE),
}
