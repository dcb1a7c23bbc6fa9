"""Brings the local store to a version: current, rolled forward, rebuilt, self-healed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from lockstep.errors import EnvironmentProblem, LockstepError
from lockstep.model.position import SegmentRef
from lockstep.state.chain_reader import ChainReader
from lockstep.state.changelog import (
    RestoreKind,
    RestorePlan,
    Segment,
    SegmentHeader,
    StateDamaged,
    StateVersion,
    check_header,
    iterate_blocks,
    make_place,
    read_header,
    read_segment,
    restore_plan,
)
from lockstep.state.codec import S, StateSchema
from lockstep.state.entry_order import Change
from lockstep.state.filling_store import FillingStore, StoredEntries, keep_filled
from lockstep.state.local_store import LocalStore, LocalStoreCorrupt
from lockstep.state.local_store_pool import LocalStorePool
from lockstep.state.segment_reader import SegmentReader
from lockstep.state.values import read_versions
from lockstep.storage import LocalStorage, find_storage

AHEAD_BYTES_MAX = 1024 * 1024
"""In an object store smaller segments are read before their turn, several at the same time: they are in memory."""

LATER_BYTES_MIN = 32_000_000
"""Of a chain, compressed: an empty local store of less is filled at once, in a second at most."""

T = TypeVar("T")


class StoreVersion(msgspec.Struct, frozen=True, array_like=True):
    """Stamp of a local store: the segment of its state, with its header.

    The header is stored so that the next delta can be written without reading a file.

    Attributes:
        segment: The segment.
        header: Its header.
        filled: The store has the entries before this lmdb key; None when it has all.
    """

    segment: SegmentRef
    header: SegmentHeader
    filled: bytes | None = None


class Restored(msgspec.Struct, frozen=True):
    """How a local store reached its state.

    Attributes:
        header: Header of the version's segment; None for an empty state.
        kind: Whether it was current, rolled forward or rebuilt.
        segments: Segments read from durable files.
        filled: The store has the entries before this lmdb key; None when it has all.
    """

    header: SegmentHeader | None
    kind: RestoreKind
    segments: int = 0
    filled: bytes | None = None


_ENCODER = msgspec.msgpack.Encoder()
_STAMPS = msgspec.msgpack.Decoder(StoreVersion)


def encode_stamp(stamp: StoreVersion) -> bytes:
    """The bytes of a stamp."""
    return _ENCODER.encode(stamp)


def restore_store(store: LocalStore, version: StateVersion, folder: Path, schema: StateSchema[S]) -> Restored:
    """Bring `store` to the state of `version`.

    Args:
        store: The local store, under its lock.
        version: The requested state.
        folder: The stream's folder of durable files.
        schema: The current state type.

    Raises:
        StateDamaged: A required durable file is missing or wrong.
        StateTypeChanged: The state was written with an incompatible type.
        LocalStoreCorrupt: The local store is unusable.
    """
    stamp = _stamp(store)
    if version.segment is None:
        return _emptied(store)
    if stamp is not None and stamp.segment == version.segment:
        check_header(stamp.header, str(stamp.segment), version)
        schema.accept(read_versions(stamp.header).shapes, str(stamp.segment))
        return Restored(stamp.header, RestoreKind.CURRENT, filled=stamp.filled)
    header, head = _read_head(folder, version, version.segment)
    schema.accept(read_versions(header).shapes, make_place(folder, version.segment))  # it covers the rest of the chain
    plan = _plan(stamp, version, header, folder)
    filled = None if stamp is None else stamp.filled
    if plan.kind is RestoreKind.REBUILT:
        store.reset()
        filled = b"" if _is_filled_later(folder, plan) else None
        if filled is not None:
            store.apply([], encode_stamp(StoreVersion(version.segment, header, filled)))
            return Restored(header, plan.kind, _count_segments_read(plan), filled)
    for ref, segment in _read_segments(folder, plan, head, version):
        changes = keep_filled(chain.from_iterable(segment.blocks()), filled)
        apply_stamped(store, iterate_blocks(changes), encode_stamp(StoreVersion(ref, segment.header, filled)))
    return Restored(header, plan.kind, _count_segments_read(plan), filled)


def _read_head(folder: Path, version: StateVersion, ref: SegmentRef) -> tuple[SegmentHeader, Segment | None]:
    """The header of a version's segment, and a small segment whole. Raises StateDamaged."""
    if ref.length >= AHEAD_BYTES_MAX:
        return SegmentReader(folder, ref, version).header, None
    head = read_segment(folder, ref, version)
    return head.header, head


