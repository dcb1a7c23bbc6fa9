"""Plan and judgement of a load test: rates, stages, bytes, what limits. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import Enum
from itertools import accumulate, pairwise
from math import ceil

import msgspec

from lockstep.model.position import TopicNamePartition
from lockstep.operations.plan_frame import Obstacle, Refused

SLICE_SECONDS = 60
SLICES = 30
"""The present load is that of the busiest minute of the last half hour: a mean over day and night understates it."""
STAGE_BYTES_MAX = 2_000_000_000
"""Message bytes of a stage. Kafka keeps them for each replica, table and state need at most as much again."""
STAGE_SECONDS_MIN = 8.0
"""Shorter than this a stage has too few batches to judge."""
STAGE_MESSAGES_MIN = 50
"""With fewer a single message, this side or that of a commit, is more than the tolerance of `KEEPS_UP`."""
WARM_SHARE = 0.2
WARM_SECONDS_MAX = 10.0
"""First part of a stage, which is not measured: workers load the stream, Java compiles."""
KEEPS_UP = 0.95
"""Share of the rate that a stream commits, and the producer sends, when it keeps up; batches cut the edges."""
PRODUCER_BUSY = 0.85
MACHINE_BUSY = 0.92
CORE_BUSY = 0.8
"""Shares of a core, of all cores, and of the cores of the tasks from which on they count as exhausted."""
COMMIT_SHARE = 0.4
HOT_SHARE = 0.5
FULL_SHARE = 0.5
"""Shares of batch time, of task CPU, and of batches, from which on commit, one partition or batch size limits."""


LOAD_TEST = "the load test"


def refuse_load_test(stream: str, problem: str, next_step: str) -> Refused:
    """Return the refusal of a load test: nothing was created."""
    return Refused(stream, LOAD_TEST, [make_obstacle(problem, next_step)])


def make_obstacle(problem: str, next_step: str) -> Obstacle:
    """Return an obstacle of a load test."""
    return Obstacle("the load test cannot start", problem, next_step)


class WantedRate(msgspec.Struct, frozen=True):
    """A rate as it was asked for.

    Attributes:
        text: "10x" or "5000/s".
        times: Multiple of the present rate; None for an absolute rate.
        per_second: Messages a second; None for a multiple.
    """

    text: str
    times: float | None = None
    per_second: float | None = None


_RATE = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>x|/s)")


def parse_rates(stream: str, text: str) -> tuple[WantedRate, ...]:
    """Rates such as "1x,10x" or "500/s,5000/s", lowest first by each kind as given.

    Raises:
        Refused: A rate is not above zero.
    """
    found: list[WantedRate] = []
    for part in text.replace(" ", "").split(","):
        match = _RATE.fullmatch(part)
        number = float(match["number"]) if match is not None else 0.0
        if match is None or number <= 0:
            raise refuse_load_test(
                stream, f"{part!r} is not a rate", 'name multiples or messages a second: "1x,10x", "500/s"'
            )
        by_times = match["unit"] == "x"
        found.append(WantedRate(part, number if by_times else None, None if by_times else number))
    return tuple(found)


class PresentLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The present load of topics, from offsets by time.

    Attributes:
        per_second: Messages a second in the busiest minute.
        mean_per_second: The same over the whole examined time.
        partitions: Messages a second in that minute, by partition; the busiest first, those without any left out.
        seconds: The examined time.
    """

    per_second: float
    mean_per_second: float
    partitions: dict[TopicNamePartition, float]
    seconds: float


def find_busiest(counts: Mapping[TopicNamePartition, Sequence[int]], slice_seconds: float) -> PresentLoad:
    """The load of the busiest slice.

    Args:
        counts: Messages of each partition in each slice, all of the same number of slices.
        slice_seconds: Length of a slice.
    """
    totals = [sum(column) for column in zip(*counts.values(), strict=True)]
    if not any(totals):
        return PresentLoad(per_second=0.0, mean_per_second=0.0, partitions={}, seconds=slice_seconds * len(totals))
    busiest = totals.index(max(totals))
    rates = {place: column[busiest] / slice_seconds for place, column in counts.items() if column[busiest]}
    return PresentLoad(
        per_second=totals[busiest] / slice_seconds,
        mean_per_second=sum(totals) / len(totals) / slice_seconds,
        partitions=dict(sorted(rates.items(), key=lambda item: (-item[1], item[0]))),
        seconds=slice_seconds * len(totals),
    )


class Laps(Enum):
    """How a sample is sent again when it is at its end, so that gate and fold see legal sessions."""

    NEW_KEYS = "new keys"
    """Under other message keys, which make other sessions: each lap starts all sessions again."""
    SAME_SESSIONS = "same sessions"
    """Unchanged: the class accepts each session again from its snapshot on."""
    ONCE = "once"
    """Not at all: the sessions are in the payload, and the class refuses or drops them the second time."""


