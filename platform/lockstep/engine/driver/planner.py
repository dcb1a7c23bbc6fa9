"""Plans batches: shares, bin packing, file-size trigger, idle partitions; chooses commit hours.

`plan_batch` is pure: everything that a plan depends on is in its input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import TypeVar, cast

import msgspec

from lockstep.declare.options import FILE_BATCHES_MAX
from lockstep.engine.protocol import BatchIdentity, LearnedRates, PlannedRange
from lockstep.kafka.admin import PartitionOffsets
from lockstep.model.commit_hour import compute_next_hour, find_current_hour
from lockstep.model.position import Position, TopicIdPartition
from lockstep.model.tuning import DEFAULT_TUNING, Tuning
from lockstep.table.commit import Writer
from lockstep.table.head import Head

T = TypeVar("T")

MOVE_FOR_SECONDS_RATIO = 0.25
"""A partition leaves its bin, whose executor has its local store, only if the bin would otherwise take longer than the
average by more than this ratio."""
UNEVEN_FILE_RATIO = 0.15
"""Several files in one batch are planned only if each is this close to the target size. The margin covers messages
whose size differs from that of earlier batches."""
TURN_MESSAGES = 2_000
TURN_PARTITIONS_MIN = 64
"""A range has a fixed cost of about 1 ms of CPU time (its state is opened and saved, and the client fetches far beyond
its end): with some 2,000 messages a range that is half a microsecond a message."""
DEFAULT_SECONDS_A_MESSAGE = 5e-6
LEAST_SECONDS_A_MESSAGE = 2e-6
"""Of reading and writing it: a clock may be too coarse to see it."""
BEYOND_PARTITIONS_MAX = 64
"""With more ranges than this, none is read beyond its end: such a range stays assigned until all ranges are read, and
meanwhile the client would fetch thousands of partitions repeatedly."""


class FileGoal(msgspec.Struct, frozen=True, kw_only=True):
    """File-size trigger: a batch starts when its rows fill files, or when the oldest message has waited long enough.

    Attributes:
        target_bytes: Target file size.
        left_seconds: Time until the batch of the oldest waiting message must start.
    """

    target_bytes: int
    left_seconds: float


class PlanInput(msgspec.Struct, frozen=True, kw_only=True):
    """All inputs of a plan.

    Attributes:
        batch: The batch.
        positions: Positions of the subscribed partitions, in any order.
        ends: Readable end offsets of the partitions.
        stop_at: Bounds for `AvailableNow`; empty without bounds.
        messages_max: Maximum number of messages in the batch.
        cores: Maximum number of bins.
        range_messages_max: Maximum number of messages of one partition, and of a batch that measures sizes; None for
            that of the batch.
        learned: Measurements of earlier batches.
        goal: Size and time targets, under the file-size trigger.
        silent: Watermarks to which idle partitions advance.
        tuning: Bounds the size of a batch that has a single bin.
        patient: Partitions that were silent in the last batches: a task waits longer for them.
        resting: Partitions that were silent in the last batches, and are left out of this batch.
        is_live: The batch may include messages that arrive after the plan.
        uncounted: Partitions whose discarded states are to be counted.
    """

    batch: BatchIdentity
    positions: tuple[Position, ...]
    ends: Mapping[TopicIdPartition, PartitionOffsets]
    stop_at: Mapping[TopicIdPartition, int] = {}
    messages_max: int
    cores: int
    range_messages_max: int | None = None
    learned: LearnedRates = LearnedRates()
    goal: FileGoal | None = None
    silent: Mapping[TopicIdPartition, int] = {}
    tuning: Tuning = DEFAULT_TUNING
    patient: frozenset[TopicIdPartition] = frozenset()
    resting: frozenset[TopicIdPartition] = frozenset()
    is_live: bool = False
    uncounted: tuple[Position, ...] = ()

    @property
    def range_max(self) -> int:
        """Maximum number of messages of one partition."""
        return self.range_messages_max or self.messages_max


Positions = Mapping[TopicIdPartition, Position]

Bins = tuple[tuple[PlannedRange, ...], ...]
"""The ranges of each task."""


class BatchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A planned batch.

    Attributes:
        batch: The batch.
        bins: The ranges of each task; none is empty.
        unavailable: Partitions without a leader, left out of this batch.
        backlog: Available messages that are not in the plan.
    """

    batch: BatchIdentity
    bins: Bins
    unavailable: tuple[TopicIdPartition, ...]
    backlog: int

    @property
    def ranges(self) -> list[PlannedRange]:
        """The ranges of all tasks, task by task."""
        return list(chain.from_iterable(self.bins))

    @property
    def messages(self) -> int:
        """Offsets in all ranges."""
        return sum(item.messages for item in self.ranges)


