"""Embedded Kafka: a single node, or a cluster of a few.

The broker of the demo, the tests and the benchmarks, started from the locked jars by plain `java`: no
container, no installation. A node's folder holds settings, log and data. Topic ids, offsets and
transactions survive `kill` and `restart`, as on any Kafka.
"""

from __future__ import annotations

import base64
import os
import socket
import subprocess
import time
import uuid
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt

from lockstep.errors import EnvironmentProblem
from lockstep.features.localdev.processes import find_free_ports, is_free, start_child, start_detached
from lockstep.spark.class_archive import find_archive, make_use_options, name_archive
from lockstep.spark.jars import resolve_jars
from lockstep.spark.java import require_java
from lockstep.time_limit import SLOW, describe_silence, end_process, run_command

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path


# One node, no waiting, little memory. Each can be overridden by `Broker.start(settings=...)`.
DEFAULTS: Mapping[str, str] = MappingProxyType(
    {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.listener.names": "CONTROLLER",
        "auto.create.topics.enable": "false",
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "share.coordinator.state.topic.num.partitions": "1",
        "group.initial.rebalance.delay.ms": "0",
        # After a kill -9 a new process waits until the old process's session has ended (9 s by default).
        "broker.session.timeout.ms": "4000",
        # An idle node takes 1.0 instead of 1.7 CPU s a minute.
        "broker.heartbeat.interval.ms": "1500",
        "metadata.max.idle.interval.ms": "0",
        "file.delete.delay.ms": "1000",
        "log.cleaner.dedupe.buffer.size": "4194304",
        "log.cleaner.io.buffer.size": "65536",
        "log.index.size.max.bytes": "1048576",
        "num.network.threads": "2",
        "num.io.threads": "4",
    }
)

LOG_SETTINGS = """rootLogger.level = WARN
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %m (%c)%n
"""


def make_listener_settings(
    listeners: Mapping[str, str], protocols: Mapping[str, str], controller: str
) -> dict[str, str]:
    """Listener settings of the node.

    Args:
        listeners: Address of each listener for clients, by name.
        protocols: Security protocol of those that have one.
        controller: Address of the controller.
    """
    spoken = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT", **protocols}
    clients = [f"{name}://{address}" for name, address in listeners.items()]
    return {
        "listeners": ",".join([*clients, f"CONTROLLER://{controller}"]),
        "advertised.listeners": ",".join(clients),
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in spoken.items()),
        "controller.quorum.voters": f"1@{controller}",
    }


def make_replication_settings(nodes: int) -> dict[str, str]:
    """Every topic on all nodes; a write is acknowledged by all but one."""
    copies = str(nodes)
    in_sync = str(max(1, nodes - 1))
    internal = ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic")
    return {
        "default.replication.factor": copies,
        "min.insync.replicas": in_sync,
        **{f"{name}.replication.factor": copies for name in internal},
        **{f"{name}.min.isr": in_sync for name in internal[1:]},
    }


def make_log_settings(levels: Mapping[str, str]) -> str:
    """Log levels: warnings and errors on the console; single loggers at their own levels."""
    named = [
        f"logger.{number}.name = {name}\nlogger.{number}.level = {level}\n"
        for number, (name, level) in enumerate(levels.items())
    ]
    return LOG_SETTINGS + "".join(named)


def to_properties(settings: Mapping[str, str]) -> str:
    """Settings as a Java properties file, in which a backslash starts an escape."""
    return "".join("{}={}\n".format(name, value.replace("\\", "\\\\")) for name, value in settings.items())


# A broker with a thousand topics keeps below this; without a limit Java takes a quarter of the machine.
HEAP = "512m"

# Quick compilation and the simple collector: up in 4 s instead of 6 to 8, and less memory (measured).
JAVA_OPTIONS = (f"-Xmx{HEAP}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true")

# Up in 4 s on an idle machine; a machine full of other work took two minutes.
START_SECONDS_MAX = 300

# A clean end takes half a second; past this it is killed, which Kafka survives.
STOP_SECONDS_MAX = 20

POLL_SECONDS = 0.05

# Length of the log's end in an error.
LOG_TAIL_LINES = 25

# Another process may take a port between the choice and the start.
PORT_ATTEMPTS = 3

NO_SETTINGS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Ports:
    """The loopback ports of a node: for clients, for the controller, and one of each further listener by name."""

    clients: int
    controller: int
    further: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def choose(cls, listeners: Iterable[str], preferred: int | None) -> Self:
        """Free ports; the preferred one is for clients, if it is free."""
        names = tuple(listeners)
        clients, controller, *further = find_free_ports(2 + len(names))
        if preferred is not None and is_free(preferred):
            clients = preferred
        return cls(clients, controller, dict(zip(names, further, strict=True)))

    @property
    def are_free(self) -> bool:
        """Whether all are free."""
        return all(map(is_free, (self.clients, self.controller, *self.further.values())))


