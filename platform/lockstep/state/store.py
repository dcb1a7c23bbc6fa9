"""PartitionState: load, track changes, flush; overflow to disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, filterfalse
from pathlib import Path
from types import TracebackType
from typing import Final, Generic, Self, TypeVar, cast

import msgspec

from lockstep.model.position import SegmentRef, TopicIdPartition
from lockstep.state.changelog import (
    MERGED_MAX,
    CompressedBlocks,
    SegmentHeader,
    StateDamaged,
    StateFileWriter,
    StateVersion,
    advance,
    append_to_chain,
    count_change_bytes,
    count_merged,
    is_base_due,
    read_header,
)
from lockstep.state.codec import MigrationFailed, S, StateMigrator, StateNotOfItsType, StateSchema, make_encoding_error
from lockstep.state.decoded_sessions import DecodedSessions, SessionEntry
from lockstep.state.entry_order import (
    PREFIX_REMOVED,
    Change,
    find_prefixes,
    is_prefix_removal,
    is_removed,
    make_prefix_removal,
    sort_changes,
    split_changes,
    to_prefix,
)
from lockstep.state.local_store import LocalStore, LocalStoreCorrupt
from lockstep.state.local_store_pool import LocalStorePool
from lockstep.state.merging import merge_changes
from lockstep.state.restore import LocalStateUnusable, Restored, SelfHealingStore, StoreVersion
from lockstep.state.segment_reader import SegmentReader
from lockstep.state.timers import AGENDA, CLOCK, SystemEntries
from lockstep.state.values import BaseRewriter, MapStateStore, is_session

_PUT = b"+"
_REMOVED = b"-"


class NotSpilled:
    """Marks an entry that is not in the scratch file."""


UNTOUCHED: Final = NotSpilled()


class SpillStore:
    """Changed entries, the newest of each key, in the order of keys. Private to the task, and not durable.

    Attributes:
        size: Bytes of all changes before compression.
    """

    def __init__(self, store: LocalStore) -> None:
        """Use an empty private store."""
        self._store = store
        self._removes_prefixes = False
        self.size = 0

    def put(self, changes: Sequence[Change]) -> None:
        """Record changes, replacing earlier changes of the same keys."""
        removals, _ = split_changes(changes)
        self._removes_prefixes |= len(removals) > 0
        for removal in removals:
            self.size -= sum(map(count_change_bytes, self.scan(to_prefix(removal))))
            self._store.apply([removal], None)
        for key, _ in changes:
            spilled = self._store.get(key)
            if spilled is not None:
                self.size -= count_change_bytes((key, _value(spilled)))
        self.size += sum(map(count_change_bytes, changes))
        encoded = [(key, _REMOVED if value is None else _PUT + value) for key, value in changes]
        self._store.apply(encoded, None)

    def get(self, key: bytes) -> bytes | NotSpilled | None:
        """The newest value of a key; None when it was removed."""
        spilled = self._store.get(key)
        if spilled is not None:
            return _value(spilled)
        return None if self.removes(key) else UNTOUCHED

    def removes(self, key: bytes) -> bool:
        """Whether a prefix of the key, or of a longer prefix, was removed."""
        return self._removes_prefixes and any(self._has_removal(prefix) for prefix in find_prefixes(key))

    def _has_removal(self, prefix: bytes) -> bool:
        return self._store.get(make_prefix_removal(prefix)[0]) is not None

    def scan(self, prefix: bytes) -> Iterator[Change]:
        """The changes of all keys with a prefix."""
        return ((key, _value(spilled)) for key, spilled in self._store.scan_all(prefix))

    def __iter__(self) -> Iterator[Change]:
        """All changes, in their order."""
        changes = ((key, _value(spilled)) for key, spilled in self._store.items())
        if not self._removes_prefixes:
            return changes
        # In the store they are among the others; in the order of changes they are the first.
        return chain(self.scan(PREFIX_REMOVED), filterfalse(is_prefix_removal, changes))

    def close(self) -> None:
        """Delete the file. May be called again."""
        self._store.close()


def _apply_spilled(
    stored: Iterable[tuple[bytes, bytes]], scratch: SpillStore, prefix: bytes
) -> list[tuple[bytes, bytes]]:
    """Stored entries with keys of a prefix, after the spilled changes."""
    removed = {to_prefix(removal) for removal in scratch.scan(PREFIX_REMOVED + prefix)}
    entries: dict[bytes, bytes | None] = {}
    if not scratch.removes(prefix):
        entries = {key: value for key, value in stored if not is_removed(key, removed)}
    entries.update(scratch.scan(prefix))
    return [(key, value) for key, value in entries.items() if value is not None]


def _value(spilled: bytes) -> bytes | None:
    return spilled[1:] if spilled[:1] == _PUT else None


T = TypeVar("T")


class EntryReader(Generic[S]):
    """The entries of one version, with the spilled changes of one range.

    Attributes:
        scratch: The spilled changes; None before the first.
    """

    def __init__(self, version: StateVersion, store: SelfHealingStore[S], local_stores: LocalStorePool) -> None:
        self._version = version
        self._store = store
        self._local_stores = local_stores
        self.scratch: SpillStore | None = None

    def get(self, key: bytes) -> bytes | None:
        """The value of an entry; None without one.

        Raises:
            StateError: The durable state is missing, damaged or of another type.
            LocalStateUnusable: The local disk cannot hold the state.
        """
        if self.scratch is not None:
            spilled = self._local(lambda scratch: scratch.get(key))
            if not isinstance(spilled, NotSpilled):
                return spilled
        if self._version.segment is None:
            return None
        return self._store.get(key)

    def scan(self, prefix: bytes) -> Iterable[tuple[bytes, bytes]]:
        """All entries by key prefix. Raises as `get` does."""
        stored: Iterable[tuple[bytes, bytes]] = ()
        if self._version.segment is not None:
            stored = self._store.use(lambda store: store.scan_all(prefix))
        if self.scratch is None:
            return stored
        return self._local(lambda scratch: _apply_spilled(stored, scratch, prefix))

    def reduce(self, compute: Callable[[Iterable[tuple[bytes, bytes]]], T]) -> T:
        """A result of all entries; computed again if the local store is found damaged. Raises as `get` does."""
        changes: Iterable[Change] = () if self.scratch is None else self.scratch
        if self._version.segment is None:
            return compute((key, value) for key, value in changes if value is not None)
        return self._store.use(lambda store: compute(store.items(changes)))

    def reserved(self, prefix: bytes, after: bytes, most: int) -> list[tuple[bytes, bytes]]:
        """System entries in order, of which nothing is spilled before the range ends. Raises as `get` does."""
        if self._version.segment is None:
            return []
        return self._store.use(lambda store: store.scan(prefix, after, most))

    def spill(self, changes: Sequence[Change]) -> None:
        """Put changes on top of the stored entries. Raises LocalStateUnusable."""
        self._local(lambda scratch: scratch.put(changes))

    def forget(self) -> None:
        """Discard spilled changes. May be called again."""
        if self.scratch is not None:
            self.scratch.close()
            self.scratch = None

    def _local(self, action: Callable[[SpillStore], T]) -> T:
        try:
            if self.scratch is None:
                self.scratch = SpillStore(self._local_stores.private())
            return action(self.scratch)
        except LocalStoreCorrupt as error:
            raise LocalStateUnusable(self._version, str(error)) from error


Changes = Sequence[Change] | SpillStore
"""Changes of a range, in the order of the local store: in memory, or spilled."""


class PendingSegment(msgspec.Struct, frozen=True):
    """A segment in the durable file that is not yet in the local store.

    Attributes:
        writer: The file.
        changes: The changes.
        stamp: The local store's stamp after them.
        is_rewritten: The segment has other bytes for values in the local store, too: rebuild it from the segment.
    """

    writer: StateFileWriter
    changes: Changes
    stamp: StoreVersion
    is_rewritten: bool


class MergedDeltas(msgspec.Struct, frozen=True):
    """The newest deltas of a chain as one delta; the fields are those of its header.

    Attributes:
        packed: Its entries.
    """

    packed: CompressedBlocks
    chain: tuple[SegmentRef, ...]
    levels: tuple[int, ...]
    level: int
    base_bytes: int
    delta_bytes: int
    merged: tuple[SegmentRef, ...]

    def complete(self, header: SegmentHeader) -> SegmentHeader:
        """The header with these fields."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__ if name != "packed"}
        return msgspec.structs.replace(header, **fields)