class SamplePart(msgspec.Struct, frozen=True):
    """The sample of one partition, in figures.

    Attributes:
        topic: The real topic.
        partition: Partition number.
        share: Share of the load.
        messages: Messages of the sample.
        size: Their bytes, keys and headers included.
    """

    topic: str
    partition: int
    share: float
    messages: int
    size: int


class StagePlan(msgspec.Struct, frozen=True, kw_only=True):
    """One stage: one rate.

    Attributes:
        label: The rate as asked for.
        per_second: Messages a second over all partitions.
        seconds: Duration of the sending.
        messages: Messages to send.
        size: Their bytes.
    """

    label: str
    per_second: float
    seconds: float
    messages: int
    size: int

    @property
    def warm_seconds(self) -> float:
        """First part, which is not measured."""
        return min(WARM_SECONDS_MAX, WARM_SHARE * self.seconds)


def plan_stages(
    stream: str,
    rates: Sequence[WantedRate],
    present_per_second: float,
    parts: Sequence[SamplePart],
    laps: Laps,
    seconds: float,
) -> tuple[StagePlan, ...]:
    """The stages, in the order of their rates.

    Raises:
        Refused: A multiple of an unknown load, too few messages for a stage, or too many bytes.
    """
    stages = [_plan_stage(stream, rate, present_per_second, parts, laps, seconds) for rate in rates]
    return tuple(sorted(stages, key=lambda stage: stage.per_second))


