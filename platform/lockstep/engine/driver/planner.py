"""Plans batches: shares, bin packing, commit hour, file-size trigger, idle partitions.

`plan_batch` is pure: what it plans by is in its input.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TypeVar, cast

import msgspec

from lockstep.declare.options import EventTime
from lockstep.engine.protocol import BatchIdentity, LearnedRates, PlannedRange, RangeResult
from lockstep.integrity.base import to_microseconds
from lockstep.kafka.admin import PartitionOffsets
from lockstep.model.position import Key, Position
from lockstep.model.tuning import DEFAULT_TUNING, Tuning
from lockstep.table.commit import Writer
from lockstep.table.head import Head

T = TypeVar("T")

MOVE_FOR_SECONDS_RATIO = 0.25
"""A partition leaves its bin only when that bin would take this much longer than the average:
its local store is on the executor that processed it last."""
UNEVEN_FILE_RATIO = 0.15
"""Several files at once are planned only when each comes this close to the target: a margin for what
the sizes of earlier batches do not predict."""


def pack_bins(
    items: Sequence[T], key: Callable[[T], Key], costs: Sequence[float], count: int, bins_before: Mapping[Key, int]
) -> tuple[tuple[T, ...], ...]:
    """Put items, in order of their keys, into at most `count` bins, each of which keeps that order."""
    if not items:
        return ()
    target = sum(costs) / count
    bins: list[list[T]] = [[] for _ in range(count)]
    load = [0.0] * count
    for cost, item in sorted(zip(costs, items, strict=True), key=lambda each: (-each[0], key(each[1]))):
        lightest = load.index(min(load))
        before = bins_before.get(key(item), lightest)
        stays = before < count and load[before] + cost <= target * (1 + MOVE_FOR_SECONDS_RATIO)
        chosen = before if stays else lightest
        bins[chosen].append(item)
        load[chosen] += cost
    return tuple(tuple(sorted(group, key=key)) for group in bins if group)


def is_balanced(bins: Sequence[Sequence[T]], sizes: Mapping[T, float], target_bytes: int) -> bool:
    """Whether each bin comes close to the target file size."""
    loads = [sum(sizes[item] for item in group) for group in bins]
    return all(abs(load / target_bytes - 1) <= UNEVEN_FILE_RATIO for load in loads)


TURN_MESSAGES, TURN_PARTITIONS_MIN = 2_000, 64
"""A range costs about a CPU millisecond whatever its length (its state is opened and saved, and the client
fetches far beyond its end): some 2,000 messages per range keep that at half a microsecond a message."""
DEFAULT_SECONDS_A_MESSAGE = 5e-6

BEYOND_PARTITIONS_MAX = 64
"""A range that may go on beyond its end stays assigned until all ranges are read: the client would fetch thousands of
partitions again and again meanwhile."""


class FileGoal(msgspec.Struct, frozen=True, kw_only=True):
    """File-size trigger: a batch begins when its rows fill files, or when a message has waited long enough.

    Attributes:
        target_bytes: Target file size.
        left_seconds: Time until the batch of the oldest waiting message must begin.
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
        learned: Measurements of earlier batches.
        goal: Size and time targets, under the file-size trigger.
        silent: Watermarks to which idle partitions advance.
        tuning: The size of a batch that one bin does.
        patient: Partitions that were silent in the last batches: they are waited for longer.
        resting: Those of them that are left out for now.
        is_live: The batch may include messages that come after the plan.
    """

    batch: BatchIdentity
    positions: tuple[Position, ...]
    ends: Mapping[Key, PartitionOffsets]
    stop_at: Mapping[Key, int] = {}
    messages_max: int
    cores: int
    learned: LearnedRates = LearnedRates()
    goal: FileGoal | None = None
    silent: Mapping[Key, int] = {}
    tuning: Tuning = DEFAULT_TUNING
    patient: frozenset[Key] = frozenset()
    resting: frozenset[Key] = frozenset()
    is_live: bool = False


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
    unavailable: tuple[Key, ...]
    backlog: int

    @property
    def messages(self) -> int:
        """Offsets in all ranges."""
        return sum(item.messages for group in self.bins for item in group)


def plan_batch(given: PlanInput) -> BatchPlan:
    """Plan a batch.

    1. Count the backlog of each partition up to its last stable offset.
    2. Share the batch among them, with a floor, so that a small topic never starves. Without a backlog behind it, a
       live batch includes what comes until its tasks read: a task starts some 20 ms after the plan.
    3. Pack ranges into bins of about equal cost; a partition keeps its bin unless balance demands otherwise.
    """
    # 1
    waiting = {position.key: _waiting(position, given) for position in given.positions}
    lagging = {key: lag for key, lag in waiting.items() if lag > 0}
    # 2, 3
    bins = _plan_full_files(lagging, given) if given.goal is not None else _plan_by_messages(lagging, given)
    left = sum(lagging.values()) - sum(item.messages for group in bins for item in group)
    bins = _with_silent(bins, lagging, given)
    return BatchPlan(
        batch=given.batch,
        bins=bins,
        unavailable=tuple(sorted(p.key for p in given.positions if p.key not in given.ends)),
        backlog=left if given.goal is None or bins else 0,
    )


def _with_silent(bins: Bins, lagging: Mapping[Key, int], given: PlanInput) -> Bins:
    """The bins, extended by idle partitions whose watermark advances: each costs next to nothing."""
    silent = [
        PlannedRange(position, position.next_offset, given.silent[position.key])
        for position in given.positions
        if position.key in given.silent and position.key in given.ends and position.key not in lagging
    ]
    if not silent:
        return bins
    first, *rest = bins or ((),)
    return (tuple(sorted((*first, *silent), key=lambda item: item.position.key)), *rest)


def share_batch(waiting: Mapping[Key, int], most: int) -> dict[Key, int]:
    """Share `most` messages in proportion to the backlogs, at least a tenth of an equal share each."""
    total = sum(waiting.values())
    if total <= most:
        return dict(waiting)
    floor = _floor(waiting, most)
    return {key: min(lag, max(floor, lag * most // total)) for key, lag in waiting.items()}


def _plan_by_messages(lagging: Mapping[Key, int], given: PlanInput) -> Bins:
    """A batch of limited size, spread over the cores."""
    ranges = _ranges(share_batch(_rotate_lagging(lagging, given), given.messages_max), given)
    messages = sum(item.messages for item in ranges)
    if given.is_live and len(ranges) <= BEYOND_PARTITIONS_MAX:
        beyond = _count_beyond(len(ranges), messages, sum(lagging.values()), given.messages_max)
        ranges = [msgspec.structs.replace(item, beyond=beyond) for item in ranges]
    count = 1 if messages < given.tuning.small_batch_messages else min(given.cores, len(ranges))
    return pack_bins(ranges, _key, [_seconds(item, given) for item in ranges], count, given.learned.bins_before)


def _count_beyond(ranges: int, messages: int, waiting: int, most: int) -> int:
    """Offsets beyond its end that each range may be read to: none with a backlog, which decides what is next."""
    return (most - messages) // ranges if ranges and messages == waiting else 0


def _rotate_lagging(lagging: Mapping[Key, int], given: PlanInput) -> Mapping[Key, int]:
    """The partitions of a batch: all, unless so many are far behind that each would get only a few messages.

    Then those take turns, by batch number; a partition that needs no more than its floor always takes part.
    """
    far = sorted(key for key, lag in lagging.items() if lag > _floor(lagging, given.messages_max))
    turn = max(TURN_PARTITIONS_MIN, given.messages_max // TURN_MESSAGES)
    if sum(lagging.values()) <= given.messages_max or len(far) <= turn:
        return lagging
    first = given.batch.number * turn % len(far)
    waits = set(far) - set((far + far)[first : first + turn])
    return {key: lag for key, lag in lagging.items() if key not in waits}


def _floor(waiting: Mapping[Key, int], most: int) -> int:
    """The minimum share of each partition: a tenth of an equal share."""
    return max(1, most // (10 * len(waiting)))


def _plan_full_files(lagging: Mapping[Key, int], given: PlanInput) -> Bins:
    """As many full files as there are rows and cores for; less than one when a message has waited long enough.

    While sizes are unknown, a batch of the usual size measures them. Partitions are not split, so several
    files are even only while no partition is much larger than the others: otherwise one file takes
    its share of all of them.
    """
    goal, each = cast("FileGoal", given.goal), given.learned.bytes_a_message
    usual = sum(each.values()) / len(each) if each else 0.0
    waiting_bytes = sum(lag * each.get(key, usual) for key, lag in lagging.items())
    full = min(given.cores, int(waiting_bytes // goal.target_bytes))
    for count in range(full, 0, -1):
        most = int(sum(lagging.values()) * count * goal.target_bytes / waiting_bytes)
        ranges = _ranges(share_batch(lagging, most), given)
        sizes = [item.messages * each.get(item.position.key, usual) for item in ranges]
        bins = pack_bins(ranges, _key, sizes, count, given.learned.bins_before)
        if count == 1 or is_balanced(bins, dict(zip(ranges, sizes, strict=True)), goal.target_bytes):
            return bins
    ranges = _ranges(lagging if each else share_batch(lagging, given.messages_max), given)
    enough_to_learn = not each and sum(lagging.values()) >= given.messages_max
    due = goal.left_seconds <= sum(_seconds(item, given) for item in ranges)
    return (tuple(ranges),) if ranges and (due or enough_to_learn) else ()


def _key(item: PlannedRange) -> Key:
    return item.position.key


def _ranges(admitted: Mapping[Key, int], given: PlanInput) -> list[PlannedRange]:
    """Ranges in the order of their rows."""
    taken, ends = sorted((p for p in given.positions if p.key in admitted), key=lambda p: p.key), given.ends
    return [
        PlannedRange(
            p,
            p.next_offset + admitted[p.key],
            leader_epoch=ends[p.key].leader_epoch,
            patient=p.key in given.patient,
        )
        for p in taken
    ]


def _waiting(position: Position, given: PlanInput) -> int:
    """Messages that a batch may read; none where the log begins after the position: the next audit tells the class."""
    ends = given.ends.get(position.key)
    if ends is None or position.key in given.resting or position.next_offset < ends.start:
        return 0
    end = min(ends.stable_end, given.stop_at.get(position.key, ends.stable_end))
    return max(0, end - position.next_offset)


def _seconds(item: PlannedRange, given: PlanInput) -> float:
    """Expected CPU seconds of a range. A clock may tick too slowly to measure a few messages: nothing is free."""
    rate = given.learned.seconds_a_message.get(item.position.key, DEFAULT_SECONDS_A_MESSAGE)
    return item.messages * max(rate, 1e-9)


def make_batch_identity(writer: Writer, head: Head, planned_at_us: int = 0) -> BatchIdentity:
    """The batch that follows a head, by this machine's clock."""
    return BatchIdentity(
        generation=writer.generation,
        epoch=writer.epoch,
        number=head.batch + 1,
        commit_hour=find_next_hour(head),
        planned_at_us=planned_at_us,
    )


