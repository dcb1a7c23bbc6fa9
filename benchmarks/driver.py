"""CPU time of the driver for a batch over many partitions: plan, audit, ledger, commit."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from rich.console import Console

from benchmarks.live import LiveStream, Pacer, Stage
from benchmarks.record import Conditions, Figure, Panel, Record, Series
from benchmarks.workload import Size
from lockstep.features.rehearsal.process_usage import DRIVER, JVM, WORKERS, TreeMeter, TreeUsage

MESSAGES_PER_TOPIC = 101
"""A snapshot and its updates."""


@dataclass(frozen=True)
class Driver:
    """Settings of the measurement.

    Attributes:
        size: The messages; every topic has some in every batch.
        rate: Messages a second over all topics.
        warm_seconds: Sent before the measured time.
        trigger_seconds: A batch every so many seconds.
    """

    size: Size
    rate: int
    warm_seconds: int = 10
    trigger_seconds: float = 1.0


def plan_driver(topics: int, trigger_seconds: float) -> Driver:
    """Plan a measurement in which each topic has two messages a second."""
    size = Size("driver", messages=MESSAGES_PER_TOPIC * topics, topics=topics, sessions=topics, rows=2)
    return Driver(size, rate=2 * topics, trigger_seconds=trigger_seconds)


class DriverResult(msgspec.Struct, frozen=True):
    """Results of the measurement.

    Attributes:
        usage: CPU time of the stream's processes.
        batches: Batches seen meanwhile.
        batch_seconds_median: From plan to commit.
        rows: Rows in the table at the end, equal to those of the bare loop.
    """

    usage: TreeUsage
    batches: int
    batch_seconds_median: float
    rows: int

    def a_batch(self, role: str) -> float:
        """CPU seconds a batch of one kind of process."""
        return self.usage.cpu_seconds[role] / self.batches


def measure_driver(driver: Driver, *, bootstrap_servers: str, folder: Path, console: Console) -> Record:
    """Run a stream over many topics, all of which receive messages all the time.

    Raises:
        LiveRunError: A part of the run failed.
        WrongRowsError: The table differs from the expected rows.
    """
    conditions = Conditions.now()
    stage = Stage(bootstrap_servers, driver.size, folder / "driver", driver.trigger_seconds)
    with console.status(f"{driver.rate:,} messages/s to {driver.size.topics:,} topics ..."):
        result = _run(driver, stage)
    settings = msgspec.to_builtins(driver)
    details = {"result": msgspec.to_builtins(result)}
    return conditions.record("driver", settings, figures(result, driver), [panel(result, driver)], details)


def _run(driver: Driver, stage: Stage) -> DriverResult:
    first, until = driver.size.sessions_per_topic, driver.size.messages_per_topic
    stage.open()
    with stage.observed(), Pacer(stage, driver.rate, first, until) as pacer, LiveStream(stage) as stream:
        stage.wait_until_committed(driver.size.sessions, stream.process)
        pacer.go()
        time.sleep(driver.warm_seconds)
        meter, began = TreeMeter(stream.pid), time.time_ns()
        pacer.finish()
        stage.wait_until_committed(driver.size.messages, stream.process)
        usage = meter.finish()
        stream.stop()
    rows = stage.prove()
    seconds = stage.batch_seconds(began)
    return DriverResult(usage, len(seconds), float(np.median(seconds)), rows)


def figures(result: DriverResult, driver: Driver) -> list[Figure]:
    """The promised figures, and the ones measured with them."""
    name = f"{driver.size.topics:,} partitions: "
    return [
        Figure(f"{name}driver (plan, audit, commit)", result.a_batch(DRIVER), "CPU s per batch"),
        Figure(f"{name}JVM (the Spark job)", result.a_batch(JVM), "CPU s per batch"),
        Figure(f"{name}tasks", result.a_batch(WORKERS), "CPU s per batch"),
        Figure(f"{name}batch, median", result.batch_seconds_median, "s"),
    ]


def panel(result: DriverResult, driver: Driver) -> Panel:
    """CPU time of a batch by kind of process."""
    roles = [DRIVER, JVM, WORKERS]
    return Panel(
        kind="bars",
        title=f"A batch over {driver.size.topics:,} partitions",
        x_label="process",
        y_label="CPU s per batch",
        series=[Series("CPU", [result.a_batch(role) for role in roles], labels=roles)],
    )
