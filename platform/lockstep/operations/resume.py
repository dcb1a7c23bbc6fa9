"""Resumes a halted stream, after its cause was found, with what is accepted as lost."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

import msgspec

from lockstep.engine.bookkeeping import BatchIdentity, position_of, quiet_row
from lockstep.engine.hours import clock_hour, hour_of
from lockstep.errors import LockstepError
from lockstep.kafka.audit import GREW
from lockstep.operations.opened import opened
from lockstep.table import demands, ledger, side
from lockstep.table.commit import CommitKind, Landed, OutputLog
from lockstep.table.head import Desired, Head
from lockstep.table.layout import StreamFolders

LOSS = re.compile(r"(?P<topic>[A-Za-z0-9._-]+)/(?P<partition>\d+)@(?P<start>\d+)-(?P<until>\d+)")


class Loss(msgspec.Struct, frozen=True):
    """Offsets [start, until) of a partition that an operator accepts as lost."""

    topic: str
    partition: int
    start: int
    until: int

    @staticmethod
    def parse(text: str) -> Loss:
        """From TOPIC/PARTITION@FROM-UNTIL.

        Raises:
            LockstepError: The text is not of that form, or the range runs backwards.
        """
        match = LOSS.fullmatch(text)
        if match is None or int(match["start"]) > int(match["until"]):
            raise LockstepError(
                f"--accept-loss {text!r} is not TOPIC/PARTITION@FROM-UNTIL", next_step="for example books.eth/0@120-121"
            )
        return Loss(match["topic"], int(match["partition"]), int(match["start"]), int(match["until"]))


def resume(folders: StreamFolders, *, why: str, who: str, accepted: Sequence[Loss] = ()) -> Head:
    """Resume a halted stream.

    1. Read the halt.
    2. Claim, so that no other run interferes; the stream stays halted until step 4.
    3. Move the positions over what is accepted as lost.
    4. Commit the resumption as a batch of its own, with cause and operator in the ledger.

    Raises:
        LockstepError: The stream is not halted, or a loss does not begin where a partition stands.
    """
    output = opened(folders)
    before = output.base().head  # 1
    _refuse_running(before)
    claimed = output.commit(demands.claim(before.epoch, output.table_id, _refuse_running)).head  # 2
    side.SideLogs(folders).forward(claimed)
    rows = _ledger_rows(folders, claimed, f"{why} ({who})", accepted)  # 3
    landed = _commit(output, folders, claimed, rows)  # 4
    side.SideLogs(folders).forward(landed.head)
    return landed.head


def _commit(output: OutputLog, folders: StreamFolders, head: Head, rows: list[ledger.LedgerRow]) -> Landed:
    """Commit the resumption; again, for a later hour, when its hour is closed meanwhile."""
    batch = demands.Batch(
        number=head.batch + 1,
        commit_hour=hour_of(clock_hour(), head.hour, head.closed_hour),
        files=(),
        ledger=ledger.write_ledger(folders.ledger, rows),
        full_ledger_at=time.time(),
    )
    writer = demands.Writer(epoch=head.epoch, generation=head.generation)
    try:
        return output.commit(demands.batch(writer, batch, kind=CommitKind.RESUME))
    except demands.Replan:
        return _commit(output, folders, output.base().head, rows)


def _ledger_rows(folders: StreamFolders, head: Head, why: str, accepted: Sequence[Loss]) -> list[ledger.LedgerRow]:
    known = ledger.positions(folders.ledger, head)
    losses = {(loss.topic, loss.partition): loss for loss in accepted}
    identity = BatchIdentity(
        generation=head.generation,
        batch=head.batch + 1,
        epoch=head.epoch,
        committed_at=ledger.now(),
        batch_seconds=0.0,
        restart_cause=f"resume: {why}",
    )
    rows = []
    for row in known.values():
        quiet = quiet_row(identity, position_of(row, deletes_only=True), None)
        loss = losses.pop((row.topic, row.partition), None)
        rows.append(_skipped(quiet, loss, why) if loss else quiet)
    rows += [_taken_up(losses.pop(key), rows, why) for key in list(losses) if key in _grown(head)]
    if losses:
        raise LockstepError(
            f"no partition {next(iter(losses))} in the ledger", next_step=f"lockstep status {folders.stream}"
        )
    return rows


def _grown(head: Head) -> set[tuple[str, int]]:
    """Partitions that the halt names as new."""
    return {(finding.topic, finding.partition) for finding in head.findings if finding.cause == GREW}


def _taken_up(loss: Loss, rows: list[ledger.LedgerRow], why: str) -> ledger.LedgerRow:
    """The first row of a partition that a topic grew by."""
    sibling = next(row for row in rows if row.topic == loss.topic)
    first = msgspec.structs.replace(
        sibling, partition=loss.partition, start=loss.until, until=loss.until, leader_epoch=None, state_file=None
    )
    return msgspec.structs.replace(first, accepted_loss=f"taken up at offset {loss.until}: {why}")


def _skipped(row: ledger.LedgerRow, loss: Loss, why: str) -> ledger.LedgerRow:
    if loss.start != row.start:
        raise LockstepError(
            f"{loss.topic}/{loss.partition} stands at offset {row.start}, the loss begins at {loss.start}",
            next_step=f"--accept-loss {loss.topic}/{loss.partition}@{row.start}-{max(loss.until, row.start + 1)}",
        )
    accepted = f"offsets {loss.start} to {loss.until - 1}: {why}"
    return msgspec.structs.replace(row, until=loss.until, accepted_loss=accepted)


def _refuse_running(head: Head) -> None:
    if head.desired is not Desired.HALTED:
        raise LockstepError(
            f"stream {head.stream} is not halted, it is {head.desired.value}",
            next_step=f"lockstep run {head.stream}",
        )
