"""The lookup table of a walked stream, which is changed, compacted, vacuumed and re-created."""

from __future__ import annotations

import random
import shutil
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

Version = tuple[str, int]
"""Delta's id of a table, and a version of it."""


class LookedUp:
    """The table, and the rows of each of its versions.

    Attributes:
        known: The rows of each version.
        newest: The newest version.
        is_lost: Whether a version may be gone.
    """

    def __init__(self, path: Path, choose: random.Random) -> None:
        self.path = path
        self.choose = choose
        self.known: dict[Version, Mapping[str, int]] = {}
        self.is_lost = False
        self.write()

    def write(self) -> str:
        """Write other rows: replace all, or append some."""
        some = {name: self.choose.randint(10, 99) for name in self.choose.sample("xyz", self.choose.randint(0, 3))}
        held = self.known[self.newest] if self.known else {}
        rows = pa.table({"name": pa.array(some, pa.string()), "more": pa.array(some.values(), pa.int64())})
        if not held or held.keys() & some.keys():
            write_deltalake(self.path, rows, mode="overwrite")
            return self._note(some)
        write_deltalake(self.path, rows, mode="append")
        return self._note({**held, **some})

    def compact(self) -> str:
        """Compact to another version with the same rows."""
        DeltaTable(self.path).optimize.compact()
        return self._note(self.known[self.newest])

    def vacuum(self) -> str:
        """Delete all versions but the newest."""
        self.is_lost = True
        DeltaTable(self.path).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
        return self._note(self.known[self.newest])

    def make_again(self) -> str:
        """Create another table in the same folder, whose versions restart."""
        self.is_lost = True
        shutil.rmtree(self.path)
        return self.write()

    def _note(self, rows: Mapping[str, int]) -> str:
        table = DeltaTable(self.path)
        self.newest = str(table.metadata().id), table.version()
        self.known[self.newest] = dict(rows)
        return f"version {self.newest[1]}: {dict(rows)}"