def _plan_stage(
    stream: str, rate: WantedRate, present: float, parts: Sequence[SamplePart], laps: Laps, seconds: float
) -> StagePlan:
    if rate.times is not None and not present:
        problem = (
            f"its topics had no new message for {SLICES * SLICE_SECONDS // 60} minutes, so {rate.text} of it is nothing"
        )
        raise refuse_load_test(stream, problem, 'name messages a second: --rate "500/s,5000/s"')
    per_second = rate.per_second if rate.times is None else rate.times * present
    per_second = per_second or 0.0
    if seconds < STAGE_SECONDS_MIN:
        problem = f"{seconds:g} s at a rate have too few batches to judge it"
        raise refuse_load_test(stream, problem, f"--minutes {ceil(STAGE_SECONDS_MIN / 6) / 10} or more")
    if laps is Laps.ONCE:  # the partition whose sample is at its end first ends the stage
        seconds = min(seconds, *(part.messages / (part.share * per_second) for part in parts))
    if seconds < STAGE_SECONDS_MIN:
        problem = (
            f"the sample lasts {seconds:.1f} s at {per_second:,.0f} messages/s, and the class refuses to read it twice"
        )
        raise refuse_load_test(stream, problem, f"a lower rate, so that it lasts for {STAGE_SECONDS_MIN:g} s")
    messages = round(per_second * seconds)
    if messages < STAGE_MESSAGES_MIN:
        problem = f"{rate.text} for {seconds:g} s are {messages} messages, fewer than {STAGE_MESSAGES_MIN}"
        raise refuse_load_test(stream, problem, "a higher --rate or more --minutes")
    counts = share_messages(messages, [part.share for part in parts])
    size = sum(count * part.size // part.messages for count, part in zip(counts, parts, strict=True))
    if size > STAGE_BYTES_MAX:
        problem = f"{rate.text} for {seconds:g} s are {size / 1e9:.1f} GB, more than {STAGE_BYTES_MAX / 1e9:g} GB"
        raise refuse_load_test(stream, problem, "fewer --minutes, fewer --topics or a lower --rate")
    return StagePlan(label=rate.text, per_second=per_second, seconds=seconds, messages=messages, size=size)


def share_messages(messages: int, shares: Sequence[float]) -> tuple[int, ...]:
    """The messages of each partition by its share, all of them together.

    Args:
        messages: How many in all.
        shares: Shares that add up to one.
    """
    ends = [round(share * messages) for share in accumulate(shares)]
    return tuple(end - start for start, end in pairwise([0, *ends]))


class Limit(Enum):
    """What keeps a stage from its rate."""

    NONE = "nothing"
    HALT = "the stream itself: it failed or was not proven"
    PRODUCER = "the producer of the test: its core is exhausted"
    KAFKA_WRITES = "Kafka: it did not take the messages of the test at this rate"
    BATCH_SIZE = "the declaration: most batches are full (Limits.batch_messages)"
    MACHINE = "the CPU of this machine, which broker, producer of the test and other programs share"
    ONE_PARTITION = "one partition: it is folded by one core at a time"
    TASKS = "the CPU of the tasks: all their cores are busy"
    COMMIT = "the commit: it takes most of a batch"
    DRIVER = "the CPU of the driver"
    WAITING = "no CPU: tasks wait for Kafka or the disk"


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a stage by which it is judged.

    Attributes:
        wanted_per_second: The planned rate.
        sent_per_second: The producer's.
        committed_per_second: The stream's, from commit to commit.
        is_proven: Whether the stream neither failed nor halted, and `lockstep verify` proved its table.
        producer_cores: CPU seconds a second of the producer.
        driver_cores: Of the driver and its JVM.
        task_cores: Of the Python workers.
        task_slots: Cores that the tasks may use.
        machine_share: Share of this machine's CPU in use, by any process.
        commit_share: Share of the batch time that the commits took.
        hottest_share: Share of the task CPU of the partition with the most.
        full_batches_share: Share of the batches that hold as many messages as `Limits.batch_messages` allows.
    """

    wanted_per_second: float
    sent_per_second: float
    committed_per_second: float
    is_proven: bool
    producer_cores: float
    driver_cores: float
    task_cores: float
    task_slots: int
    machine_share: float
    commit_share: float
    hottest_share: float
    full_batches_share: float

    @property
    def is_sent(self) -> bool:
        """Whether the producer kept its rate."""
        return self.sent_per_second >= KEEPS_UP * self.wanted_per_second

    @property
    def is_sustained(self) -> bool:
        """Whether the stream kept up with the rate that was asked for."""
        return self.is_proven and self.is_sent and self.committed_per_second >= KEEPS_UP * self.sent_per_second


def find_limit(load: Load) -> Limit:
    """What limits a stage; the first that applies, from the outside in."""
    is_hot = load.hottest_share >= HOT_SHARE and load.hottest_share * load.task_cores >= CORE_BUSY
    is_machine = load.machine_share >= MACHINE_BUSY
    reasons = (
        (not load.is_proven, Limit.HALT),
        (load.is_sustained, Limit.NONE),
        (not load.is_sent and load.producer_cores >= PRODUCER_BUSY, Limit.PRODUCER),
        (not load.is_sent and not is_machine, Limit.KAFKA_WRITES),
        (is_hot and load.task_slots > 1, Limit.ONE_PARTITION),
        (load.full_batches_share >= FULL_SHARE, Limit.BATCH_SIZE),
        (is_machine, Limit.MACHINE),
        (load.task_cores >= CORE_BUSY * load.task_slots, Limit.TASKS),
        (load.commit_share >= COMMIT_SHARE, Limit.COMMIT),
        (load.driver_cores >= CORE_BUSY, Limit.DRIVER),
        (True, Limit.WAITING),
    )
    return next(limit for applies, limit in reasons if applies)


class Sustainable(msgspec.Struct, frozen=True):
    """The highest sustainable rate.

    Attributes:
        per_second: Messages a second; 0 if no stage was sustained.
        is_bound: Whether it is the limit: a higher rate was tried. Otherwise the highest rate that was tried.
        limit: What limits it.
        sentence: The same for people.
    """

    per_second: float
    is_bound: bool
    limit: Limit
    sentence: str


def find_sustainable(loads: Sequence[tuple[str, Load]], present_per_second: float, *, failed: str = "") -> Sustainable:
    """The highest sustainable rate of stages, by their labels, lowest rate first.

    At a rate that was too high, the committed rate counts: with a backlog, a stream works as fast as it can.

    Args:
        loads: Label and load of each stage that ended.
        present_per_second: Messages a second of the real topics.
        failed: Label of the next stage, which failed; empty without one.
    """
    sustained = [load.sent_per_second for _, load in loads if load.is_sustained]
    missed = next(((label, load) for label, load in loads if not load.is_sustained), None)
    if missed is None:
        best = max(sustained)
        end = f"the stage at {failed} failed, so that a limit is not known" if failed else "nothing limits it"
        tried = "the highest rate proven" if failed else "the highest rate tried"
        sentence = f"{_name_rate(best, present_per_second)} is sustained, {tried}; {end}"
        return Sustainable(best, is_bound=False, limit=Limit.NONE, sentence=sentence)
    label, load = missed
    limit = find_limit(load)
    lower = max(sustained, default=0.0)
    if limit in {Limit.HALT, Limit.PRODUCER, Limit.KAFKA_WRITES}:
        best = lower
        how = "is the highest rate proven"
    else:
        best = max(lower, load.committed_per_second)
        how = "is sustainable"
    sentence = f"{_name_rate(best, present_per_second)} {how}; at {label} the limit is {limit.value}"
    return Sustainable(best, is_bound=True, limit=limit, sentence=sentence)


def _name_rate(per_second: float, present_per_second: float) -> str:
    times = f" ({per_second / present_per_second:.1f}x the present load)" if present_per_second else ""
    return f"{per_second:,.0f} messages/s{times}"
