"""Targets of deliveries: the rows and tokens that they take, and their errors (docs/how-to-add/target.md)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import datetime
from typing import ClassVar, NamedTuple

import msgspec

from lockstep.errors import LockstepError
from lockstep.model.declaration import Declaration
from lockstep.model.field_types import mark_extension_point


class RowIdentity(NamedTuple):
    """The identity of a row inside one generation of a table, and its place in the order of rows.

    Attributes:
        emit_offset: Offset that was processed when the row was emitted.
        row: Number of the row inside its emit offset.
    """

    topic_id: str
    partition: int
    emit_offset: int
    row: int

    def __str__(self) -> str:
        """The parts in one text, as headers and errors have it."""
        return f"{self.topic_id}/{self.partition}/{self.emit_offset}/{self.row}"


class RowSource(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The origin of a delivered row.

    Attributes:
        offset: Offset of the message that caused the row.
        emit_offset: Offset that was processed when the row was emitted.
        row: Number of the row inside its emit offset.
        event_time: In UTC.
        cause: The hook that emitted the row, such as "update".
        generation: The generation of the table that wrote this batch.
    """

    topic: str
    topic_id: str
    partition: int
    offset: int
    emit_offset: int
    row: int
    session: str
    sequence: int | None
    event_time: datetime | None
    cause: str
    batch: int
    generation: int

    @property
    def identity(self) -> RowIdentity:
        """The identity of the row inside its generation."""
        return RowIdentity(self.topic_id, self.partition, self.emit_offset, self.row)


class DeliveredRow(msgspec.Struct, frozen=True, gc=False):
    """A row to deliver.

    Attributes:
        value: The row of the stream, or the result of `Delivery.select`.
        origin: Its origin.
    """

    value: msgspec.Struct
    origin: RowSource


class DeadRow(msgspec.Struct, frozen=True):
    """A row that a delivery has left out (`UndeliverableRows.DEAD_LETTER`).

    Attributes:
        row: Its identity.
        generation: The generation of the table that wrote its batch.
        batch: Its batch.
    """

    row: RowIdentity
    generation: int
    batch: int


class UndoneStep(msgspec.Struct, frozen=True):
    """A step that had not ended when its batches were undone, and whose delivered rows stay in the target.

    Attributes:
        batches: The last batch of the step in each generation.
        last: The last row that was delivered, in the order of identity.
    """

    batches: dict[int, int]
    last: RowIdentity


class DeliveryToken(msgspec.Struct, frozen=True, kw_only=True):
    """The position of a delivery, which the target commits together with the rows.

    Other fields are the delivery's alone.

    Attributes:
        stream: Name of its stream.
        table_id: Delta's id of the stream's table.
        generation: Generation of the table when the rows were read.
        erasure: Batch of the newest erasure that was known then; 0 for none.
        version: Version of the table that was read.
        entry: Token of that version's log entry: a table that was restored from a copy has another.
        since: Rows of batches up to this number are not delivered: the delivery started after it.
        batch: Rows of all batches up to this number are delivered.
        batch_generation: The generation that wrote this batch.
        step_batch: Last batch of the step in progress, which starts after `batch`; equal to `batch` between steps.
        step_generation: The generation that wrote this batch.
        last: The last row of the step that is done, in the order of identity; None between steps.
        rows: Rows of the step that are done, in the order of identity.
        delivered: Rows in the target, of all steps; rows that `Delivery.where` leaves out do not count.
        epoch: Number of the claim under which the token was written: each start of the delivery claims the next one.
        valid: The last batch that counted of each generation when the rows were read; later batches are not delivered.
        code: Digest of the delivery's functions.
        target_state: State of the target that only the target reads.
        dead: The rows that were left out, in order of delivery.
        undone: The last delivered batch of each generation with undone batches, whose rows stay in the target; a later
            rewind may return to them.
        undone_steps: Undone batches of which some rows are in the target.
    """

    delivery: str
    stream: str
    table_id: str
    generation: int
    erasure: int
    version: int
    entry: str
    since: int
    batch: int
    batch_generation: int
    step_batch: int
    step_generation: int
    last: RowIdentity | None
    rows: int
    delivered: int
    valid: dict[int, int]
    epoch: int
    code: str
    target_state: str
    written_at: datetime
    dead: tuple[DeadRow, ...] = ()
    undone: dict[int, int] = {}
    undone_steps: tuple[UndoneStep, ...] = ()


