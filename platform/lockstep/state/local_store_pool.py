"""Local stores of a process: folder per boot, handle limit, memory budget.

<root>/boot-<boot id>/v<store version>/<stream>/<topic id>-<partition>.lmdb and .lock

After a power loss a store's stamp was seen with wrong values, so stores of another boot are never
read; they are removed when this boot creates its folder.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import resource
import shutil
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import quote

from lockstep.addresses import make_absolute
from lockstep.boot import read_boot_id
from lockstep.state.chain_reader import BlockCache
from lockstep.state.decoded_sessions import ENTRY_BYTES, SessionCache
from lockstep.state.local_store import LocalStore, LocalStoreCorrupt, StoreFile, StoreLock, find_whole_file
from lockstep.storage import make_private_folder, require_own_folder

BYTES_MAX = 96_000_000
"""Encoded bytes of sessions in memory, in one task. As Python objects they are some three to six times as large: about
the memory that Spark's own documentation names for a Python worker (spark.executor.pyspark.memory is often 512 MB to
1 GB). With far lower bounds, ranges that touch many sessions twice spill again and again; higher ones end with a kill
on a small executor."""


class Spillable(Protocol):
    """A partition's state that can release its decoded entries."""

    def spill(self) -> None:
        """Move changes to the local disk and discard the rest."""
        ...


class MemoryBudget:
    """Counts the decoded entries of a task's states."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._held = 0
        self._by: dict[Spillable, int] = {}

    def note(self, state: Spillable, size: int) -> None:
        """Record that a state has decoded or created an entry of so many bytes."""
        self._held += size + ENTRY_BYTES
        self._by[state] = self._by.get(state, 0) + size + ENTRY_BYTES

    def note_memory(self, state: Spillable, size: int) -> None:
        """Record that a state has so many bytes more."""
        self._held += size
        self._by[state] = self._by.get(state, 0) + size

    def enforce(self) -> None:
        """Spill the largest states while the budget is exceeded. Only between messages: entries must not be in use."""
        while self._held > self._bytes_max:
            largest = max(self._by, key=lambda state: self._by[state])
            largest.spill()
            self.release(largest)

    def release(self, state: Spillable) -> None:
        """Record that a state has released everything."""
        self._held -= self._by.pop(state, 0)


STORE_VERSION = 2
"""Incremented with every change of a local store's format: older stores are then ignored."""
STORES_MAX = 1_000
"""Stores open at once at most: 1,000 maps of 64 GiB are half of a process's address space."""
HANDLES_EACH = 3
"""File handles of an open store: lock, data, and lmdb's second handle for its meta pages."""
HANDLES_SPARE = 256
"""File handles left to the rest of the process: Kafka sockets, Parquet files, Python."""

IDLE_FILES_MAX = 500
"""Files open between batches: each takes up to 0.3 MB of memory for lmdb's lists."""
IDLE_BYTES_MAX = 64_000_000
"""Larger files are closed: their pages would count as memory of the process, and a batch of theirs costs more."""
IDLE_SECONDS = 300.0
"""A file that was not used for so long is closed: its partition may be elsewhere, or gone."""
UNUSED_SECONDS = 7 * 86_400.0
SWEEP_SECONDS = 3_600.0
"""A store that was not used for so long is deleted; a process looks for such stores so often. Topics do not return."""