def find_next_hour(head: Head) -> str:
    """The hour of the batch that follows a head, by this machine's clock."""
    return choose_commit_hour(find_current_hour(), head.hour, head.closed_hour)


def choose_commit_hour(clock_hour: str, head_hour: str, closed_hour: str) -> str:
    """The hour of the next batch: the log closes hours, not the clock.

    Args:
        clock_hour: Hour of the clock, "YYYY-MM-DDTHH" UTC.
        head_hour: Hour of the last batch; empty before the first.
        closed_hour: Newest closed hour; empty while none is.
    """
    after_closed = compute_next_hour(closed_hour) if closed_hour else ""
    return max(clock_hour, head_hour, after_closed)


def find_current_hour() -> str:
    """The hour of this machine's clock, "YYYY-MM-DDTHH" UTC."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H")


def compute_next_hour(hour: str) -> str:
    """The hour after one, "YYYY-MM-DDTHH" UTC."""
    moment = datetime.strptime(hour, "%Y-%m-%dT%H").replace(tzinfo=UTC) + timedelta(hours=1)
    return moment.strftime("%Y-%m-%dT%H")


class BacklogClock(msgspec.Struct, frozen=True):
    """Start of the current wait.

    Attributes:
        since: Seconds of the process's monotonic clock; infinity when nothing waits. A run does not know the time
            before its start, so it begins with minus infinity.
    """

    since: float = -math.inf

    def note_poll(self, lag_messages: int, now: float) -> BacklogClock:
        """Update after a look at Kafka."""
        if lag_messages == 0:
            return BacklogClock(math.inf)
        return BacklogClock(min(self.since, now))

    def note_batch(self, share: float, now: float) -> BacklogClock:
        """Update after a batch that took a share, 0 to 1, of the backlog: the oldest of each partition goes first."""
        if math.isinf(self.since) or share >= 1:
            return BacklogClock(now)
        return BacklogClock(self.since + share * (now - self.since))

    def left_seconds(self, at_most: float, now: float) -> float:
        """Time until the oldest message has waited long enough."""
        return self.since + at_most - now


REST_RATIO = 10
"""A partition that gives nothing holds the others of its batch up for a tenth of the time at most."""


class Silence(msgspec.Struct, frozen=True):
    """A partition of which the last batches read nothing.

    Attributes:
        count: Number of these batches.
        since: Start of the first one, in seconds of a monotonic clock.
        at: End of the last one.
        waited: Duration of the last one in seconds.
        place: Topic and partition.
        trouble: Why it read nothing.
    """

    count: int
    since: float
    at: float
    waited: float
    place: str
    trouble: str


class SilentPartitions:
    """Partitions of which the last batches read nothing, though there was something to read."""

    def __init__(self, tuning: Tuning) -> None:
        self._tuning = tuning
        self._silences: dict[Key, Silence] = {}

    def note(self, results: Iterable[RangeResult], began: float, clock: float) -> list[str]:
        """Note the results of a batch; gives what is new in them, by topic and partition.

        Args:
            results: Results of its ranges.
            began: Start of the batch, in seconds of a monotonic clock.
            clock: Its end.
        """
        news: list[str] = []
        for result in results:
            position, trouble = result.range.position, result.trouble
            known, place = self._silences.pop(position.key, None), f"{position.topic}/{position.partition}"
            if trouble is None:
                continue
            if result.reached.next_offset == position.next_offset:
                count, since = (0, began) if known is None else (known.count, known.since)
                self._silences[position.key] = Silence(count + 1, since, clock, clock - began, place, trouble)
            if known is None or known.trouble != trouble:
                news.append(f"{place}: {trouble}")
        return news

    def find_patient(self) -> frozenset[Key]:
        """Those that were silent too often for a short wait."""
        most = self._tuning.straggler_batches
        return frozenset(key for key, silence in self._silences.items() if silence.count >= most)

    def find_resting(self, clock: float) -> frozenset[Key]:
        """Those that were waited for not long ago: after a long wait they rest long, after an error only briefly."""
        most = self._tuning.straggler_batches
        return frozenset(
            key
            for key, silence in self._silences.items()
            if silence.count > most and clock - silence.at < self._rest_seconds(silence)
        )

    def find_lasting(self, clock: float) -> dict[Key, Silence]:
        """Those that have been silent for longer than Kafka is waited for."""
        since = clock - self._tuning.patience_seconds
        return {key: silence for key, silence in self._silences.items() if silence.since < since}

    def _rest_seconds(self, silence: Silence) -> float:
        rest = max(self._tuning.retry_seconds, REST_RATIO * silence.waited)
        return min(rest, self._tuning.straggler_rest_seconds)


class IdlePartitions:
    """How long each partition has been idle, by this machine's monotonic clock."""

    def __init__(self, event_time: EventTime) -> None:
        advance = event_time.idle_advance
        self._advance_us = None if advance is None else to_microseconds(advance)
        self._since: dict[Key, tuple[int, float]] = {}

    def advance_watermarks(
        self,
        positions: Mapping[Key, Position],
        ends: Mapping[Key, PartitionOffsets],
        now_us: int,
        clock: float | None = None,
    ) -> dict[Key, int]:
        """The watermarks to which idle partitions advance; each advances once per idle timeout.

        Args:
            positions: Positions of the partitions.
            ends: End offsets in Kafka.
            now_us: Current time, microseconds since 1970 (UTC).
            clock: Seconds of a monotonic clock; by default this machine's.
        """
        if self._advance_us is None:
            return {}
        clock, moved = time.monotonic() if clock is None else clock, {}
        for key, position in positions.items():
            offset, since = self._since.get(key, (-1, clock))
            drained = key in ends and ends[key].high_watermark <= position.next_offset
            if not drained or offset != position.next_offset:
                self._since[key] = (position.next_offset, clock)
            elif (clock - since) * 1_000_000 >= self._advance_us:
                self._since[key] = (position.next_offset, clock)
                if position.watermark_us is not None and now_us - self._advance_us > position.watermark_us:
                    moved[key] = now_us - self._advance_us
        return moved
