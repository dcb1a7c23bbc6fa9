"""Plans a batch: who reads which offsets, in which bin. Pure: the same input, the same plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import msgspec

from lockstep.engine.packing import even, pack
from lockstep.integrity.suspending import SuspendedSession
from lockstep.kafka.audit import Key
from lockstep.kafka.discovery import Ends
from lockstep.state.address import SectionRef

SMALL_BATCH_MESSAGES = 20_000
"""Below this one bin does it all: each further file and task costs more than it saves."""
TURN_MESSAGES, TURN_PARTITIONS_MIN = 2_000, 64
"""A range costs about a CPU millisecond whatever its length (its state is opened and saved, and the client
fetches far beyond its end): some 2,000 messages each keep that at half a microsecond a message."""
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
        suspended_from: Sessions that began before this offset are suspended until their next snapshot.
        watermark_us: Event time that the partition has come to; None while it has seen none.
        rows_emitted: Rows that timers emitted at `next_offset` already, while nothing had come.
        is_only: The topic has no other partition.
        suspended_sessions: Those that an operator skips until their next snapshot.
        catching_up: The log was cut below this position, and an operator accepted that: what is appended below it
            is passed over.
    """

    topic: str
    topic_id: str
    partition: int
    next_offset: int
    leader_epoch: int | None = None
    state: SectionRef | None = None
    suspended_from: int = 0
    watermark_us: int | None = None
    rows_emitted: int = 0
    is_only: bool = True
    suspended_sessions: tuple[SuspendedSession, ...] = ()
    catching_up: bool = False

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


class FileGoal(msgspec.Struct, frozen=True, kw_only=True):
    """A batch begins when its rows fill files, or when a message has waited long enough.

    Attributes:
        target_bytes: Wanted size of a file.
        left_seconds: Time until the batch of the oldest waiting message must begin.
    """

    target_bytes: int
    left_seconds: float


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
        goal: When and how large, where the trigger is the size of files.
        planned_at_us: The time of the plan, microseconds since 1970 (UTC); event times are judged by it.
        silent: Watermarks to which partitions without messages move on.
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
    goal: FileGoal | None = None
    planned_at_us: int = 0
    silent: Mapping[Key, int] = {}


class PlannedRange(msgspec.Struct, frozen=True):
    """One partition's part of the batch: an upper bound; a task may end it early.

    Attributes:
        position: Where it begins.
        until: First offset after it.
        watermark_us: Event time to which a partition without messages moves on; None for one with messages.
        killing: Offsets in it that ended their worker each time; they are handled as undecodable.
        leader_epoch: Of the partition's leader when it was planned.
        single_batches: It is read one record batch a fetch, because jobs with it have failed.
    """

    position: Position
    until: int
    watermark_us: int | None = None
    killing: tuple[int, ...] = ()
    leader_epoch: int | None = None
    single_batches: bool = False

    @property
    def messages(self) -> int:
        """Offsets in the range; at least as many as messages."""
        return self.until - self.position.next_offset


