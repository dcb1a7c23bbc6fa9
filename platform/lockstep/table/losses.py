"""The lost states in the head: their total, and the unaccepted part. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from lockstep.model.state_loss import LossTotal, StateLoss, count_losses


class LostStates(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The lost states of a stream, as of one commit.

    Attributes:
        total: All of them.
        open: The unaccepted losses.
        first_batch: The first batch with one of these; 0 without any.
        last_batch: The last such batch: its number is the name of the loss.
        accepted_batch: Losses of batches up to this batch are accepted.
        at: Time of the newest acceptance, in seconds since 1970 (UTC).
        cause: Its reason and the operator.
    """

    total: LossTotal = LossTotal()
    open: LossTotal = LossTotal()
    first_batch: int = 0
    last_batch: int = 0
    accepted_batch: int = 0
    at: float = 0.0
    cause: str = ""


NONE_LOST = LostStates()


class BatchLosses(msgspec.Struct, frozen=True):
    """The losses of one batch.

    Attributes:
        total: All of them.
        open: Those that neither the declaration nor an operator's option accepts.
    """

    total: LossTotal = LossTotal()
    open: LossTotal = LossTotal()


NO_LOSSES = BatchLosses()


def count_batch_losses(losses: Iterable[StateLoss]) -> BatchLosses:
    """The losses of a batch in all partitions."""
    listed = list(losses)
    return BatchLosses(count_losses(listed), count_losses(each for each in listed if not each.is_accepted))


def add_losses(lost: LostStates, batch: int, losses: BatchLosses) -> LostStates:
    """The lost states after a batch."""
    if not losses.total:
        return lost
    lost = msgspec.structs.replace(lost, total=lost.total + losses.total)
    if not losses.open:
        return lost
    first = lost.first_batch or batch
    return msgspec.structs.replace(lost, open=lost.open + losses.open, first_batch=first, last_batch=batch)


def accept_losses(lost: LostStates, at: float, cause: str) -> LostStates:
    """The lost states after an operator has accepted all that are open."""
    return LostStates(total=lost.total, accepted_batch=lost.last_batch, at=at, cause=cause)


def rewind_losses(now: LostStates, then: LostStates) -> LostStates:
    """The lost states after a rewind: those of the earlier batch, with the acceptances since.

    An acceptance covers all losses of the batches up to it. One that covers a part of those that were open at the
    earlier batch was made after another rewind, and counts for none of them.
    """
    rewound = msgspec.structs.replace(now, total=then.total, open=LossTotal(), first_batch=0, last_batch=0)
    # An acceptance covers all losses up to its batch; one of a part of them is of after another rewind.
    if then.last_batch <= now.accepted_batch:
        return rewound
    return msgspec.structs.replace(rewound, open=then.open, first_batch=then.first_batch, last_batch=then.last_batch)


def add_shadow_losses(kept: LostStates, added: LostStates, batches_before: int) -> LostStates:
    """The lost states of a stream and of a shadow whose batches follow those of the stream.

    Args:
        kept: Those of the stream, up to the batch from which the shadow started.
        added: Those of the shadow.
        batches_before: Number of the batch of the stream before the shadow's first.
    """
    joined = msgspec.structs.replace(kept, total=kept.total + added.total)
    if not added.open:
        return joined
    return msgspec.structs.replace(
        joined,
        open=kept.open + added.open,
        first_batch=kept.first_batch or batches_before + added.first_batch,
        last_batch=batches_before + added.last_batch,
    )