_BOOT_FOLDER = re.compile(r"boot-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class IdleFiles:
    """Files of local stores that a process leaves open from one batch to the next, without their locks.

    Another process may use and change them meanwhile. To open a file takes longer than a small batch of its partition.
    """

    def __init__(self, files_max: int = IDLE_FILES_MAX) -> None:
        """None yet; with `files_max` 0 it stays so."""
        self._files_max = files_max
        self._process = os.getpid()
        self._files: dict[Path, tuple[StoreFile, float]] = {}
        self._swept: dict[Path, float] = {}

    def take(self, path: Path) -> StoreFile | None:
        """The open file of a store, under its lock; None when it is not here, or its lock cannot be had."""
        if self._process != os.getpid():  # a forked process shares the locks of the one before it
            self._files = {}
            self._process = os.getpid()
        file, _ = self._files.pop(path, (None, 0.0))
        if file is None:
            return None
        try:
            if file.take():
                return file
        except (LocalStoreCorrupt, OSError):
            file.release()
        file.close()
        return None

    def keep(self, path: Path, file: StoreFile) -> None:
        """Leave a file open, after the release of its lock; it is closed when there are many, or it is large."""
        if len(self._files) < self._files_max and file.size <= IDLE_BYTES_MAX:
            self._files[path] = file, time.monotonic()
        else:
            file.close()

    def close_first(self, unused_seconds: float = 0.0) -> bool:
        """Close the file that was used least recently, unless it was used since; False without any."""
        path = next(iter(self._files), None)
        if path is None or time.monotonic() - self._files[path][1] < unused_seconds:
            return False
        file, _ = self._files.pop(path)
        file.close()
        return True

    def close_below(self, folder: Path) -> None:
        """Close the files below a folder."""
        for path in list(self._files):
            if path.is_relative_to(folder):
                file, _ = self._files.pop(path)
                file.close()

    def is_sweep_due(self, folder: Path) -> bool:
        """Whether a sweep for unused stores of a folder is due; if so, it counts as done."""
        now = time.monotonic()
        if now - self._swept.get(folder, float("-inf")) < SWEEP_SECONDS:
            return False
        self._swept[folder] = now
        return True

    def __len__(self) -> int:
        """Their number."""
        return len(self._files)


OF_THIS_PROCESS: Final = IdleFiles()


class LocalStorePool:
    """Opens local stores of one stream on this machine, a bounded number at a time.

    Attributes:
        budget: Memory budget of all states that are opened here, together.
        decoded: Sessions that the process keeps decoded.
        blocks: Blocks of segments that are read without a local store.
    """

    def __init__(
        self,
        root: Path,
        durable: Path,
        *,
        boot: str | None = None,
        stores_max: int | None = None,
        decoded: SessionCache | None = None,
        idle: IdleFiles = OF_THIS_PROCESS,
    ) -> None:
        """Check the location; nothing is created before a store is opened.

        Args:
            root: Folder on a local disk, for local stores only.
            durable: The stream's state folder; distinguishes streams and tables.
            boot: Id of this boot; by default the kernel's. Without one every store is private.
            stores_max: Stores open at once; by default limited by file handles and address space.
            decoded: Sessions that the process keeps decoded; by default none.
            idle: Files that the process leaves open.

        Raises:
            EnvironmentProblem: Another user has made the folder.
        """
        require_own_folder(root)
        self.budget = MemoryBudget()
        self.blocks = BlockCache()
        self.decoded = decoded or SessionCache(bytes_max=0)
        boot = boot or read_boot_id()
        stream = hashlib.blake2b(os.fsencode(make_absolute(durable)), digest_size=16).hexdigest()
        self._root = root
        self._boot = root / f"boot-{boot}" if boot else None
        self._folder = self._boot / f"v{STORE_VERSION}" / stream if self._boot else None
        self._stores_max = stores_max or compute_stores_max(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        self._open: dict[LocalStore, None] = {}
        self._idle = idle
        while idle.close_first(unused_seconds=IDLE_SECONDS):
            pass
        if self._folder is not None and idle.is_sweep_due(self._folder):
            delete_unused_stores(self._folder, time.time() - UNUSED_SECONDS)

    def open(self, topic_id: str, partition: int) -> LocalStore:
        """Open a partition's store, or a private empty one when another process is using it.

        Closes idle ones and then the store opened first when too many are open: its user opens it again when needed.
        If the disk has no room even for its lock, the private one is in the folder of temporary files.

        Raises:
            LocalStoreCorrupt: Not even an empty store can be created.
        """
        try:
            store = self._opened(topic_id, partition)
        except OSError as error:
            if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
                raise LocalStoreCorrupt(str(error)) from error
            store = self._private_elsewhere()
        self._open[store] = None
        return store

    def private(self) -> LocalStore:
        """A private empty store, separate from those of partitions; removed when it is closed.

        Raises:
            LocalStoreCorrupt: It cannot be created.
        """
        try:
            make_private_folder(self._root)
        except OSError as error:
            raise LocalStoreCorrupt(str(error)) from error
        return LocalStore(StoreFile(None, None, self._root), lambda store: store.file.close())

    def _private_elsewhere(self) -> LocalStore:
        return LocalStore(StoreFile(None, None), self._closed)

    def _opened(self, topic_id: str, partition: int) -> LocalStore:
        if self._folder is None:
            self._make_room()
            return LocalStore(StoreFile(None, None), self._closed)
        path = self._folder / f"{quote(topic_id, safe='')}-{partition}.lmdb"
        file = self._idle.take(path)
        if file is None:
            self._make_room()
            file = self._open_file(path)
        return LocalStore(file, partial(self._closed, path=path))

    def _make_room(self) -> None:
        while len(self._open) + len(self._idle) >= self._stores_max:
            if not self._idle.close_first():
                next(iter(self._open)).close()

    def _open_file(self, path: Path) -> StoreFile:
        """The file of a store, or a private one when another process is using it."""
        lock = self._locked(path.with_suffix(".lock"))
        if lock is None:
            return StoreFile(None, None)
        try:
            if lock.store_is_suspect or find_whole_file(path) is None:
                path.unlink(missing_ok=True)
            return StoreFile(path, lock)
        except (LocalStoreCorrupt, OSError):
            lock.release()
            lock.close()
            raise

    def _locked(self, path: Path) -> StoreLock | None:
        try:
            lock = StoreLock(path)
        except FileNotFoundError:
            make_private_folder(path.parent)
            self._remove_other_boots()
            lock = StoreLock(path)
        try:
            if lock.take():
                return lock
        except OSError:
            lock.close()
            raise
        lock.close()
        return None

    def _remove_other_boots(self) -> None:
        for folder in self._root.iterdir():
            if folder != self._boot and _BOOT_FOLDER.fullmatch(folder.name):
                shutil.rmtree(folder, ignore_errors=True)

    def _closed(self, store: LocalStore, path: Path | None = None) -> None:
        self._open.pop(store, None)
        if path is None or store.is_private:
            store.file.close()
        else:
            self._idle.keep(path, store.file)


def delete_unused_stores(folder: Path, before: float) -> None:
    """Delete the stores of a folder that were not used since; one that is in use stays.

    Args:
        folder: The folder of a stream's stores.
        before: Time of the last use, in seconds since 1970 (UTC): each use writes the lock's file.
    """
    for path in folder.glob("*.lock"):
        with suppress(OSError):  # another process may delete it at the same time
            if path.stat().st_mtime < before:
                _remove_store(path)


def _remove_store(path: Path) -> None:
    """Delete a store and its lock, under the lock: who waits for it sees that its file is gone."""
    lock = StoreLock(path)
    try:
        if lock.take():
            path.with_suffix(".lmdb").unlink(missing_ok=True)
            path.unlink()
            lock.release()
    finally:
        lock.close()


def compute_stores_max(handles: int) -> int:
    """Number of stores that a process may have open, given its limit of file handles."""
    if handles == resource.RLIM_INFINITY:
        return STORES_MAX
    return max(1, min(STORES_MAX, (handles - HANDLES_SPARE) // HANDLES_EACH))
