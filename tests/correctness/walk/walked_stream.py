"""A stream in several releases, importable by name, and its expected content by plain Python."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import msgspec

from lockstep import (
    Envelope,
    Halt,
    Kind,
    Lookup,
    MapState,
    Ordered,
    Record,
    Sequence,
    Stream,
    Strict,
    Suspend,
    Topics,
    Transform,
)
from lockstep.derived import Export

if TYPE_CHECKING:
    from collections.abc import Collection

S = TypeVar("S")
R = TypeVar("R", bound=msgspec.Struct)
POISON = 666


class Sent(msgspec.Struct):
    """A message of a session: its snapshot, an update or its end."""

    kind: Kind
    seq: int
    values: dict[str, int] = {}


class Panel(msgspec.Struct):
    """The state of the first release."""

    values: dict[str, int]


class Summed(msgspec.Struct):
    """The state of a later release."""

    held: dict[str, int]
    total: int
    note: str = ""


class Rowwise(msgspec.Struct):
    """The state of a release that stores its values row by row."""

    rows: MapState[str, int]


class Reading(msgspec.Struct):
    """The row of the first release."""

    name: str
    value: int
    total: int


class WiderReading(msgspec.Struct):
    """The row of later releases, with another column."""

    name: str
    value: int
    total: int
    unit: str | None = None


class Extra(msgspec.Struct, frozen=True):
    """The amount added to each value of a name."""

    name: str
    more: int


EXTRAS = Lookup("extras", "extras", key="name", row=Extra)


class Walked(Transform[Sent, S, R], Generic[S, R]):
    """The common part of all releases: values are added up by name."""

    unit = ""
    bias = 0

    def __init__(self, *, looks_up: bool = False) -> None:
        """Use the lookup table, or not."""
        self.looks_up = looks_up

    def envelope(self, message: Sent, record: Record) -> Envelope:
        """The session is the key."""
        return Envelope(record.key_text, message.kind, sequence=message.seq)

    def on_end(self, state: S) -> Iterable[R]:
        """No rows."""
        return ()

    def add(self, held: Any, message: Sent) -> Iterable[Any]:
        """Add the values, and yield a row for each."""
        for name, more in message.values.items():
            extra = EXTRAS.get(name) if self.looks_up else None
            held[name] = held.get(name, 0) + more + (0 if extra is None else extra.more)
            if more == POISON:
                raise ZeroDivisionError("poison")
            value = held[name] + self.bias
            total = sum(held[each] for each in held)
            yield WiderReading(name, value, total, self.unit) if self.unit else Reading(name, value, total)


class InPanel(Walked[Panel, R], Generic[R]):
    """State of the first kind."""

    def on_snapshot(self, message: Sent, record: Record, previous: Panel | None) -> Panel:
        """Keep all values."""
        return Panel(dict(message.values))

    def on_update(self, state: Panel, message: Sent, record: Record) -> Iterable[R]:
        """Yield a row for each value."""
        return self.add(state.values, message)

    def migrate(self, old: Mapping[str, Any]) -> Panel:
        """Accept the state of any other release."""
        return Panel(_held(old))


class InSum(Walked[Summed, WiderReading]):
    """State of the second kind."""

    def on_snapshot(self, message: Sent, record: Record, previous: Summed | None) -> Summed:
        """Keep all values."""
        return Summed(dict(message.values), sum(message.values.values()))

    def on_update(self, state: Summed, message: Sent, record: Record) -> Iterable[WiderReading]:
        """Return a row for each value."""
        rows = list(self.add(state.held, message))
        state.total = sum(state.held.values())
        return rows

    def migrate(self, old: Mapping[str, Any]) -> Summed:
        """Accept the state of any other release."""
        return Summed(_held(old), sum(_held(old).values()))


class InRows(Walked[Rowwise, WiderReading]):
    """State of the third kind."""

    def on_snapshot(self, message: Sent, record: Record, previous: Rowwise | None) -> Rowwise:
        """Keep all values."""
        return Rowwise(MapState(message.values))

    def on_update(self, state: Rowwise, message: Sent, record: Record) -> Iterable[WiderReading]:
        """Yield a row for each value."""
        return self.add(state.rows, message)

    def migrate(self, old: Mapping[str, Any]) -> Rowwise:
        """Accept the state of any other release."""
        return Rowwise(MapState(_held(old)))


def _held(old: Mapping[str, Any]) -> dict[str, int]:
    return dict(old.get("values") or old.get("held") or old.get("rows") or {})


class First(InPanel[Reading]):
    """The first release."""


class Wide(InPanel[WiderReading]):
    """Rows with another column."""

    unit = "V"


class WideSum(InSum):
    """Also another state."""

    unit = "V"


class WideRows(InRows):
    """Also a state row by row."""

    unit = "V"


class FirstBiased(First):
    """Other rows of the same messages."""

    bias = 1000


class WideBiased(Wide):
    """Other rows of the same messages."""

    bias = 1000


class SumBiased(WideSum):
    """Other rows of the same messages."""

    bias = 1000


class RowsBiased(WideRows):
    """Other rows of the same messages."""

    bias = 1000


class Release(NamedTuple):
    """A release: its state and rows, whether it is biased, halts, uses the lookup table, and may skip numbers.

    A release of windows has windows in place of all that, and reorders if `reorders` is set.
    """

    number: int = 0
    is_biased: bool = False
    halts: bool = True
    looks_up: bool = False
    is_ordered: bool = False
    has_windows: bool = False
    reorders: bool = False

    @property
    def unit(self) -> str | None:
        """Return the unit of its rows."""
        return "V" if self.number else None

    def declare(self, pattern: str, name: str = "walked") -> Stream[Any, Any, Any]:
        """Return the declaration."""
        plain = (First, Wide, WideSum, WideRows)
        biased = (FirstBiased, WideBiased, SumBiased, RowsBiased)
        policy = Halt() if self.halts else Suspend()
        strict = Strict(evidence=Sequence(), on_violation=policy)
        return Stream(
            name=name,
            topics=Topics(pattern=pattern),
            transform=(biased if self.is_biased else plain)[self.number](looks_up=self.looks_up),
            lookups=(EXTRAS,) if self.looks_up else (),
            integrity=Ordered(on_violation=policy) if self.is_ordered else strict,
            export=Export() if name == "walked" else None,
        )


class Segment(NamedTuple):
    """Offsets of a partition up to `until`, read by a batch of a release, with the lookup rows of the batch."""

    until: int
    batch: int
    release: Release
    extras: Mapping[str, int] | None = None


EXPIRED = "expired"
FROM_SNAPSHOT = "from-snapshot"
LOSS = "accept-loss"
GROWN = "grown"


class GivenUp(NamedTuple):
    """Offsets of a partition at which no message was judged."""

    start: int
    until: int
    kind: str


class Folded(NamedTuple):
    """The expected content of a partition: rows by batch, states by session, offsets in quarantine and late table."""

    rows: list[tuple[int, tuple[Any, ...]]]
    states: dict[str, Any]
    quarantined: dict[int, str]
    late: dict[int, str]


class Fold:
    """A plain fold of one partition: an error in a session suspends it until its next snapshot."""

    def __init__(self) -> None:
        self.states: dict[str, Any] = {}
        self.numbers: dict[str, int] = {}
        self.out = Folded([], self.states, {}, {})

    def arrive(self, offset: int, erased: Collection[tuple[str, int]], given_up: Collection[GivenUp]) -> None:
        """Apply the events before a message: erasures, and the suspension of sessions when their topic has grown."""
        for session, position in erased:
            if position == offset:
                self.forget(session)
        if any(each.start == offset and each.kind == GROWN for each in given_up):
            self.suspend_all()

    def take(self, offset: int, key: str, value: bytes, segment: Segment, given_up: set[str]) -> None:
        """Apply a message, or the operator's acceptance of its loss."""
        if EXPIRED in given_up:
            self.suspend_all()
        elif FROM_SNAPSHOT in given_up:
            self.pass_over(offset, key)
        elif LOSS not in given_up:
            self.apply(offset, key, value, segment)

    def forget(self, session: str) -> None:
        """Erase a session: its rows, its state, and its keys in quarantine."""
        self.states.pop(session, None)
        self.numbers.pop(session, None)
        self.out.rows[:] = [row for row in self.out.rows if row[1][2] != session]
        self.out.quarantined.update({at: "" for at, key in self.out.quarantined.items() if key == session})

    def apply(self, offset: int, key: str, value: bytes, segment: Segment) -> None:
        """Apply a message."""
        try:
            message = json.loads(value)
        except ValueError:
            self.pass_over(offset, key)
            return
        last = self.numbers.get(key)
        number = message["seq"]
        may_skip = segment.release.is_ordered
        if message["kind"] == "snapshot":
            if not may_skip and last is not None and number not in {last, last + 1}:
                self.suspend(offset, key)
                return
            self.states[key], self.numbers[key] = dict(message["values"]), number
        elif may_skip and last is not None and number <= last:
            return
        elif last is None or not (may_skip or number == last + 1) or POISON in message["values"].values():
            self.suspend(offset, key)
        elif message["kind"] == "end":
            del self.states[key], self.numbers[key]
        else:
            self.numbers[key] = number
            self.update(offset, key, message, segment)

    def suspend_all(self) -> None:
        """Suspend all sessions until their next snapshots."""
        self.states.clear()
        self.numbers.clear()

    def pass_over(self, offset: int, key: str) -> None:
        """Quarantine a message whose session is unknown; all sessions wait for their next snapshots."""
        self.suspend_all()
        self.out.quarantined[offset] = key

    def suspend(self, offset: int, key: str) -> None:
        """Quarantine the message, and all that follow until the next snapshot."""
        self.states.pop(key, None)
        self.numbers.pop(key, None)
        self.out.quarantined[offset] = key

    def update(self, offset: int, key: str, message: dict[str, Any], segment: Segment) -> None:
        """Append a row for each value."""
        state = self.states[key]
        release = segment.release
        for row, (name, more) in enumerate(message["values"].items()):
            state[name] = state.get(name, 0) + more + (segment.extras or {}).get(name, 0)
            value = state[name] + 1000 * release.is_biased
            made = (offset, row, key, message["seq"], name, value, sum(state.values()), release.unit)
            self.out.rows.append((segment.batch, made))


def fold(
    folding: Fold,
    log: list[tuple[str, bytes]],
    segments: list[Segment],
    erased: Collection[tuple[str, int]],
    given_up: Collection[GivenUp],
) -> Folded:
    """Fold the read segments of the log of a partition, with its erasures and accepted losses."""
    at = 0
    for segment in segments:
        while at < segment.until:
            folding.arrive(at, erased, given_up)
            folding.take(at, *log[at], segment, {each.kind for each in given_up if each.start <= at < each.until})
            at += 1
    folding.arrive(at, erased, ())
    return folding.out
