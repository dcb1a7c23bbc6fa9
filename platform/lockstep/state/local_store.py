"""LMDB cache of one partition: file format and lock.

lmdb's own lock file is not used: an overlapping reader without it silently misses entries, so uses
must not overlap. The lock also counts uses that died: lmdb survives a killed writer, but a file
with a damaged tree can kill its reader, and must not do so repeatedly.

Nothing is ever synced: after a kill the kernel still has every page, and after a power loss the
store's folder, named after the boot, is not used again.
"""

from __future__ import annotations

import fcntl
import os
import struct
import tempfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import lmdb
import msgspec

from lockstep.state.entry_order import (
    HASHED,
    Change,
    is_hashed,
    is_removed,
    make_store_key,
    split_changes,
    take_prefixes,
    to_prefix,
)

STAMP_KEY = b"!"

_END = b"\xff"
"""Behind all lmdb keys."""
_CRC_BYTES = 4
_LENGTH = struct.Struct("<I")

_META_BYTES = 256
"""More than the part of a meta page that is read here."""
_META_MAGIC = 0xBEEFC0DE
_META = struct.Struct("<16xI20xI92xQQ")
"""Page header, magic, (version, map's address and size), page size in the first word of the free
list's record, (the rest of the two trees' records), last page, transaction."""


class _Meta(msgspec.Struct, frozen=True):
    """The part of lmdb's meta page that has the file's length."""

    page_size: int
    last_page: int
    transaction: int


class LocalStoreCorrupt(Exception):
    """The local store cannot be used; it is discarded and rebuilt. Never leaves this package."""


class KeyCollision(LocalStoreCorrupt):
    """Two sessions with the same hash. A rebuild would not help: reported unchanged."""


def encode_entry(key: bytes, session: bytes, value: bytes) -> bytes:
    """The lmdb value: a checksum over the whole entry, the session if its key is a hash, the value."""
    if key[:1] == HASHED:
        value = _LENGTH.pack(len(session)) + session + value
    return zlib.crc32(value, zlib.crc32(key)).to_bytes(_CRC_BYTES, "little") + value


def decode_entry(key: bytes, sealed: bytes) -> tuple[bytes, bytes]:
    """The session and the value of an lmdb entry.

    Raises:
        LocalStoreCorrupt: The entry has been changed since it was written.
    """
    rest = sealed[_CRC_BYTES:]
    if int.from_bytes(sealed[:_CRC_BYTES], "little") != zlib.crc32(rest, zlib.crc32(key)):
        raise LocalStoreCorrupt("an entry does not match its checksum")
    if key[:1] != HASHED:
        return key[1:], rest
    (length,) = _LENGTH.unpack_from(rest)
    end = _LENGTH.size + length
    return rest[_LENGTH.size : end], rest[end:]


def find_whole_file(path: Path) -> os.stat_result | None:
    """The file of a local store that contains all of its pages; None without one.

    lmdb maps the file, and a page beyond its end raises SIGBUS, which no handler can recover
    from; so the newest meta page's last page is compared with the file's size first.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        status = os.fstat(handle)
        return status if _last_page_fits(handle, status.st_size) else None
    finally:
        os.close(handle)


def _last_page_fits(handle: int, size: int) -> bool:
    first = _meta(os.pread(handle, _META_BYTES, 0))
    if first is None:
        return False
    # Two meta pages, written in turn: a commit that was cut short leaves the older one whole.
    second = _meta(os.pread(handle, _META_BYTES, first.page_size))
    if second is None or first.page_size != second.page_size:
        return False
    newest = max(first, second, key=lambda meta: meta.transaction)
    return size >= (newest.last_page + 1) * newest.page_size


def _meta(page: bytes) -> _Meta | None:
    """The contents of a meta page; None for another page."""
    if len(page) < _META_BYTES:
        return None
    magic, page_size, last_page, transaction = _META.unpack_from(page)
    if magic != _META_MAGIC:
        return None
    return _Meta(page_size, last_page, transaction)


DEATHS_MAX = 1
"""Uses in a row that may die before the store is discarded. One death is nearly always a plain
kill, after which the store is good; at the second the store itself is suspect. Spark's three attempts
of a task thus reach a rebuilt store."""


class StoreLock:
    """An exclusive lock on one local store, released by its user or when the process dies.

    Attributes:
        deaths: Uses in a row, before this use, that died.
    """

    def __init__(self, path: Path) -> None:
        """Open the lock's file; nothing is locked yet."""
        self._path = path
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.deaths = 0

    def take(self) -> bool:
        """Take the lock without waiting; False if another process has it, or its file is no longer at its path."""
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self._path.stat().st_ino != os.fstat(self._handle).st_ino:  # deleted since it was opened
                return False
        except (BlockingIOError, FileNotFoundError):
            return False
        self.deaths = int.from_bytes(os.pread(self._handle, 1, 0))
        os.pwrite(self._handle, bytes([min(self.deaths + 1, 255)]), 0)  # `release` takes it back
        return True

    @property
    def store_is_suspect(self) -> bool:
        """Whether so many uses in a row died that the store itself may be the reason."""
        return self.deaths > DEATHS_MAX

    def release(self) -> None:
        """Record that this use ended normally, and release the lock. It may be taken again."""
        os.pwrite(self._handle, b"\0", 0)
        fcntl.flock(self._handle, fcntl.LOCK_UN)  # closing alone would leave it with a forked child

    def close(self) -> None:
        """Close the lock's file: after `release`, or when it could not be taken."""
        os.close(self._handle)


