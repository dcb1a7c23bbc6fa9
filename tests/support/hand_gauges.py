"""Gauges by hand: folds with user logic, whose envelopes are declared by names of fields."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import msgspec
from msgspec import UNSET

from lockstep import (
    EnvelopeFields,
    NoIntegrity,
    Once,
    Record,
    Sequence,
    SessionStart,
    Stream,
    Strict,
    Suspend,
    Topics,
    Transform,
)
from lockstep.declare.stream import AnyStream
from lockstep.integrity.base import IntegrityClass
from tests.support.gauges import Part, Whole


class Begin(msgspec.Struct, tag="snapshot"):
    """Sets all levels."""

    session: str
    number: int
    at: int
    rows: list[Whole]


class Change(msgspec.Struct, tag="update"):
    """Changes levels."""

    session: str
    number: int
    at: int
    rows: list[Part]


class Finish(msgspec.Struct, tag="end"):
    """Ends a session."""

    session: str
    number: int
    at: int


Message = Begin | Change | Finish
Levels = dict[str, float]


class Level(msgspec.Struct, frozen=True):
    """A level and the sum of all."""

    name: str
    level: float
    total: float
    offset: int


class ByKey(Transform[Message, Levels, Level]):
    """The record's key is the session."""

    envelope_fields = EnvelopeFields(snapshot=Begin, end=Finish, sequence="number", event_time_us="at")

    def on_snapshot(self, message: Message, record: Record, previous: Levels | None) -> Levels:
        if isinstance(message, Begin):
            return {row.name: row.level for row in message.rows}
        return {}

    def on_update(self, state: Levels, message: Message, record: Record) -> Iterable[Level]:
        return list(self._apply(state, message, record))

    def _apply(self, state: Levels, message: Message, record: Record) -> Iterator[Level]:
        if not isinstance(message, Change):
            raise TypeError(message)
        for row in message.rows:
            if row.level is not UNSET:
                state[row.name] = row.level
            if row.count == -7:
                raise ValueError(f"a count of {row.count} in {record.key_text}")
            yield Level(row.name, state.get(row.name, 0.0), sum(state.values()), record.offset)


class OneByOne(ByKey):
    """Emits rows one by one."""

    def on_update(self, state: Levels, message: Message, record: Record) -> Iterable[Level]:
        return self._apply(state, message, record)


class ByField(ByKey):
    """The session is a field of the message, and rows are a tuple."""

    envelope_fields = replace(ByKey.envelope_fields, session="session")

    def on_update(self, state: Levels, message: Message, record: Record) -> Iterable[Level]:
        return tuple(self._apply(state, message, record))


class Unnumbered(ByKey):
    """Messages without numbers and event times."""

    envelope_fields = replace(ByKey.envelope_fields, sequence=None, event_time_us=None)


class Identified(ByKey):
    """Messages with ids."""

    envelope_fields = replace(ByKey.envelope_fields, sequence=None, id="number")


class Watched(ByKey):
    """A fold with timers, which each message may fire."""

    def deadline(self, state: Levels) -> int | None:
        return None

    def on_timer(self, state: Levels, deadline_us: int) -> Iterable[Level]:
        return []


def make_stream(transform: Transform[Any, Any, Any], integrity: IntegrityClass) -> AnyStream:
    """Return the stream."""
    return Stream(name="gauges", topics=Topics(pattern=r"gauges\..+"), transform=transform, integrity=integrity)


NUMBERED = Strict(evidence=Sequence())
BY_HAND: dict[str, AnyStream] = {
    "by key": make_stream(ByKey(), NUMBERED),
    "one by one": make_stream(OneByOne(), NUMBERED),
    "by field": make_stream(ByField(), NUMBERED),
    "no integrity": make_stream(OneByOne(), NoIntegrity()),
    "unnumbered": make_stream(Unnumbered(), NoIntegrity()),
    "suspends": make_stream(ByKey(), Strict(evidence=Sequence(), on_violation=Suspend())),
    "first message": make_stream(ByKey(), Strict(evidence=Sequence(), session_start=SessionStart.FIRST_MESSAGE)),
    "wraps": make_stream(ByKey(), NoIntegrity(wraps_at=16)),
    "once": make_stream(ByKey(), Once(keep_ids=100)),
    "ids": make_stream(Identified(), Once(keep_ids=100)),
    "timers": make_stream(Watched(), NUMBERED),
}
"""All streams by name."""
PLAIN = ("by key", "one by one", "by field", "no integrity", "unnumbered", "once", "ids")
"""The streams whose updates are plain."""