class SegmentWriter(Generic[S]):
    """Writes the segment that follows the one of a version."""

    def __init__(self, version: StateVersion, schema: StateSchema[S], store: SelfHealingStore[S]) -> None:
        self._version = version
        self._schema = schema
        self._store = store

    def write(
        self, changes: Changes, writer: StateFileWriter, next_offset: int, head: SegmentHeader | None
    ) -> PendingSegment:
        """Add the next segment to the file of a task and batch.

        Args:
            changes: The changes of the range.
            writer: The file.
            next_offset: The end of the range.
            head: Header of the segment of the version.
        """
        migrator = StateMigrator(self._schema, head)
        segment = self._version.segment
        if head is None or segment is None or is_base_due(head, _count_bytes(changes)):
            return self._write_base(changes, writer, next_offset, migrator)
        merged: MergedDeltas | None = None
        count = count_merged(head)
        if count:
            try:
                merged = self._merge(changes, writer, head, count)
            except StateDamaged:  # the local store has the state without these files
                return self._write_base(changes, writer, next_offset, migrator)
        packed = writer.pack(changes) if merged is None else merged.packed
        delta = msgspec.structs.replace(self._header(packed, next_offset), plain=migrator.plain, older=migrator.older)
        header = append_to_chain(delta, head, segment) if merged is None else merged.complete(delta)
        return PendingSegment(writer, changes, StoreVersion(writer.add(header, packed), header), is_rewritten=False)

    def _write_base(
        self, changes: Changes, writer: StateFileWriter, next_offset: int, migrator: StateMigrator[S]
    ) -> PendingSegment:
        """Add a segment with the full new state."""
        rewriter = migrator.make_rewriter()
        packed = self._whole(changes, writer, rewriter)
        header = msgspec.structs.replace(self._header(packed, next_offset), older=rewriter.older)
        return PendingSegment(writer, changes, StoreVersion(writer.add(header, packed), header), rewriter.is_other)

    def _merge(self, changes: Changes, writer: StateFileWriter, head: SegmentHeader, count: int) -> MergedDeltas:
        """The newest deltas of the chain and the changes of the range, as one delta. Raises StateDamaged."""
        refs = (*head.chain, self._version.segment)
        levels = (*head.levels, head.level)
        first = len(refs) - count
        durable = self._store.durable
        readers = [SegmentReader(durable, ref, self._version) for ref in refs[first:] if ref is not None]
        streams = [reader.entries() for reader in readers]
        packed = writer.pack(merge_changes([*streams, changes]))
        merged = list[SegmentRef]()
        for reader in readers:
            merged += [*reader.header.merged, reader.ref]
        return MergedDeltas(
            packed,
            chain=head.chain[:first],
            levels=levels[:first],
            level=1 + max(levels[first:]),
            base_bytes=head.base_bytes,
            delta_bytes=read_header(durable, head.chain[first - 1]).delta_bytes + packed.size,
            merged=tuple(merged[-MERGED_MAX:]),
        )

    def _header(self, packed: CompressedBlocks, next_offset: int) -> SegmentHeader:
        version = self._version
        return SegmentHeader(
            generation=version.generation,
            topic_id=version.topic_id,
            partition=version.partition,
            next_offset=next_offset,
            chain=(),
            shape_hash=self._schema.hash,
            shape=self._schema.shape,
            base_bytes=packed.size,
            delta_bytes=0,
            entries=packed.entries,
            buffers=self._schema.buffers,
        )

    def _whole(self, changes: Changes, writer: StateFileWriter, rewriter: BaseRewriter) -> CompressedBlocks:
        """The full new state."""
        if self._version.segment is None:
            return writer.pack(rewriter.carry(change for change in changes if change[1] is not None))
        return self._store.use(lambda store: writer.pack(rewriter.carry(store.items(changes))))