def pack_bins(
    items: Sequence[T],
    key: Callable[[T], TopicIdPartition],
    costs: Sequence[float],
    count: int,
    bins_before: Mapping[TopicIdPartition, int],
) -> tuple[tuple[T, ...], ...]:
    """Put items, in order of their keys, into at most `count` bins, each of which keeps that order."""
    if not items:
        return ()
    most = sum(costs) / count * (1 + MOVE_FOR_SECONDS_RATIO)
    bins: list[list[int]] = [[] for _ in range(count)]
    load = [0.0] * count
    # The most expensive first: small ones fill the differences. Equal costs in the order of their keys.
    places = sorted(range(len(items)), key=costs.__getitem__, reverse=True)
    for place in places:
        chosen = bins_before.get(key(items[place]), count)
        if chosen >= count or load[chosen] + costs[place] > most:
            chosen = load.index(min(load))
        bins[chosen].append(place)
        load[chosen] += costs[place]
    return tuple(_take(items, group) for group in bins if group)


def _take(items: Sequence[T], places: Iterable[int]) -> tuple[T, ...]:
    return tuple(items[place] for place in sorted(places))


def is_balanced(bins: Sequence[Sequence[T]], sizes: Mapping[T, float], target_bytes: int) -> bool:
    """Whether each bin is close to the target file size."""
    for group in bins:
        load = sum(sizes[item] for item in group)
        if abs(load / target_bytes - 1) > UNEVEN_FILE_RATIO:
            return False
    return True


def plan_batch(given: PlanInput) -> BatchPlan:
    """Plan a batch.

    1. Count the backlog of each partition up to its last stable offset.
    2. Share the batch among them, with a minimum share, so that a small topic never starves. If the batch takes the
       whole backlog, a live one includes messages that arrive before its tasks read, some 20 ms after the plan.
    3. Pack ranges into bins of about equal cost; a partition keeps its bin unless the bins would be unbalanced.
    """
    # 1
    positions = {position.key: position for position in given.positions}
    lagging = _find_lagging(positions, given)
    # 2, 3
    plan = _plan_by_messages if given.goal is None else _plan_full_files
    bins = plan(lagging, positions, given)
    remaining = sum(lagging.values()) - sum(item.messages for item in chain.from_iterable(bins))
    bins = _with_uncounted(_with_silent(bins, lagging, given), given)
    return BatchPlan(
        batch=given.batch,
        bins=bins,
        unavailable=tuple(sorted(positions.keys() - given.ends.keys())),
        # Messages that wait for a full file are not due: only a batch that leaves some has a backlog.
        backlog=remaining if given.goal is None or bins else 0,
    )


def _with_silent(bins: Bins, lagging: Mapping[TopicIdPartition, int], given: PlanInput) -> Bins:
    """The bins, extended by idle partitions whose watermark advances: ranges without offsets, of negligible cost."""
    if not given.silent:
        return bins
    silent = list[PlannedRange]()
    for position in given.positions:
        key = position.key
        if key in given.silent and key in given.ends and key not in lagging:
            silent.append(PlannedRange(position, position.next_offset, given.silent[key]))
    if not silent:
        return bins
    first, *rest = bins or ((),)
    return (tuple(sorted((*first, *silent), key=lambda item: item.position.key)), *rest)


