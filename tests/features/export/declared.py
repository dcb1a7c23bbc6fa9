"""The declaration of the stream that `StreamTable` writes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from lockstep import Envelope, Kind, LogOnly, Record, Stream, Strict, Topics, Transform
from lockstep.derived import Export
from tests.support.stream_table import Reading


class Held(msgspec.Struct):
    """An empty state."""


class Readings(Transform[Reading, Held, Reading]):
    """Never folds: the tests write the rows."""

    def envelope(self, message: Reading, record: Record) -> Envelope:
        """Use one session."""
        del record
        return Envelope(message.text, Kind.SNAPSHOT)

    def on_snapshot(self, message: Reading, record: Record, previous: Held | None) -> Held:
        """Return an empty state."""
        del message, record
        return Held()

    def on_update(self, state: Held, message: Reading, record: Record) -> Iterable[Reading]:
        """Emit one row."""
        del state, record
        yield message


def make_stream(export: Export | None = None, **changes: Any) -> Stream[Reading, Held, Reading]:
    """Return the stream of `StreamTable`."""
    return Stream(
        name="readings",
        topics=Topics(pattern="readings"),
        transform=Readings(),
        integrity=Strict(evidence=LogOnly()),
        export=export,
        **changes,
    )
