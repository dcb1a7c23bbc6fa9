"""The state of one partition while one range is folded: loaded lazily, changes found, saved."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Generic, Self

import msgspec

from lockstep.state.address import StateAddress, moved
from lockstep.state.durable import StateFileWriter
from lockstep.state.healing import HealingCopy
from lockstep.state.hot import HotCopy
from lockstep.state.hotfolder import HotFolder
from lockstep.state.recover import Recovered
from lockstep.state.reserved import Reserved
from lockstep.state.rowstore import RowStore
from lockstep.state.schema import S, StateNotOfItsType, StateSchema
from lockstep.state.section import Change, SectionHeader
from lockstep.state.stored import Stored
from lockstep.state.translation import Translation
from lockstep.state.writing import Changes, SectionWriting, Written


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


class PartitionState(Generic[S]):
    """The state behind one address, for one range.

    The fold asks `entries` first and `load` for what is not there:
    `entry = entries.get(session) or state.load(session)`; a new session is put into `entries`.
    An entry may be used until the next `load`, of this or another partition of the task: there, when
    more is decoded than the task's memory is for, entries move to the local disk.
    Afterwards, in this order: `write`, the writer's `close`, `keep`.

    Attributes:
        address: The state this was opened with.
        entries: The sessions touched so far, but for those that moved to the local disk.
        reserved: Entries beside those of sessions: what is held back, and what is due.
    """

    def __init__(self, address: StateAddress, durable: Path, hot: HotFolder, schema: StateSchema[S]) -> None:
        self.address = address
        self.entries: dict[str, Entry[S]] = {}
        self._removed: set[str] = set()
        self._migrated: set[str] = set()
        self._schema, self._budget = schema, hot.budget
        self._copy = HealingCopy(address, durable, hot, schema)
        self._entries = Stored(address, self._copy, hot)
        self._rows = RowStore(schema.tables, self._entries)
        self.reserved = Reserved(self._entries.get, self._entries.reserved)
        self._written: Written | None = None
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
        self._budget.keep()
        stored = None if session in self._removed else self._stored(session)
        self._budget.note(self, len(stored or b""))
        if stored is None:
            return None
        key = _key(session)
        today = self._translated().today(session, stored, lambda name, shape: self._rows.old_rows(key, name, shape))
        gate, state = self._schema.decode(session, today.value)
        if today.migrated is not None:
            self._migrated.add(session)
            self._schema.put_tables(state, today.migrated.state)
        elif self._schema.tables:
            self._rows.bind(key, state)
        entry = self.entries[session] = Entry(gate, state, stored)
        return entry

    def remove(self, session: str) -> None:
        """Remove a session: it is unknown from now on."""
        self.entries.pop(session, None)
        if self._stored(session) is not None:
            self._removed.add(session)

    def forget_changes(self) -> None:
        """Undo everything since the state was opened, to fold the range again up to a violation."""
        self._forget()
        self.reserved.forget()
        self._entries.forget()

    def spill(self) -> None:
        """Move the sessions that changed to the local disk and forget all; they are loaded again when asked for."""
        self._entries.spill(self._changed_sessions())
        self._forget()

    def changed(self) -> list[Change]:
        """What is in memory and differs from what was stored or spilled; removed sessions and rows with None.

        Raises:
            StateNotOfItsType: A state holds something its type cannot carry.
        """
        return [*self._changed_sessions(), *self.reserved.changes()]

    def _changed_sessions(self) -> list[Change]:
        if not self.entries and not self._removed:
            return []
        encode, typed = self._schema.encode, self._translated()
        changes: list[Change] = []
        for session, entry in self.entries.items():
            value = typed.mark + encode(session, entry.gate, entry.state)
            if value != entry.stored:
                changes.append((_key(session), value))
            if typed.has_tables:
                changes += self._row_changes(session, entry, typed.mark)
        for session in sorted(self._removed - self.entries.keys()):
            changes.append((_key(session), None))
            if typed.has_tables:
                changes += self._rows.removals(_key(session))
        return changes

    def write(self, writer: StateFileWriter, next_offset: int) -> StateAddress:
        """Add what changed to the batch's state file and give the address of the new state.

        Args:
            writer: The file of this task and batch.
            next_offset: Where the folded range ended.
        """
        changes: Changes = (in_memory := self.changed())
        if self._entries.scratch is not None:
            self._entries.spill(in_memory)
            changes = self._entries.scratch
        elif not in_memory:
            return moved(self.address, next_offset, self.address.section)
        writing = SectionWriting(self.address, self._schema, self._copy, self._entries)
        self._written = writing.write(changes, writer, next_offset, self._head())
        return moved(self.address, next_offset, self._written.stamp.section)

    def keep(self) -> None:
        """Bring the hot copy to what was written; only once the durable file is on disk."""
        if self._written is None:
            return
        if not self._written.writer.is_durable:
            raise RuntimeError("keep() before the writer's close(): the stamp would name a file that may be lost")
        if not self._written.is_rebased:
            self._copy.advance(self._written.changes, self._written.stamp)

    def close(self) -> None:
        """Let go of the hot copy and of what was spilled. May be called again."""
        self._budget.release(self)
        self._entries.forget()
        self._copy.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _stored(self, session: str) -> bytes | None:
        return self._entries.get(_key(session))

    def _forget(self) -> None:
        self.entries.clear()
        self._removed.clear()
        self._migrated.clear()
        self._budget.release(self)

    def _row_changes(self, session: str, entry: Entry[S], mark: bytes) -> Iterator[Change]:
        try:
            yield from self._rows.changes(_key(session), entry.state, mark, is_migrated=session in self._migrated)
        except (TypeError, ValueError, OverflowError) as error:
            step = "mend the fold; nothing of this batch was committed, the next start folds it again"
            raise StateNotOfItsType(session, str(error), next_step=step) from error

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


def _key(session: str) -> bytes:
    # A session is any string a fold makes of a message, lone surrogates included.
    return session.encode("utf-8", "surrogatepass")
