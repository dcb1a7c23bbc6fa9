"""The state of one partition while one range is folded: loaded lazily, changes found, saved."""

from __future__ import annotations

from itertools import chain as chain_iterables
from pathlib import Path
from types import TracebackType
from typing import Generic, Self

import msgspec

from lockstep.state.address import StateAddress, moved
from lockstep.state.chain import appended, base_is_due
from lockstep.state.durable import StateFileWriter
from lockstep.state.healing import HealingCopy
from lockstep.state.hot import HotCopy
from lockstep.state.hotfolder import HotFolder
from lockstep.state.recover import Recovered, Stamp
from lockstep.state.reserved import Reserved
from lockstep.state.schema import S, StateSchema
from lockstep.state.section import Change, Packed, SectionHeader, change_bytes
from lockstep.state.translation import Translation
from lockstep.state.versions import Rebased


class Entry(msgspec.Struct, Generic[S]):
    """One session's state in memory. The fold changes `gate` and `state` in place or replaces them.

    Attributes:
        gate: What the integrity gate keeps of the session: any small value msgpack can carry.
        state: The user's state.
        stored: The bytes it was decoded from; None for a session opened in this range.
    """

    gate: object
    state: S
    stored: bytes | None = None


class _Written(msgspec.Struct, frozen=True):
    """What went into the durable file and waits to go into the hot copy."""

    writer: StateFileWriter
    changes: list[Change]
    stamp: Stamp
    is_rebased: bool = False


