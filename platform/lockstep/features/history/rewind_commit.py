"""Commits that go back to an earlier batch, and those that keep one restorable: docs/decisions/0025."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import msgspec

from lockstep.declare.stream import AnyStream
from lockstep.errors import TableError
from lockstep.features.history.commit_kinds import REWIND, SAVEPOINT
from lockstep.operations.kept_rows import UndoneBatches
from lockstep.operations.past_batches import NotRewindable, check_rewindable
from lockstep.operations.plan_frame import make_changed
from lockstep.table import delta_log
from lockstep.table.commit import Base, Proposal, Writer, check_hour_open, check_writer
from lockstep.table.head import Desired, Head, Lineage, Rewind, Savepoint, SideFile
from lockstep.table.layout import StreamFolders
from lockstep.table.losses import rewind_losses
from lockstep.table.restore import Restoration, find_restored
from lockstep.table.written_by import WrittenBy


class RewindCommit(msgspec.Struct, frozen=True, kw_only=True):
    """A rewind to commit.

    Attributes:
        table: Folder of the output table.
        seen: The head for which it was planned.
        target: The head right after the batch to which it goes back.
        commit_hour: The hour of the rewind, which is a batch.
        ledger: Its ledger file, already synced: the positions of the target.
        at: Its time, in seconds since 1970 (UTC).
        cause: The reason and the operator.
        needs: Files that it brings back or refers to, with the least size of each.
    """

    table: Path
    seen: Head
    target: Head
    commit_hour: str
    ledger: SideFile
    at: float
    cause: str
    needs: Mapping[Path, int] = {}


def commit_rewind(planned: RewindCommit) -> Proposal:
    """Go back to an earlier batch: a claim, a batch and the restored table in one commit; the stream is stopped.

    The commit raises:
        Fenced: Another run, or another rewind, claimed the table since it was planned.
        NotRewindable: A batch was committed since, or the files of the target may be deleted by now.
        HourClosed: The hour was closed since.
    """
    seen = planned.seen
    target = planned.target

    def next_head(base: Base) -> Head:
        check_unchanged(base.head, seen, target)
        check_hour_open(base.head, planned.commit_hour)
        return _make_head(base, planned)

    restoration = Restoration(
        table=planned.table,
        version=target.files_version,
        commit_hour=planned.commit_hour,
        written_by=WrittenBy(seen.generation + 1, seen.epoch + 1, seen.batch + 1),
    )
    return Proposal(
        kind=REWIND,
        next_head=next_head,
        batch=seen.batch + 1,
        epoch=seen.epoch + 1,
        metadata={delta_log.CAUSE: f"to batch {target.batch}, undoing up to batch {seen.batch}: {planned.cause}"},
        restore=partial(find_restored, restoration),
        needs=planned.needs,
    )


def check_unchanged(head: Head, seen: Head, target: Head) -> None:
    """Refuse a base on which somebody has written since a plan, or whose target may be gone.

    Raises:
        Fenced: Another run, or another operation, claimed the table.
        NotRewindable: A batch was committed, or the files of the target may be deleted by now.
        Refused: Retention has dropped rows: another number of rows would go than in the plan.
    """
    check_writer(head, Writer(epoch=seen.epoch, generation=seen.generation))
    if head.retention != seen.retention:
        raise make_changed(head.stream, f"the way back to batch {target.batch}", "retention has dropped rows")
    if head.batch != seen.batch:
        problem = f"batch {head.batch} was committed since it was planned after batch {seen.batch}"
        step = f"lockstep stop {head.stream}; then plan again"
        raise NotRewindable(head.stream, target.batch, problem, next_step=step)
    check_rewindable(head, target.batch)


def _make_head(base: Base, planned: RewindCommit) -> Head:
    head = base.head
    target = planned.target
    number = base.head.batch + 1
    version = base.version + 1
    return msgspec.structs.replace(
        make_stopped(head, f"rewound to batch {target.batch}: {planned.cause}"),
        generation=head.generation + 1,
        lineage=make_lineage(target),
        epoch=head.epoch + 1,
        batch=number,
        batch_version=version,
        hour=planned.commit_hour,
        desired_version=version,
        findings=(),
        halted_topics=(),  # their violations are found again
        ledger=planned.ledger,
        full_ledger_batch=number,
        full_ledger_at=planned.at,
        accepts_burst=target.accepts_burst,
        last_resumption=target.last_resumption,
        retention=target.retention,
        promotion=target.promotion,
        lost=rewind_losses(head.lost, target.lost),
        rewinds=(*head.rewinds, Rewind(number, version, target.batch, head.batch, planned.cause)),
    )


def make_lineage(target: Head) -> tuple[Lineage, ...]:
    """The generations that ended, after a commit that goes back to a batch."""
    return (*target.lineage, Lineage(target.generation, target.batch))


def list_undone(folders: StreamFolders, declared: AnyStream, head: Head, target: Head) -> UndoneBatches:
    """The batches that a commit on a head undoes if it goes back to a target."""
    after = msgspec.structs.replace(
        head,
        generation=head.generation + 1,
        lineage=make_lineage(target),
        batch=head.batch + 1,
        retention=target.retention,
    )
    return UndoneBatches(folders, declared, after)


def make_stopped(head: Head, reason: str) -> Head:
    """The head stopped, and no longer halted; a hold stays until somebody releases it."""
    if Desired.HELD in {head.desired, head.resumes_as if head.desired is Desired.HALTED else None}:
        return msgspec.structs.replace(head, desired=Desired.HELD)
    return msgspec.structs.replace(head, desired=Desired.STOPPED, reason=reason)


SAVEPOINTS_MAX = 20
"""Every commit repeats them; each keeps its data files, its state and its log entry."""


def add_savepoint(savepoint: Savepoint) -> Proposal:
    """Keep a batch restorable; by any process, while a writer writes.

    The commit raises:
        NotRewindable: Files of the batch may be deleted by now.
        TableError: There is a savepoint of that name, or there are too many.
    """

    def next_head(base: Base) -> Head:
        head = base.head
        check_rewindable(head, savepoint.batch)
        if any(each.name == savepoint.name for each in head.savepoints):
            problem = f"has a savepoint {savepoint.name} already"
            step = "choose another name, or delete that savepoint: lockstep savepoint delete"
            raise TableError(f"stream {head.stream} {problem}", next_step=step)
        if len(head.savepoints) >= SAVEPOINTS_MAX:
            problem = f"has {SAVEPOINTS_MAX} savepoints, the maximum"
            command = f"lockstep savepoint list {head.stream}"
            step = f"{command} lists them; delete one: {command} NAME --delete"
            raise TableError(f"stream {head.stream} {problem}", next_step=step)
        return msgspec.structs.replace(head, savepoints=(*head.savepoints, savepoint))

    return _savepoint_proposal(next_head, f"{savepoint.name} of batch {savepoint.batch}: {savepoint.cause}")


def drop_savepoint(name: str, cause: str) -> Proposal:
    """Keep the batch of a savepoint no longer than others.

    The commit raises:
        TableError: No savepoint has that name.
    """

    def next_head(base: Base) -> Head:
        find_savepoint(base.head, name)
        others = tuple(savepoint for savepoint in base.head.savepoints if savepoint.name != name)
        return msgspec.structs.replace(base.head, savepoints=others)

    return _savepoint_proposal(next_head, f"{name} deleted: {cause}")


def find_savepoint(head: Head, name: str) -> Savepoint:
    """The savepoint of a name.

    Raises:
        TableError: There is none; names those there are.
    """
    savepoint = next((each for each in head.savepoints if each.name == name), None)
    if savepoint is None:
        named = ", ".join(each.name for each in head.savepoints) or "none"
        step = f"savepoints of {head.stream}: {named}"
        raise TableError(f"stream {head.stream} has no savepoint {name!r}", next_step=step)
    return savepoint


def _savepoint_proposal(next_head: Callable[[Base], Head], cause: str) -> Proposal:
    return Proposal(kind=SAVEPOINT, next_head=next_head, metadata={delta_log.CAUSE: cause})
