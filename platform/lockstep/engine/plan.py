"""Plans a batch: who reads which offsets, in which bin. Pure: the same input, the same plan."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from lockstep.kafka.audit import Key
from lockstep.kafka.discovery import Ends
from lockstep.state.address import SectionRef

SMALL_BATCH_MESSAGES = 20_000
"""Below this one bin does it all: each further file and task costs more than it saves."""
MOVE_FOR_SECONDS_RATIO = 0.25
"""A partition leaves its bin only when that bin would take this much longer than the average:
its hot state lies where it was last worked."""
DEFAULT_SECONDS_A_MESSAGE = 5e-6


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a partition before a batch.

    Attributes:
        topic: Name of the topic.
        topic_id: Id of this life of the topic.
        partition: Partition number.
        next_offset: First offset not yet committed.
        leader_epoch: Leader epoch of the last record read.
        state: The section that holds the newest change of its state; None while it has none.
        deletes_only: The topic never had a cleanup policy that removes messages in the middle.
    """

    topic: str
    topic_id: str
    partition: int
    next_offset: int
    leader_epoch: int | None = None
    state: SectionRef | None = None
    deletes_only: bool = True

    @property
    def key(self) -> Key:
        """(topic id, partition)."""
        return self.topic_id, self.partition


class Learned(msgspec.Struct, frozen=True, kw_only=True):
    """What the batches before have shown of each partition; empty at the start of a run.

    Attributes:
        seconds_a_message: CPU seconds a message.
        bytes_a_message: Bytes of Parquet a message.
        bins_before: Bin in the batch before.
    """

    seconds_a_message: Mapping[Key, float] = {}
    bytes_a_message: Mapping[Key, float] = {}
    bins_before: Mapping[Key, int] = {}


class PlanInput(msgspec.Struct, frozen=True, kw_only=True):
    """All that a plan depends on.

    Attributes:
        generation: Generation of the writer.
        epoch: Epoch of the writer.
        number: Number of the batch.
        commit_hour: Hour fixed for the batch.
        positions: Positions of the subscribed partitions, in any order.
        ends: Offsets of the partitions that can be read now.
        stop_at: Ends that are not passed, for `AvailableNow`; empty for no such bound.
        messages_max: Most messages in the batch.
        cores: Bins at most.
        learned: What the batches before have shown.
    """

    generation: int
    epoch: int
    number: int
    commit_hour: str
    positions: tuple[Position, ...]
    ends: Mapping[Key, Ends]
    stop_at: Mapping[Key, int] = {}
    messages_max: int
    cores: int
    learned: Learned = Learned()


class PlannedRange(msgspec.Struct, frozen=True):
    """One partition's part of the batch: an upper bound; a task may end it early."""

    position: Position
    until: int

    @property
    def messages(self) -> int:
        """Offsets in the range; at least as many as messages."""
        return self.until - self.position.next_offset


class BatchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A planned batch.

    Attributes:
        generation: Generation of the writer.
        epoch: Epoch of the writer.
        number: Number of the batch.
        commit_hour: Hour fixed for the batch.
        bins: The ranges of each task; none is empty.
        unavailable: Partitions without a leader, left out of this batch.
        backlog: Messages that are there and not in the plan.
    """

    generation: int
    epoch: int
    number: int
    commit_hour: str
    bins: tuple[tuple[PlannedRange, ...], ...]
    unavailable: tuple[Key, ...]
    backlog: int

    @property
    def messages(self) -> int:
        """Offsets in all ranges."""
        return sum(item.messages for group in self.bins for item in group)


def plan_batch(given: PlanInput) -> BatchPlan:
    """Plan a batch.

    1. What each partition has waiting, up to its stable end.
    2. A share of the batch for each, with a floor, so that a small topic never starves.
    3. Ranges into bins of about equal cost; a partition stays where it was unless balance demands.
    """
    waiting = {position.key: _waiting(position, given) for position in given.positions}
    admitted = admit({key: lag for key, lag in waiting.items() if lag > 0}, given.messages_max)
    ranges = [
        PlannedRange(position, position.next_offset + admitted[position.key])
        for position in sorted(given.positions, key=lambda position: position.key)
        if position.key in admitted
    ]
    return BatchPlan(
        generation=given.generation,
        epoch=given.epoch,
        number=given.number,
        commit_hour=given.commit_hour,
        bins=pack(ranges, given),
        unavailable=tuple(sorted(p.key for p in given.positions if p.key not in given.ends)),
        backlog=sum(waiting.values()) - sum(admitted.values()),
    )


def admit(waiting: Mapping[Key, int], most: int) -> dict[Key, int]:
    """Share `most` messages in proportion to what waits, at least a tenth of an equal share each."""
    total = sum(waiting.values())
    if total <= most:
        return dict(waiting)
    floor = max(1, most // (10 * len(waiting)))
    return {key: min(lag, max(floor, lag * most // total)) for key, lag in waiting.items()}


def pack(ranges: list[PlannedRange], given: PlanInput) -> tuple[tuple[PlannedRange, ...], ...]:
    """Put ranges into bins; each bin keeps the order of its ranges."""
    if not ranges:
        return ()
    messages = sum(item.messages for item in ranges)
    count = 1 if messages < SMALL_BATCH_MESSAGES else min(given.cores, len(ranges))
    cost = {item.position.key: item.messages * _rate(item, given) for item in ranges}
    target = sum(cost.values()) / count
    bins: list[list[PlannedRange]] = [[] for _ in range(count)]
    load = [0.0] * count
    for item in sorted(ranges, key=lambda item: (-cost[item.position.key], item.position.key)):
        key = item.position.key
        lightest = load.index(min(load))
        before = given.learned.bins_before.get(key, lightest)
        stays = before < count and load[before] + cost[key] <= target * (1 + MOVE_FOR_SECONDS_RATIO)
        chosen = before if stays else lightest
        bins[chosen].append(item)
        load[chosen] += cost[key]
    return tuple(tuple(sorted(group, key=lambda item: item.position.key)) for group in bins if group)


def _waiting(position: Position, given: PlanInput) -> int:
    ends = given.ends.get(position.key)
    if ends is None:
        return 0
    end = min(ends.stable_end, given.stop_at.get(position.key, ends.stable_end))
    return max(0, end - position.next_offset)


def _rate(item: PlannedRange, given: PlanInput) -> float:
    # A clock may tick too slowly to see a few messages: nothing is free.
    return max(given.learned.seconds_a_message.get(item.position.key, DEFAULT_SECONDS_A_MESSAGE), 1e-9)
