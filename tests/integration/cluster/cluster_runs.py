"""Runs of the adding stream on a cluster, each in a driver process that settings configure."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Protocol, Self, TypeVar

import lockstep
from lockstep.features.localdev.processes import start_child
from lockstep.table.layout import StreamFolders
from lockstep.table.ledger import read_ledger
from tests.support.feed import COLUMNS
from tests.support.plain_reader import heads, read_table, rows_of
from tests.support.spark_cluster import SparkCluster

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.feed import Feed

REPOSITORY = Path(__file__).parents[3]
NO_DAGSTER = Path(__file__).with_name("no_dagster")
POLL_SECONDS = 0.1
WAIT_SECONDS_MAX = 400.0
OPTIONS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
}
NO_OPTIONS: Mapping[str, str] = {}


class Cluster(Protocol):
    """A cluster's address and configuration for a driver."""

    @property
    def master(self) -> str:
        """The value of `spark.master`."""

    @property
    def configuration(self) -> Path:
        """The folder of the settings of Spark and, if it is used, of Hadoop."""


ClusterT = TypeVar("ClusterT", bound=Cluster)


def wait_until(met: Callable[[], bool], what: str, seconds_max: float = WAIT_SECONDS_MAX) -> float:
    """Wait for a condition and return the seconds that it took."""
    began = time.monotonic()
    while not met():
        assert time.monotonic() - began < seconds_max, f"{what}: not within {seconds_max} s"
        time.sleep(POLL_SECONDS)
    return time.monotonic() - began


@dataclass
class Driver:
    """A driver process and its output."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def lines(self) -> list[str]:
        """The output until now, including Spark's."""
        return self.log.read_text(errors="replace").splitlines()

    @property
    def batches(self) -> int:
        """The number of committed batches."""
        return sum(line.startswith("batch ") for line in self.lines)

    @property
    def outcome(self) -> str | None:
        """The run's outcome, None before its end."""
        return next((line.removeprefix("outcome: ") for line in self.lines if line.startswith("outcome: ")), None)

    def stop(self) -> None:
        """Request the end after the next batch, and wait for it."""
        self.process.send_signal(signal.SIGTERM)
        self.ended()

    def ended(self) -> str | None:
        """Wait for the driver's end and return the run's outcome."""
        wait_until(lambda: self.process.poll() is not None, f"end of the driver, see {self.log}")
        return self.outcome


@dataclass
class DriverRuns(Generic[ClusterT]):
    """All runs of one stream into one table root."""

    cluster: ClusterT
    feed: Feed
    root: Path
    drivers: list[Driver] = field(default_factory=list)

    def __enter__(self) -> Self:
        self.trap.mkdir()
        self.proofs.mkdir()
        return self

    def __exit__(self, *_: object) -> None:
        for driver in self.drivers:
            driver.process.kill()
            driver.process.wait()

    @property
    def folders(self) -> StreamFolders:
        """The stream's table folders."""
        return StreamFolders("adding", self.root / "tables")

    @property
    def trap(self) -> Path:
        """The folder in which a caught fold leaves its files."""
        return self.root / "trap"

    @property
    def proofs(self) -> Path:
        """The folder in which each executor's Python proves that it cannot import dagster."""
        return self.root / "proofs"

    @property
    def batches(self) -> int:
        """The number of batches in the table."""
        log = self.folders.table / "_delta_log"
        return int(heads(self.folders.table)[-1].get("batch", 0)) if any(log.glob("*.json")) else 0

    def start(self, *arguments: str, options: Mapping[str, str] = NO_OPTIONS, **further: str) -> Driver:
        """Start a driver with arguments and Spark properties; `cores_max` sets spark.cores.max."""
        given = {**options, **{f"spark.{name.replace('_', '.')}": value for name, value in further.items()}}
        log = self.root / f"driver-{len(self.drivers)}.log"
        command = [
            sys.executable,
            "-m",
            "tests.integration.cluster.driver",
            self.feed.pattern,
            str(self.trap),
            *arguments,
        ]
        process = start_child(command, folder=REPOSITORY, log=log, environment=self._environment(given))
        self.drivers.append(Driver(process, log))
        return self.drivers[-1]

    def _environment(self, options: dict[str, str]) -> dict[str, str]:
        library = str(Path(lockstep.__file__).parents[1])
        executors = {
            "spark.executorEnv.PYTHONPATH": f"{NO_DAGSTER}:{library}:{REPOSITORY}",
            "spark.executorEnv.NO_DAGSTER_PROOFS": str(self.proofs),
        }
        return {
            "PYTHONPATH": f"{library}:{REPOSITORY}",
            "SPARK_CONF_DIR": str(self.cluster.configuration),
            "HADOOP_CONF_DIR": str(self.cluster.configuration),
            "LOCKSTEP_KAFKA__BOOTSTRAP_SERVERS": self.feed.bootstrap_servers,
            "LOCKSTEP_TABLE_ROOT": str(self.root / "tables"),
            "LOCKSTEP_SPARK__MASTER": self.cluster.master,
            "LOCKSTEP_SPARK__DRIVER_MEMORY": "512m",
            "LOCKSTEP_SPARK__OPTIONS": json.dumps({**OPTIONS, **executors, **options}),
        }

    def rows(self, topic: str, partition: int) -> list[tuple[object, ...]]:
        """Return the rows of a partition as `COLUMNS`, in commit order."""
        table = read_table(self.folders.table)
        return rows_of(table.filter([held == partition for held in table["_partition"].to_pylist()]), topic, COLUMNS)

    def read_until(self) -> dict[tuple[str, int], int]:
        """Return the committed end offset of each partition."""
        if not (self.folders.ledger / "_delta_log").exists():
            return {}
        return {(row.topic, row.partition): row.until for row in read_ledger(self.folders.ledger)}

    def wait_for_batches(self, more: int) -> float:
        """Wait for `more` batches of any driver and return the seconds that they took."""
        wanted = self.batches + more
        return wait_until(lambda: self.batches >= wanted, f"batch {wanted}")


class ClusterRuns(DriverRuns[SparkCluster]):
    """Runs on a standalone cluster."""

    def wait_for_hot_state(self) -> None:
        """Wait until executors of all workers have hot state."""
        roots = [worker.local_root for worker in self.cluster.workers]
        wait_until(lambda: all(any(root.rglob("*.lmdb")) for root in roots), f"hot copies below each of {roots}")
