"""Savepoints: batches that stay restorable, whatever housekeeping deletes around them."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import msgspec

from lockstep.errors import LockstepError
from lockstep.features.history.rewind import SAVEPOINT_NAME, find_target
from lockstep.features.history.rewind_commit import add_savepoint, drop_savepoint, find_savepoint
from lockstep.operations.stream_table import open_table
from lockstep.table.head import Savepoint
from lockstep.table.layout import StreamFolders


class SavepointShown(msgspec.Struct, frozen=True):
    """A savepoint, for people.

    Attributes:
        name: Its name.
        batch: The batch that it keeps.
        version: The version of the table, which stays readable by `versionAsOf`.
        made_at: When it was made (UTC).
        cause: The reason and the operator.
    """

    name: str
    batch: int
    version: int
    made_at: datetime
    cause: str


class SavepointList(msgspec.Struct, frozen=True):
    """The savepoints of a stream.

    Attributes:
        stream: Name of the stream.
        rewind_floor: Oldest batch that a rewind may go back to without one.
        savepoints: Oldest batch first.
    """

    stream: str
    rewind_floor: int
    savepoints: tuple[SavepointShown, ...]


def make_savepoint(folders: StreamFolders, name: str, *, who: str, why: str, at: str | None = None) -> SavepointList:
    """Keep a batch restorable; while a writer writes, too.

    Args:
        folders: Folders of the stream.
        name: Its name: a letter, then letters, digits, dots, dashes and underscores.
        who: The operator.
        why: The reason.
        at: The batch, as `find_target` takes it; by default the newest one.

    Raises:
        NoTable: The stream has never run.
        NotRewindable: The batch cannot be kept: its files may be deleted by now.
        TableError: There is a savepoint of that name, or there are too many.
        LockstepError: The name is not one, or `at` names no batch.
    """
    if not SAVEPOINT_NAME.fullmatch(name):
        step = "begin with a letter, go on with up to 59 letters, digits, dots, dashes and underscores"
        raise LockstepError(f"{name!r} is no name of a savepoint", next_step=step)
    output = open_table(folders)
    head = output.base().head
    target = head if at is None else find_target(folders, head, at)
    made = Savepoint(name, target.batch, target.batch_version, time.time(), f"{why} ({who})")
    output.commit(add_savepoint(made))
    return list_savepoints(folders)


def list_savepoints(folders: StreamFolders) -> SavepointList:
    """The savepoints of a stream.

    Raises:
        NoTable: The stream has never run.
    """
    head = open_table(folders).base().head
    shown = (
        SavepointShown(each.name, each.batch, each.version, datetime.fromtimestamp(each.at, UTC), each.cause)
        for each in sorted(head.savepoints, key=lambda each: (each.batch, each.at))
    )
    return SavepointList(head.stream, head.rewind_floor, tuple(shown))


def drop_named_savepoint(folders: StreamFolders, name: str, *, who: str, why: str) -> SavepointList:
    """Delete a savepoint; housekeeping may then delete what only it kept.

    Raises:
        NoTable: The stream has never run.
        TableError: There is no savepoint of that name.
    """
    output = open_table(folders)
    find_savepoint(output.base().head, name)
    output.commit(drop_savepoint(name, f"{why} ({who})"))
    return list_savepoints(folders)
