"""The position of a delivery in the history of its table: continue, or halt by name. Pure.

changes.py has the effect of each event on each kind of target.
"""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
from msgspec.structs import replace

from lockstep.declare.delivery import Delivery, FirstRows
from lockstep.declare.delivery_target import DeliveryToken, RowIdentity
from lockstep.errors import LockstepError
from lockstep.features.delivery.changes import HaltReason
from lockstep.features.delivery.undone import (
    advance_token,
    find_last_common,
    list_delivered,
    list_started,
    move_token,
    remember_undone,
)
from lockstep.table.commit import Base
from lockstep.table.follower_positions import find_generation
from lockstep.table.head import Head

KIND = "delivery"
"""The kind of these followers."""


class DeliveryHalted(LockstepError):
    """A delivery has halted; the target keeps its rows, and each run halts again until an operator acts.

    Attributes:
        delivery: Name of the delivery.
        reason: Why.
        row: The row that cannot be delivered; None for another reason.
    """

    def __init__(
        self, delivery: str, reason: HaltReason, evidence: str, *, next_step: str, row: RowIdentity | None = None
    ) -> None:
        super().__init__(f"delivery {delivery} has halted: {reason.value}: {evidence}", next_step=next_step)
        self.delivery = delivery
        self.reason = reason
        self.row = row

    def without_values(self) -> DeliveryHalted:
        """The halt without the values of its row: what Dagster stores outlives an erasure."""
        if self.row is None:
            return self
        evidence = f"row {self.row}; lockstep deliver {self.delivery} shows the problem"
        return DeliveryHalted(self.delivery, self.reason, evidence, next_step=self.next_step, row=self.row)


class HaltFound(msgspec.Struct, frozen=True):
    """A reason to halt, with its evidence, and the batch after which the delivery would continue."""

    reason: HaltReason
    evidence: str
    batch: int


class VersionRead(msgspec.Struct, frozen=True):
    """The version of a table that a delivery reads.

    Attributes:
        base: Version and head.
        entry: Token of the version's log entry; empty if it is unknown.
    """

    base: Base
    entry: str


def make_first_token(
    delivery: Delivery, stream: str, read: VersionRead, started_after: int | None = None
) -> DeliveryToken:
    """The position of a delivery that starts. Pure.

    Args:
        delivery: The delivery.
        stream: Name of the stream.
        read: The version that is read.
        started_after: The batch after which it started before its position was lost; None at its first start.
    """
    head = read.base.head
    dropped = 0 if head.retention is None else head.retention.batch
    newest = head.batch if started_after is None else min(head.batch, max(dropped, started_after))
    batch = newest if delivery.first_rows is FirstRows.NEW else dropped
    return move_token(
        DeliveryToken(
            delivery=delivery.name,
            stream=stream,
            table_id=head.table_id,
            generation=head.generation,
            erasure=0 if head.erasure is None else head.erasure.batch,
            version=read.base.version,
            entry=read.entry,
            since=batch,
            batch=0,
            batch_generation=0,
            step_batch=0,
            step_generation=0,
            last=None,
            rows=0,
            delivered=0,
            valid=head.valid_batches,
            epoch=0,
            code=delivery.digest_code(),
            target_state="",
            written_at=datetime.now(UTC),
        ),
        batch,
        find_generation(head, batch),
    )


def mark_version(token: DeliveryToken, read: VersionRead, code: str) -> DeliveryToken:
    """The token with the version of the table that is read now, behind the rows that the target has. Pure."""
    head = read.base.head
    return replace(
        advance_token(token, head),
        generation=head.generation,
        version=read.base.version,
        entry=read.entry,
        valid=head.valid_batches,
        code=code,
    )


def find_halt(token: DeliveryToken, head: Head, entry_now: str) -> HaltFound | None:
    """Find a reason to halt in the history of the table. Pure.

    Args:
        token: The position.
        head: The head of the table.
        entry_now: Token of the log entry that the table has at the version of the position; empty if it is unknown.
    """
    if token.table_id != head.table_id:
        return HaltFound(HaltReason.REPLACED, f"its id is {head.table_id}, not {token.table_id}", 0)
    is_ahead = token.generation > head.generation or (
        token.step_generation == head.generation and token.step_batch > head.batch
    )
    if is_ahead or (token.entry and entry_now and token.entry != entry_now):
        evidence = f"version {token.version}, which it has read, is another one or missing: it was restored from a copy"
        return HaltFound(HaltReason.REPLACED, evidence, 0)
    if token.step_batch > head.valid_batches.get(token.step_generation, 0):
        common = find_last_common(list_started(token), head.valid_batches)
        evidence = (
            f"it has rows of batches {common + 1} to {token.step_batch}, and the table continues after batch {common} "
            f"in generation {head.generation}"
        )
        return HaltFound(HaltReason.UNDONE, evidence, accept_halt(token, head, HaltReason.UNDONE).step_batch)
    dropped = 0 if head.retention is None else head.retention.batch
    batch = advance_token(token, head).batch
    if dropped > batch:
        evidence = f"those of batches {batch + 1} to {dropped}"
        return HaltFound(HaltReason.DROPPED, evidence, dropped)
    return None


def find_common_batch(token: DeliveryToken, head: Head) -> int:
    """The last batch that counts of which all rows, and those of all batches before it, are in the target. Pure."""
    return find_last_common(list_delivered(token), head.valid_batches)


def accept_halt(token: DeliveryToken, head: Head, reason: HaltReason) -> DeliveryToken:
    """The position after an operator has accepted a halt. Pure.

    It is behind the dropped rows, or behind the delivered rows that count. A step in progress starts behind the former
    and ends with its last common batch; `rows` is to be counted again then.
    """
    if reason is HaltReason.DROPPED:
        dropped = 0 if head.retention is None else head.retention.batch
        generation = find_generation(head, dropped)
        if token.last is None or token.step_batch <= dropped:
            return move_token(token, dropped, generation)
        return replace(token, batch=dropped, batch_generation=generation)
    return remember_undone(token, head)