def _is_filled_later(folder: Path, plan: RestorePlan) -> bool:
    """Whether a local store is not worth waiting for. From an object store blocks take a request each."""
    size = sum(ref.length for ref in plan.segments)
    return size > LATER_BYTES_MIN and isinstance(find_storage(folder), LocalStorage)


def _plan(stamp: StoreVersion | None, version: StateVersion, head: SegmentHeader, folder: Path) -> RestorePlan:
    """The segments to apply to a local store. Raises StateDamaged."""
    if version.segment is None:
        raise ValueError("an empty state has no segments")
    local_segment = None if stamp is None else stamp.segment
    refs = (*head.chain, version.segment)
    merged = dict[SegmentRef, tuple[SegmentRef, ...]]()
    if local_segment is not None and local_segment not in refs:  # replaced by a merged segment, or of another history
        merged[version.segment] = head.merged
        of_level = [ref for ref, level in zip(head.chain, head.levels, strict=True) if level]
        headers = find_storage(folder).map_files(partial(read_header, folder), of_level)
        for ref, header in zip(of_level, headers, strict=True):
            merged[ref] = header.merged
    return restore_plan(local_segment, refs, merged)


def _read_segments(
    folder: Path, plan: RestorePlan, head: Segment | None, version: StateVersion
) -> Iterator[tuple[SegmentRef, Segment]]:
    """The segments of a plan, in their order; a small last segment is read already. Raises as `read_segment` does."""
    small = [ref for ref in plan.segments if ref != version.segment and ref.length < AHEAD_BYTES_MAX]
    ahead = find_storage(folder).map_files(lambda ref: read_segment(folder, ref, version), small)
    for ref in plan.segments:
        if ref == version.segment and head is not None:
            yield ref, head
        elif ref.length < AHEAD_BYTES_MAX:
            yield ref, next(ahead)
        else:  # large ones in their turn: only one is in memory
            yield ref, read_segment(folder, ref, version)


def _stamp(store: LocalStore) -> StoreVersion | None:
    """The stamp of a local store; None without a readable one."""
    stamped = store.stamp()
    if stamped is None:
        return None
    try:
        return _STAMPS.decode(stamped)
    except msgspec.MsgspecError:
        return None


def _emptied(store: LocalStore) -> Restored:
    if store.is_empty():
        return Restored(None, RestoreKind.CURRENT)
    store.reset()
    return Restored(None, RestoreKind.REBUILT)


def apply_stamped(store: LocalStore, blocks: Iterable[list[Change]], stamp: bytes) -> None:
    """Apply changes block by block, stamped in the last transaction: an interrupted store has no stamp."""
    waiting = None
    for block in blocks:
        if waiting is not None:
            store.apply(waiting, None)
        waiting = block
    store.apply(waiting or [], stamp)


def _count_segments_read(plan: RestorePlan) -> int:
    return max(1, len(plan.segments))


class LocalStateUnusable(EnvironmentProblem):
    """The local disk can store neither the local store nor a rebuilt one; usually it is full.

    Attributes:
        topic_id: Kafka's topic id.
        partition: Partition number.
        next_offset: The state is that of all offsets before this offset; they are committed.
        reason: The error text of lmdb or the system.
    """

    def __init__(self, version: StateVersion, reason: str) -> None:
        super().__init__(
            f"no local copy of the {version} can be made: {reason}",
            next_step="free space on the local disk or set another `local_root`; nothing committed is lost",
        )
        self.topic_id = version.topic_id
        self.partition = version.partition
        self.next_offset = version.next_offset
        self.reason = reason


