"""A stream whose envelopes are what its messages say, types included: what users write who check no types."""

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
    """JSON as Python's own module reads it: lone surrogates and numbers of any size included."""
    return dict(json.loads(value))


class Summing(Transform[dict[str, Any], Total, Sum]):
    """Sums `n`; all that an envelope holds is in the message."""

    def envelope(self, message: dict[str, Any], record: Record) -> Envelope:
        """Whatever the message says, None where it says "nothing", and the headers are read where it is "headed"."""
        if "headed" in message:
            assert record.headers
        if "nothing" in message:
            return None  # type: ignore[return-value]  # as some write it for a message that is not wanted
        kind = message.get("kind", Kind.UPDATE)
        return Envelope(message.get("session"), kind, message.get("seq"), event_time_us=message.get("time_us"))  # type: ignore[arg-type]  # the point of it

    def on_snapshot(self, message: dict[str, Any], record: Record, previous: Total | None) -> InitialState[Total, Sum]:
        """The first message of a session."""
        state = Total()
        return InitialState(state, self.on_update(state, message, record))

    def on_update(self, state: Total, message: dict[str, Any], record: Record) -> Iterable[Sum]:
        """One row."""
        state.sum += message["n"]
        yield Sum(state.sum)


def summing(pattern: str, integrity: IntegrityClass) -> Stream[dict[str, Any], Total, Sum]:
    """The stream over the topics of one test."""
    return Stream(
        name="summing",
        topics=Topics(pattern=pattern),
        transform=Summing(),
        integrity=integrity,
        decoder=Function(read_json),
    )
