"""The files of the output table, as its log lists them."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import msgspec
import pyarrow as pa

from lockstep.table import delta_log
from lockstep.table.delta_log import RemoveAction
from lockstep.table.head import Head
from lockstep.table.live_names import LiveNames

TARGET_BYTES = 256_000_000
"""Size of a compacted file, by default. Larger files open no faster (a reader fetches row groups, not files) and
make a task longer and its scratch larger; at a quarter of it a year of a busy stream has four times
the entries that every reader must list before its first row."""
COMPACTED_PREFIX = "compacted"
"""Files with this prefix are final: nothing is added to a closed hour, so a second rewrite gains nothing."""


RowKey = tuple[str, int, int]
"""(topic id, partition, emit offset)."""


class LiveFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the output table, according to the log.

    Attributes:
        path: Relative to the table.
        size: Bytes.
        rows: Number of rows.
        commit_hour: Value of the partition column.
        added_ms: Time of its commit, in milliseconds since 1970, by the committer's clock.
        lowest: Least topic id, partition and emit offset, each on its own; empty without statistics.
    """

    path: str
    size: int
    rows: int
    commit_hour: str
    added_ms: int
    lowest: RowKey = ("", 0, 0)


def is_closed(hour: str, head: Head) -> bool:
    """Whether no batch can be committed into an hour any more: hours are closed by the log, not by the clock."""
    return hour < head.hour or hour <= head.closed_hour


class LiveFiles:
    """A handle on the table with its live files; refreshed from the log, entry by entry."""

    def __init__(self, table: Path) -> None:
        self._handle = delta_log.open_delta_table(table)
        self._names = LiveNames(table, self._handle)

    def at(self, version: int) -> tuple[LiveFile, ...]:
        """All live files, as of `version` or later."""
        if self._handle.version() < version:
            delta_log.refresh_delta_table(self._handle)
        actions = pa.table(self._handle.get_add_actions(flatten=True))
        names = ("path", "size_bytes", "num_records", "modification_time", "partition.commit_hour")
        wanted = [name for name in (*names, *_LOWEST) if name in actions.column_names]
        return tuple(_live_file(row) for row in actions.select(wanted).to_pylist())

    def missing(self, paths: Collection[str], version: int) -> list[str]:
        """Those of the paths that are no longer live, at `version` or later."""
        return self._names.find_missing(paths, version)


def _live_file(row: dict[str, object]) -> LiveFile:
    named = {"size": row["size_bytes"], "rows": row["num_records"], "added_ms": row["modification_time"]}
    lowest = _lowest(row)
    hour = row["partition.commit_hour"]
    return LiveFile(path=str(row["path"]), commit_hour=str(hour), lowest=lowest, **_integers(named))


def _lowest(row: dict[str, object]) -> RowKey:
    topic_id, partition, offset = (row.get(name) for name in _LOWEST)
    if not (isinstance(topic_id, str) and isinstance(partition, int) and isinstance(offset, int)):
        return ("", 0, 0)
    return (topic_id, partition, offset)


def _integers(values: dict[str, object]) -> dict[str, int]:
    return {name: int(str(value)) for name, value in values.items()}


def make_removal(file: LiveFile) -> RemoveAction:
    """The action that removes a file from the table."""
    return RemoveAction(file.path, file.size, file.commit_hour)


_LOWEST = ("min._topic_id", "min._partition", "min._emit_offset")
