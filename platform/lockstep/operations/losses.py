"""Lists the states that a stream has lost, and accepts their loss."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow.compute as pc

from lockstep.model.state_loss import LossTotal, StateLoss
from lockstep.operations.stream_table import open_table
from lockstep.table import ledger
from lockstep.table.commit import accept_loss
from lockstep.table.head import Head
from lockstep.table.layout import StreamFolders

COLUMNS = ["generation", "batch", "topic_id", "topic", "partition", "committed_at", "losses"]


class LossShown(msgspec.Struct, frozen=True, kw_only=True):
    """States of one partition that one batch found to be lost, by one cause.

    Attributes:
        batch: The batch: the name under which the loss is accepted.
        at: Its time (UTC).
        topic: Name of the topic.
        partition: Partition number.
        offset: Offset of the first message by which a state was discarded.
        cause: Why.
        sessions: Number of states.
        messages: Their messages that are in no row; None if the transform does not count them (`pending`).
        is_accepted: The declaration or an option of a resumption accepts it.
        detail: Error of the transform's own code; empty without one.
    """

    batch: int
    at: datetime
    topic: str
    partition: int
    offset: int
    cause: str
    sessions: int
    messages: int | None
    is_accepted: bool
    detail: str = ""


class LossList(msgspec.Struct, frozen=True, kw_only=True):
    """The lost states of a stream.

    Attributes:
        stream: Name of the stream.
        total: All that were ever lost.
        open: The unaccepted losses.
        newest: The newest batch with one of these, whose number accepts all of them; 0 without any.
        accepted_up_to: Losses of batches up to this batch were accepted by an operator; 0 without an acceptance.
        accepted_at: Time of the newest acceptance (UTC); None without one.
        cause: Its reason and the operator.
        losses: The open losses, with those of the same batches that are accepted; oldest first.
    """

    stream: str
    total: LossTotal
    open: LossTotal
    newest: int
    accepted_up_to: int
    accepted_at: datetime | None
    cause: str
    losses: tuple[LossShown, ...]


def list_losses(folders: StreamFolders) -> LossList:
    """List the unaccepted losses of a stream.

    Raises:
        NoTable: The stream has never run.
        TableError: A ledger file is missing or damaged.
    """
    return _make_list(folders, open_table(folders).base().head)


def accept_losses(folders: StreamFolders, batch: int, *, who: str, why: str) -> LossList:
    """Accept all open losses; while a writer writes, too.

    Args:
        folders: Folders of the stream.
        batch: The newest batch with an open loss, as `list_losses` shows it.
        who: The operator.
        why: The reason.

    Raises:
        NoTable: The stream has never run.
        NoSuchLoss: Another loss is the newest open loss.
    """
    return _make_list(folders, open_table(folders).commit(accept_loss(batch, time.time(), f"{why} ({who})")).head)


def _make_list(folders: StreamFolders, head: Head) -> LossList:
    lost = head.lost
    accepted_at = None
    if lost.at:
        accepted_at = datetime.fromtimestamp(lost.at, UTC)
    losses = list[LossShown]()
    if lost.open:
        losses = sorted(_read_open(folders, head), key=_get_place)
    return LossList(
        stream=head.stream,
        total=lost.total,
        open=lost.open,
        newest=lost.last_batch,
        accepted_up_to=lost.accepted_batch,
        accepted_at=accepted_at,
        cause=lost.cause,
        losses=tuple(losses),
    )


def _read_open(folders: StreamFolders, head: Head) -> Iterator[LossShown]:
    """The losses from the first batch with an open one on: files of earlier batches are not read.

    Raises:
        TableError: A ledger file is missing or damaged.
    """
    lost = head.lost
    valid = head.valid_batches
    # Part by part: the ledger of a year has a hundred million rows.
    for rows in ledger.iterate_columns(folders.ledger, COLUMNS, first_batch=lost.first_batch, last_batch=head.batch):
        with_losses = rows.filter(pc.list_value_length(pc.field("losses")) > 0)
        for row in with_losses.to_pylist():
            if row["batch"] <= valid.get(row["generation"], 0):
                yield from _show(row)


def _show(row: dict[str, Any]) -> Iterator[LossShown]:
    for loss in msgspec.convert(row["losses"], list[StateLoss]):
        yield LossShown(
            batch=row["batch"],
            at=row["committed_at"],
            topic=row["topic"],
            partition=row["partition"],
            **msgspec.structs.asdict(loss),
        )


def _get_place(loss: LossShown) -> tuple[int, str, int]:
    return loss.batch, loss.topic, loss.partition
