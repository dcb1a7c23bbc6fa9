"""Which files of a table are live, while a writer appends."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

from lockstep.table import delta_log
from lockstep.table.foreign_commits import refresh

FOLLOWED_MAX = 20
"""Entries that are read one by one; for more than that, all live files are read again."""


class LiveNames:
    """The names of the live files of a table, at one version after another.

    Reading all of many files may take longer than a writer needs for its next entry: a compaction that read all
    of them before each attempt would lose every race. So after the first read only newer entries are read.
    """

    def __init__(self, table: Path, handle: DeltaTable) -> None:
        """Nothing is read before it is needed.

        Args:
            table: Folder of the table.
            handle: The table, opened; refreshed here.
        """
        self._table = table
        self._handle = handle
        self._live: set[str] = set()
        self._version: int | None = None

    def find_missing(self, paths: Collection[str], version: int) -> list[str]:
        """Those of the paths that are no longer live, at `version` or later.

        Raises:
            TableReplaced: Versions that were read are gone.
        """
        # Only entries since the last read: to read all files before each attempt loses every race with a writer.
        if self._version is None or not self._follow(self._version, version):
            refresh(self._handle, self._table)
            self._live = set(map(str, pa.table(self._handle.get_add_actions()).column("path").to_pylist()))
            # Later is as good: a commit that lands right after `version` proves that nothing was later.
            self._version = self._handle.version()
        return sorted(set(paths) - self._live)

    def _follow(self, seen: int, version: int) -> bool:
        """Read the entries up to a version; False if they are many, or one is gone."""
        if version - seen > FOLLOWED_MAX:
            return False
        for at in range(seen + 1, version + 1):
            removed = delta_log.read_removed_paths(self._table, at)
            if removed is None:
                return False
            self._live -= removed
            self._version = at
        return True
