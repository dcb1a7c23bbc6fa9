"""How far back the log of an output table goes: the version of a batch, and the batch of a time.

Entries are found by bisection over their numbers, with one stat() or one small read a step, so that tens of thousands
of them cost what a few do.
"""

from __future__ import annotations

from bisect import bisect_left
from pathlib import Path

from lockstep.table import log
from lockstep.table.head import Head

ENTRIES_MAX = 20_000
"""Entries kept in the log of an output table at most, whatever the retention says. Each commit lists the log's folder,
1.2 us an entry (measured: 24 ms at 20,000, 63 ms at 52,000); at a trigger of 5 s these are 28 hours, at 1 s five."""


def head_since(table: Path, since: float, *, entries_max: int = ENTRIES_MAX) -> Head | None:
    """The head at the first entry that is not older than a time, and one of the newest `entries_max`.

    Args:
        table: Folder of the table.
        since: Seconds since 1970 (UTC), compared with the modification time of the entries' files.
        entries_max: Entries from here to the newest at most.

    Returns:
        None where no entry is so young.
    """
    versions = log.versions(table)
    first = bisect_left(versions, since, key=lambda version: log.entry_path(table, version).stat().st_mtime)
    first = max(first, len(versions) - entries_max)
    for version in versions[first:]:
        entry = log.read_entry(table, version)
        if entry is not None and entry.head is not None:
            return entry.head
    return None


def head_of_batch(table: Path, batch: int) -> Head | None:
    """The head right after a batch was committed; None where the log does not go back so far."""
    versions = log.versions(table)
    position = bisect_left(versions, batch, key=lambda version: _batch(table, version))
    if position == len(versions):
        return None
    entry = log.read_entry(table, versions[position])
    return entry.head if entry is not None and entry.head is not None and entry.head.batch == batch else None


def _batch(table: Path, version: int) -> int:
    entry = log.read_entry(table, version)
    return entry.head.batch if entry is not None and entry.head is not None else -1