class SelfHealingStore(Generic[S]):
    """Uses a local store and rebuilds it, once, when a use finds it damaged.

    Attributes:
        restored: How the store last reached the version's state; None before its first use.
        durable: Folder of the durable files.
    """

    def __init__(
        self, version: StateVersion, durable: Path, local_stores: LocalStorePool, schema: StateSchema[S]
    ) -> None:
        self.restored: Restored | None = None
        self._version = version
        self.durable = durable
        self._local_stores = local_stores
        self._schema = schema
        self._store: LocalStore | None = None
        self._filling: FillingStore | None = None

    @property
    def is_current(self) -> bool:
        """Whether the store was found in the version's state."""
        return self.restored is not None and self.restored.kind is RestoreKind.CURRENT

    def use(self, action: Callable[[StoredEntries], T]) -> T:
        """Run an action on the entries of the version's state.

        Raises:
            StateError: It had to be rebuilt and the durable state does not allow it.
            LocalStateUnusable: A rebuilt store was damaged, too.
        """
        try:
            return action(self._entries())
        except LocalStoreCorrupt:
            self._throw_away()
        try:
            return action(self._entries())
        except LocalStoreCorrupt as error:
            self._throw_away()
            raise LocalStateUnusable(self._version, str(error)) from error

    def get(self, key: bytes) -> bytes | None:
        """The value of an entry; None without one. Raises as `use` does."""
        if self._store is not None and self._store.is_open:
            try:
                return (self._filling or self._store).get(key)
            except LocalStoreCorrupt:
                pass  # found again below
        return self.use(lambda store: store.get(key))

    def advance(self, changes: Iterable[Change], stamp: StoreVersion) -> None:
        """Apply changes that are already in the durable file; a store that fails is discarded."""
        try:
            store = self._current()
            if not store.is_private:
                filled = self._fill()
                blocks = iterate_blocks(keep_filled(changes, filled))
                apply_stamped(store, blocks, encode_stamp(msgspec.structs.replace(stamp, filled=filled)))
        except LocalStoreCorrupt:
            self._throw_away()

    def _fill(self) -> bytes | None:
        """Put further entries into the store; the batch that found it empty does not wait for them.

        Raises:
            LocalStoreCorrupt: As the store does; or the durable files are damaged, so that it must not be used.
        """
        restored = self.restored
        filling = self._filling
        if restored is None:
            return None
        if filling is None or restored.kind is RestoreKind.REBUILT:
            return restored.filled
        try:
            return filling.fill()
        except StateDamaged as error:
            raise LocalStoreCorrupt(str(error)) from error

    def close(self) -> None:
        """Release the store. May be called again."""
        if self._store is not None:
            self._store.close()
            self._store = None

    def _current(self) -> LocalStore:
        # Another user may have advanced a store that was closed for want of handles: restore again.
        if self._store is None or not self._store.is_open:
            self._store = self._local_stores.open(self._version.topic_id, self._version.partition)
            try:
                self.restored = restore_store(self._store, self._version, self.durable, self._schema)
                self._filling = self._make_filling(self._store, self.restored)
            except LockstepError:
                self.close()  # it does not have the state, and must not be used as if it had
                raise
        return self._store

    def _entries(self) -> StoredEntries:
        store = self._current()
        return self._filling or store

    def _make_filling(self, store: LocalStore, restored: Restored) -> FillingStore | None:
        """The entries of a store that is not filled yet. Raises StateDamaged."""
        if restored.filled is None or restored.header is None or self._version.segment is None:
            return None
        whole = (*restored.header.chain, self._version.segment)
        durable = ChainReader(self.durable, self._version, whole, self._local_stores.blocks)
        return FillingStore(store, durable, restored.filled)

    def _throw_away(self) -> None:
        store = self._store
        self._store = None
        self._filling = None
        if store is not None and store.is_open:
            try:
                store.reset()
            except LocalStoreCorrupt:
                pass  # not even emptied: the next use finds no stamp, or the damage again
            finally:
                store.close()
