"""A stream that builds envelopes from messages without checking their types, as careless users write it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import msgspec

from lockstep import Envelope, InitialState, Kind, Record, Stream, Topics, Transform
from lockstep.decoders import Function
from lockstep.integrity.base import IntegrityClass


class Total(msgspec.Struct):
    """The state of a session."""

    sum: int = 0


class Sum(msgspec.Struct):
    """A row."""

    sum: int


def read_json(value: bytes) -> dict[str, Any]:
    """Decode JSON by Python's module, with lone surrogates and numbers of any size."""
    return dict(json.loads(value))


class Summing(Transform[dict[str, Any], Total, Sum]):
    """Sums `n`; the message defines the whole envelope."""

    def envelope(self, message: dict[str, Any], record: Record) -> Envelope:
        """Return the envelope; None for the field "nothing". The field "headed" requires headers."""
        if "headed" in message:
            assert record.headers
        if "nothing" in message:
            return None  # type: ignore[return-value]  # as some users write it for an unwanted message
        kind = message.get("kind", Kind.UPDATE)
        return Envelope(message.get("session"), kind, message.get("seq"), event_time_us=message.get("time_us"))  # type: ignore[arg-type]  # the point of it

    def on_snapshot(self, message: dict[str, Any], record: Record, previous: Total | None) -> InitialState[Total, Sum]:
        """The first message of a session."""
        state = Total()
        return InitialState(state, self.on_update(state, message, record))

    def on_update(self, state: Total, message: dict[str, Any], record: Record) -> Iterable[Sum]:
        """Emit one row."""
        state.sum += message["n"]
        yield Sum(state.sum)


def summing(pattern: str, integrity: IntegrityClass) -> Stream[dict[str, Any], Total, Sum]:
    """Return the stream over the topics of one test."""
    return Stream(
        name="summing",
        topics=Topics(pattern=pattern),
        transform=Summing(),
        integrity=integrity,
        decoder=Function(read_json),
    )
