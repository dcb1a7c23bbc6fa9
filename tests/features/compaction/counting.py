"""The smallest stream: each message becomes a row."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from lockstep import AvailableNow, Envelope, Kind, Limits, LogOnly, Record, Stream, Strict, Topics, Transform


class Count(msgspec.Struct):
    """A message and its row."""

    number: int


class Nothing(msgspec.Struct):
    """No state."""

    counted: int = 0


class Counting(Transform[Count, Nothing, Count]):
    """Emits each message; the first message of a key opens its session."""

    def envelope(self, message: Count, record: Record) -> Envelope:
        """Use the key as the session."""
        return Envelope(record.key_text, Kind.SNAPSHOT if message.number == 0 else Kind.UPDATE)

    def on_snapshot(self, message: Count, record: Record, previous: Nothing | None) -> Nothing:
        """Start a new count."""
        del message, record
        return Nothing()

    def on_update(self, state: Nothing, message: Count, record: Record) -> Iterable[Count]:
        """Emit one row."""
        del record
        state.counted += 1
        yield message


def counting(family: str) -> Stream[Count, Nothing, Count]:
    """Return the stream over the topics of a family."""
    return Stream(
        name="counting",
        topics=Topics(pattern=f"{family}.*"),
        transform=Counting(),
        integrity=Strict(evidence=LogOnly()),
        trigger=AvailableNow(),
        limits=Limits(batch_messages=20),
    )
