"""Entries of a Delta log, read by number.

`history()` on a handle that is behind gives entries the wrong versions, so lockstep reads the file
of a version itself.
"""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from lockstep.table.head import Head

HEAD, KIND, TOKEN = "lockstep.head", "lockstep.kind", "lockstep.token"
BATCH, EPOCH, VERSION = "lockstep.batch", "lockstep.epoch", "lockstep.version"

_ENTRY = re.compile(r"\d{20}\.json")
_CHECKPOINT = re.compile(r"\d{20}\.checkpoint\b.*\.parquet$")


class Entry(msgspec.Struct, frozen=True):
    """What lockstep needs of one log entry.

    Attributes:
        version: Version of the table that the entry made.
        kind: lockstep's kind of commit; None for commits of anybody else.
        token: The token of the attempt that made it.
        head: The head it carries.
        operation: Delta's name of the operation.
        author: The engine that wrote it.
        written_at: When, by the writer's clock (UTC).
    """

    version: int
    kind: str | None
    token: str | None
    head: Head | None
    operation: str
    author: str
    written_at: datetime | None = None


class _Line(msgspec.Struct):
    """One line of an entry; only commitInfo matters here."""

    commitInfo: dict[str, object] | None = None  # noqa: N815  # Delta's own name


def entry_path(table: Path, version: int) -> Path:
    """The file of one version's entry."""
    return table / "_delta_log" / f"{version:020d}.json"


def exists(table: Path) -> bool:
    """Whether there is a table in the folder."""
    return entry_path(table, 0).exists() or bool(checkpoints(table))


def read_entry(table: Path, version: int) -> Entry | None:
    """The entry of a version; None when there is none, or it is empty or cut."""
    try:
        text = entry_path(table, version).read_bytes()
        lines = msgspec.json.Decoder(_Line).decode_lines(text)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    info = next((line.commitInfo for line in lines if line.commitInfo is not None), None)
    if info is None:
        return None if not lines else Entry(version, None, None, None, "unknown", "unknown")
    head = info.get(HEAD)
    return Entry(
        version=version,
        kind=_text(info.get(KIND)),
        token=_text(info.get(TOKEN)),
        head=Head.decode(head) if isinstance(head, str) else None,
        operation=str(info.get("operation", "unknown")),
        author=str(info.get("engineInfo", "unknown")),
        written_at=_time(info.get("timestamp")),
    )


def versions(table: Path) -> list[int]:
    """The versions of which there is an entry, oldest first; none where there is no log."""
    return sorted(int(name[:-5]) for name in _names(table) if _ENTRY.fullmatch(name))


def checkpoints(table: Path) -> dict[int, list[Path]]:
    """The files of each log checkpoint by its version, oldest first."""
    found: dict[int, list[Path]] = {}
    for name in sorted(filter(_CHECKPOINT.match, _names(table))):
        found.setdefault(int(name[:20]), []).append(table / "_delta_log" / name)
    return found


def _names(table: Path) -> list[str]:
    try:
        return os.listdir(table / "_delta_log")  # noqa: PTH208  # tens of thousands of names: no Path for each
    except FileNotFoundError:
        return []


def sync(path: Path) -> None:
    """Make a file or a folder's list of names survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _time(value: object) -> datetime | None:
    return datetime.fromtimestamp(value / 1000, UTC) if isinstance(value, int) else None