def _with_uncounted(bins: Bins, given: PlanInput) -> Bins:
    """The bins, extended by partitions without messages whose states are to be counted: one task reads few of them."""
    if not given.uncounted:
        return bins
    planned = {item.position.key for item in chain.from_iterable(bins)}
    unplanned = [position for position in given.uncounted if position.key not in planned]
    if not unplanned:
        return bins
    uncounted = sorted(unplanned, key=lambda position: position.key)
    count = max(len(bins), min(given.cores, len(uncounted)))
    extended = [list(group) for group in bins]
    while len(extended) < count:
        extended.append([])
    for number, position in enumerate(uncounted):
        extended[number % count].append(PlannedRange(position, position.next_offset))
    return tuple(tuple(sorted(group, key=_key)) for group in extended)


def share_batch(waiting: Mapping[TopicIdPartition, int], most: int) -> dict[TopicIdPartition, int]:
    """Share `most` messages in proportion to the backlogs, at least a tenth of an equal share each."""
    total = sum(waiting.values())
    if total <= most:
        return dict(waiting)
    floor = _floor(waiting, most)
    return {key: min(lag, max(floor, lag * most // total)) for key, lag in waiting.items()}


def _plan_by_messages(lagging: Mapping[TopicIdPartition, int], positions: Positions, given: PlanInput) -> Bins:
    """A batch of limited size, spread over the cores."""
    shares = share_batch(_rotate_lagging(lagging, given), given.messages_max)
    most = given.range_max
    ranges = _ranges({key: min(share, most) for key, share in shares.items()}, positions, given)
    messages = sum(item.messages for item in ranges)
    if given.is_live and len(ranges) <= BEYOND_PARTITIONS_MAX:
        beyond = min(most, _count_beyond(len(ranges), messages, sum(lagging.values()), given.messages_max))
        ranges = [msgspec.structs.replace(item, beyond=beyond) for item in ranges]
    seconds = _estimate_seconds(ranges, given)
    is_small = messages < given.tuning.small_batch_messages  # a task costs more than the work
    work = max(sum(seconds), messages * LEAST_SECONDS_A_MESSAGE)
    count = 1 if is_small else min(given.cores, len(ranges), max(1, round(work / given.tuning.bin_seconds)))
    return pack_bins(ranges, _key, seconds, count, given.learned.bins_before)


def _count_beyond(ranges: int, messages: int, waiting: int, most: int) -> int:
    """Offsets beyond its end to which each range may be read; 0 if the batch does not take the whole backlog."""
    return (most - messages) // ranges if ranges and messages == waiting else 0


def _rotate_lagging(lagging: Mapping[TopicIdPartition, int], given: PlanInput) -> Mapping[TopicIdPartition, int]:
    """The partitions of a batch: all, unless so many are far behind that each would get only a few messages.

    Then those take turns, by batch number; a partition whose lag is within the minimum share is in every batch.
    """
    far = sorted(key for key, lag in lagging.items() if lag > _floor(lagging, given.messages_max))
    turn = max(TURN_PARTITIONS_MIN, given.messages_max // TURN_MESSAGES)
    if sum(lagging.values()) <= given.messages_max or len(far) <= turn:
        return lagging
    first = given.batch.number * turn % len(far)
    waits = set(far) - set((far + far)[first : first + turn])
    return {key: lag for key, lag in lagging.items() if key not in waits}


def _floor(waiting: Mapping[TopicIdPartition, int], most: int) -> int:
    """The minimum share of each partition: a tenth of an equal share."""
    return max(1, most // (10 * len(waiting)))


def _plan_full_files(lagging: Mapping[TopicIdPartition, int], positions: Positions, given: PlanInput) -> Bins:
    """As many full files as rows and cores suffice for; less than one when the oldest message has waited long enough.

    While sizes are unknown, a batch of at most `range_max` messages measures them. Partitions are not split, so
    several files have about equal sizes only while no partition is much larger than the others; otherwise one file is
    planned, with a share of all of them. A file of `FILE_BATCHES_MAX` times as many messages is full, too.
    """
    goal = cast("FileGoal", given.goal)
    learned = given.learned.bytes_a_message
    usual = sum(learned.values()) / len(learned) if learned else 0.0
    waiting = sum(lagging.values())
    waiting_bytes = sum(lag * learned.get(key, usual) for key, lag in lagging.items())
    full = min(given.cores, int(waiting_bytes // goal.target_bytes))
    messages_max = FILE_BATCHES_MAX * given.range_max
    for count in range(full, 0, -1):
        most = int(min(waiting * goal.target_bytes / waiting_bytes, messages_max) * count)
        ranges = _ranges(share_batch(lagging, most), positions, given)
        sizes = [item.messages * learned.get(item.position.key, usual) for item in ranges]
        bins = pack_bins(ranges, _key, sizes, count, given.learned.bins_before)
        if count == 1 or is_balanced(bins, dict(zip(ranges, sizes, strict=True)), goal.target_bytes):
            return bins
    most = messages_max if learned else given.range_max
    ranges = _ranges(share_batch(lagging, most), positions, given)
    is_due = goal.left_seconds <= sum(_estimate_seconds(ranges, given))
    if not ranges or not (is_due or waiting >= most):
        return ()
    return (tuple(ranges),)


def _key(item: PlannedRange) -> TopicIdPartition:
    return item.position.key


def _ranges(admitted: Mapping[TopicIdPartition, int], positions: Positions, given: PlanInput) -> list[PlannedRange]:
    """Ranges in the order of their partitions."""
    ranges = []
    for key in sorted(admitted):
        position = positions[key]
        ends = given.ends[key]
        until = position.next_offset + admitted[key]
        if ends.log_start is not None and ends.is_archived(position.next_offset):  # a range has one source
            until = min(until, ends.log_start)
        epoch = ends.leader_epoch
        ranges.append(PlannedRange(position, until, leader_epoch=epoch, patient=key in given.patient))
    return ranges


def _find_lagging(positions: Positions, given: PlanInput) -> dict[TopicIdPartition, int]:
    """Messages of each partition that a batch may read, if there are any.

    None of a log that starts after the position: the next audit reports it.
    """
    lagging: dict[TopicIdPartition, int] = {}
    for key, position in positions.items():
        ends = given.ends.get(key)
        if ends is None or key in given.resting or position.next_offset < ends.start:
            continue
        end = min(ends.stable_end, given.stop_at.get(key, ends.stable_end))
        if end > position.next_offset:
            lagging[key] = end - position.next_offset
    return lagging


def _estimate_seconds(ranges: Iterable[PlannedRange], given: PlanInput) -> list[float]:
    """Expected CPU seconds of ranges, never zero: the clock may be too coarse to measure a few messages."""
    learned = given.learned.seconds_a_message
    seconds = list[float]()
    for item in ranges:
        rate = learned.get(item.position.key, DEFAULT_SECONDS_A_MESSAGE)
        seconds.append(item.messages * max(rate, 1e-9))
    return seconds


def make_batch_identity(
    writer: Writer, head: Head, planned_at_us: int = 0, *, has_archive: bool = False
) -> BatchIdentity:
    """The batch that follows a head, by this machine's clock. A shadow archives nothing: its stream does."""
    return BatchIdentity(
        generation=writer.generation,
        epoch=writer.epoch,
        number=head.batch + 1,
        commit_hour=find_next_hour(head),
        planned_at_us=planned_at_us,
        archives=has_archive and head.origin is None,
    )


def find_next_hour(head: Head) -> str:
    """The hour of the batch that follows a head, by this machine's clock."""
    return choose_commit_hour(find_current_hour(), head.hour, head.closed_hour)


def choose_commit_hour(clock_hour: str, head_hour: str, closed_hour: str) -> str:
    """The hour of the next batch: that of the clock, but not before the last batch's, and not a closed one.

    Args:
        clock_hour: Hour of the clock, "YYYY-MM-DDTHH" UTC.
        head_hour: Hour of the last batch; empty before the first.
        closed_hour: Newest closed hour; empty while none is.
    """
    after_closed = compute_next_hour(closed_hour) if closed_hour else ""  # before all hours
    return max(clock_hour, head_hour, after_closed)