class TargetRefused(LockstepError):
    """A target cannot be used; nothing was delivered.

    Attributes:
        delivery: Name of the delivery.
    """

    def __init__(self, delivery: str, problem: str, *, next_step: str) -> None:
        super().__init__(f"delivery {delivery}: {problem}", next_step=next_step)
        self.delivery = delivery


class TargetInterrupted(LockstepError):
    """A write to a target did not end, or its outcome is unknown. A new claim reads the token, which decides.

    Attributes:
        delivery: Name of the delivery.
        retry_seconds: The target asked for so many seconds before the next attempt; 0 for none.
    """

    def __init__(self, delivery: str, problem: str, *, retry_seconds: float = 0.0) -> None:
        step = f"check the target; then lockstep deliver {delivery}, which continues from its token"
        super().__init__(f"delivery {delivery} was interrupted: {problem}", next_step=step)
        self.delivery = delivery
        self.retry_seconds = retry_seconds


class DeliveryFenced(LockstepError):
    """A newer run of the delivery has claimed the target.

    Attributes:
        delivery: Name of the delivery.
    """

    def __init__(self, delivery: str) -> None:
        problem = f"another run of delivery {delivery} has claimed the target; this run delivered no row after that"
        super().__init__(problem, next_step="leave it to that run; or stop it, and start this run again")
        self.delivery = delivery


class RowUndeliverable(LockstepError):
    """A target cannot hold a row.

    Attributes:
        row: Its identity.
    """

    def __init__(self, row: RowIdentity, problem: str, *, next_step: str) -> None:
        super().__init__(f"row {row}: {problem}", next_step=next_step)
        self.row = row


class TargetConnection(ABC):
    """A claimed target: no earlier claim can write any more."""

    @property
    @abstractmethod
    def token(self) -> DeliveryToken | None:
        """The newest token in the target, read after the claim; None before the first write."""

    @abstractmethod
    def write(self, rows: Sequence[DeliveredRow], token: DeliveryToken) -> None:
        """Write rows and token: both or neither.

        Args:
            rows: Rows in the order of delivery; none to move the position only.
            token: The position after them. Its `epoch` and `target_state` are the target's to set.

        Raises:
            DeliveryFenced: A newer claim holds the target.
            RowUndeliverable: The target cannot hold a row; nothing was written.
            TargetInterrupted: The outcome is unknown, or nothing was written.
        """

    @abstractmethod
    def close(self) -> None:
        """Release the target; a transaction that is open is aborted."""


@mark_extension_point
class Target(Declaration, ABC):
    """A target of your own: derive a frozen dataclass from it (docs/how-to-add/target.md).

    Attributes:
        transaction_rows: Rows of one write, at most.
        transaction_seconds: Time for which a write collects rows, at most.
        joins_batches: False if rows of a later batch must follow those of earlier batches across source partitions.
    """

    transaction_rows: ClassVar[int] = 10_000
    transaction_seconds: ClassVar[float] = 1.0
    joins_batches: ClassVar[bool] = True

    @property
    @abstractmethod
    def address(self) -> str:
        """A text that is equal for equal places, such as a URL: two deliveries to one place are refused."""

    @abstractmethod
    def connect(self, delivery: str) -> TargetConnection:
        """Claim the target for a run of a delivery, then read its token.

        Raises:
            TargetRefused: The target cannot be used.
            TargetInterrupted: It did not answer.
        """