Bins = tuple[tuple[PlannedRange, ...], ...]
"""The ranges of each task."""


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
        planned_at_us: The time of the plan, microseconds since 1970 (UTC).
    """

    generation: int
    epoch: int
    number: int
    commit_hour: str
    bins: Bins
    unavailable: tuple[Key, ...]
    backlog: int
    planned_at_us: int = 0

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
    lagging = {key: lag for key, lag in waiting.items() if lag > 0}
    bins = _filling(lagging, given) if given.goal is not None else _shared(lagging, given)
    left = sum(lagging.values()) - sum(item.messages for group in bins for item in group)
    bins = _with_silent(bins, lagging, given)
    return BatchPlan(
        generation=given.generation,
        epoch=given.epoch,
        number=given.number,
        commit_hour=given.commit_hour,
        bins=bins,
        unavailable=tuple(sorted(p.key for p in given.positions if p.key not in given.ends)),
        backlog=left if given.goal is None or bins else 0,
        planned_at_us=given.planned_at_us,
    )


def _with_silent(bins: Bins, lagging: Mapping[Key, int], given: PlanInput) -> Bins:
    """The bins with the partitions whose time goes on without messages: each costs next to nothing."""
    silent = [
        PlannedRange(position, position.next_offset, given.silent[position.key])
        for position in given.positions
        if position.key in given.silent and position.key in given.ends and position.key not in lagging
    ]
    if not silent:
        return bins
    first, *rest = bins or ((),)
    return (tuple(sorted((*first, *silent), key=lambda item: item.position.key)), *rest)


def admit(waiting: Mapping[Key, int], most: int) -> dict[Key, int]:
    """Share `most` messages in proportion to what waits, at least a tenth of an equal share each."""
    total = sum(waiting.values())
    if total <= most:
        return dict(waiting)
    floor = _floor(waiting, most)
    return {key: min(lag, max(floor, lag * most // total)) for key, lag in waiting.items()}


def _shared(lagging: Mapping[Key, int], given: PlanInput) -> Bins:
    """A batch of at most so many messages, over the cores."""
    ranges = _ranges(admit(_in_turn(lagging, given), given.messages_max), given)
    messages = sum(item.messages for item in ranges)
    count = 1 if messages < SMALL_BATCH_MESSAGES else min(given.cores, len(ranges))
    return pack(ranges, _key, [_seconds(item, given) for item in ranges], count, given.learned.bins_before)


def _in_turn(lagging: Mapping[Key, int], given: PlanInput) -> Mapping[Key, int]:
    """Who takes part in a batch: all, unless so many are far behind that each would get only a few messages.

    Then those take turns, by the number of the batch; who needs no more than its floor always takes part.
    """
    far = sorted(key for key, lag in lagging.items() if lag > _floor(lagging, given.messages_max))
    turn = max(TURN_PARTITIONS_MIN, given.messages_max // TURN_MESSAGES)
    if sum(lagging.values()) <= given.messages_max or len(far) <= turn:
        return lagging
    first = given.number * turn % len(far)
    waits = set(far) - set((far + far)[first : first + turn])
    return {key: lag for key, lag in lagging.items() if key not in waits}


def _floor(waiting: Mapping[Key, int], most: int) -> int:
    """What each may have at least: a tenth of an equal share."""
    return max(1, most // (10 * len(waiting)))


def _filling(lagging: Mapping[Key, int], given: PlanInput) -> Bins:
    """As many full files as there are rows and cores for; less than one when a message has waited enough.

    While nothing is known of sizes, a usual batch shows them. Partitions are not split, so several
    files are even only while no partition is much larger than the others: otherwise one file takes
    its share of all of them.
    """
    goal, each = cast("FileGoal", given.goal), given.learned.bytes_a_message
    usual = sum(each.values()) / len(each) if each else 0.0
    waiting_bytes = sum(lag * each.get(key, usual) for key, lag in lagging.items())
    full = min(given.cores, int(waiting_bytes // goal.target_bytes))
    for count in range(full, 0, -1):
        most = int(sum(lagging.values()) * count * goal.target_bytes / waiting_bytes)
        ranges = _ranges(admit(lagging, most), given)
        sizes = [item.messages * each.get(item.position.key, usual) for item in ranges]
        bins = pack(ranges, _key, sizes, count, given.learned.bins_before)
        if count == 1 or even(bins, dict(zip(ranges, sizes, strict=True)), goal.target_bytes):
            return bins
    ranges = _ranges(lagging if each else admit(lagging, given.messages_max), given)
    enough_to_learn = not each and sum(lagging.values()) >= given.messages_max
    due = goal.left_seconds <= sum(_seconds(item, given) for item in ranges)
    return (tuple(ranges),) if ranges and (due or enough_to_learn) else ()


def _key(item: PlannedRange) -> Key:
    return item.position.key


def _ranges(admitted: Mapping[Key, int], given: PlanInput) -> list[PlannedRange]:
    """Ranges in the order of rows."""
    taken, ends = sorted((p for p in given.positions if p.key in admitted), key=lambda p: p.key), given.ends
    return [PlannedRange(p, p.next_offset + admitted[p.key], leader_epoch=ends[p.key].leader_epoch) for p in taken]


def _waiting(position: Position, given: PlanInput) -> int:
    ends = given.ends.get(position.key)
    if ends is None:
        return 0
    end = min(ends.stable_end, given.stop_at.get(position.key, ends.stable_end))
    return max(0, end - position.next_offset)


def _seconds(item: PlannedRange, given: PlanInput) -> float:
    """CPU seconds that a range will take. A clock may tick too slowly to see a few messages: nothing is free."""
    rate = given.learned.seconds_a_message.get(item.position.key, DEFAULT_SECONDS_A_MESSAGE)
    return item.messages * max(rate, 1e-9)
