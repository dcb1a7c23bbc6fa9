"""The driver's CPU time over very many partitions, in a simulated cluster: the cost of a partition that changed.

The loop of the run is real, with its planner, ledger and commits. Kafka and Spark are simulated: offsets are those of a
dictionary, and each range of a plan is reported as read.
"""

from __future__ import annotations

import dataclasses
import gc
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, cast

import msgspec
import numpy as np
from rich.console import Console

from benchmarks.calibration import judge_calibration, mark_doubtful, spin
from benchmarks.record import Conditions, Figure, Panel, Record, Series
from benchmarks.sensors import sensors
from lockstep import Every, Limits
from lockstep.engine.driver.context import NO_REPORTS, RunContext
from lockstep.engine.driver.loop import COLLECTOR_THRESHOLDS, MicroBatchLoop
from lockstep.engine.driver.planner import BatchPlan
from lockstep.engine.driver.spark_job import make_tasks
from lockstep.engine.driver.startup import Launch, WriterStartup
from lockstep.engine.driver.topic_history import TopicHistory
from lockstep.engine.protocol import PlannedRange, RangeResult, TaskResult
from lockstep.kafka.admin import ClusterAdmin, ClusterView, PartitionOffsets, Topic
from lockstep.kafka.consumer_group import ConsumerGroup
from lockstep.model.message_counts import MessageCounts
from lockstep.model.position import SegmentRef, TopicIdPartition, TopicNamePartition
from lockstep.table.layout import StreamFolders

CHANGED_MAX_US = 20.0
UNCHANGED_MAX_US = 5.0
CLUSTER = "simulated"
STATE_FILE = "batch.state"
STATE_BYTES = 100
MESSAGES = 50
"""Messages of a partition that has changed."""


@dataclass(frozen=True)
class Partitions:
    """Settings of the measurement.

    Attributes:
        partitions: Partitions of the stream, one a topic.
        few: Partitions with messages in a quiet batch; in a busy batch all have some.
        cores: Tasks of a batch at most.
        batches: Batches of each kind that count.
    """

    partitions: int = 10_000
    few: int = 100
    cores: int = 16
    batches: int = 10


