"""A real Spark cluster on this machine: a standalone master and workers on loopback, which end with their owner.

It starts from pyspark's own jars by the script of a real installation. For Spark and lockstep, each worker is a
separate machine: it has its own work folder, scratch folder, and folder for local stores. Peers authenticate with a
shared secret.
"""

from __future__ import annotations

import secrets
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.request import urlopen

import msgspec
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt

from lockstep.errors import EnvironmentProblem
from lockstep.features.localdev.processes import find_free_ports, start_child
from lockstep.spark.jars import fetch_ivy_jar
from lockstep.spark.java import require_java
from tests.support.descendants import end_with_descendants, list_descendants

DAEMON_MEMORY = "256m"
"""Heap of the master and of each worker, which only schedule."""
DAEMON_JAVA_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Djava.awt.headless=true"
CLOSED_OPTIONS = "-Dspark.master.rest.enabled=false -Dspark.ui.killEnabled=false"
"""Neither a server that accepts programs nor links that end applications; as in docker-compose.yml."""
RECOVERY_OPTIONS = "-Dspark.deploy.recoveryMode=FILESYSTEM -Dspark.deploy.recoveryDirectory={}"
"""A restarted master knows workers and applications; as in docker-compose.yml."""
START_SECONDS_MAX = 90
"""The start takes 3 s on an idle machine."""
POLL_SECONDS = 0.1
LOG_TAIL_LINES = 25
PORT_ATTEMPTS = 3
"""Another process may occupy a port between its choice and the start."""
EXECUTOR_MARK = b"CoarseGrainedExecutorBackend"


class _Answer(msgspec.Struct):
    """The parsed part of the master's report."""

    aliveworkers: int


@dataclass(frozen=True, kw_only=True)
class WorkerSize:
    """Resources that each worker offers to applications.

    Attributes:
        cores: Cores.
        memory: Memory for the heaps of executors, without that of their Python processes.
    """

    cores: int = 1
    memory: str = "1g"


class Worker:
    """A worker of the cluster, live or dead.

    Attributes:
        folder: Folder of its work, scratch and local stores.
    """

    def __init__(self, folder: Path, command: list[str], environment: dict[str, str]) -> None:
        """Create the folders and start the worker."""
        self.folder = folder
        self.local_root.mkdir(parents=True, exist_ok=True)
        own = {"SPARK_LOCAL_DIRS": str(folder / "scratch"), "LOCKSTEP_LOCAL_ROOT": str(self.local_root)}
        environment = {**environment, **own}
        self.process = start_child(command, folder=folder, log=folder / "worker.log", environment=environment)

    @property
    def local_root(self) -> Path:
        """Folder of the local stores of this worker's executors."""
        return self.folder / "local"

    def executors(self) -> list[int]:
        """List the process ids of the live JVMs of its executors."""
        return [pid for pid in list_descendants(self.process.pid) if EXECUTOR_MARK in _command(pid)]

    def kill(self) -> None:
        """Kill the worker as a power cut would (SIGKILL). Its executors notice it and end."""
        self.process.kill()
        self.process.wait()


