"""Runs of a stream whose tasks run in this process: real Kafka and Delta, no JVM of Spark."""

from __future__ import annotations

import dataclasses
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from lockstep import AvailableNow, Limits
from lockstep.declare.stream import AnyStream
from lockstep.engine.driver.committer import check_table_present
from lockstep.engine.driver.context import RunContext, RunReports
from lockstep.engine.driver.loop import RunOutcome, run_batches
from lockstep.engine.driver.planner import BatchPlan
from lockstep.engine.driver.run import make_job
from lockstep.engine.driver.spark_job import Runner, make_tasks
from lockstep.engine.driver.startup import Launch, WriterStartup
from lockstep.engine.driver.topic_history import TopicWatch
from lockstep.engine.executor.task import run_task
from lockstep.engine.protocol import JobSpec, TaskResult
from lockstep.kafka.admin import ClusterAdmin
from lockstep.kafka.client import make_admin_client
from lockstep.kafka.consumer_group import ConsumerGroup
from lockstep.model.tuning import Tuning
from lockstep.operations.stream_handle import StreamHandle
from lockstep.settings import KafkaSettings, Settings
from lockstep.table.layout import StreamFolders
from tests.support.feed import COLUMNS, ProducerRecord, session
from tests.support.plain_reader import read_table, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from lockstep.declare.options import Trigger
    from lockstep.engine.driver.metrics import BatchReport
    from tests.support.feed import Feed


TEST = Launch(cause="test")


QUICK = Tuning(confirm_seconds=0.2, move_seconds=0.2)


def make_local_runner(job: JobSpec) -> Runner:
    """Make a runner that runs the tasks of a batch one after another in this process."""

    def run(plan: BatchPlan) -> Sequence[TaskResult]:
        return [run_task(job, task) for task in make_tasks(plan)]

    return run


@dataclass(frozen=True)
class LocalRuns:
    """All runs of one stream into one table root.

    Attributes:
        stream: The declaration.
        bootstrap_servers: The broker.
        kafka: Connection settings, if the address alone is not enough.
        root: Folder of tables and hot copies.
        tables: The table root, if it is not in `root`.
        tuning: Tuning of all runs; a suspected fault is checked again after 0.2 s, not after 30 s.
        reports: Reports of all committed batches.
        settled: Number of reports when a run was settled.
    """

    stream: AnyStream
    bootstrap_servers: str
    root: Path
    kafka: KafkaSettings | None = None
    tables: Path | None = None
    tuning: Tuning = QUICK
    reports: list[BatchReport] = field(default_factory=list)
    settled: list[int] = field(default_factory=list)

    @property
    def folders(self) -> StreamFolders:
        """Folders of the stream's tables."""
        return StreamFolders(self.stream.name, self.tables or self.root / "tables")

    @property
    def settings(self) -> Settings:
        """The settings of this installation for the runs."""
        return Settings(
            kafka=self.kafka or KafkaSettings(bootstrap_servers=self.bootstrap_servers),
            table_root=self.tables or self.root / "tables",
            local_root=self.root / "local",
        )

    @property
    def handle(self) -> StreamHandle:
        """A new handle of the stream."""
        return StreamHandle(self.stream, self.settings)

    def of(self, stream: AnyStream) -> LocalRuns:
        """Return the same tables with another declaration."""
        return dataclasses.replace(self, stream=stream)

    def tuned(self, **changes: float) -> LocalRuns:
        """Return the same stream with another tuning."""
        return dataclasses.replace(self, tuning=msgspec.structs.replace(self.tuning, **changes))

    def with_limits(self, limits: Limits) -> LocalRuns:
        """Return the same stream with other limits."""
        return self.of(dataclasses.replace(self.stream, limits=limits))

    def run(
        self,
        *,
        trigger: Trigger | None = None,
        stop: threading.Event | None = None,
        around: Callable[[Runner], Runner] = lambda runner: runner,
        cores: int = 2,
        launch: Launch = TEST,
    ) -> RunOutcome:
        """Run the stream as `run_stream` does, without Spark; the default trigger is AvailableNow."""
        stop = stop or threading.Event()
        settings = self.settings
        admin = ClusterAdmin(make_admin_client(settings.kafka), settings.kafka.timeout_seconds)
        group = ConsumerGroup(settings.kafka, self.stream.name)
        check_table_present(self.stream, self.folders, admin, group)
        trigger = trigger or AvailableNow()
        never_ending = not isinstance(trigger, AvailableNow)
        startup = WriterStartup(self.stream, self.folders, admin.cluster_id(), launch=launch, never_ending=never_ending)
        watch = TopicWatch(admin, self.tuning.end_look_seconds)
        startup.check_topics(admin, watch.history)
        claimed = startup.claim(cancelled=stop.is_set)
        hands = RunContext(
            stream=self.stream,
            trigger=trigger,
            folders=self.folders,
            admin=admin,
            group=group,
            runner=around(make_local_runner(make_job(self.stream, settings, self.folders, self.tuning))),
            cores=lambda: cores,
            stop=stop,
            reports=RunReports(self.take, lambda: self.settled.append(len(self.reports))),
            launch=msgspec.structs.replace(launch, tuning=self.tuning),
            history=watch.history,
        )
        with watch:
            return run_batches(hands, claimed)

    def take(self, report: BatchReport) -> None:
        """Store the report of a batch, which must account for every offset."""
        assert report.accounted == report.offsets, report
        self.reports.append(report)

    def cluster_id(self) -> str:
        """Return the id of the Kafka cluster."""
        return ClusterAdmin(make_admin_client(self.settings.kafka), self.settings.kafka.timeout_seconds).cluster_id()

    def rows(self, topic: str, partition: int = 0) -> list[tuple[object, ...]]:
        """Return the rows of one partition as `COLUMNS`, in commit order."""
        table = read_table(self.folders.table)
        return rows_of(table.filter([held == partition for held in table["_partition"].to_pylist()]), topic, COLUMNS)


def read_in_batches(feed: Feed, runs: LocalRuns, topic: str, values: list[bytes]) -> None:
    """Send messages, and read them in batches of two."""
    for at in range(0, len(values), 2):
        feed.send(topic, values[at : at + 2])
        runs.run()


def read_grown_topic(feed: Feed, runs: LocalRuns) -> str:
    """Read a topic of six messages in three batches, add a partition with four messages, and read it in the fourth."""
    topic = feed.create("values")
    read_in_batches(feed, runs, topic, session(5))
    feed.grow(topic, 2)
    feed.append(topic, [ProducerRecord("p", value) for value in session(3)], 1)
    runs.run()
    return topic
