"""What each kind of commit demands of its base, and the head it leaves. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
from deltalake import CommitProperties, DeltaTable

from lockstep.errors import Fenced, TableError
from lockstep.integrity.finding import Finding
from lockstep.table.commit import Base, CommitKind, Proposal
from lockstep.table.files import DataFile
from lockstep.table.head import Desired, Head, Resumption, SideBatch, SideFile


class Writer(msgspec.Struct, frozen=True):
    """The identity under which a run commits batches."""

    epoch: int
    generation: int


class Replan(TableError):
    """The batch was planned for an hour that has been closed meanwhile: plan it again."""


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch ready to commit.

    Attributes:
        number: Batch number; one more than the last.
        commit_hour: The hour fixed when it was planned.
        files: Data files, already synced.
        ledger: Its ledger file, already synced.
        quarantine: Its files of the quarantine, already synced.
        late: Its files of the late table, already synced.
        full_ledger_at: When the ledger file holds all positions, the time of it in seconds.
        findings: Evidence; not empty makes this commit the halt.
        accepts_burst: An operator accepted a burst of quarantine that is not over yet.
        needs: The side files, and the state files that the ledger file refers to, with the least size of each.
        resumption: What an operator resumed the stream with, where this batch is a resumption.
    """

    number: int
    commit_hour: str
    files: tuple[DataFile, ...]
    ledger: SideFile
    quarantine: tuple[SideFile, ...] = ()
    late: tuple[SideFile, ...] = ()
    full_ledger_at: float | None = None
    findings: tuple[Finding, ...] = ()
    accepts_burst: bool = False
    needs: Mapping[Path, int] = {}
    resumption: Resumption | None = None


def claim(
    named_epoch: int,
    table_id: str,
    check: Callable[[Head], None],
    *,
    desired: Desired | None = None,
    reason: str = "claimed",
) -> Proposal:
    """A claim: replaces the epoch it names, and no other.

    Args:
        named_epoch: The epoch that this claim replaces.
        table_id: Delta's id of the output table.
        check: Refuses a head that this run may not take over (halted, another stream).
        desired: The desired state from now on; None leaves it as it is. A halted stream stays halted, and takes the
            new state when it is resumed. The first claim of all makes a new stream `bounded`, unless told otherwise.
        reason: Why, and who wants it.
    """

    def next_head(base: Base) -> Head:
        check(base.head)
        if base.head.epoch != named_epoch:
            raise Fenced(named_epoch + 1, base.head.epoch)
        claimed = msgspec.structs.replace(base.head, epoch=named_epoch + 1, table_id=table_id)
        if desired is not None:
            return _wished(base, claimed, desired, reason)
        return _with_desired(claimed, Desired.BOUNDED, "bounded runs only") if named_epoch == 0 else claimed

    return Proposal(kind=CommitKind.CLAIM, next_head=next_head, epoch=named_epoch + 1)


def batch(writer: Writer, planned: Batch, *, kind: CommitKind | None = None, reason: str = "resumed") -> Proposal:
    """A batch of the writer that holds the table. One with findings is a halt; the one after a halt resumes."""

    def next_head(base: Base) -> Head:
        head = base.head
        _same_writer(head, writer)
        if head.batch != planned.number - 1:
            raise TableError(
                f"batch {planned.number} does not follow the last committed batch {head.batch}",
                next_step="start the stream again: it goes on from the ledger",
            )
        if planned.commit_hour <= head.closed_hour or planned.commit_hour < head.hour:
            raise Replan(f"hour {planned.commit_hour} is closed", next_step="nothing: the batch is planned again")
        full = planned.full_ledger_at is not None
        return msgspec.structs.replace(
            _halted_or_resumed(head, planned.findings, reason),
            batch=planned.number,
            batch_version=base.version + 1,
            hour=planned.commit_hour,
            findings=planned.findings,
            accepts_burst=planned.accepts_burst,
            ledger=planned.ledger,
            quarantine=_added(head.quarantine, planned.quarantine, planned.number),
            late=_added(head.late, planned.late, planned.number),
            full_ledger_batch=planned.number if full else head.full_ledger_batch,
            full_ledger_at=planned.full_ledger_at or head.full_ledger_at,
            last_resumption=planned.resumption or head.last_resumption,
        )

    usual = CommitKind.HALT if planned.findings else CommitKind.BATCH
    kind = kind or usual
    return Proposal(kind=kind, next_head=next_head, adds=planned.files, batch=planned.number, needs=planned.needs)


def close(hour: str) -> Proposal:
    """Close an hour, so that nothing can be committed into it any more."""

    def next_head(base: Base) -> Head:
        return msgspec.structs.replace(base.head, closed_hour=max(hour, base.head.closed_hour))

    return Proposal(kind=CommitKind.CLOSE, next_head=next_head)


def desire(writer: Writer, desired: Desired, reason: str) -> Proposal:
    """Record what is wanted of the stream from now on; by the writer of this epoch."""

    def next_head(base: Base) -> Head:
        _same_writer(base.head, writer)
        return _wished(base, base.head, desired, reason)

    return Proposal(kind=CommitKind.DESIRE, next_head=next_head)


def floor(generation: int, batch: int) -> Proposal:
    """Raise the oldest batch that a rewind may go back to; by anybody, as long as the generation is the same."""

    def next_head(base: Base) -> Head:
        if base.head.generation != generation:
            raise TableError(
                f"generation {generation} has become {base.head.generation}",
                next_step="nothing: the next clean-up counts anew",
            )
        return msgspec.structs.replace(base.head, rewind_floor=max(batch, base.head.rewind_floor))

    return Proposal(kind=CommitKind.FLOOR, next_head=next_head)


def schema(writer: Writer, alter: Callable[[DeltaTable, CommitProperties], None]) -> Proposal:
    """A change of the table's columns, by the writer of this epoch; nothing else changes."""

    def check(head: Head) -> None:
        _same_writer(head, writer)

    return Proposal(kind=CommitKind.SCHEMA, next_head=unchanged(check), alter=alter)


def unchanged(check: Callable[[Head], None]) -> Callable[[Base], Head]:
    """The head of commits that change files only, after a check on the base."""

    def next_head(base: Base) -> Head:
        check(base.head)
        return base.head

    return next_head


def _wished(base: Base, head: Head, desired: Desired, reason: str) -> Head:
    return msgspec.structs.replace(_with_desired(head, desired, reason), wished_version=base.version + 1)


def _with_desired(head: Head, desired: Desired, reason: str) -> Head:
    if head.desired is Desired.HALTED:
        return msgspec.structs.replace(head, resumes_as=desired)
    return msgspec.structs.replace(head, desired=desired, reason=reason)


def _halted_or_resumed(head: Head, findings: tuple[Finding, ...], reason: str) -> Head:
    """The desired state after a batch: only a halt and the resumption change it."""
    halted = head.desired is Desired.HALTED
    if findings:
        before = head.resumes_as if halted else head.desired
        return msgspec.structs.replace(head, desired=Desired.HALTED, reason=str(findings[0]), resumes_as=before)
    return msgspec.structs.replace(head, desired=head.resumes_as, reason=reason) if halted else head


def _added(before: SideBatch | None, files: tuple[SideFile, ...], batch: int) -> SideBatch | None:
    """What the head says of a side table after a batch that may add to it."""
    return SideBatch(batch, before.batch if before is not None else 0, files) if files else before


def _same_writer(head: Head, writer: Writer) -> None:
    if head.epoch != writer.epoch or head.generation != writer.generation:
        raise Fenced(writer.epoch, head.epoch)
