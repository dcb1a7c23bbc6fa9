"""Small streams for the engine's tests. Executors import them by name."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from lockstep import (
    Envelope,
    InitialState,
    Kind,
    Record,
    Sequence,
    Stream,
    Strict,
    Suspend,
    Topics,
    Transform,
    Violation,
)
from lockstep.integrity.base import IntegrityClass
from lockstep.integrity.strict import Checksum

POISON = 666
"""The faulty fold fails at this value after it has changed its state."""


class Snapshot(msgspec.Struct, tag="snapshot", tag_field="type"):
    """All values of a session."""

    seq: int
    values: dict[str, int]


class Update(msgspec.Struct, tag="update", tag_field="type"):
    """Values to add to those of a session; `total` is the producer's sum after the update."""

    seq: int
    values: dict[str, int]
    total: int | None = None


class Panel(msgspec.Struct):
    """The state of a session."""

    values: dict[str, int]


class Reading(msgspec.Struct):
    """One changed value and the sum of all values after it."""

    name: str
    value: int
    total: int


class Adding(Transform[Snapshot | Update, Panel, Reading]):
    """Adds values by name; fails at POISON, half-way through its message."""

    def envelope(self, message: Snapshot | Update, record: Record) -> Envelope:
        """The session is the key."""
        kind = Kind.SNAPSHOT if isinstance(message, Snapshot) else Kind.UPDATE
        return Envelope(record.key_text, kind, sequence=message.seq)

    def on_snapshot(
        self, message: Snapshot | Update, record: Record, previous: Panel | None
    ) -> Panel | InitialState[Panel, Reading]:
        """Start with all values, without rows."""
        return Panel(dict(message.values))

    def on_update(self, state: Panel, message: Snapshot | Update, record: Record) -> Iterable[Reading]:
        """Return a row for each value."""
        for name, added in message.values.items():
            state.values[name] = state.values.get(name, 0) + added
            yield Reading(name, state.values[name], sum(state.values.values()))
            if added == POISON:
                self.poisoned()
        total = sum(state.values.values())
        if isinstance(message, Update) and message.total not in {None, total}:
            raise Violation(total, message.total)

    def poisoned(self) -> None:
        """Fail."""
        raise ZeroDivisionError("poison")


class Mended(Adding):
    """The same fold without the fault."""

    def poisoned(self) -> None:
        """Accept the value."""


def adding(
    pattern: str, integrity: IntegrityClass | None = None, transform: Adding | None = None
) -> Stream[Snapshot | Update, Panel, Reading]:
    """Return the stream over the topics of one test; the default class is Strict by Sequence."""
    return Stream(
        name="adding",
        topics=Topics(pattern=pattern),
        transform=transform or Adding(),
        integrity=integrity or Strict(evidence=Sequence()),
    )


BY_CHECKSUM = Strict(evidence=Checksum())
BY_SUSPENSION = Strict(evidence=Sequence(), on_violation=Suspend())
