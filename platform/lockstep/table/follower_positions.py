"""Positions of followers: how far the consumers of committed rows have read, and of which history of each table.

    <table root>/_followers/<kind>/<name>.json

A follower is a derived table, an export, or another consumer that a feature adds (`operations/followers.py`). Its own
checkpoint decides the start of its next run. The position is for the platform: status, alarm, plans and proof. It is
written after the data, so that a kill leaves an earlier position; the next run writes it again.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from pathlib import Path

import msgspec

from lockstep.model.decoding import decode_json
from lockstep.storage import find_storage
from lockstep.table import delta_log
from lockstep.table.commit import Base
from lockstep.table.head import Head
from lockstep.table.layout import StreamFolders

FOLDER = "_followers"
"""Not the name of a stream: those start with a letter."""
SUFFIX = ".json"


class Reads(StrEnum):
    """The unit in which a follower reads."""

    COMMITS = "commits"
    HOURS = "hours"
    """Closed hours before the rewind floor; the others are not due."""
    CLOSED_HOURS = "closed hours"
    """Closed hours, also those to which a rewind may go back."""


class SourceHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The history of a source that a follower has read, and the newest commit that it read.

    Attributes:
        stream: Name of the stream.
        table_id: Delta's id of its table; empty before the first run.
        generation: Generation of the table: rewinds and promotions start the next.
        erasure: Batch of its newest erasure; 0 for none.
        version: Version of the table; -1 before the first run.
        token: Token of that version's log entry; empty if the entry was deleted.
        batch: The newest batch of which the follower may hold rows; 0 for none.
        batch_generation: The generation that wrote this batch.
        committed_at: Time of the newest commit that was read, in seconds since 1970 (UTC); None if unknown.
        complete_batch: Of this batch and all before it the follower holds all rows. It is earlier than `batch` if the
            follower stopped between rows of several batches. None if it is unknown, as in a file of 0.1.0; most
            followers read whole batches.
    """

    stream: str
    table_id: str
    generation: int
    erasure: int
    version: int
    token: str
    batch: int
    batch_generation: int
    committed_at: float | None = None
    complete_batch: int | None = None

    @property
    def last_complete(self) -> int:
        """The batch up to which the follower holds all rows, for lag: `batch` if it is unknown."""
        return self.batch if self.complete_batch is None else self.complete_batch


class FollowerName(msgspec.Struct, frozen=True, order=True):
    """Kind and name of a follower."""

    kind: str
    name: str

    def __str__(self) -> str:
        """Both, as the commands take them."""
        return f"{self.kind} {self.name}"


class FollowerPosition(msgspec.Struct, frozen=True, kw_only=True):
    """The position of a follower.

    Attributes:
        kind: Kind of follower: the name of the feature.
        name: Its name, unique in its kind.
        command: The command that runs it.
        reads: Its unit.
        rebuilds: Whether its next run replaces rows that were undone or erased; otherwise they stay.
        sources: The history of each source.
        last_run: End of its last run (UTC).
        failure: Class of the error of the last run; empty if it succeeded. Messages of errors may name sessions.
    """

    kind: str
    name: str
    command: str
    reads: Reads
    rebuilds: bool
    sources: tuple[SourceHistory, ...]
    last_run: datetime
    failure: str = ""

    @property
    def follower(self) -> FollowerName:
        """Its kind and name."""
        return FollowerName(self.kind, self.name)

    def find_source(self, stream: str) -> SourceHistory | None:
        """The history of one source; None if the follower does not read the stream."""
        return next((source for source in self.sources if source.stream == stream), None)


class FollowerPositions(msgspec.Struct, frozen=True):
    """The positions below a table root.

    Attributes:
        read: The readable ones, by kind and name.
        damaged: Those whose file cannot be read.
    """

    read: tuple[FollowerPosition, ...]
    damaged: tuple[FollowerName, ...] = ()

    def list_of(self, stream: str) -> tuple[FollowerPosition, ...]:
        """The positions of the followers that read a stream."""
        return tuple(position for position in self.read if position.find_source(stream) is not None)


def make_history(folders: StreamFolders, base: Base) -> SourceHistory:
    """The history of a source at a version, read up to this version."""
    entry = delta_log.read_entry(folders.table, base.version)
    head = base.head
    token = ""
    committed_at = None
    if entry is not None:
        token = entry.token or ""
        committed_at = find_commit_time(entry)
    return SourceHistory(
        stream=folders.stream,
        table_id=head.table_id,
        generation=head.generation,
        erasure=head.erasure.batch if head.erasure is not None else 0,
        version=base.version,
        token=token,
        batch=head.batch,
        batch_generation=find_generation(head, head.batch),
        committed_at=committed_at,
    )


def make_unread_history(stream: str) -> SourceHistory:
    """The history of a source of which nothing was read."""
    unread = {"generation": 0, "erasure": 0, "version": -1, "batch": 0, "batch_generation": 0}
    return SourceHistory(stream=stream, table_id="", token="", **unread)


def find_commit_time(entry: delta_log.LogEntry) -> float | None:
    """The time of a commit, in seconds since 1970 (UTC)."""
    if entry.written_at is None:
        return None
    return entry.written_at.timestamp()


def find_generation(head: Head, batch: int) -> int:
    """The generation that wrote a batch that counts; 0 for none."""
    if batch <= 0:
        return 0
    for generation, last in sorted(head.valid_batches.items()):
        if last >= batch:
            return generation
    return 0


def make_position_path(root: Path, name: FollowerName) -> Path:
    """The file of a position."""
    return root / FOLDER / name.kind / f"{name.name}{SUFFIX}"


def write_position(root: Path, position: FollowerPosition) -> None:
    """Replace the position of a follower, whole or not at all."""
    path = make_position_path(root, position.follower)
    # Whole or not at all: a kill leaves the earlier position, and the next run writes it again.
    find_storage(path).replace(path, msgspec.json.encode(position))


def read_position(root: Path, name: FollowerName) -> FollowerPosition | None:
    """Read the position of a follower.

    Returns:
        None before its first run.

    Raises:
        DecodeError: The file is damaged, or of another follower.
    """
    path = make_position_path(root, name)
    try:
        position = decode_json(find_storage(path).read(path), FollowerPosition)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if position.follower != name:
        raise msgspec.DecodeError(f"{path} is the position of {position.follower}")
    return position


def read_follower_positions(root: Path) -> FollowerPositions:
    """Read the positions of all followers below a table root: a listing for each kind, and a small file for each."""
    storage = find_storage(root)
    positions = list[FollowerPosition]()
    damaged = list[FollowerName]()
    for kind in sorted(storage.list_names(root / FOLDER)):
        files = storage.list_names(root / FOLDER / kind)
        names = [FollowerName(kind, file.removesuffix(SUFFIX)) for file in files if file.endswith(SUFFIX)]
        for name in sorted(names):
            try:
                position = read_position(root, name)
            except (msgspec.DecodeError, PermissionError, IsADirectoryError):
                damaged.append(name)
                continue
            if position is not None:  # else it was deleted since the listing
                positions.append(position)
    return FollowerPositions(tuple(positions), tuple(damaged))


def forget_position(root: Path, name: FollowerName) -> bool:
    """Delete the position of a follower. Returns False if there is none."""
    path = make_position_path(root, name)
    return find_storage(path).delete(path) is not None