def _count_bytes(changes: Changes) -> int:
    if isinstance(changes, SpillStore):
        return changes.size
    return sum(map(count_change_bytes, changes))


class PartitionState(Generic[S]):
    """The state of one version, for one range.

    The fold reads `entries` first and calls `load` for missing sessions:
    `entry = entries.get(session) or state.load(session)`; a new session is put into `entries`.
    An entry may be used until the next `load`, of this or another partition of the task: there, when
    the task's memory budget is exceeded, entries move to the local disk.
    Afterwards, in this order: `write`, the writer's `close`, `publish_local`.

    Attributes:
        version: The version this was opened with.
        entries: The sessions touched so far, except those that moved to the local disk.
        reserved: System entries: buffered messages and timers.
        write_back: Brings `entries` up to date; set by a fold that keeps values elsewhere.
    """

    def __init__(
        self, version: StateVersion, durable: Path, local_stores: LocalStorePool, schema: StateSchema[S]
    ) -> None:
        self.version = version
        self.entries: dict[str, SessionEntry[S]] = {}
        self._removed: set[str] = set()
        self._migrated: set[str] = set()
        self._schema = schema
        self._budget = local_stores.budget
        self._store = SelfHealingStore(version, durable, local_stores, schema)
        self._entries = EntryReader(version, self._store, local_stores)
        self._rows = MapStateStore(schema.tables, self._entries)
        self.reserved = SystemEntries(self._entries.get, self._entries.reserved)
        self._durable = durable
        self._local_stores = local_stores
        self._decoded: DecodedSessions[S] | None = None
        self._written: PendingSegment | None = None
        self._encoded: list[tuple[SessionEntry[S], bytes]] = []
        self._migrator: StateMigrator[S] | None = None
        self.write_back: Callable[[], None] = _do_nothing

    @classmethod
    def open(
        cls, version: StateVersion, *, durable: Path, local_stores: LocalStorePool, schema: StateSchema[S]
    ) -> PartitionState[S]:
        """The state of `version`. Nothing is read before the first session is loaded.

        Args:
            version: The version in the plan.
            durable: The stream's folder of durable state files.
            local_stores: The local stores of the stream on this machine.
            schema: The state type.
        """
        return cls(version, durable, local_stores, schema)

    @property
    def restored(self) -> Restored | None:
        """How the local store reached the state; None before its first use."""
        return self._store.restored

    def load(self, session: str) -> SessionEntry[S] | None:
        """Decode a session's stored state into `entries`; None when it has none.

        Raises:
            StateError: The stored state is missing, damaged, of another type, or its migration failed.
            EnvironmentProblem: The local disk cannot store the local store.
        """
        rows_bytes = self._rows.reads.take()
        if rows_bytes:
            self._budget.note_memory(self, rows_bytes)
        self._budget.enforce()  # here no entry is in use: the fold asks between messages
        sessions = self.find_decoded() if self._decoded is None else self._decoded
        decoded = sessions.take(session)
        if decoded is not None:
            if self._schema.tables:
                self._rows.take(_key(session), decoded.state)
            self.entries[session] = decoded
            return decoded
        key = _key(session)
        stored = None if session in self._removed else self._entries.get(key)
        if stored is None:  # a new session takes room, too
            self._budget.note(self, 0)
            return None
        self._budget.note(self, len(stored))
        entry, is_migrated = self._decode(session, key, stored)
        if is_migrated:
            self._migrated.add(session)
        self.entries[session] = entry
        return entry

    def _decode(self, session: str, key: bytes, stored: bytes) -> tuple[SessionEntry[S], bool]:
        """Decode a session, and whether `migrate` made its state."""
        if not self._schema.tables and self._find_migrator().is_plain:
            gate, state = self._schema.decode(session, stored)
            return SessionEntry(gate, state, stored), False
        current = self._find_migrator().migrate(
            session, stored, lambda name, shape: self._rows.old_rows(key, name, shape)
        )
        gate, state = self._schema.decode(session, current.value)
        if current.migrated is not None:
            return SessionEntry(gate, cast("S", current.migrated.state), stored), True
        if self._schema.tables:
            self._rows.bind(key, state)
        return SessionEntry(gate, state, stored), False

    def reduce_sessions(self, compute: Callable[[Iterable[SessionEntry[S] | MigrationFailed]], T]) -> T:
        """A result of all sessions as they are now, for example a count.

        Args:
            compute: Computes it, and changes nothing; called again if the local store is found damaged. A session
                whose state cannot be migrated is the error.

        Raises:
            StateError: The stored state is missing, damaged or of another type.
            EnvironmentProblem: The local disk cannot store the local store.
        """
        self.write_back()
        return self._entries.reduce(lambda stored: compute(chain(self.entries.values(), self._decode_others(stored))))

    def _decode_others(self, stored: Iterable[tuple[bytes, bytes]]) -> Iterator[SessionEntry[S] | MigrationFailed]:
        """The sessions that are not in memory, one by one."""
        for key, value in stored:
            if not is_session(key):
                continue
            session = key.decode("utf-8", "surrogatepass")
            if session in self.entries or session in self._removed:
                continue
            try:
                yield self._decode(session, key, value)[0]
            except MigrationFailed as error:
                yield error

    def find_decoded(self) -> DecodedSessions[S]:
        """The sessions that are decoded since an earlier batch, as far as the local store still has their state."""
        if self._decoded is None:
            cached = self._local_stores.decoded.take(self._durable, self.version, self._schema)
            # They are part of a local store: without one that has this segment they prove nothing.
            is_current = len(cached) > 0 and self._head() is not None and self._store.is_current
            self._decoded = cached if is_current else DecodedSessions()
            self._budget.note_memory(self, self._decoded.memory_bytes)
        return self._decoded

    def remove(self, session: str) -> None:
        """Remove a session: it is unknown afterwards."""
        self.find_decoded().take(session)
        self.entries.pop(session, None)
        if self._stored(session) is not None:
            self._removed.add(session)

    def forget_timers(self) -> None:
        """Forget all clocks and timers: a declaration without them lets them grow old. Costs two reads without any."""
        for prefix in (AGENDA, CLOCK):
            if next(self.reserved.stored_from(prefix), None) is not None:
                for key, _ in self._entries.scan(prefix):
                    self.reserved.remove(key)

    def spill(self) -> None:
        """Move changed sessions to the local disk and discard all; they are loaded again on demand."""
        self.write_back()
        self._entries.spill(self._changed_sessions())
        self._forget()

    def changed(self) -> list[Change]:
        """Entries in memory that differ from the stored or spilled ones; removed sessions and rows with None.

        Raises:
            StateNotOfItsType: A state contains a value that its type cannot hold; names all sessions with such values.
        """
        return [*self._changed_sessions(), *self.reserved.changes()]

    def check_storable(self, session: str) -> int:
        """Refuse the state of a session in memory that cannot be stored; returns the bytes that it encoded for that.

        Raises:
            StateNotOfItsType: It contains a value that its type cannot hold.
        """
        entry = self.entries.get(session)
        if entry is None:
            return 0
        try:
            encoded = self._schema.encode(session, entry.gate, entry.state)
            self._schema.examine(session, entry.state)
            rows = self._row_changes(session, entry, b"") if self._schema.tables else ()
            return len(encoded) + sum(len(value or b"") for _, value in rows)
        except StateNotOfItsType as error:
            self._name_sessions(error, frozenset((session,)))
            raise

    def _changed_sessions(self) -> list[Change]:
        try:
            return self._encode_sessions()
        except StateNotOfItsType as error:
            self._name_sessions(error, frozenset(filterfalse(self._is_storable, self.entries)))
            raise

    def _name_sessions(self, error: StateNotOfItsType, sessions: frozenset[str]) -> None:
        if error.is_of_value:
            error.partition = TopicIdPartition(self.version.topic_id, self.version.partition)
            error.sessions = sessions

    def _is_storable(self, session: str) -> bool:
        try:
            self.check_storable(session)
        except StateNotOfItsType as error:
            return not error.is_of_value
        return True

    def _encode_sessions(self) -> list[Change]:
        self._encoded.clear()
        if not self.entries and not self._removed:
            return []
        encode = self._schema.encode
        examine = self._schema.examine_some
        migrator = self._find_migrator()
        mark = migrator.mark
        has_tables = migrator.has_tables
        changes: list[Change] = []
        for session, entry in self.entries.items():
            encoded = encode(session, entry.gate, entry.state)
            examine(session, entry.state)
            value = mark + encoded
            if value != entry.stored:
                changes.append((_key(session), value))
                self._encoded.append((entry, value))
            if has_tables:
                changes += self._row_changes(session, entry, mark)
        for session in sorted(self._removed - self.entries.keys()):
            changes.append((_key(session), None))
            if has_tables:
                changes += self._rows.removals(_key(session))
        return changes

    def write(self, writer: StateFileWriter, next_offset: int) -> StateVersion:
        """Add the changes to the batch's state file and return the version of the new state.

        Args:
            writer: The file of this task and batch.
            next_offset: The end of the folded range.
        """
        in_memory = sort_changes(self.changed())
        changes: Changes = in_memory
        if self._entries.scratch is not None:
            self._entries.spill(in_memory)
            changes = self._entries.scratch
        elif not in_memory:
            return advance(self.version, next_offset, self.version.segment)
        segments = SegmentWriter(self.version, self._schema, self._store)
        self._written = segments.write(changes, writer, next_offset, self._head())
        return advance(self.version, next_offset, self._written.stamp.segment)

    def publish_local(self) -> None:
        """Bring the local store to the written state, and keep the decoded entries; once the file is durable."""
        written = self._written
        if written is None:
            self._keep_decoded(self.version.segment)
            return
        if not written.writer.is_durable:
            raise RuntimeError(
                "publish_local() before the writer's close(): the stamp would name a file that may be lost"
            )
        if written.is_rewritten:  # the local store has other bytes: the next use rebuilds it
            return
        self._store.advance(written.changes, written.stamp)
        if not isinstance(written.changes, SpillStore):
            self._keep_decoded(written.stamp.segment)

    def _keep_decoded(self, segment: SegmentRef | None) -> None:
        """Keep the sessions in memory for the next batch, as they are stored now."""
        if self._decoded is None or segment is None or self._migrated:
            return
        for entry, value in self._encoded:
            entry.stored = value
        if self._schema.tables:
            for session, entry in self.entries.items():
                entry.state, entry.rows_bytes = self._rows.keep(_key(session), entry.state)
        self._decoded.put_all(self.entries)
        self._local_stores.decoded.put(self._durable, self.version, segment, self._decoded, self._schema)

    def close(self) -> None:
        """Release the local store and the spilled changes. May be called again."""
        self._budget.release(self)
        self._entries.forget()
        self._store.close()

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
        self._decoded = DecodedSessions()
        self._removed.clear()
        self._encoded.clear()
        self._migrated.clear()
        self._rows.forget()
        self._rows.reads.take()
        self._budget.release(self)

    def _row_changes(self, session: str, entry: SessionEntry[S], mark: bytes) -> Iterator[Change]:
        try:
            yield from self._rows.changes(_key(session), entry.state, mark, is_migrated=session in self._migrated)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise make_encoding_error(session, str(error)) from error

    def _find_migrator(self) -> StateMigrator[S]:
        """Reader and writer of the values of this partition."""
        if self._migrator is None:
            self._migrator = StateMigrator(self._schema, self._head())
        return self._migrator

    def _head(self) -> SegmentHeader | None:
        """The header of the version's segment."""
        if self.version.segment is None:
            return None

        def find_header(_: object) -> SegmentHeader | None:
            restored = self._store.restored
            return None if restored is None else restored.header

        return self._store.use(find_header)  # restores the store first


def _do_nothing() -> None:
    """Entries are always up to date."""


def _key(session: str) -> bytes:
    # A session is any string a fold makes of a message, lone surrogates included.
    return session.encode("utf-8", "surrogatepass")
