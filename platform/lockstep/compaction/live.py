"""Which files of an output table are live, as of a version."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

from lockstep.compaction.plan import LiveFile, RowKey

_LOWEST = ("min._topic_id", "min._partition", "min._emit_offset")


class LiveFiles:
    """A handle on the table that knows its files; refreshed from the log, entry by entry."""

    def __init__(self, table: Path) -> None:
        self._handle = DeltaTable(table)

    def at(self, version: int) -> tuple[LiveFile, ...]:
        """All live files, as of `version` or later.

        Later is as good for a compare-and-swap: a commit that lands right after `version` proves
        that there was nothing later.
        """
        self._forward(version)
        actions = pa.table(self._handle.get_add_actions(flatten=True))
        names = ("path", "size_bytes", "num_records", "modification_time", "partition.commit_hour")
        wanted = [name for name in (*names, *_LOWEST) if name in actions.column_names]
        return tuple(_live_file(row) for row in actions.select(wanted).to_pylist())

    def missing(self, paths: Collection[str], version: int) -> list[str]:
        """Those of the paths that are not live any more, as of `version` or later."""
        self._forward(version)
        live = set(pa.table(self._handle.get_add_actions()).column("path").to_pylist())
        return sorted(set(paths) - live)

    def _forward(self, version: int) -> None:
        if self._handle.version() < version:
            self._handle.update_incremental()


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