MAP_BYTES = 64 << 30
"""Address space per open store, not memory or disk. Far above any partition's state, so that a map
never has to grow under a reader; a process has 128 TiB, which bounds open stores to about 2,000."""


class StoreFile:
    """The file of a local store, open: the user's that has its lock, or private.

    Attributes:
        environment: lmdb's view of the file.
        is_private: Whether the file has no name, and is gone when it is closed.
        size: Bytes of the file when it was opened.
    """

    def __init__(self, path: Path | None, lock: StoreLock | None, scratch: Path | None = None) -> None:
        """Open the file at `path` under its lock, or a private one without either, on the disk of `scratch`.

        Raises:
            LocalStoreCorrupt: Not even an empty file can be made.
        """
        self._path = path
        self._lock = lock
        self._scratch = scratch
        self.is_private = path is None
        self.size = 0
        self._inode = 0
        self.environment = self._opened()

    def take(self) -> bool:
        """Reacquire the file after a release. Returns False if its lock cannot be taken.

        Raises:
            LocalStoreCorrupt: It cannot be opened again.
        """
        if self._lock is None or not self._lock.take():
            return False
        status = None if self._path is None else find_whole_file(self._path)
        if self._lock.store_is_suspect or status is None:
            self.reset()
        elif status.st_ino != self._inode:  # another process has replaced the file
            self.environment.close()
            self.environment = self._opened()
        else:
            self.size = status.st_size
        return True

    def reset(self) -> None:
        """Discard everything and start with an empty file."""
        self.environment.close()
        with _damage():
            if self._path is not None:
                self._path.unlink(missing_ok=True)
        self.environment = self._opened()

    def release(self) -> None:
        """End a use; the file stays open."""
        if self._lock is not None:
            self._lock.release()

    def close(self) -> None:
        """Close the file, after `release`."""
        self.environment.close()
        if self._lock is not None:
            self._lock.close()

    def _opened(self) -> lmdb.Environment:
        if self._path is None:
            return _private_environment(self._scratch)
        try:
            environment = _environment(self._path)
        except LocalStoreCorrupt:
            self._path.unlink(missing_ok=True)
            environment = _environment(self._path)
        with _damage():
            status = self._path.stat()
        self._inode = status.st_ino
        self.size = status.st_size
        return environment


