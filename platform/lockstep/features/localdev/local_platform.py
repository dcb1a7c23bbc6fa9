"""The processes of a local platform: one folder has their record, logs and data."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import psutil
from rich.console import Console as Screen

from lockstep.errors import EnvironmentProblem, LockstepError
from lockstep.features.localdev.broker import Broker
from lockstep.features.localdev.local_kafka import KAFKA_PORT
from lockstep.features.localdev.processes import (
    MARK,
    ProcessHandle,
    is_alive,
    list_platform_processes,
    read_process_handle,
    start_child,
    start_detached,
    stop_all,
)
from lockstep.table import delta_log
from lockstep.table.commit import OutputLog
from lockstep.table.head import Head
from lockstep.table.layout import StreamFolders
from lockstep.time_limit import SLOW, describe_silence, end_process

PATIENCE_SECONDS = 300.0
POLL_SECONDS = 0.5
PROGRESS_SECONDS = 15.0
"""All is up after some 30 s on an idle machine, and ten times as long on a busy one."""
END_SECONDS = 30.0
"""Time for a process to end after SIGTERM; a stream's own bound is 20 s."""
DAEMON_END_SECONDS = 5.0
"""Time for the daemon to end: a sensor's tick takes less than a second on an idle machine."""
LOG_TAIL_LINES = 15
KEEPER = "keeper"
KAFKA = "kafka"
DATABASE = "local_postgres"
ALERTS = "alert_receiver"
"""Names of processes; the last two are of their modules, too."""
MOVES_TOPIC = "market.large_moves"
OUTPUTS = ("MARKET_DATABASE", "MARKET_ALERTS")
"""The topic and the environment variables that assets/order_books.py names."""
SERVERS = {"MALLOC_ARENA_MAX": "2", "DAGSTER_GRPC_TIMEOUT_SECONDS": "240"}
"""The sensors run on new threads of the code server each time: with a malloc arena for each, it held 340 MB of free
memory after 20 minutes. It confirms the start of a run once that has loaded the code, which takes 60 s (Dagster's
own limit) on a machine full of other work."""
SAY = Screen(highlight=False, soft_wrap=True)


class Servers(msgspec.Struct, frozen=True):
    """The started processes, as recorded in the folder.

    Attributes:
        kafka: Address of the broker.
        console: Address of Dagster's web server.
        metrics: Address of the exporter of metrics.
        page: Address of the live page.
        outputs: Environment variables with the addresses of the database and the receiver of alerts, to which streams
            deliver rows.
        started: The processes that are to live, by name: kafka, local_postgres, alert_receiver, logs, feed,
            code, web, daemon, metrics, page, keeper.
        commands: The commands of those that `start` has started.
    """

    kafka: str = ""
    console: str = ""
    metrics: str = ""
    page: str = ""
    outputs: dict[str, str] = {}
    started: dict[str, ProcessHandle] = {}
    commands: dict[str, list[str]] = {}

    def pids(self, *names: str) -> tuple[int, ...]:
        """Pids of the live ones."""
        return tuple(m.pid for name, m in self.started.items() if name in names and is_alive(m))

    def dead(self) -> tuple[str, ...]:
        """Names of those that have ended."""
        return tuple(name for name, member in self.started.items() if not is_alive(member))


