"""Savepoints: batches that stay restorable, while housekeeping deletes around them."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import msgspec
from typing_extensions import override

from lockstep.errors import LockstepError
from lockstep.features.history.rewind import SAVEPOINT_NAME, find_target
from lockstep.features.history.rewind_commit import add_savepoint, drop_savepoint, find_savepoint
from lockstep.operations.plan_frame import Description, Labelled, Plan, Prepared, Records, refuse_changed
from lockstep.operations.stream_table import open_table
from lockstep.table.head import NO_VERSION, Savepoint
from lockstep.table.layout import StreamFolders


class SavepointShown(msgspec.Struct, frozen=True):
    """A savepoint, for people.

    Attributes:
        name: Its name.
        batch: The batch that it keeps.
        version: The version of the table, which stays readable by `versionAsOf`; None of a start without a version.
        made_at: When it was made (UTC).
        cause: The reason and the operator.
    """

    name: str
    batch: int
    version: int | None
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

    def describe(self) -> Description:
        """Return its description."""
        rows = tuple((each.name, each.batch, each.version, each.made_at, each.cause) for each in self.savepoints)
        return Description(
            title=f"{self.stream}: a rewind can go back to batch {self.rewind_floor}, and to its savepoints",
            records=(Records("savepoints", ("savepoint", "batch", "version", "made", "cause"), rows),),
        )


class SavepointDeletion(Plan, frozen=True, kw_only=True):
    """The effect of the deletion of a savepoint.

    Attributes:
        savepoint: The savepoint.
        is_restorable: A rewind can still go back to its batch: the rewind floor is not above it.
    """

    PLAN = "the deletion of a savepoint"

    savepoint: SavepointShown
    is_restorable: bool

    @override
    def describe(self) -> Description:
        shown = self.savepoint
        restorable = f"batch {shown.batch} stays restorable until the rewind floor passes it"
        gone = f"batch {shown.batch} cannot be restored afterwards: housekeeping deletes its files"
        facts = (
            Labelled("savepoint", shown.name),
            Labelled("batch", shown.batch),
            Labelled("made", shown.made_at),
            Labelled("cause", shown.cause),
        )
        return self.make_description("delete a savepoint", facts, notes=[restorable if self.is_restorable else gone])


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
        step = "start with a letter, continue with up to 59 letters, digits, dots, dashes and underscores"
        raise LockstepError(f"{name!r} is not a name of a savepoint", next_step=step)
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
    shown = map(_show, sorted(head.savepoints, key=lambda each: (each.batch, each.at)))
    return SavepointList(head.stream, head.rewind_floor, tuple(shown))


def _show(made: Savepoint) -> SavepointShown:
    version = None if made.version == NO_VERSION else made.version
    return SavepointShown(made.name, made.batch, version, datetime.fromtimestamp(made.at, UTC), made.cause)


def prepare_deletion(
    folders: StreamFolders, name: str, *, who: str, why: str
) -> Prepared[SavepointDeletion, SavepointList]:
    """Plan the deletion of a savepoint.

    Args:
        folders: Folders of the stream.
        name: Name of the savepoint.
        who: The operator.
        why: The reason.

    Raises:
        NoTable: The stream has never run.
        TableError: A savepoint of that name does not exist.

    The commit raises:
        Refused: Another savepoint has the name by now.
        TableError: It was deleted meanwhile.
    """
    plan = _plan_deletion(folders, name)

    def carry_out() -> SavepointList:
        refuse_changed(plan, _plan_deletion(folders, name), ["savepoint"])
        return drop_named_savepoint(folders, name, who=who, why=why)

    return Prepared(plan, carry_out)


def _plan_deletion(folders: StreamFolders, name: str) -> SavepointDeletion:
    head = open_table(folders).base().head
    savepoint = find_savepoint(head, name)
    return SavepointDeletion(
        stream=head.stream, savepoint=_show(savepoint), is_restorable=savepoint.batch >= head.rewind_floor
    )


def drop_named_savepoint(folders: StreamFolders, name: str, *, who: str, why: str) -> SavepointList:
    """Delete a savepoint; housekeeping may then delete what only it kept.

    Raises:
        NoTable: The stream has never run.
        TableError: No savepoint has that name.
    """
    output = open_table(folders)
    find_savepoint(output.base().head, name)
    output.commit(drop_savepoint(name, f"{why} ({who})"))
    return list_savepoints(folders)