class PartitionState(Generic[S]):
    """The state behind one address, for one range.

    The fold asks `entries` first and `load` for what is not there:
    `entry = entries.get(session) or state.load(session)`; a new session is put into `entries`.
    Afterwards, in this order: `write`, the writer's `close`, `keep`.

    Attributes:
        address: The state this was opened with.
        entries: The sessions touched so far.
        reserved: Entries beside those of sessions: what is held back, and what is due.
    """

    def __init__(self, address: StateAddress, durable: Path, hot: HotFolder, schema: StateSchema[S]) -> None:
        self.address = address
        self.entries: dict[str, Entry[S]] = {}
        self._removed: set[str] = set()
        self._schema = schema
        self._copy = HealingCopy(address, durable, hot, schema)
        self._written: _Written | None = None
        self.reserved = Reserved(self._stored_value, self._scan)
        self._translation: Translation[S] | None = None

    @classmethod
    def open(cls, address: StateAddress, *, durable: Path, hot: HotFolder, schema: StateSchema[S]) -> PartitionState[S]:
        """The state of `address`. Nothing is read before a session is asked for.

        Args:
            address: The state that the plan names.
            durable: The stream's folder of durable state files.
            hot: Where this machine keeps hot copies of the stream.
            schema: The state type.
        """
        return cls(address, durable, hot, schema)

    @property
    def recovered(self) -> Recovered | None:
        """How the hot copy came to the state; None as long as it was not needed."""
        return self._copy.recovered

    def load(self, session: str) -> Entry[S] | None:
        """Decode a session's stored state into `entries`; None when it has none.

        Raises:
            StateError: The stored state is missing, damaged, of another type, or its migration failed.
            EnvironmentProblem: The local disk cannot hold the hot copy.
        """
        stored = None if session in self._removed else self._stored(session)
        if stored is None:
            return None
        gate, state = self._schema.decode(session, self._translated().today(session, stored))
        entry = self.entries[session] = Entry(gate, state, stored)
        return entry

    def remove(self, session: str) -> None:
        """Remove a session: it is unknown from now on."""
        self.entries.pop(session, None)
        if self._stored(session) is not None:
            self._removed.add(session)

    def forget_changes(self) -> None:
        """Undo everything since the state was opened, to fold the range again up to a violation."""
        self.entries.clear()
        self._removed.clear()
        self.reserved.forget()

    def changed(self) -> list[Change]:
        """Sessions whose encoded state differs from what was stored, and removed ones with None.

        Raises:
            StateNotOfItsType: A state holds something its type cannot carry.
        """
        encode, mark = self._schema.encode, self._translated().mark if self.entries else b""
        changes: list[Change] = []
        for session, entry in self.entries.items():
            value = mark + encode(session, entry.gate, entry.state)
            if value != entry.stored:
                changes.append((_key(session), value))
        gone = sorted(self._removed - self.entries.keys())
        return [*changes, *((_key(session), None) for session in gone), *self.reserved.changes()]

    def write(self, writer: StateFileWriter, next_offset: int) -> StateAddress:
        """Add what changed to the batch's state file and give the address of the new state.

        Args:
            writer: The file of this task and batch.
            next_offset: Where the folded range ended.
        """
        changes = self.changed()
        if not changes:
            return moved(self.address, next_offset, self.address.section)
        rebased = self._translated().rebased()
        header, packed = self._section(changes, writer, next_offset, rebased)
        ref = writer.add(header, packed)
        self._written = _Written(writer, changes, Stamp(ref, header), is_rebased=header.is_base and rebased.is_other)
        return moved(self.address, next_offset, ref)

    def keep(self) -> None:
        """Bring the hot copy to what was written; only once the durable file is on disk."""
        if self._written is None:
            return
        if not self._written.writer.is_durable:
            raise RuntimeError("keep() before the writer's close(): the stamp would name a file that may be lost")
        if not self._written.is_rebased:  # else the base has other bytes for the same state: the copy is made from it
            self._copy.advance(self._written.changes, self._written.stamp)

    def close(self) -> None:
        """Let go of the hot copy. May be called again."""
        self._copy.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _stored(self, session: str) -> bytes | None:
        return self._stored_value(_key(session))

    def _scan(self, prefix: bytes, after: bytes, most: int) -> list[tuple[bytes, bytes]]:
        return [] if self.address.section is None else self._copy.use(lambda copy: copy.scan(prefix, after, most))

    def _stored_value(self, key: bytes) -> bytes | None:
        return None if self.address.section is None else self._copy.use(lambda copy: copy.get(key))

    def _section(
        self, changes: list[Change], writer: StateFileWriter, next_offset: int, rebased: Rebased
    ) -> tuple[SectionHeader, Packed]:
        """Header and entries of the next section: a state base when one is due, else a delta."""
        head, address = self._head(), self.address
        due = head is None or base_is_due(head, sum(map(change_bytes, changes)))
        packed = self._whole(changes, writer, rebased) if due else writer.pack(changes)
        fresh = SectionHeader(
            generation=address.generation,
            topic_id=address.topic_id,
            partition=address.partition,
            next_offset=next_offset,
            chain=(),
            shape_hash=self._schema.hash,
            shape=self._schema.shape,
            base_bytes=packed.size,
            delta_bytes=0,
            entries=packed.entries,
            older=rebased.older,
        )
        if head is None or address.section is None or due:
            return fresh, packed
        typed = self._translated()
        mixed = msgspec.structs.replace(fresh, plain=typed.plain, older=typed.older)
        return appended(mixed, head, address.section), packed

    def _translated(self) -> Translation[S]:
        """How the values of this partition are read and written."""
        if self._translation is None:
            self._translation = Translation(self._schema, self._head())
        return self._translation

    def _head(self) -> SectionHeader | None:
        """The header of the section that the address names."""
        if self.address.section is None:
            return None
        self._copy.use(HotCopy.stamp)
        return self._copy.recovered.header if self._copy.recovered else None

    def _whole(self, changes: list[Change], writer: StateFileWriter, rebased: Rebased) -> Packed:
        """The full new state: what is stored and was not changed, then what was."""
        kept = [change for change in changes if change[1] is not None]
        if self.address.section is None:
            return writer.pack(rebased.carry(kept))
        changed = [session for session, _ in changes]
        return self._copy.use(
            lambda copy: writer.pack(rebased.carry(chain_iterables(copy.items(without=changed), kept)))
        )


def _key(session: str) -> bytes:
    # A session is any string a fold makes of a message, lone surrogates included.
    return session.encode("utf-8", "surrogatepass")
