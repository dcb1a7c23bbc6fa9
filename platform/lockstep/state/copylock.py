"""The lock of one hot copy: held around its whole use, reads too.

lmdb's own lock file is not used: an overlapping reader without it silently misses entries, so
nobody may overlap. The lock also counts uses that died: lmdb survives a killed writer, but a file
with a damaged tree can kill its reader, and must not do so for ever.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

DEATHS_MAX = 1
"""Uses in a row that may die before the copy is thrown away. One death is nearly always a plain
kill, after which the copy is good; at the second the copy itself is suspect. Spark's three attempts
of a task thus reach a rebuilt copy."""


class CopyLock:
    """An exclusive lock on one hot copy, released when closed or when the process dies."""

    def __init__(self, handle: int, deaths: int) -> None:
        self._handle = handle
        self.deaths = deaths

    @classmethod
    def take(cls, path: Path) -> CopyLock | None:
        """Take the lock without waiting; None when somebody else holds it."""
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return None
        deaths = int.from_bytes(os.pread(handle, 1, 0))
        os.pwrite(handle, bytes([min(deaths + 1, 255)]), 0)
        return cls(handle, deaths)

    @property
    def copy_is_suspect(self) -> bool:
        """Whether so many uses in a row died that the copy itself may be the reason."""
        return self.deaths > DEATHS_MAX

    def release(self) -> None:
        """Note that this use ended well and let the next one in."""
        os.pwrite(self._handle, b"\0", 0)
        fcntl.flock(self._handle, fcntl.LOCK_UN)  # closing alone would leave it with a forked child
        os.close(self._handle)
