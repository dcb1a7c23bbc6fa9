"""Log checkpoints: written when reading the log since the last checkpoint costs more than a new one."""

from __future__ import annotations

from pathlib import Path

import msgspec

from lockstep.model.decoding import decode_json
from lockstep.storage import find_storage
from lockstep.table import delta_log

CHECKPOINT_ENTRIES_MIN = 20
"""Commits between checks: a check costs as many stat() calls as there are entries."""
CHECKPOINT_ENTRIES_MAX = 200
"""Reading an entry costs up to a millisecond, so opening a table costs 0.2 s more at most, however large a checkpoint
is. With a checkpoint every 20 entries, a ledger of a day (17,000 files) wrote 19 GB of checkpoints."""
COST_RATIO = 4
"""A byte of a checkpoint costs as much as this many bytes of the log, as if each commit were followed by one reader,
who reads all entries since the last checkpoint. Measured: 0.1 CPU s a MB written, 0.4 ms an entry and reader."""


def write_checkpoint(table: Path, version: int | None = None) -> None:
    """Write a log checkpoint with a separate handle; of the newest version, or of an older version."""
    delta_log.open_delta_table(table, version=version).create_checkpoint()


def write_checkpoint_if_due(table: Path, version: int) -> bool:
    """Write a log checkpoint if it costs less than the entries since the last checkpoint; True when it was written.

    Args:
        table: Folder of the table.
        version: A newly committed version; only one in `CHECKPOINT_ENTRIES_MIN` is checked.
    """
    # A check costs as many requests as there are entries.
    if version % CHECKPOINT_ENTRIES_MIN or not is_due(table, version):
        return False
    write_checkpoint(table)
    return True


def is_due(table: Path, version: int) -> bool:
    """Whether reading the entries since the last checkpoint has cost more than a checkpoint, or they are too many."""
    last, size = _last(table)
    since = range(last + 1, version + 1)
    if len(since) >= CHECKPOINT_ENTRIES_MAX:
        return True
    if len(since) < CHECKPOINT_ENTRIES_MIN:
        return False
    log_bytes = sum(_count_bytes(delta_log.make_entry_path(table, version)) for version in since)
    # As if each commit since the checkpoint had been followed by a reader: see `COST_RATIO`.
    return len(since) * log_bytes >= COST_RATIO * size


class _LastCheckpoint(msgspec.Struct):
    version: int


def _last(table: Path) -> tuple[int, int]:
    """Version and bytes of the newest checkpoint; before the first, all entries count."""
    folder = table / "_delta_log"
    try:
        text = find_storage(table).read(folder / "_last_checkpoint")
        version = decode_json(text, _LastCheckpoint).version
    except (FileNotFoundError, msgspec.DecodeError):
        return -1, 0
    return version, _count_bytes(folder / f"{version:020d}.checkpoint.parquet")


def _count_bytes(path: Path) -> int:
    status = find_storage(path).get_status(path)
    return 0 if status is None else status.size
