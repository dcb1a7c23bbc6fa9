"""Writes the state of partitions again without one session, as new bases: no earlier state file is needed after it.

All partitions get a new base, not only that of the session: a state file holds segments of many partitions, and one
that another partition refers to would keep the session's entries on disk.
"""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path

import msgspec

from lockstep.model.position import SegmentRef
from lockstep.state.bases import add_base, read_entries
from lockstep.state.changelog import (
    StateDamaged,
    StateFileWriter,
    StateVersion,
)
from lockstep.state.timers import AGENDA, CLOCK, HELD
from lockstep.state.values import make_session_prefix
from lockstep.storage import find_storage

_DIGEST_BYTES = 16
_DEADLINE_END = 1 + 8


class StateKeys(msgspec.Struct, frozen=True):
    """The keys of one session's entries: its own, its map rows, buffered messages, clock and timers.

    Attributes:
        session: Its name, as a key.
        digest: The digest in the keys of buffered messages and timers.
    """

    session: bytes
    digest: bytes

    @staticmethod
    def of(session: str) -> StateKeys:
        """The keys of a session."""
        encoded = session.encode("utf-8", "surrogatepass")
        return StateKeys(encoded, blake2b(encoded, digest_size=_DIGEST_BYTES).digest())

    def has(self, key: bytes) -> bool:
        """Whether an entry is of the session."""
        kind = key[:1]
        if kind == HELD:
            return key[1 : 1 + _DIGEST_BYTES] == self.digest
        if kind == AGENDA:
            return key[_DEADLINE_END:] == self.digest
        return key in (self.session, CLOCK + self.session) or key.startswith(make_session_prefix(self.session))


class ErasedState(msgspec.Struct, frozen=True):
    """The state of one partition without a session.

    Attributes:
        segment: Its new base; None if nothing is left.
        entries: Entries that were erased.
    """

    segment: SegmentRef | None
    entries: int


def count_entries(folder: Path, version: StateVersion, keys: StateKeys) -> int:
    """Entries of a session in the state of a partition. Raises StateDamaged."""
    return sum(map(keys.has, read_entries(folder, version)[1]))


def write_without(folder: Path, label: str, states: list[tuple[StateVersion, StateKeys | None]]) -> list[ErasedState]:
    """Write the states of partitions as new bases, all in one file, synced; read each back and compare it.

    Args:
        folder: Folder of the stream's state.
        label: Names the batch that writes it.
        states: The states, each with the entries to leave out; None for nothing.

    Raises:
        StateDamaged: A file cannot be read, or the new file differs; it is removed.
    """
    written: list[tuple[StateVersion, ErasedState, bytes]] = []
    with StateFileWriter.open(folder, label) as writer:
        for version, keys in states:
            header, entries = read_entries(folder, version)
            others = {key: entries[key] for key in sorted(entries) if keys is None or not keys.has(key)}
            added = add_base(writer, version, header, others)
            segment = None if added is None else added[0]
            written.append((version, ErasedState(segment, len(entries) - len(others)), _digest(others)))
    # After the file is closed: what is read is what is on disk.
    for version, erased, digest in written:
        after = msgspec.structs.replace(version, segment=erased.segment)
        if _digest(read_entries(folder, after)[1]) != digest:
            find_storage(folder).delete(folder / writer.name)
            raise StateDamaged(writer.name, f"the other entries of the {version}", "others; nothing was committed")
    return [erased for _, erased, _ in written]


def _digest(entries: dict[bytes, bytes]) -> bytes:
    hashed = blake2b()
    for key in sorted(entries):
        value = entries[key]
        hashed.update(len(key).to_bytes(4, "big") + key + len(value).to_bytes(8, "big") + value)
    return hashed.digest()