@dataclass(frozen=True)
class _Wanted:
    """The arguments of `Broker.start`."""

    settings: Mapping[str, str]
    listeners: Mapping[str, str]
    log_levels: Mapping[str, str]
    port: int | None
    detached: bool
    java_options: tuple[str, ...] | None = None


class PortTaken(EnvironmentProblem):
    """Another process took a port between the choice and the start."""


class Broker:
    """A running single-node Kafka. Leave its `with` block, or call `stop`, to end it.

    Attributes:
        folder: Folder of its settings, log and data.
        ports: Its loopback ports; kept over `restart`.
    """

    def __init__(self, folder: Path, ports: Ports, wanted: _Wanted) -> None:
        self.folder = folder
        self.ports = ports
        self._wanted = wanted
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(
        cls,
        folder: Path,
        *,
        settings: Mapping[str, str] = NO_SETTINGS,
        listeners: Mapping[str, str] = NO_SETTINGS,
        log_levels: Mapping[str, str] = NO_SETTINGS,
        port: int | None = None,
        detached: bool = False,
        java_options: tuple[str, ...] | None = None,
    ) -> Self:
        """Start a broker in a folder, new or of an earlier broker, and wait until it answers.

        Args:
            folder: Created if missing. An earlier broker's topics are available again, with their ids.
            settings: Kafka broker settings that override the defaults.
            listeners: Listeners in addition to the plain one, each by its name and security protocol
                ("SASL_SSL"); `settings` secure them: "listener.name.<name>.ssl.keystore.location".
            log_levels: Levels of single loggers of Kafka: "kafka.request.logger" at DEBUG shows every request.
            port: Port for clients; another port is chosen if it is in use.
            detached: Whether it outlives this process; otherwise the kernel kills it with this thread.
            java_options: Further options of its JVM; by default it maps the archive of classes, if there is one.

        Raises:
            EnvironmentProblem: No Java, no jars, or no answer in time; shows the end of the broker's log.
        """
        folder.mkdir(parents=True, exist_ok=True)
        wanted = _Wanted(settings, listeners, log_levels, port, detached, java_options)
        retry = Retrying(stop=stop_after_attempt(PORT_ATTEMPTS), retry=retry_if_exception_type(PortTaken), reraise=True)
        return retry(cls._on_new_ports, folder, wanted)

    @classmethod
    def _on_new_ports(cls, folder: Path, wanted: _Wanted) -> Self:
        broker = cls(folder, Ports.choose(wanted.listeners, wanted.port), wanted)
        broker._launch()
        return broker

    @classmethod
    def start_cluster(cls, folder: Path, nodes: int = 3) -> tuple[Self, ...]:
        """Start a cluster of nodes that are brokers and controllers, and wait until each answers.

        Node N is in rack `rack-N`: a consumer with that `client.rack` reads from its replicas.

        Args:
            folder: A new folder; each node has one in it.
            nodes: Number of nodes; all partitions are on each.

        Raises:
            EnvironmentProblem: No Java, no jars, or no answer in time; shows the end of a node's log.
        """
        free = find_free_ports(2 * nodes)
        ports = [Ports(clients, controller) for clients, controller in zip(free[::2], free[1::2], strict=True)]
        voters = ",".join(f"{number}@127.0.0.1:{each.controller}" for number, each in enumerate(ports, 1))
        shared = {
            **make_replication_settings(nodes),
            "controller.quorum.voters": voters,
            "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
        }
        cluster = make_cluster_id()
        brokers = list[Self]()
        for number, each in enumerate(ports, 1):
            settings = {**shared, "node.id": str(number), "broker.rack": f"rack-{number}"}
            broker = cls(folder / str(number), each, _Wanted(settings, NO_SETTINGS, NO_SETTINGS, None, detached=False))
            broker.folder.mkdir(parents=True)
            brokers.append(broker)
        try:
            for broker in brokers:
                broker.spawn(cluster)
            for broker in brokers:  # none answers before a majority is up
                broker.wait_until_it_answers()
        except BaseException:
            for broker in brokers:
                broker.kill()
            raise
        return tuple(brokers)

    @property
    def bootstrap_servers(self) -> str:
        """`bootstrap.servers` for a Kafka client."""
        return f"127.0.0.1:{self.ports.clients}"

    def address(self, listener: str) -> str:
        """`bootstrap.servers` of one of the further listeners."""
        return f"127.0.0.1:{self.ports.further[listener]}"

    @property
    def pid(self) -> int | None:
        """The process id while it runs, for fault injection (SIGSTOP and the like), else None."""
        return self._process.pid if self._process and self._process.poll() is None else None

    @property
    def log(self) -> Path:
        """The broker's own log."""
        return self.folder / "broker.log"

    def write_address(self, path: Path) -> None:
        """Write `bootstrap_servers` to a file, atomically, for other processes to find."""
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        draft.write_text(self.bootstrap_servers + "\n")
        draft.replace(path)

    def stop(self) -> None:
        """End it cleanly, or by force past the deadline. Does nothing after its end."""
        if self._process is None:
            return
        end_process(self._process, STOP_SECONDS_MAX)

    def kill(self) -> None:
        """Kill it as a power cut would (SIGKILL)."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def restart(self) -> None:
        """Stop it if it runs, then start it with the same ports and data, and wait until it answers."""
        self.stop()
        self._launch()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _launch(self) -> None:
        """Start the process and wait for it; stop it again if it does not get ready."""
        self.spawn(make_cluster_id())
        try:
            self.wait_until_it_answers()
        except BaseException:
            self.kill()
            raise

    def spawn(self, cluster_id: str) -> None:
        """Start the process; a new data folder becomes a part of this cluster."""
        jars = resolve_jars("kafka")[0].parent
        java = require_java()
        classpath = f"{jars}/*"
        archived = make_use_options(find_archive(jars, name_archive("kafka", jars, java)))
        self._write_settings()
        if not (self.folder / "data" / "meta.properties").exists():
            self._format([str(java), *JAVA_OPTIONS, *archived, "-cp", classpath], cluster_id)
        further = archived if self._wanted.java_options is None else self._wanted.java_options
        options = [*JAVA_OPTIONS, *further, f"-Dlog4j2.configurationFile={self.folder}/log4j2.properties"]
        command = [str(java), *options, "-cp", classpath, "kafka.Kafka", str(self.folder / "server.properties")]
        start = start_detached if self._wanted.detached else start_child
        self._process = start(command, folder=self.folder, log=self.log)

    def _write_settings(self) -> None:
        listeners = {"PLAINTEXT": self.bootstrap_servers, **{name: self.address(name) for name in self.ports.further}}
        own = {
            **make_listener_settings(listeners, self._wanted.listeners, f"127.0.0.1:{self.ports.controller}"),
            "log.dirs": str(self.folder / "data"),
        }
        server = self.folder / "server.properties"
        server.touch(mode=0o600)  # may hold the passwords of a listener
        server.write_text(to_properties({**DEFAULTS, **own, **self._wanted.settings}))
        (self.folder / "log4j2.properties").write_text(make_log_settings(self._wanted.log_levels))

    def _format(self, java: list[str], cluster: str) -> None:
        """Format the data folder; a half-formatted one lacks meta.properties and gets it now."""
        settings = str(self.folder / "server.properties")
        tool = [*java, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", settings]
        try:
            said = run_command(tool, "Kafka's tool that formats its storage", START_SECONDS_MAX)
        except TimeoutError as late:
            raise EnvironmentProblem(str(late), next_step=f"{SLOW}: run the same command again") from late
        if said.returncode:
            raise self._problem(f"its storage could not be formatted: {said.stdout}{said.stderr}")

    def wait_until_it_answers(self) -> None:
        """Kafka opens its port for clients last, so that it answers as soon as it is open.

        Raises:
            EnvironmentProblem: It ended, or does not answer in time; shows the end of its log.
        """
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline:
            if (ended := self._process.poll() if self._process else -1) is not None:
                kind = EnvironmentProblem if self.ports.are_free else PortTaken
                raise self._problem(f"it ended with exit code {ended}", kind)
            if _answers(self.ports.clients):
                return
            time.sleep(POLL_SECONDS)
        raise EnvironmentProblem(
            describe_silence(f"the local Kafka in {self.folder}", START_SECONDS_MAX),
            next_step=f"{SLOW}: run the same command again; its log is {self.log}",
        )

    def _problem(self, what: str, kind: type[EnvironmentProblem] = EnvironmentProblem) -> EnvironmentProblem:
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        tail = "\n".join(lines[-LOG_TAIL_LINES:])
        return kind(
            f"the local Kafka in {self.folder} did not start: {what}\n{tail}",
            next_step=f"read {self.log}",
        )


def make_cluster_id() -> str:
    """A new id of a Kafka cluster; a leading "-" would be an option of its tool."""
    return "L" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22]


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
