"""StateLoss: states that were discarded, and nothing replaced or emitted them."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from lockstep.model.fault import Fault

SKIP_SESSION = "skip-session"
FROM_SNAPSHOT = "from-snapshot"
ACCEPT_TRUNCATED = "accept-truncated"
ACCEPT_RECREATED = "accept-recreated"
ACCEPT_DELETED = "accept-deleted"
DECISIONS = frozenset({SKIP_SESSION, FROM_SNAPSHOT, ACCEPT_TRUNCATED, ACCEPT_RECREATED, ACCEPT_DELETED})
"""Causes that an operator has chosen, under the names of the options: they accept the loss."""
FORGOTTEN = "topic forgotten"
"""Kafka has not had the topic for so long that its state is dropped."""
ENDINGS = frozenset({Fault.TOPIC_DELETED.value, ACCEPT_DELETED, FORGOTTEN})
"""Causes by which a topic ends: its sessions would have ended with it."""
LIFE_ENDS = ENDINGS | {Fault.RECREATED.value, ACCEPT_RECREATED}
"""Causes by which no session of a partition can continue."""


class StateLoss(msgspec.Struct, frozen=True, kw_only=True):
    """States of one partition that were discarded without a snapshot that replaced, or a row that emitted them.

    Attributes:
        cause: Why: of a fault, of a verdict, or an operator's option.
        offset: Offset of the first message by which one was discarded; the position for a decision between two batches.
        sessions: Number of states.
        messages: Messages that were applied to them and are in no row, by `Transform.pending`, as far as that did not
            raise; None without the hook.
        is_accepted: The declaration (`Suspend(accept_loss=True)`) or an operator's option accepts it.
        detail: The first error of `pending`, or of `on_end`; empty without one.
    """

    cause: str
    offset: int
    sessions: int
    messages: int | None
    is_accepted: bool = False
    detail: str = ""

    def __add__(self, other: StateLoss) -> StateLoss:
        """Both, of one cause."""
        return StateLoss(
            cause=self.cause,
            offset=min(self.offset, other.offset),
            sessions=self.sessions + other.sessions,
            messages=_add(self.messages, other.messages),
            is_accepted=self.is_accepted,
            detail=self.detail or other.detail,
        )


def merge_losses(losses: Iterable[StateLoss]) -> tuple[StateLoss, ...]:
    """One loss of each cause, in order of their offsets."""
    merged: dict[str, StateLoss] = {}
    for loss in losses:
        total = merged.get(loss.cause)
        merged[loss.cause] = loss if total is None else total + loss
    return tuple(sorted(merged.values(), key=lambda loss: (loss.offset, loss.cause)))


def _add(first: int | None, second: int | None) -> int | None:
    """The sum of the known numbers."""
    if first is None:
        return second
    return first + (second or 0)


class LossTotal(msgspec.Struct, frozen=True, array_like=True):
    """The size of some losses.

    Attributes:
        sessions: Number of states.
        messages: Their messages, as far as they are known.
    """

    sessions: int = 0
    messages: int = 0

    def __bool__(self) -> bool:
        """Whether anything was lost."""
        return self.sessions > 0

    def __add__(self, other: LossTotal) -> LossTotal:
        """Both."""
        return LossTotal(self.sessions + other.sessions, self.messages + other.messages)


def count_losses(losses: Iterable[StateLoss]) -> LossTotal:
    """The size of these losses."""
    total = LossTotal()
    for loss in losses:
        total += LossTotal(loss.sessions, loss.messages or 0)
    return total