class LocalStore:
    """One use of the state of one partition as of its stamp. Closed by its opener.

    All methods raise `LocalStoreCorrupt` when lmdb or a checksum finds the file wrong, or the disk full.

    Attributes:
        is_private: Whether the store belongs to this use alone, and is removed when it is closed.
        is_open: Whether it may be used.
    """

    def __init__(self, file: StoreFile, on_close: Callable[[LocalStore], None]) -> None:
        """Use an open file; `on_close` closes it, or leaves it open for a later use."""
        self.file = file
        self._on_close = on_close
        self.is_private = file.is_private
        self.is_open = True
        self._reader: lmdb.Transaction | None = None

    def stamp(self) -> bytes | None:
        """The last stamp; None for a store without one, or with a damaged one."""
        with _damage():
            sealed = (self._reader or self._begin_reading()).get(STAMP_KEY)
        if sealed is None:
            return None
        try:
            return decode_entry(STAMP_KEY, bytes(sealed))[1]
        except LocalStoreCorrupt:
            return None

    def is_empty(self) -> bool:
        """Whether the store is empty, without even a stamp."""
        with _damage():
            return int(self.file.environment.stat()["entries"]) == 0

    def get(self, session: bytes) -> bytes | None:
        """The value of a session; None when it has none."""
        key = make_store_key(session)
        try:
            reader = self._reader or self._begin_reading()
            sealed = reader.get(key)
            if sealed is None:
                with reader.cursor() as cursor:
                    _check_missing(cursor, key)
                return None
        except (lmdb.Error, OSError) as error:  # `_damage` costs as much as the search
            raise LocalStoreCorrupt(str(error)) from error
        stored_session, value = decode_entry(key, bytes(sealed))
        if stored_session != session:
            raise _collision(session, stored_session)
        return value

    def items(self, changes: Iterable[Change] = ()) -> Iterator[tuple[bytes, bytes]]:
        """All sessions and values as they are after some changes, in the order of their lmdb keys.

        Args:
            changes: In the order of `entry_order.py`.
        """
        removed, newer = take_prefixes(changes)
        previous = b""
        change_key, change = _next_change(newer)
        with _damage(), self.file.environment.begin() as transaction, transaction.cursor() as cursor:
            for key in chain(cursor.iternext(keys=True, values=False), (_END,)):
                if key <= previous:
                    raise LocalStoreCorrupt("the keys are out of order")
                previous = key
                while change_key < key:
                    if change[1] is not None:
                        yield change[0], change[1]
                    change_key, change = _next_change(newer)
                if key not in {change_key, STAMP_KEY}:
                    entry = decode_entry(key, bytes(cursor.value()))
                    if not (removed and is_removed(entry[0], removed)):
                        yield entry

    def scan(self, prefix: bytes, after: bytes, most: int) -> list[tuple[bytes, bytes]]:
        """Entries with short names by prefix, after a given name, in order, at most so many."""
        entries: list[tuple[bytes, bytes]] = []
        with _damage(), self.file.environment.begin() as transaction, transaction.cursor() as cursor:
            has_entry = cursor.set_range(make_store_key(after))
            while has_entry and len(entries) < most and bytes(cursor.key()).startswith(make_store_key(prefix)):
                key, value = decode_entry(bytes(cursor.key()), bytes(cursor.value()))
                if key > after:
                    entries.append((key, value))
                has_entry = cursor.next()
        return entries

    def scan_all(self, prefix: bytes) -> list[tuple[bytes, bytes]]:
        """All entries by name prefix, those with long names last."""
        with _damage(), (self._reader or self._begin_reading()).cursor() as cursor:
            return [*_with_prefix(cursor, prefix), *_hashed_with_prefix(cursor, prefix)]

    def apply(self, changes: Sequence[Change], stamp: bytes | None) -> None:
        """Remove prefixes, put and remove entries, set the stamp (None: remove it), in one transaction."""
        self._end_reading()  # this writer may reuse the pages of an open reader
        with _damage(), self.file.environment.begin(write=True) as transaction:
            removals, others = split_changes(changes)
            _remove_all(transaction, [to_prefix(removal) for removal in removals])
            _put_all(transaction, others)
            for session, value in others:
                if value is None:
                    transaction.delete(make_store_key(session))
            if stamp is None:
                transaction.delete(STAMP_KEY)
            else:
                transaction.put(STAMP_KEY, encode_entry(STAMP_KEY, b"", stamp))

    def reset(self) -> None:
        """Discard everything and start with an empty file."""
        self._end_reading()
        self.file.reset()

    def close(self) -> None:
        """End the use and release the lock. May be called again."""
        if not self.is_open:
            return
        self.is_open = False
        self._end_reading()
        self.file.release()
        self._on_close(self)

    def _begin_reading(self) -> lmdb.Transaction:
        self._reader = self.file.environment.begin()
        return self._reader

    def _end_reading(self) -> None:
        if self._reader is not None:
            self._reader.abort()
            self._reader = None


def _environment(path: Path) -> lmdb.Environment:
    with _damage():
        return lmdb.open(
            str(path),
            map_size=MAP_BYTES,
            subdir=False,
            mode=0o600,
            sync=False,
            metasync=False,
            writemap=False,
            lock=False,
        )


