"""Decoded sessions that a worker keeps from one batch to the next, so that a live stream does not decode them again.

They are kept under the segment of the state that they are. A batch that was not committed, was folded elsewhere or went
back leads to another segment, for which nothing is found. Nor are they used without a local store that has that
segment: they are part of it, and as durable as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Generic, cast

import msgspec

from lockstep.integrity.gate_states import GateState
from lockstep.model.position import SegmentRef
from lockstep.state.changelog import StateVersion
from lockstep.state.codec import S, StateSchema

BYTES_MAX = 48_000_000
"""Encoded bytes of the sessions that a process keeps; half of the bytes that a task may decode (`MemoryBudget`)."""
ENTRY_BYTES = 250
"""Objects, keys and dict slots per entry, for any value: 1 million empty sessions take a quarter of a GB."""


class SessionEntry(msgspec.Struct, Generic[S], gc=False):
    """One session's state in memory. The fold changes `gate` and `state` in place or replaces them.

    No state refers to its entry, so that the collector of reference cycles need not visit it.

    Attributes:
        gate: The state of the session's integrity gate.
        state: The user's state.
        stored: Its value in the local store; None for a session opened in this range.
        rows_bytes: Bytes of the rows of its tables in memory, when it was saved last; about.
    """

    gate: GateState
    state: S
    stored: bytes | None = None
    rows_bytes: int = 0

    @property
    def size(self) -> int:
        """Bytes in memory, about."""
        return len(self.stored or b"") + self.rows_bytes


class DecodedSessions(Generic[S]):
    """Decoded sessions of one partition.

    Attributes:
        size: Encoded bytes of all of them, with their rows in memory.
    """

    def __init__(self) -> None:
        self._entries: dict[str, SessionEntry[S]] = {}
        self.size = 0

    @property
    def memory_bytes(self) -> int:
        """What counts towards a limit."""
        return self.size + len(self._entries) * ENTRY_BYTES

    def take(self, session: str) -> SessionEntry[S] | None:
        """Take a session out; None without it."""
        entry = self._entries.pop(session, None)
        if entry is not None:
            self.size -= entry.size
        return entry

    def put_all(self, entries: Mapping[str, SessionEntry[S]]) -> None:
        """Add the sessions of a batch, which are as they are stored."""
        self._entries.update(entries)
        self.size += sum(entry.size for entry in entries.values())

    def __len__(self) -> int:
        """Their number."""
        return len(self._entries)


class _CachedSessions(msgspec.Struct, frozen=True):
    segment: SegmentRef
    schema: object
    sessions: DecodedSessions[object]


Place = tuple[Path, str, int]
"""Folder of the durable state, topic id, partition."""


class SessionCache:
    """The decoded sessions of a process, those that were kept first given up first."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        """An empty cache; with `bytes_max` 0 it stays so."""
        self._bytes_max = bytes_max
        self._held = 0
        self._cached: dict[Place, _CachedSessions] = {}

    def take(self, durable: Path, version: StateVersion, schema: StateSchema[S]) -> DecodedSessions[S]:
        """Take the sessions of a state out; empty unless they were kept under its segment and in this type."""
        cached = self._drop((durable, version.topic_id, version.partition))
        if cached is None or cached.segment != version.segment or cached.schema is not schema:
            return DecodedSessions()
        return cast("DecodedSessions[S]", cached.sessions)

    def put(
        self,
        durable: Path,
        version: StateVersion,
        segment: SegmentRef,
        sessions: DecodedSessions[S],
        schema: StateSchema[S],
    ) -> None:
        """Keep the sessions of a partition, under the segment of their state; others are evicted."""
        place = (durable, version.topic_id, version.partition)
        self._drop(place)
        if len(sessions):
            self._cached[place] = _CachedSessions(segment, schema, cast("DecodedSessions[object]", sessions))
            self._held += sessions.memory_bytes
        while self._held > self._bytes_max:
            self._drop(next(iter(self._cached)))

    def discard_below(self, folder: Path) -> None:
        """Discard the sessions whose durable state is below a folder."""
        for place in list(self._cached):
            if place[0].is_relative_to(folder):
                self._drop(place)

    def _drop(self, place: Place) -> _CachedSessions | None:
        cached = self._cached.pop(place, None)
        if cached is not None:
            self._held -= cached.sessions.memory_bytes
        return cached
