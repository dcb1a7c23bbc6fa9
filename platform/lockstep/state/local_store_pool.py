"""Local stores of a process: folder per boot, handle limit, memory budget.

<root>/boot-<boot id>/v<store version>/<stream>/<topic id>-<partition>.lmdb and .lock

After a power loss a store's stamp was seen with wrong values, so stores of another boot are never
read; they are removed when this boot creates its folder.
"""

from __future__ import annotations

import hashlib
import os
import re
import resource
import shutil
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from lockstep.state.decoded_sessions import ENTRY_BYTES, SessionCache
from lockstep.state.local_store import LocalStore, LocalStoreCorrupt, StoreLock, is_key_short_enough

BYTES_MAX = 96_000_000
"""Encoded bytes of sessions in memory, in one task. As Python objects they are some three to six times as large: about
the memory that Spark's own documentation gives a Python worker (spark.executor.pyspark.memory is often 512 MB to
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
        self._bytes_max, self._held = bytes_max, 0
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


STORE_VERSION = 1
"""Incremented with every change of a local store's format: older stores are then ignored."""
COPIES_MAX = 1_000
"""Stores open at once at most: 1,000 maps of 64 GiB are half of a process's address space."""
HANDLES_EACH = 3
"""File handles of an open store: lock, data, and lmdb's second handle for its meta pages."""
HANDLES_SPARE = 256
"""File handles left to the rest of the process: Kafka sockets, Parquet files, Python."""

_BOOT_FOLDER = re.compile(r"boot-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class LocalStorePool:
    """Opens local stores of one stream on this machine, a bounded number at a time.

    Attributes:
        budget: Memory budget of all states that are opened here, together.
        decoded: Sessions that the process keeps decoded.
    """

    def __init__(
        self,
        root: Path,
        durable: Path,
        *,
        boot: str | None = None,
        copies_max: int | None = None,
        budget: MemoryBudget | None = None,
        decoded: SessionCache | None = None,
    ) -> None:
        """Check the location; nothing is created before a store is opened.

        Args:
            root: Folder on a local disk, for local stores only.
            durable: The stream's state folder; distinguishes streams and tables.
            boot: Id of this boot; by default the kernel's. Without one every store is private.
            copies_max: Stores open at once; by default limited by file handles and address space.
            budget: Memory budget of all states that are opened here, together.
            decoded: Sessions that the process keeps decoded; by default none.
        """
        self.budget = budget or MemoryBudget()
        self.decoded = decoded or SessionCache(bytes_max=0)
        boot = boot or read_boot_id()
        stream = hashlib.blake2b(os.fsencode(durable.absolute()), digest_size=16).hexdigest()
        self._root = root
        self._boot = root / f"boot-{boot}" if boot else None
        self._folder = self._boot / f"v{STORE_VERSION}" / stream if self._boot else None
        self._copies_max = copies_max or compute_copies_max(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        self._open: dict[LocalStore, None] = {}

    def open(self, topic_id: str, partition: int) -> LocalStore:
        """Open a partition's store, or a private empty one when another process is using it.

        Closes the store opened first when too many are open: its user opens it again when needed.

        Raises:
            LocalStoreCorrupt: Not even an empty store can be created.
        """
        while len(self._open) >= self._copies_max:
            next(iter(self._open)).close()
        try:
            store = self._opened(topic_id, partition)
        except OSError as error:
            raise LocalStoreCorrupt(str(error)) from error
        self._open[store] = None
        return store

    def private(self) -> LocalStore:
        """A private empty store, separate from those of partitions; removed when it is closed.

        Raises:
            LocalStoreCorrupt: It cannot be created.
        """
        try:
            self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise LocalStoreCorrupt(str(error)) from error
        return LocalStore(None, None, lambda _: None, self._root)

    def _opened(self, topic_id: str, partition: int) -> LocalStore:
        if self._folder is None:
            return LocalStore(None, None, self._closed)
        name = f"{quote(topic_id, safe='')}-{partition}"
        lock = self._locked(self._folder / f"{name}.lock")
        if lock is None:
            return LocalStore(None, None, self._closed)
        try:
            path = self._folder / f"{name}.lmdb"
            if lock.copy_is_suspect or not is_key_short_enough(path):
                path.unlink(missing_ok=True)
            return LocalStore(path, lock, self._closed)
        except (LocalStoreCorrupt, OSError):
            lock.release()
            raise

    def _locked(self, path: Path) -> StoreLock | None:
        try:
            return StoreLock.take(path)
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._remove_other_boots()
            return StoreLock.take(path)

    def _remove_other_boots(self) -> None:
        for folder in self._root.iterdir():
            if folder != self._boot and _BOOT_FOLDER.fullmatch(folder.name):
                shutil.rmtree(folder, ignore_errors=True)

    def _closed(self, store: LocalStore) -> None:
        self._open.pop(store, None)


def read_boot_id() -> str | None:
    """The kernel's id of this boot; None on systems without one, where no store outlives its use."""
    try:
        return _BOOT_ID.read_text().strip() or None
    except OSError:
        return None


def compute_copies_max(handles: int) -> int:
    """Number of stores that a process may have open, given its limit of file handles."""
    if handles == resource.RLIM_INFINITY:
        return COPIES_MAX
    return max(1, min(COPIES_MAX, (handles - HANDLES_SPARE) // HANDLES_EACH))
