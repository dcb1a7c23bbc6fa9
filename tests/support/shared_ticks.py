"""Converts the shared cursor of a sensor of all streams to and from the cursor of one stream."""

from __future__ import annotations

from lockstep.orchestration.shared_tick import SharedCursor


def share(cursor: str, stream: str = "order_books") -> str:
    """Return the sensor's cursor with this cursor of the stream."""
    return SharedCursor.of({stream: cursor}).encode()


def read_own(cursor: str | None) -> str | None:
    """Return the stream's cursor."""
    shared, warning = SharedCursor.read(cursor)
    assert warning == ""
    return next(iter(shared.streams.values()), None)
