"""Dependencies of one run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from lockstep.declare.options import AvailableNow, Trigger
from lockstep.declare.stream import AnyStream
from lockstep.engine.driver.metrics import BatchReport
from lockstep.engine.driver.spark_job import Runner
from lockstep.engine.driver.startup import Launch
from lockstep.engine.driver.topic_history import TopicHistory
from lockstep.kafka.admin import ClusterAdmin
from lockstep.kafka.consumer_group import ConsumerGroup
from lockstep.table.layout import StreamFolders


@dataclass(frozen=True)
class RunReports:
    """Events of a run, called on its thread; by default ignored.

    Attributes:
        batch: Called after each committed batch.
        settled: Called once, when the first batch is committed or there is nothing to read.
    """

    batch: Callable[[BatchReport], None] = lambda _: None
    settled: Callable[[], None] = lambda: None


NO_REPORTS = RunReports()


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """Dependencies of one run: stream, settings, clients, stop signal.

    Attributes:
        stream: The declaration.
        trigger: The trigger in force: the stream's own, or the run's.
        folders: Folders of the stream's tables.
        admin: Client for cluster metadata.
        group: Consumer group to which positions are published.
        runner: Runs the bins of a batch.
        cores: Maximum number of bins, read before each batch: the executors of a cluster change.
        stop: Set to end the run at the next batch boundary.
        reports: Receives the events of the run.
        launch: Origin of the run, and its tuning.
        history: The last reads of the ends of its topics, those before its claim included.
    """

    stream: AnyStream
    trigger: Trigger
    folders: StreamFolders
    admin: ClusterAdmin
    group: ConsumerGroup
    runner: Runner
    cores: Callable[[], int]
    stop: threading.Event
    reports: RunReports
    launch: Launch
    history: TopicHistory

    @property
    def is_bounded(self) -> bool:
        """Whether the run ends by itself: at the offsets that were available at its start."""
        return isinstance(self.trigger, AvailableNow)
