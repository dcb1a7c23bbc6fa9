"""A real YARN on this machine: ResourceManager and one NodeManager on loopback, which end with their owner.

The daemons are those of a distribution, from the jar that Hadoop publishes for tests and the jars in pyspark.
"""

from __future__ import annotations

import subprocess
import time
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.request import urlopen
from xml.sax.saxutils import escape

import msgspec
import psutil

from lockstep.errors import EnvironmentProblem
from lockstep.features.localdev.processes import find_free_ports, start_child
from lockstep.spark.jars import fetch_ivy_jar, resolve_jars
from lockstep.spark.java import require_java
from tests.support.descendants import end_with_descendants, list_descendants

if TYPE_CHECKING:
    from collections.abc import Mapping

LOCK = Path(__file__).with_name("yarn.lock")
DAEMONS = "org.apache.hadoop.yarn.server"
JAVA_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true")
QUEUE = "streams"
"""The queue's name in docs/cluster.md."""
START_SECONDS_MAX = 180
POLL_SECONDS = 0.2
LOG_TAIL_LINES = 25
RESOURCE_MANAGER_PORTS = (
    "yarn.resourcemanager.address",
    "yarn.resourcemanager.scheduler.address",
    "yarn.resourcemanager.resource-tracker.address",
    "yarn.resourcemanager.admin.address",
    "yarn.resourcemanager.webapp.address",
)
NODE_MANAGER_PORTS = (
    "yarn.nodemanager.address",
    "yarn.nodemanager.localizer.address",
    "yarn.nodemanager.webapp.address",
)
EXECUTOR_MARK = "YarnCoarseGrainedExecutorBackend"


class _Metrics(msgspec.Struct, rename="camel"):
    active_nodes: int


class _Report(msgspec.Struct, rename="camel"):
    """The parsed part of the ResourceManager's report."""

    cluster_metrics: _Metrics


class YarnCluster:
    """A running YARN. Leave its `with` block, or call `stop`, to end all its processes.

    Attributes:
        folder: Folder of settings, logs and containers.
    """

    master = "yarn"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ports = dict(zip(RESOURCE_MANAGER_PORTS, find_free_ports(len(RESOURCE_MANAGER_PORTS)), strict=True))
        self._daemons: list[subprocess.Popen[bytes]] = []

    @classmethod
    def start(cls, folder: Path) -> Self:
        """Start YARN in a folder, and wait until its node has registered.

        Raises:
            EnvironmentProblem: No Java, no jars, or no answer in time; shows the end of the logs.
        """
        cluster = cls(folder)
        cluster.configuration.mkdir(parents=True)
        cluster._write("core-site", {"hadoop.tmp.dir": str(folder / "tmp")})
        cluster._write("yarn-site", cluster._make_settings())
        (cluster.configuration / "spark-defaults.conf").touch()
        try:
            cluster._daemons.append(cluster._start_daemon("resourcemanager.ResourceManager"))
            cluster._daemons.append(cluster._start_daemon("nodemanager.NodeManager"))
            cluster._wait_for_node()
        except BaseException:
            cluster.stop()
            raise
        return cluster

    @property
    def configuration(self) -> Path:
        """A folder for HADOOP_CONF_DIR and SPARK_CONF_DIR."""
        return self.folder / "conf"

    def processes(self) -> list[int]:
        """List the process ids of its daemons and their descendants."""
        return [*(daemon.pid for daemon in self._daemons), *self._list_containers()]

    def executors(self) -> list[int]:
        """List the process ids of the live JVMs of its executors."""
        return [pid for pid in self._list_containers() if _is_executor(pid)]

    def stop(self) -> None:
        """End all processes, including containers and their Python processes."""
        end_with_descendants(self._daemons)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _list_containers(self) -> list[int]:
        return [pid for daemon in self._daemons for pid in list_descendants(daemon.pid)]

    def _make_settings(self) -> dict[str, str]:
        return {
            **{name: f"127.0.0.1:{port}" for name, port in self._ports.items()},
            **dict.fromkeys(NODE_MANAGER_PORTS, "127.0.0.1:0"),
            "yarn.nodemanager.hostname": "127.0.0.1",
            "yarn.nodemanager.local-dirs": str(self.folder / "local"),
            "yarn.node-attribute.fs-store.root-dir": (self.folder / "attributes").as_uri(),
            "yarn.nodemanager.log-dirs": str(self.folder / "logs"),
            "yarn.nodemanager.resource.memory-mb": "8192",
            "yarn.nodemanager.resource.cpu-vcores": "8",
            "yarn.nodemanager.vmem-check-enabled": "false",
            "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "99",
            "yarn.scheduler.minimum-allocation-mb": "512",
            "yarn.scheduler.capacity.root.queues": QUEUE,
            f"yarn.scheduler.capacity.root.{QUEUE}.capacity": "100",
            "yarn.scheduler.capacity.maximum-am-resource-percent": "1",
        }

    def _write(self, name: str, settings: Mapping[str, str]) -> None:
        properties = "".join(
            f"<property><name>{escape(key)}</name><value>{escape(value)}</value></property>\n"
            for key, value in settings.items()
        )
        (self.configuration / f"{name}.xml").write_text(f"<configuration>\n{properties}</configuration>\n")

    @cached_property
    def _class_path(self) -> str:
        own = resolve_jars("yarn", lock=LOCK)
        return ":".join([str(self.configuration), *map(str, own), f"{fetch_ivy_jar().parent}/*"])

    def _start_daemon(self, name: str) -> subprocess.Popen[bytes]:
        java = require_java()
        command = [str(java), *JAVA_OPTIONS, "-cp", self._class_path, f"{DAEMONS}.{name}"]
        environment = {"JAVA_HOME": str(java.resolve().parents[1])}  # containers inherit it
        return start_child(command, folder=self.folder, log=self._log(name), environment=environment)

    def _log(self, name: str) -> Path:
        return self.folder / f"{name.partition('.')[0]}.log"

    def _wait_for_node(self) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while self._count_nodes() != 1:
            if any(daemon.poll() is not None for daemon in self._daemons):
                raise self._problem("a daemon ended")
            if time.monotonic() > deadline:
                raise self._problem(f"no node within {START_SECONDS_MAX} s")
            time.sleep(POLL_SECONDS)

    def _count_nodes(self) -> int | None:
        """Return the number of active nodes in the ResourceManager's report; None while it does not answer."""
        port = self._ports["yarn.resourcemanager.webapp.address"]
        try:
            with urlopen(f"http://127.0.0.1:{port}/ws/v1/cluster/metrics", timeout=5) as answer:
                return msgspec.json.decode(answer.read(), type=_Report).cluster_metrics.active_nodes
        except (OSError, msgspec.DecodeError):
            return None

    def _problem(self, what: str) -> EnvironmentProblem:
        logs = sorted(self.folder.glob("*.log"))
        tails = "\n".join(
            line for log in logs for line in log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
        )
        return EnvironmentProblem(f"YARN in {self.folder} did not start: {what}\n{tails}", next_step="read its logs")


def _is_executor(pid: int) -> bool:
    """Whether a process is an executor's JVM: the shells of its container have the same words in their commands."""
    try:
        process = psutil.Process(pid)
        return process.name() == "java" and any(EXECUTOR_MARK in word for word in process.cmdline())
    except psutil.NoSuchProcess:
        return False
