"""The newest entry of a Delta log after a power loss: complete, or torn.

A commit syncs its entry before anything builds on it, so a torn entry was never acknowledged: setting
it aside undoes nothing. We and delta-rs write an entry's transactions last, so an entry with them is complete.
"""

from __future__ import annotations

import uuid
from pathlib import Path

import msgspec

from lockstep.model.decoding import decode_json_lines
from lockstep.storage import find_storage
from lockstep.table import commit_kinds, delta_log
from lockstep.table.commit_kinds import find_commit_kind


class _Transaction(msgspec.Struct):
    appId: str  # noqa: N815  # Delta's own name


class _Line(msgspec.Struct):
    commitInfo: dict[str, object] | None = None  # noqa: N815  # Delta's own name
    txn: _Transaction | None = None


def find_newest_version(table: Path) -> int | None:
    """The newest version with an entry file; None without any."""
    return max(delta_log.list_versions(table), default=None)


def is_torn(entry: bytes) -> bool:
    """Whether an entry of ours is incomplete. Of a foreign one only broken JSON is detected."""
    try:
        lines = decode_json_lines(entry, _Line)
    except msgspec.DecodeError:
        return True
    info = next((line.commitInfo for line in lines if line.commitInfo is not None), None)
    if info is None:
        return True
    kind = info.get(delta_log.KIND)
    if not isinstance(kind, str):
        return False
    commit_kind = find_commit_kind(kind)
    # The kind of an absent feature is unknown here: each commit has at least the transaction of its version.
    needed = commit_kinds.OF_VERSION if commit_kind is None else commit_kind.transactions
    return not needed <= {line.txn.appId for line in lines if line.txn is not None}


def find_torn_version(table: Path) -> int | None:
    """The newest version, when its entry is torn; None when it is complete."""
    version = find_newest_version(table)
    if version is None:
        return None
    entry = find_storage(table).read(delta_log.make_entry_path(table, version))
    if is_torn(entry):
        return version
    return None


def is_in_checkpoint(table: Path, version: int) -> bool:
    """Whether a log checkpoint includes a version: then it was complete once."""
    return any(made >= version for made in delta_log.list_checkpoints(table))


def is_readable_without(table: Path, version: int) -> bool:
    """Whether the log has all entries from a log checkpoint, or its beginning, up to the version before."""
    base = max((made for made in delta_log.list_checkpoints(table) if made < version), default=-1)
    return set(range(base + 1, version)) <= set(delta_log.list_versions(table))


def move_out_of_log(table: Path, version: int, folder: Path) -> Path:
    """Move the entry of a version out of the log, after deleting what others made of it; returns its new path.

    Checksums of a version without an entry make the log unreadable to delta-rs; they go first, as log checkpoints of it
    and the note of the newest one do.

    Raises:
        FileNotFoundError: Another process has moved it.
    """
    storage = find_storage(table)
    storage.make_folder(folder)
    target = folder / f"{table.name}-{version:020d}-{uuid.uuid4().hex[:8]}.json"
    entry = delta_log.make_entry_path(table, version)
    # First: checksums of a version without an entry make the log unreadable to delta-rs.
    for checksum in (entry.with_suffix(".crc"), *storage.find_files(entry.parent, f".{version:020d}.*crc")):
        storage.delete(checksum)
    checkpoints = list[Path]()
    for checkpoint_version, files in delta_log.list_checkpoints(table).items():
        if checkpoint_version >= version:
            checkpoints += files
    if checkpoints:
        storage.delete(entry.parent / "_last_checkpoint")  # first: it names a checkpoint that is deleted next
        for checkpoint in checkpoints:
            storage.delete(checkpoint)
    storage.move(entry, target)  # last: an interrupted move can be repeated as long as the entry is in the log
    return target