class SparkCluster:
    """A running master with its workers. Leave its `with` block, or call `stop`, to end them all.

    Attributes:
        folder: Folder of settings, logs and the workers' folders.
        workers: The workers, including dead workers, in the order of their start.
    """

    def __init__(self, folder: Path, size: WorkerSize) -> None:
        self.folder, self.workers = folder, list[Worker]()
        self._size, self._port, self._report = size, *find_free_ports(2)
        self._environment = _environment(folder)
        self._script = str(fetch_ivy_jar().parents[1] / "bin" / "spark-class")
        self._master: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(cls, folder: Path, *, workers: int = 2, size: WorkerSize | None = None) -> Self:
        """Start a master and workers in a folder, and wait until all have registered.

        Raises:
            EnvironmentProblem: No Java, or no answer in time; shows the end of the log.
        """
        folder.mkdir(parents=True, exist_ok=True)
        retry = Retrying(stop=stop_after_attempt(PORT_ATTEMPTS), retry=retry_if_exception_type(_Died), reraise=True)
        return retry(cls._started, folder, workers, size or WorkerSize())

    @classmethod
    def _started(cls, folder: Path, workers: int, size: WorkerSize) -> Self:
        cluster = cls(folder, size)
        try:
            cluster._start_master()
            for _ in range(workers):
                cluster.add_worker()
            cluster.wait_for_workers(workers)
        except BaseException:
            cluster.stop()
            raise
        return cluster

    @property
    def master(self) -> str:
        """The value of `spark.master`."""
        return f"spark://127.0.0.1:{self._port}"

    @property
    def configuration(self) -> Path:
        """A folder for SPARK_CONF_DIR, with the cluster's secret for a driver."""
        return self.folder / "conf"

    def add_worker(self) -> Worker:
        """Start an additional worker."""
        folder = self.folder / f"worker-{len(self.workers)}"
        offers = ["--cores", str(self._size.cores), "--memory", self._size.memory, "--work-dir", str(folder / "work")]
        listens = ["--host", "127.0.0.1", "--webui-port", "0"]
        command = [self._script, "org.apache.spark.deploy.worker.Worker", *offers, *listens, self.master]
        self.workers.append(Worker(folder, command, self._environment))
        return self.workers[-1]

    def wait_for_workers(self, count: int) -> None:
        """Wait until the master has the given number of live workers.

        Raises:
            EnvironmentProblem: The timeout has expired.
        """
        deadline = time.monotonic() + START_SECONDS_MAX
        while self._alive_workers() != count:
            if self._master is not None and self._master.poll() is not None:
                raise self._problem(f"the master ended with exit code {self._master.returncode}", _Died)
            if time.monotonic() > deadline:
                raise self._problem(f"no {count} workers within {START_SECONDS_MAX} s")
            time.sleep(POLL_SECONDS)

    def restart_master(self) -> None:
        """Kill the master (SIGKILL) and start a master at its address, which recovers its workers and applications."""
        assert self._master is not None
        self._master.kill()
        self._master.wait()
        self._start_master()

    def stop(self) -> None:
        """End all processes, including executors, their Python processes and suspended processes."""
        masters = [self._master] if self._master else []
        end_with_descendants([*(worker.process for worker in self.workers), *masters])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start_master(self) -> None:
        listens = ["--host", "127.0.0.1", "--port", str(self._port), "--webui-port", str(self._report)]
        command = [self._script, "org.apache.spark.deploy.master.Master", *listens]
        log = self.folder / "master.log"
        environment = self._environment
        self._master = start_child(command, folder=self.folder, log=log, environment=environment)
        self.wait_for_workers(0)

    def _alive_workers(self) -> int | None:
        """Return the number of live workers in the master's report; None while it does not answer."""
        try:
            with urlopen(f"http://127.0.0.1:{self._report}/json/", timeout=5) as answer:
                return msgspec.json.decode(answer.read(), type=_Answer).aliveworkers
        except (OSError, msgspec.DecodeError):
            return None

    def _problem(self, what: str, kind: type[EnvironmentProblem] = EnvironmentProblem) -> EnvironmentProblem:
        log = self.folder / "master.log"
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]) if log.exists() else ""
        return kind(f"the Spark cluster in {self.folder} did not start: {what}\n{tail}", next_step=f"read {log}")


class _Died(EnvironmentProblem):
    """The master ended at its start: most likely another process uses its port."""


def _environment(folder: Path) -> dict[str, str]:
    """Return the variables of master and workers; write their settings files, readable by this user alone."""
    configuration = folder / "conf"
    configuration.mkdir(mode=0o700, exist_ok=True)
    settings = configuration / "spark-defaults.conf"
    settings.touch(mode=0o600)
    settings.write_text(f"spark.authenticate true\nspark.authenticate.secret {secrets.token_hex(32)}\n")
    return {
        "JAVA_HOME": str(require_java().resolve().parents[1]),
        "SPARK_HOME": str(fetch_ivy_jar().parents[1]),
        "SPARK_CONF_DIR": str(configuration),
        "SPARK_DAEMON_MEMORY": DAEMON_MEMORY,
        "SPARK_DAEMON_JAVA_OPTS": f"{DAEMON_JAVA_OPTIONS} {CLOSED_OPTIONS} {RECOVERY_OPTIONS.format(folder / 'known')}",
        "SPARK_LOCAL_IP": "127.0.0.1",  # the pages of master and workers listen only there
    }


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