def _private_environment(scratch: Path | None) -> lmdb.Environment:
    """An environment with an unlinked file: it is gone with the process, however that ends."""
    with _damage(), tempfile.TemporaryDirectory(prefix="lockstep-state-", dir=scratch) as folder:
        return _environment(Path(folder) / "copy")


def _with_prefix(cursor: lmdb.Cursor, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Entries with short names. The entry that ends the scan is checked too: a damaged key must not hide others."""
    wanted = make_store_key(prefix)
    if is_hashed(wanted) or not cursor.set_range(wanted):
        return
    for key, sealed in cursor.iternext():
        entry = decode_entry(bytes(key), bytes(sealed))
        if not bytes(key).startswith(wanted):
            return
        yield entry


def _hashed_with_prefix(cursor: lmdb.Cursor, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Entries with long names are sorted by their hashes: all of them are read."""
    if not cursor.set_range(HASHED):
        return
    for key, sealed in cursor.iternext():
        if not is_hashed(bytes(key)):
            return
        entry = decode_entry(bytes(key), bytes(sealed))
        if entry[0].startswith(prefix):
            yield entry


def _check_missing(cursor: lmdb.Cursor, key: bytes) -> None:
    """Check the entries around the position of a missing key.

    A damaged key is not found, and its session must not be treated as unknown. But the search
    for it ends next to it, and a search misled by a damaged branch ends out of order.
    """
    has_next = cursor.set_range(key)
    if has_next:
        _check_neighbour(cursor, is_right=bytes(cursor.key()) > key)
    has_previous = cursor.prev() if has_next else cursor.last()
    if has_previous:
        _check_neighbour(cursor, is_right=bytes(cursor.key()) < key)


def _check_neighbour(cursor: lmdb.Cursor, *, is_right: bool) -> None:
    if not is_right:
        raise LocalStoreCorrupt("the keys are out of order")
    decode_entry(bytes(cursor.key()), bytes(cursor.value()))


def _next_change(changes: Iterator[Change]) -> tuple[bytes, Change]:
    change = next(changes, None)
    if change is None:
        return _END, (b"", None)
    return make_store_key(change[0]), change


def _remove_all(transaction: lmdb.Transaction, prefixes: Sequence[bytes]) -> None:
    """Remove all entries with keys of some prefixes."""
    if not prefixes:
        return
    with transaction.cursor() as cursor:
        for prefix in prefixes:
            _remove_plain(cursor, make_store_key(prefix))
        if not cursor.set_range(HASHED):
            return
        removed = set(prefixes)
        while is_hashed(bytes(cursor.key())):
            name, _ = decode_entry(bytes(cursor.key()), bytes(cursor.value()))
            # A removal leaves the cursor at the next entry.
            has_next = cursor.delete() if is_removed(name, removed) else cursor.next()
            if not has_next:
                return


def _remove_plain(cursor: lmdb.Cursor, wanted: bytes) -> None:
    """Remove the entries with short names by prefix."""
    if is_hashed(wanted) or not cursor.set_range(wanted):
        return
    while bytes(cursor.key()).startswith(wanted):
        decode_entry(bytes(cursor.key()), bytes(cursor.value()))
        if not cursor.delete():
            return


def _put_all(transaction: lmdb.Transaction, changes: Collection[Change]) -> None:
    """Put all new values: in the order of keys, so that each page is visited once."""
    entries: list[tuple[bytes, bytes]] = []
    for session, value in changes:
        if value is not None:
            key = make_store_key(session)
            if key[:1] == HASHED:
                _refuse_collision(transaction, key, session)
            entries.append((key, encode_entry(key, session, value)))
    entries.sort()
    with transaction.cursor() as cursor:
        cursor.putmulti(entries)


def _refuse_collision(transaction: lmdb.Transaction, key: bytes, session: bytes) -> None:
    present = transaction.get(key)
    if present is not None:
        stored_session, _ = decode_entry(key, bytes(present))
        if stored_session != session:
            raise _collision(session, stored_session)


def _collision(session: bytes, other: bytes) -> KeyCollision:
    return KeyCollision(f"sessions {session[:80]!r}... and {other[:80]!r}... have the same hash")


@contextmanager
def _damage() -> Iterator[None]:
    """Every error of lmdb means the same here: this store is unusable."""
    try:
        yield
    except (lmdb.Error, OSError) as error:
        raise LocalStoreCorrupt(str(error)) from error
