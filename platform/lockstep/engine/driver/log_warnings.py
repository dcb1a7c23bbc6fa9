"""Alarms for partitions that cannot be read: behind an open transaction, or without a leader; warnings of losses.

A stuck transaction loses no data and only shows as lag: without an alarm, a stream that waits for a producer which
died in a transaction seems slow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from lockstep.declare.options import Every, Trigger
from lockstep.kafka.admin import ClusterView, PartitionOffsets
from lockstep.kafka.open_transaction import OpenTransaction
from lockstep.model.position import TopicIdPartition, TopicNamePartition
from lockstep.model.state_loss import StateLoss, count_losses
from lockstep.model.tuning import Tuning
from lockstep.table.ledger import LedgerRow

ANY_AGE_SECONDS = -1.0
"""A patience that every open transaction exceeds, one of this moment included."""


def describe_hidden(stream: str, hidden: Sequence[OpenTransaction]) -> str:
    """Describe the messages that an ending run leaves unread behind open transactions, with the next step.

    Args:
        stream: Name of the stream.
        hidden: All partitions below their high watermarks, one at least.
    """
    worst = max(hidden, key=lambda transaction: transaction.hidden_offsets)
    total = sum(transaction.hidden_offsets for transaction in hidden)
    others = f" ({len(hidden)} partitions in all)" if len(hidden) > 1 else ""
    return (
        f"{total} offsets wait behind open transactions and are not read, {worst.hidden_offsets} of them in "
        f"{worst.topic}/{worst.partition} from {worst.stable_end} on{others}; "
        f"when the producer has committed: lockstep run {stream} --available-now; for one that stays open: "
        "kafka-transactions.sh find-hanging, then kafka-transactions.sh abort"
    )


def describe_losses(stream: str, rows: Iterable[LedgerRow]) -> str | None:
    """The states that a batch lost and that nothing accepts, and what to do; None without any.

    Args:
        stream: Name of the stream.
        rows: The ledger rows of the batch.
    """
    losses = list[tuple[LedgerRow, StateLoss]]()
    for row in rows:
        losses += [(row, loss) for loss in row.losses if not loss.is_accepted]
    if not losses:
        return None
    total = count_losses(loss for _, loss in losses)
    row, first = losses[0]
    place = f"{row.topic}/{row.partition}@{first.offset}"
    detail = f" ({first.detail})" if first.detail else ""
    others = f" and {len(losses) - 1} more" if len(losses) > 1 else ""
    return (
        f"batch {row.batch} lost the states of {total.sessions} sessions, with {total.messages} messages: "
        f"{first.cause} at {place}{detail}{others}; lockstep losses {stream} lists them"
    )


def compute_stuck_patience_seconds(trigger: Trigger, tuning: Tuning) -> float:
    """How long a last stable offset may stay unchanged."""
    pace = trigger.seconds if isinstance(trigger, Every) else tuning.idle_seconds
    return max(tuning.stuck_seconds_min, tuning.stuck_triggers * pace)


class LastStableOffsets(msgspec.Struct, frozen=True):
    """Times since when last stable offsets have not moved, by a monotonic clock.

    Attributes:
        since: By partition below its high watermark: the last stable offset, and when it was first observed.
    """

    since: dict[TopicIdPartition, tuple[int, float]] = {}

    def update(self, view: ClusterView, clock: float) -> LastStableOffsets:
        """Update from a new cluster view. A partition that does not answer keeps its entry."""
        since = {key: entry for key, entry in self.since.items() if key not in view.ends}
        for key, ends in view.ends.items():
            if ends.stable_end < ends.high_watermark:
                since[key] = self._since(key, ends, clock)
        return LastStableOffsets(since)

    def stalls(self, view: ClusterView, clock: float, patience_seconds: float) -> tuple[OpenTransaction, ...]:
        """Stalls longer than the given time, ordered by topic."""
        stuck = {key: clock - since for key, (_, since) in self.since.items() if clock - since > patience_seconds}
        if not stuck:
            return ()
        names = {topic.topic_id: topic.name for topic in view.topics.values()}
        stalls = list[OpenTransaction]()
        for key, seconds in stuck.items():
            ends = view.ends.get(key)
            if key.topic_id in names and ends is not None:
                name = names[key.topic_id]
                stalls.append(OpenTransaction(name, key.partition, ends.stable_end, ends.high_watermark, seconds))
        return tuple(sorted(stalls, key=lambda stall: stall.place))

    def _since(self, key: TopicIdPartition, ends: PartitionOffsets, clock: float) -> tuple[int, float]:
        entry = self.since.get(key)
        if entry is not None and entry[0] == ends.stable_end:
            return entry
        return ends.stable_end, clock


class BlockedPartitions:
    """Partitions that cannot be read, each of which is reported once.

    Attributes:
        stalls: Partitions behind transactions that have been open for too long.
    """

    def __init__(self, stuck_patience_seconds: float) -> None:
        """No partition is known to be blocked.

        Args:
            stuck_patience_seconds: How long a last stable offset may stay unchanged.
        """
        self.stalls: tuple[OpenTransaction, ...] = ()
        self._stable_ends = LastStableOffsets()
        self._leaderless = frozenset[TopicNamePartition]()
        self._stuck_patience_seconds = stuck_patience_seconds

    def note(self, view: ClusterView, clock: float) -> list[str]:
        """Update from a new cluster view; returns warnings of the partitions that are newly blocked."""
        warned = {stall.place for stall in self.stalls}
        self._stable_ends = self._stable_ends.update(view, clock)
        self.stalls = self._stable_ends.stalls(view, clock, self._stuck_patience_seconds)
        leaderless_before = self._leaderless
        self._leaderless = frozenset(view.unavailable)
        new = [stall for stall in self.stalls if stall.place not in warned]
        stuck = [f"{stall}; find it by: kafka-transactions.sh find-hanging" for stall in new]
        return stuck + _describe_leaderless(sorted(self._leaderless - leaderless_before))

    def find_hidden(self, view: ClusterView, clock: float) -> tuple[OpenTransaction, ...]:
        """All partitions that a view shows below their high watermarks, however short the time."""
        return self._stable_ends.update(view, clock).stalls(view, clock, ANY_AGE_SECONDS)


def _describe_leaderless(places: Sequence[TopicNamePartition]) -> list[str]:
    if not places:
        return []
    topic, partition = places[0]
    more = f", nor {len(places) - 1} more" if len(places) > 1 else ""
    return [f"{topic}/{partition} has no leader that answers{more}: its messages wait"]
