"""What a run is given to work with."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from lockstep.declare.options import Trigger
from lockstep.declare.stream import AnyStream
from lockstep.engine.driver.metrics import BatchReport
from lockstep.engine.driver.spark_job import Runner
from lockstep.kafka.admin import ClusterAdmin
from lockstep.kafka.consumer_group import ConsumerGroup
from lockstep.table.layout import StreamFolders


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """What a run is given to work with.

    Attributes:
        stream: The declaration.
        trigger: The trigger in force: the stream's own, or the run's.
        folders: Where the stream's tables lie.
        discovery: Questions to Kafka.
        group: Where positions are published.
        runner: Runs the bins of a batch.
        cores: Bins at most, asked before each batch: executors of a cluster come and go.
        stop: Set by whoever wants the run to end at the next batch boundary.
        report: Called after each committed batch.
        cause: Why this run started, for the ledger.
        adopts_topics: Topics that appear are read from the next batch on; else they are a new run's.
        run_id: The run, for the liveness file of its epoch.
    """

    stream: AnyStream
    trigger: Trigger
    folders: StreamFolders
    discovery: ClusterAdmin
    group: ConsumerGroup
    runner: Runner
    cores: Callable[[], int]
    stop: threading.Event
    report: Callable[[BatchReport], None]
    cause: str
    adopts_topics: bool = False
    run_id: str = ""
