"""Shared parts of the tests of state: a place for state, and one batch of one partition written out plainly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from lockstep.state.changelog import StateFileWriter, StateVersion, make_empty_state
from lockstep.state.codec import StateSchema
from lockstep.state.decoded_sessions import SessionCache, SessionEntry
from lockstep.state.local_store_pool import IdleFiles, LocalStorePool
from lockstep.state.restore import Restored
from lockstep.state.store import PartitionState

BOOT = "00000000-0000-4000-8000-000000000001"
OTHER_BOOT = "00000000-0000-4000-8000-000000000002"


class Panel(msgspec.Struct):
    """A state of a session: a number and a text of any length."""

    value: int
    text: str = ""


Fold = Callable[[PartitionState[Panel]], None]


@dataclass
class Home:
    """A stream's durable folder and a machine's hot folder."""

    durable: Path
    local_root: Path
    boot: str = BOOT
    stores_max: int = 100
    schema: StateSchema[Panel] = field(default_factory=lambda: StateSchema[Panel](Panel))
    decoded: SessionCache = field(default_factory=lambda: SessionCache(bytes_max=0))
    idle: IdleFiles = field(default_factory=lambda: IdleFiles(files_max=0))

    def start(self, partition: int = 0) -> StateVersion:
        """Return the empty state of a partition."""
        return make_empty_state(1, "topic-id", partition, 0)

    def local_stores(self) -> LocalStorePool:
        """Open the hot folder, as a new process would."""
        return LocalStorePool(
            self.local_root,
            self.durable,
            boot=self.boot,
            stores_max=self.stores_max,
            decoded=self.decoded,
            idle=self.idle,
        )

    def open(self, version: StateVersion, local_stores: LocalStorePool | None = None) -> PartitionState[Panel]:
        """Open the state of a version."""
        return PartitionState.open(
            version, durable=self.durable, local_stores=local_stores or self.local_stores(), schema=self.schema
        )

    def batch(self, version: StateVersion, fold: Fold) -> StateVersion:
        """Fold one range as a task does, and return the new version."""
        with self.open(version) as state:
            fold(state)
            with StateFileWriter.open(self.durable) as writer:
                after = state.write(writer, version.next_offset + 1)
            state.publish_local()
        return after

    def values(self, version: StateVersion, sessions: list[str]) -> dict[str, int]:
        """Return the value of each session in the state of a version."""
        with self.open(version) as state:
            loaded = {session: state.load(session) for session in sessions}
        return {session: entry.state.value for session, entry in loaded.items() if entry is not None}

    def restored(self, version: StateVersion) -> Restored:
        """Return how a local store was restored to the state of a version for a read of a session."""
        with self.open(version) as state:
            state.load("any")
            assert state.restored is not None
            return state.restored

    def store_files(self) -> list[Path]:
        """Return the files of local stores on this machine."""
        return sorted(self.local_root.rglob("*.lmdb"))


def put(values: dict[str, int]) -> Fold:
    """Return a fold that sets sessions, known or not."""

    def fold(state: PartitionState[Panel]) -> None:
        for session, value in values.items():
            entry = state.entries.get(session) or state.load(session)
            if entry is None:
                state.entries[session] = SessionEntry(value, Panel(value))
            else:
                entry.gate = value
                entry.state.value = value

    return fold


def drop(*sessions: str) -> Fold:
    """Return a fold that removes sessions."""

    def fold(state: PartitionState[Panel]) -> None:
        for session in sessions:
            state.remove(session)

    return fold
