"""The stream whose folders are kept as fixtures: a state with a field of each kind, and all outputs of a batch."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from decimal import Decimal

import msgspec

from lockstep import Envelope, Halt, InitialState, Kind, Record, Stream, Strict, Suspend, Topics, Transform
from lockstep import Sequence as BySequence

POISON = 666


class Phase(enum.Enum):
    """An enum in a state."""

    COLD = "cold"
    WARM = "warm"


class Pair(msgspec.Struct, array_like=True):
    """A struct by position in a state."""

    low: int
    high: int


class Message(msgspec.Struct):
    """A message of the topics."""

    kind: Kind
    seq: int
    values: dict[str, int] = {}


class Kept(msgspec.Struct):
    """The state of a session."""

    values: dict[str, int]
    span: Pair
    total: Decimal
    at: datetime
    phase: Phase
    note: str | None = None
    seen: list[int] = []


class Row(msgspec.Struct):
    """One changed value."""

    name: str
    value: int
    total: int


class Keeping(Transform[Message, Kept, Row]):
    """Adds values by name."""

    def envelope(self, message: Message, record: Record) -> Envelope:
        """The session is the key."""
        return Envelope(record.key_text, message.kind, sequence=message.seq)

    def on_snapshot(self, message: Message, record: Record, previous: Kept | None) -> Kept | InitialState[Kept, Row]:
        """Start with all values."""
        held = list(message.values.values())
        at = datetime.fromtimestamp(record.offset, UTC)
        return Kept(dict(message.values), Pair(min(held), max(held)), Decimal(sum(held)) / 4, at, Phase.COLD)

    def on_update(self, state: Kept, message: Message, record: Record) -> Iterable[Row]:
        """Return a row for each value."""
        for name, added in message.values.items():
            state.values[name] = state.values.get(name, 0) + added
            if added == POISON:
                raise ValueError("poison")
            state.seen.append(added)
            state.phase = Phase.WARM
            yield Row(name, state.values[name], sum(state.values.values()))


def keeping(policy: Halt | Suspend | None = None) -> Stream[Message, Kept, Row]:
    """Return the stream."""
    return Stream(
        name="keeping",
        topics=Topics(pattern="kept.*"),
        transform=Keeping(),
        integrity=Strict(evidence=BySequence(), on_violation=policy or Suspend()),
    )


def message(kind: Kind, seq: int, **values: int) -> bytes:
    """Make a message as its producer sends it."""
    return json.dumps({"kind": kind.value, "seq": seq, "values": values}).encode()


Sent = tuple[str, bytes]


def script() -> list[dict[str, list[Sent]]]:
    """Return batches of messages by topic: (key, value). The offset of a message is its number in its topic."""
    first: dict[str, list[Sent]] = {
        "kept.one": [("a", message(Kind.SNAPSHOT, 1, x=1, y=2)), ("b", message(Kind.SNAPSHOT, 1, x=5))],
        "kept.two": [("täglich", message(Kind.SNAPSHOT, 1, x=1)), ("long" * 200, message(Kind.SNAPSHOT, 1, x=1))],
    }
    second: dict[str, list[Sent]] = {
        "kept.one": [("a", message(Kind.UPDATE, 2, x=1, z=3)), ("b", message(Kind.UPDATE, 2, x=POISON))],
        "kept.two": [],
    }
    third: dict[str, list[Sent]] = {
        "kept.one": [("gone", message(Kind.SNAPSHOT, 1, x=1)), ("a", message(Kind.UPDATE, 3, y=7)), ("b", b"{broken")],
        "kept.two": [("long" * 200, message(Kind.UPDATE, 2, x=4)), ("late", message(Kind.SNAPSHOT, 1, x=8))],
    }
    fourth: dict[str, list[Sent]] = {"kept.one": [("gone", message(Kind.END, 2)), ("a", message(Kind.UPDATE, 4, x=1))]}
    return [first, second, third, fourth]


Fold = tuple[list[tuple[object, ...]], dict[str, dict[str, int]]]


def plain_fold(sent: Sequence[Sent]) -> Fold:
    """Fold one topic to rows (offset, key, name, value, total) and values of all sessions, without lockstep."""
    rows: list[tuple[object, ...]] = []
    states: dict[str, dict[str, int]] = {}
    suspended: set[str] = set()
    for offset, (key, value) in enumerate(sent):
        try:
            held = json.loads(value)
        except ValueError:
            suspended |= states.keys()  # its session is unknown
            continue
        if held["kind"] == "snapshot":
            states[key] = dict(held["values"])
            suspended.discard(key)
        elif key in suspended:
            continue
        elif held["kind"] == "end":
            states.pop(key)
        elif POISON in held["values"].values():
            suspended.add(key)
        else:
            for name, added in held["values"].items():
                states[key][name] = states[key].get(name, 0) + added
                rows.append((offset, key, name, states[key][name], sum(states[key].values())))
    return rows, states
