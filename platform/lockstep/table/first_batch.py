"""The first batch of a table that inherits state and positions: of a shadow, or of an imported savepoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from lockstep.errors import TableError
from lockstep.table.commit import Base, Proposal, check_hour_open
from lockstep.table.commit_kinds import CommitKind
from lockstep.table.delta_log import CAUSE
from lockstep.table.head import FIRST_BATCH, Desired, Head, Imported, Origin, SideFile


class FirstBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The first batch of a table that starts with the state and the positions of another table.

    Attributes:
        taken_over: The origin of its state and positions.
        table_id: Delta's id of its output table.
        commit_hour: The hour of the batch.
        ledger: Its ledger file, already synced: the inherited positions.
        at: Its time, in seconds since 1970 (UTC).
        accepts_burst: As in the head from which it starts.
        needs: The copied state, and the ledger file, with the least size of each.
    """

    taken_over: Origin | Imported
    table_id: str
    commit_hour: str
    ledger: SideFile
    at: float
    accepts_burst: bool
    needs: Mapping[Path, int]


def commit_first_batch(start: FirstBatch, kind: CommitKind) -> Proposal:
    """Start a stream in a table without a batch: claim and first batch in one; it is stopped.

    Args:
        start: The first batch.
        kind: The kind of commit of the feature that starts the stream.

    The commit raises:
        TableError: The table has been written by now.
        HourClosed: The hour was closed since.
    """
    source = start.taken_over
    shadow = source if isinstance(source, Origin) else None
    imported = source if isinstance(source, Imported) else None
    what, where = _describe_source(source)

    def next_head(base: Base) -> Head:
        check_empty(base.head)
        check_hour_open(base.head, start.commit_hour)
        return msgspec.structs.replace(
            base.head,
            table_id=start.table_id,
            epoch=FIRST_BATCH,
            batch=FIRST_BATCH,
            batch_version=base.version + 1,
            hour=start.commit_hour,
            desired=Desired.STOPPED,
            reason=f"{what}: {source.cause}",
            ledger=start.ledger,
            full_ledger_batch=FIRST_BATCH,
            full_ledger_at=start.at,
            accepts_burst=start.accepts_burst,
            rewind_floor=FIRST_BATCH,
            origin=shadow,
            imported=imported,
        )

    return Proposal(
        kind=kind,
        next_head=next_head,
        batch=FIRST_BATCH,
        epoch=FIRST_BATCH,
        metadata={CAUSE: f"from batch {source.batch} of {where}: {source.cause}"},
        needs=start.needs,
    )


def _describe_source(source: Origin | Imported) -> tuple[str, str]:
    """The kind of start, and the place of the state, for people."""
    if isinstance(source, Origin):
        return f"shadow of {source.stream}", source.stream
    return f"savepoint {source.savepoint} imported", f"{source.stream} (savepoint {source.savepoint})"


def check_empty(head: Head) -> None:
    """Refuse to start a shadow in a table that a stream has written.

    Raises:
        TableError: It has.
    """
    if head.epoch or head.batch:
        what = "a stream with separate rows"
        if head.origin is not None:
            what = f"a shadow of {head.origin.stream}"
        step = f"choose another --name; lockstep run {head.stream} runs an existing shadow, --drop deletes it"
        raise TableError(f"{head.stream} is {what} already", next_step=step)
