"""Kafka alone, for streams of a project (`lockstep kafka`), until a signal; its topics stay in the folder."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import psutil

from lockstep.errors import EnvironmentProblem, LockstepError
from lockstep.features.localdev.broker import Broker
from lockstep.features.localdev.class_archives import find_kafka_archive, make_kafka_archive
from lockstep.features.localdev.processes import (
    hold_folder_lock,
    is_free,
    observe_end_signals,
    start_child,
)
from lockstep.spark.class_archive import find_spark_archive
from lockstep.spark.java import require_java
from lockstep.time_limit import has_ended_within

KAFKA_PORT = 9092
FOLDER = ".kafka"
"""Of topics and logs, in the working folder."""
POLL_SECONDS = 0.5
SPARK_ARCHIVER = ("-m", "lockstep.spark.spark_archive")
END_SECONDS = 20.0
"""Time for the archiver of Spark's classes to remove its draft."""

Report = Callable[[str], None]


def make_port_in_use(port: int) -> EnvironmentProblem:
    """The error of a port for clients that cannot be used; it names the process that listens there."""
    return EnvironmentProblem(
        f"port {port} of 127.0.0.1 cannot be used: {_describe_user(port)}",
        next_step=f"end that process, or choose another port: lockstep kafka --port {port + 1}",
    )


def _describe_user(port: int) -> str:
    """The process that listens at a port, as far as this user may see it."""
    try:
        for connection in psutil.net_connections("tcp"):
            listens = connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port
            if listens and connection.pid:
                return f"{psutil.Process(connection.pid).name()} listens there (process {connection.pid})"
    except psutil.Error:
        pass
    return "a process of another user or container listens there, or the port is reserved"


class LocalKafka(msgspec.Struct, frozen=True):
    """A local Kafka that answers.

    Attributes:
        bootstrap_servers: Its address for clients.
        folder: The folder of its topics.
    """

    bootstrap_servers: str
    folder: str


def run_kafka(folder: Path, port: int, show: Callable[[LocalKafka], None], report: Report) -> None:
    """Run the bundled Kafka until a signal ends it.

    1. Refuse a folder and a port in use. 2. Archive Kafka's classes, if this is the first start here. 3. Start it.
    4. Archive Spark's classes meanwhile, if this is not done: the first run of a stream then starts faster. 5. Wait.

    Args:
        folder: The folder of its topics, settings and log; made if it is missing.
        port: Its port for clients, on loopback.
        show: Receives its address once it answers.
        report: Receives each line about further work.

    Raises:
        LockstepError: Another command uses the folder, or Kafka has ended by itself.
        EnvironmentProblem: No Java, no jars, the port is in use, or no answer in time.
    """
    with hold_folder_lock(folder):  # 1
        if not is_free(port):
            raise make_port_in_use(port)
        _prepare_archive(report)  # 2
        with Broker.start(folder, port=port) as broker:  # 3
            if broker.ports.clients != port:  # taken between the check and the start
                raise make_port_in_use(port)
            over = observe_end_signals()  # Ctrl-C before this ends a download, too
            show(LocalKafka(broker.bootstrap_servers, str(folder)))
            with _archive_spark(folder / "spark_archive.log", report) as archiver:  # 4
                while not over.wait(POLL_SECONDS):  # 5
                    if broker.pid is None:
                        raise LockstepError("Kafka has ended by itself", next_step=f"read {broker.log}")
                    archiver.poll()


def _prepare_archive(report: Report) -> None:
    """Make the archive of Kafka's classes at the first start; without it each start takes seconds longer."""
    if find_kafka_archive() is not None:
        return
    report("first start here: archiving Kafka's classes, some ten seconds")
    try:
        make_kafka_archive()
    except EnvironmentProblem as problem:
        report(f"{problem.problem}; Kafka starts without the archive")


class _Archiver:
    """The process that archives Spark's classes, if one was started."""

    def __init__(self, process: subprocess.Popen[bytes] | None, log: Path, report: Report) -> None:
        self._process = process
        self._log = log
        self._report = report

    def poll(self) -> None:
        """Tell its end, once."""
        if self._process is None or self._process.poll() is None:
            return
        ended = "done" if self._process.returncode == 0 else f"not done (see {self._log}); runs start without it"
        self._report(f"archiving Spark's classes: {ended}")
        self._process = None

    def end(self) -> None:
        """End it, as Ctrl-C would: it then removes its draft."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGINT)
        if not has_ended_within(self._process, END_SECONDS):
            self._process.kill()
            self._process.wait()


@contextmanager
def _archive_spark(log: Path, report: Report) -> Iterator[_Archiver]:
    """Archive Spark's classes in a process of the block, unless this environment has the archive."""
    process = None
    if find_spark_archive(require_java()) is None:
        report("archiving Spark's classes meanwhile, once: runs of streams then start faster")
        process = start_child([sys.executable, *SPARK_ARCHIVER], folder=log.parent, log=log)
    archiver = _Archiver(process, log, report)
    try:
        yield archiver
    finally:
        archiver.end()