@dataclass
class SimulatedCluster:
    """A cluster of topics with one partition each, for the questions that a run asks."""

    count: int
    topics_by_name: dict[str, Topic] = field(default_factory=dict)
    ends: dict[TopicIdPartition, PartitionOffsets] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Make the topics, which are empty."""
        for number in range(self.count):
            topic = Topic(f"sensors.{number}", f"id-{number}", 1, deletes_only=True, retention_ms=86_400_000)
            self.topics_by_name[topic.name] = topic
            self.ends[TopicIdPartition(topic.topic_id, 0)] = PartitionOffsets(0, 0, 0, 0)

    def produce(self, partitions: int) -> None:
        """Append messages to the first partitions."""
        for key in list(self.ends)[:partitions]:
            end = self.ends[key].high_watermark + MESSAGES
            self.ends[key] = PartitionOffsets(0, end, end, 0)

    def within(self, seconds: float) -> Self:
        """See `ClusterAdmin`."""
        del seconds
        return self

    def topic_names(self) -> frozenset[str]:
        """See `ClusterAdmin`, as for the other questions."""
        return frozenset(self.topics_by_name)

    def topics(self, names: Iterable[str]) -> dict[str, Topic]:
        """The topics of these names."""
        return {name: self.topics_by_name[name] for name in names if name in self.topics_by_name}

    def view(self, names: Iterable[str]) -> ClusterView:
        """Topics and offsets."""
        return ClusterView(CLUSTER, self.topics(names), dict(self.ends))

    def view_offsets(self, view: ClusterView) -> ClusterView:
        """Newer offsets."""
        return msgspec.structs.replace(view, ends=dict(self.ends))

    def view_for_commit(self, names: Iterable[str], before: ClusterView) -> ClusterView:
        """Newer offsets of the same topics."""
        del names
        return self.view_offsets(before)

    def find_unreadable(self, names: Iterable[str]) -> frozenset[str]:
        """No topic."""
        del names
        return frozenset()

    find_deleted = find_unreadable


class SimulatedGroup:
    """A consumer group that stores nothing."""

    name = CLUSTER

    def publish(self, offsets: Mapping[TopicNamePartition, int]) -> None:
        """Drop the offsets."""

    def published(self, places: Iterable[TopicNamePartition]) -> dict[TopicNamePartition, int]:
        """No offsets."""
        del places
        return {}

    def committed_by(self, *arguments: object) -> dict[TopicNamePartition, int]:
        """No offsets."""
        del arguments
        return {}


def run_tasks(plan: BatchPlan) -> Sequence[TaskResult]:
    """Report each range as read."""
    return [TaskResult(tuple(map(_read_range, task.ranges)), (), cpu_seconds=0.1) for task in make_tasks(plan)]


def _read_range(planned: PlannedRange) -> RangeResult:
    state = SegmentRef(STATE_FILE, 0, STATE_BYTES)
    return RangeResult(
        range=planned,
        reached=msgspec.structs.replace(planned.position, next_offset=planned.until, state=state),
        counts=MessageCounts(messages=planned.messages, with_rows=planned.messages),
        rows=planned.messages,
        holes=(),
        first_event_time_us=1,
        last_event_time_us=2,
        newest_timestamp_ms=1_700_000_000_000,
        state_bytes=STATE_BYTES,
        cpu_seconds=0.001,
    )


class SimulatedRun:
    """A run of a stream over a simulated cluster."""

    def __init__(self, asked: Partitions, root: Path, pool: ThreadPoolExecutor) -> None:
        """Claim a new table.

        Args:
            asked: The settings.
            root: The table root.
            pool: Commits side tables.
        """
        limits = Limits(topics=asked.partitions, batch_messages=MESSAGES * asked.partitions)
        stream = dataclasses.replace(sensors(r"sensors\..+"), limits=limits)
        folders = StreamFolders(stream.name, root)
        launch = Launch(cause="benchmark")
        startup = WriterStartup(stream, folders, CLUSTER, launch=launch, never_ending=True)
        claimed = startup.claim(cancelled=lambda: False)
        folders.state.mkdir(parents=True, exist_ok=True)
        (folders.state / STATE_FILE).write_bytes(bytes(STATE_BYTES))
        self.cluster = SimulatedCluster(asked.partitions)
        context = RunContext(
            stream=stream,
            trigger=Every(seconds=2),
            folders=folders,
            admin=cast("ClusterAdmin", self.cluster),
            group=cast("ConsumerGroup", SimulatedGroup()),
            runner=run_tasks,
            cores=lambda: asked.cores,
            stop=threading.Event(),
            reports=NO_REPORTS,
            launch=launch,
            history=TopicHistory(),
        )
        self._loop = MicroBatchLoop(context, claimed, pool, pool)

    def measure_batch(self, changed: int) -> float:
        """Run a batch with messages in some partitions; returns the CPU seconds of the loop without its tasks.

        Raises:
            RuntimeError: Nothing was committed.
        """
        self.cluster.produce(changed)
        began = time.thread_time()
        plan = self._loop.plan()
        planned = time.thread_time()
        if plan is None:
            raise RuntimeError("the batch has no messages")
        run_tasks(plan)
        simulated = time.thread_time() - planned
        before = time.thread_time()
        if not self._loop.run_batch(plan):
            raise RuntimeError("the batch was not committed")
        return planned - began + time.thread_time() - before - simulated


def measure_partitions(asked: Partitions, *, folder: Path, console: Console) -> Record:
    """Run busy batches, then quiet ones; the first of each kind does not count, as it may write all positions."""
    conditions = Conditions.now()
    before = spin()
    seconds: dict[int, list[float]] = {asked.partitions: [], asked.few: []}
    with ThreadPoolExecutor(1) as pool:
        run = SimulatedRun(asked, folder, pool)
        gc.freeze()
        gc.set_threshold(*COLLECTOR_THRESHOLDS)
        for changed, found in seconds.items():
            run.measure_batch(changed)
            found += [run.measure_batch(changed) for _ in range(asked.batches)]
    console.print({changed: round(float(np.median(found)) * 1e3, 1) for changed, found in seconds.items()})
    details: dict[str, object] = {"seconds": {str(changed): found for changed, found in seconds.items()}}
    machine = conditions.hardware
    doubts = judge_calibration(before, spin(), machine.load_average, machine.cores)
    settings = {**msgspec.to_builtins(asked), "doubts": doubts}
    record = conditions.record("partitions", settings, figures(asked, seconds), [panel(asked, seconds)], details)
    return mark_doubtful(record, doubts)


def figures(asked: Partitions, seconds: Mapping[int, Sequence[float]]) -> list[Figure]:
    """The costs of a partition, from busy batches and from quiet ones."""
    busy = float(np.median(seconds[asked.partitions]))
    quiet = float(np.median(seconds[asked.few]))
    changed = (busy - quiet) / (asked.partitions - asked.few) * 1e6
    unchanged = (quiet * 1e6 - asked.few * changed) / (asked.partitions - asked.few)
    name = f"{asked.partitions:,} partitions: driver"
    return [
        Figure(f"{name}, a partition that changed, more than one that did not", changed, "CPU us", CHANGED_MAX_US),
        Figure(f"{name}, a partition that did not", unchanged, "CPU us", UNCHANGED_MAX_US),
        Figure(f"{name}, a batch with messages in all", busy, "CPU s per batch"),
        Figure(f"{name}, a batch with messages in {asked.few}", quiet, "CPU s per batch"),
    ]


def panel(asked: Partitions, seconds: Mapping[int, Sequence[float]]) -> Panel:
    """CPU time of each batch."""
    batches = list(range(1, asked.batches + 1))
    names = {asked.partitions: "messages in all", asked.few: f"messages in {asked.few}"}
    return Panel(
        kind="curve",
        title=f"The driver over {asked.partitions:,} partitions, simulated",
        x_label="batch",
        y_label="CPU s per batch",
        series=[Series(names[changed], list(found), batches) for changed, found in seconds.items()],
        goals=[],
    )