@dataclass(frozen=True)
class LocalPlatform:
    """Kafka and further processes of one folder, with an environment that lockstep and Dagster read.

    Attributes:
        repository: The folder that holds `definitions.py`.
        folder: All its files; delete it to start over.
        detached: Whether its processes outlive this process; otherwise the kernel kills them with this thread.
        settings: Environment variables of its processes in addition to `environment`.
    """

    repository: Path
    folder: Path
    detached: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def tables(self) -> Path:
        """The table root."""
        return self.folder / "tables"

    @property
    def dagster_home(self) -> Path:
        """The folder of Dagster's instance."""
        return self.folder / "dagster"

    def environment(self) -> dict[str, str]:
        """Environment variables for manual work with it."""
        return {
            "DAGSTER_HOME": str(self.dagster_home),
            "LOCKSTEP_KAFKA__BOOTSTRAP_SERVERS": self.servers().kafka,
            "LOCKSTEP_TABLE_ROOT": str(self.tables),
            "LOCKSTEP_LOCAL_ROOT": str(self.folder / "local"),
            **self.servers().outputs,
            **self.settings,
        }

    def servers(self) -> Servers:
        """The processes started last and not ended by `stop`; none without a record."""
        try:
            return msgspec.json.decode(self._record.read_bytes(), type=Servers)
        except FileNotFoundError:
            return Servers()

    def start_kafka(self) -> Broker:
        """Create the folders and start Kafka, whose address is written to `kafka.address`."""
        for part in ("kafka", "tables", "dagster", "logs"):
            (self.folder / part).mkdir(parents=True, exist_ok=True)
        shutil.copy(self.repository / "deploy" / "dagster.yaml", self.dagster_home / "dagster.yaml")
        os.environ[MARK] = str(self.folder)
        self._write(Servers())
        broker = Broker.start(self.folder / "kafka", port=KAFKA_PORT, detached=self.detached)
        self._write(Servers(kafka=broker.bootstrap_servers))
        self._add("kafka", broker.pid)
        broker.write_address(self.folder / "kafka.address")
        return broker

    def restart_kafka(self) -> None:
        """Start Kafka after its end: at the same address, with its topics.

        Raises:
            EnvironmentProblem: It does not start, or its port is taken.
        """
        address = self.servers().kafka
        broker = Broker.start(self.folder / "kafka", port=int(address.rpartition(":")[2]), detached=self.detached)
        if broker.bootstrap_servers != address:
            broker.stop()
            raise EnvironmentProblem(f"the address {address} of Kafka is in use", next_step="make down, then make up")
        self._add("kafka", broker.pid)

    def is_running(self, name: str) -> bool:
        """Whether a process that is to live does so."""
        return bool(self.servers().pids(name))

    def ensure(self, name: str, make_command: Callable[[], Sequence[str]]) -> None:
        """Start a process unless it lives: with the command of its last start, whose ports others know."""
        if not self.is_running(name):
            self.start(name, self.servers().commands.get(name) or make_command())

    def end(self, name: str, seconds_max: float = END_SECONDS) -> None:
        """End a process that was to live; it is killed if it takes longer."""
        servers = self.servers()
        if name not in servers.started:
            return
        started = {other: handle for other, handle in servers.started.items() if other != name}
        self._write(msgspec.structs.replace(servers, started=started))  # first: the keeper would start it again
        for pid in servers.pids(name):
            process = psutil.Process(pid)
            process.terminate()
            for slow in psutil.wait_procs([process], timeout=seconds_max)[1]:
                slow.kill()

    def start(self, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a command of the environment's `bin` that is to live; its output goes to the log of its name."""
        start = start_detached if self.detached else start_child
        whole = [find_tool(command[0]), *command[1:]]
        environment = {**SERVERS, **dict.fromkeys(OUTPUTS, ""), **self.environment()}
        process = start(whole, folder=self.repository, log=self.log(name), environment=environment)
        self._add(name, process.pid, command)
        return process

    @contextmanager
    def running(self, name: str, command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
        """Start a command, and end it when the block ends, however it ends."""
        process = self.start(name, command)
        try:
            yield process
        finally:
            end_process(process, END_SECONDS)
            servers = self.servers()
            started = {other: handle for other, handle in servers.started.items() if other != name}
            self._write(msgspec.structs.replace(servers, started=started))

    def run(self, name: str, command: Sequence[str]) -> None:
        """Run a command to its end.

        Raises:
            LockstepError: It failed; names the log and shows its last lines.
        """
        with self.running(name, command) as process:
            if process.wait() != 0:
                raise self.failed(name, f"`{' '.join(command[:3])}` ended with {process.returncode}")

    def wait(
        self, ready: Callable[[], bool], not_yet: Callable[[], str], say: Callable[[str], None] = lambda _: None
    ) -> None:
        """Wait for a condition.

        Args:
            ready: The condition.
            not_yet: The missing part, for the text.
            say: Receives a line now and then.

        Raises:
            LockstepError: A process that is to live ended, or it took too long.
        """
        began = reported = time.monotonic()
        while True:
            ended = self.servers().dead()  # before the condition, which the end of a process may bring about
            if ready():
                return
            for name in ended:
                raise self.failed(name, f"{name} ended")
            now = time.monotonic()
            if now - reported >= PROGRESS_SECONDS:
                reported = now
                say(f"{not_yet()} ({now - began:.0f} s)")
            if now - began > PATIENCE_SECONDS:
                silence = describe_silence("the platform", PATIENCE_SECONDS, verb="get so far")
                step = f"{SLOW}: wait, or read {self.folder / 'logs'}"
                raise LockstepError(f"{silence}: {not_yet()}", next_step=step)
            time.sleep(POLL_SECONDS)

    def log(self, name: str) -> Path:
        """The log of a process."""
        return self.folder / "logs" / f"{name}.log"

    def failed(self, name: str, problem: str) -> LockstepError:
        """An error of a process, with the end of its log."""
        path = self.log(name)
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        return LockstepError("\n".join([f"{problem}:", *lines[-LOG_TAIL_LINES:]]), next_step=f"read {path}")

    def stop(self) -> None:
        """End all its processes; the folder stays.

        The daemon ends before the runs: its supervisors would start the streams again, and would remember a start that
        they could not finish.

        Raises:
            LockstepError: Some do not end.
        """
        for name in (KEEPER, "daemon"):
            self.end(name, DAEMON_END_SECONDS)
        servers = self.servers()
        stop_all(self.folder, servers.pids("code", "web"), servers.pids("kafka"))
        self.end(DATABASE, DAEMON_END_SECONDS)  # of another user: a container may hide its environment
        if left := sorted(process.pid for process in list_platform_processes(self.folder)):
            raise LockstepError(f"processes {left} do not end", next_step="check them with ps; then make down")
        self._record.unlink(missing_ok=True)

    def head(self, stream: str) -> Head | None:
        """The head of a stream's table; None without a table."""
        table = StreamFolders(stream, self.tables).table
        return OutputLog(table).base().head if delta_log.has_log(table) else None

    def set_console(self, address: str) -> None:
        """Record the address of Dagster's web server."""
        self._write(msgspec.structs.replace(self.servers(), console=address))

    def set_metrics(self, address: str) -> None:
        """Record the address of the exporter of metrics."""
        self._write(msgspec.structs.replace(self.servers(), metrics=address))

    def set_page(self, address: str) -> None:
        """Record the address of the live page."""
        self._write(msgspec.structs.replace(self.servers(), page=address))

    def set_outputs(self, outputs: dict[str, str]) -> None:
        """Record the addresses to which streams deliver rows, by environment variable."""
        self._write(msgspec.structs.replace(self.servers(), outputs=outputs))

    def _add(self, name: str, pid: int | None, command: Sequence[str] = ()) -> None:
        servers = self.servers()
        process = read_process_handle(pid or 0)
        if process is None:
            raise self.failed(name, f"{name} ended at once")
        commands = {**servers.commands, name: list(command)} if command else servers.commands
        started = {**servers.started, name: process}
        self._write(msgspec.structs.replace(servers, started=started, commands=commands))

    def _write(self, servers: Servers) -> None:
        """Write the record atomically, for the owner alone: `make down` reads it, and it has a password."""
        draft = self._record.with_suffix(".draft")
        draft.touch(mode=0o600)
        draft.write_bytes(msgspec.json.encode(servers))
        draft.replace(self._record)

    @property
    def _record(self) -> Path:
        return self.folder / "servers.json"


def format_exports(environment: Mapping[str, str]) -> str:
    """The environment as a line for a shell."""
    return "export " + " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items())


def find_tool(name: str) -> str:
    """A command of this environment."""
    return str(Path(sys.executable).with_name(name))


def show_step(line: str) -> None:
    """Print a step of `make up`."""
    SAY.print(f"[bold]>[/bold] {line}")
