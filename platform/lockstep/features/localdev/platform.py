"""The local platform: Kafka, Dagster, feed and streams (`make up`, `make down`).

python -m lockstep.features.localdev.platform up REPOSITORY --speed 30
    python -m lockstep.features.localdev.platform down REPOSITORY
    python -m lockstep.features.localdev.platform keep REPOSITORY

`up` starts `keep`, which starts servers that have died again. All files are in REPOSITORY/.live; `down` keeps them, and
the next `up` continues. The demo runs on the same `LocalPlatform`, whose processes end with it.
"""

from __future__ import annotations

import argparse
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import psutil
from rich.console import Console as Screen

from lockstep.control.heartbeat import read_heartbeat
from lockstep.control.start_request import record_start_request
from lockstep.declare.discovery import find_streams
from lockstep.errors import EnvironmentProblem, LockstepError
from lockstep.features.localdev import log_rotation
from lockstep.features.localdev.broker import Broker
from lockstep.features.localdev.feed import SPEED
from lockstep.features.localdev.local_kafka import KAFKA_PORT
from lockstep.features.localdev.local_postgres import create_cluster, make_address
from lockstep.features.localdev.processes import (
    MARK,
    ProcessHandle,
    find_free_ports,
    hold_folder_lock,
    ignore_interrupts,
    is_alive,
    is_free,
    list_platform_processes,
    observe_end_signals,
    read_process_handle,
    start_child,
    start_detached,
    stop_all,
)
from lockstep.features.localdev.producer import create_topic
from lockstep.features.localdev.stream_starts import StreamState, await_streams
from lockstep.settings import KafkaSettings
from lockstep.table import delta_log
from lockstep.table.commit import OutputLog
from lockstep.table.head import Desired, Head
from lockstep.table.layout import StreamFolders
from lockstep.time_limit import SLOW, describe_silence, end_process

if TYPE_CHECKING:
    from dagster_graphql import DagsterGraphQLClient

WEB_PORT = 3000
PAGE_PORT = 3002
EXPORTER_PORT = 9464
"""Default ports; others are chosen where these are in use."""
LOCATION = "lockstep"
"""The code location."""
PATIENCE_SECONDS = 300.0
POLL_SECONDS = 0.5
PROGRESS_SECONDS = 15.0
"""All is up after some 30 s on an idle machine, and ten times as long on a busy one."""
END_SECONDS = 30.0
"""Time for a process to end after SIGTERM; a stream's own bound is 20 s."""
DAEMON_END_SECONDS = 5.0
"""Time for the daemon to end: a sensor's tick takes less than a second on an idle machine."""
ANSWER_SECONDS = 20
"""Time for an answer of Dagster's web server."""
LOG_TAIL_LINES = 15
KEEPER = "keeper"
KAFKA = "kafka"
DATABASE = "local_postgres"
ALERTS = "alert_receiver"
"""Names of processes; the last two are of their modules, too."""
ALERTS_FILE = "alerts.jsonl"
MOVES_TOPIC = "market.large_moves"
OUTPUTS = ("MARKET_DATABASE", "MARKET_ALERTS")
"""The topic and the environment variables that assets/order_books.py names."""
KEEP_SECONDS = 2.0
KEEP_SECONDS_MAX = 60.0
"""Pause before a server is started again, and its bound: it doubles with each start after which the server did not live
for the bound, as with a module that cannot be imported."""
SERVERS = {"MALLOC_ARENA_MAX": "2", "DAGSTER_GRPC_TIMEOUT_SECONDS": "240"}
"""The sensors run on new threads of the code server each time: with a malloc arena for each, it held 340 MB of free
memory after 20 minutes. It confirms the start of a run once that has loaded the code, which takes 60 s (Dagster's
own limit) on a machine full of other work."""
SMALL_STREAMS = {"LOCKSTEP_SPARK__DRIVER_MEMORY": "512m", "LOCKSTEP_SPARK__MASTER": "local[1,3]"}
"""Of each stream: its JVM only schedules, and a demonstration needs only one core of each stream."""
HOSTED_STREAMS = {"LOCKSTEP_SPARK__DRIVER_MEMORY": "512m", "LOCKSTEP_DAGSTER__HOSTS": '["default"]'}
"""Of a host of all streams, whose JVM schedules for all of them."""


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


def start_live(platform: LocalPlatform, speed: float) -> Iterator[str]:
    """Start the missing processes of a live platform, and report each step; see `start_platform`."""
    yield from start_servers(platform, speed)
    yield from start_streams(platform)


def start_servers(platform: LocalPlatform, speed: float) -> Iterator[str]:
    """Start the missing servers, with the addresses that the others know, and wait until they work."""
    os.environ[MARK] = str(platform.folder)  # marks all that is started from here
    if list_platform_processes(platform.folder) and not platform.servers().kafka:
        yield "ending the rest of a killed start"
        platform.stop()
    if not list_platform_processes(platform.folder):  # a record of another boot names processes and ports of others
        yield "starting Kafka"
        platform.start_kafka()
    elif not platform.is_running(KAFKA):
        yield "starting Kafka again"
        platform.restart_kafka()
    yield from _start_outputs(platform)
    folders = [str(platform.folder / "logs"), str(platform.folder / "kafka")]
    platform.ensure("logs", lambda: ["python", log_rotation.__file__, *folders])
    if not platform.is_running("feed"):
        yield f"feeding {speed:g} recorded messages a second"
    feed = ["python", "-m", "lockstep.features.localdev.feed", str(platform.repository), "--speed", str(speed)]
    platform.ensure("feed", lambda: feed)
    if not all(map(platform.is_running, ("metrics", "page", "code", "web", "daemon"))):
        yield "starting Dagster: code location, web server, daemon; the exporter of metrics, and the live page"
    if not platform.is_running("metrics"):
        _start_exporter(platform)
    if not platform.is_running("page"):
        _start_page(platform)
    _start_dagster(platform)


def _start_outputs(platform: LocalPlatform) -> Iterator[str]:
    """Start the targets of deliveries: a database, a receiver of alerts, and a topic; without Postgres, none."""
    data = platform.folder / DATABASE
    try:
        create_cluster(data)
    except EnvironmentProblem as error:
        yield f"without targets for rows of order_books: {error.problem}; next: {error.next_step}"
        return
    if not all(map(platform.is_running, (DATABASE, ALERTS))):
        yield "starting Postgres and a receiver of alerts, to which order_books delivers rows"
    postgres = platform.servers().commands.get(DATABASE) or _make_server(DATABASE, data)
    alerts = platform.servers().commands.get(ALERTS) or _make_server(ALERTS, platform.folder / ALERTS_FILE)
    platform.ensure(DATABASE, lambda: postgres)
    platform.ensure(ALERTS, lambda: alerts)
    addresses = (make_address(data, int(postgres[-1])), f"http://127.0.0.1:{alerts[-1]}/")
    platform.set_outputs(dict(zip(OUTPUTS, addresses, strict=True)))
    create_topic(KafkaSettings(bootstrap_servers=platform.servers().kafka), MOVES_TOPIC)


def _make_server(module: str, place: Path) -> list[str]:
    """The command of a server on a free port, its last argument."""
    return ["python", "-m", f"lockstep.features.localdev.{module}", str(place), str(find_free_ports(1)[0])]


def _start_exporter(platform: LocalPlatform) -> None:
    port = EXPORTER_PORT if is_free(EXPORTER_PORT) else find_free_ports(1)[0]
    platform.start("metrics", ["lockstep", "metrics", "--port", str(port)])
    platform.set_metrics(f"http://127.0.0.1:{port}/metrics")


def _start_page(platform: LocalPlatform) -> None:
    port = PAGE_PORT if is_free(PAGE_PORT) else find_free_ports(1)[0]
    platform.start("page", ["lockstep", "console", "--port", str(port)])
    platform.set_page(f"http://127.0.0.1:{port}")


def _start_dagster(platform: LocalPlatform) -> None:
    """One code server for the web server and the daemon; runs are its children."""
    from dagster_graphql import DagsterGraphQLClient

    from lockstep.orchestration.launch import create_dagster_storage  # loads Dagster

    create_dagster_storage(platform.dagster_home)
    workspace = platform.folder / "workspace.yaml"
    platform.ensure("code", lambda: _make_code_command(platform, workspace))
    code = int(_find_option(platform.servers().commands["code"], "-p"))
    platform.wait(lambda: not is_free(code), lambda: "the code server does not listen yet", _say_step)
    platform.ensure("web", lambda: _make_web_command(workspace))
    platform.ensure("daemon", lambda: ["dagster-daemon", "run", "-w", str(workspace)])
    port = int(_find_option(platform.servers().commands["web"], "-p"))
    platform.set_console(f"http://127.0.0.1:{port}")
    client = DagsterGraphQLClient("127.0.0.1", port, timeout=ANSWER_SECONDS)
    find_problems = partial(find_dagster_problems, client, platform.dagster_home)
    platform.wait(lambda: not find_problems(), lambda: "; ".join(find_problems()), _say_step)


def _make_code_command(platform: LocalPlatform, workspace: Path) -> list[str]:
    """The command of a code server on a free port, which the workspace names from now on."""
    port = find_free_ports(1)[0]
    server = {"host": "127.0.0.1", "port": port, "location_name": LOCATION}
    workspace.write_bytes(msgspec.yaml.encode({"load_from": [{"grpc_server": server}]}))
    serve = ["python", "-m", "lockstep.orchestration.code_server", "-h", "127.0.0.1", "-p", str(port)]
    return [*serve, "-m", "lockstep.code_location", "--location-name", LOCATION, "-d", str(platform.repository)]


def _make_web_command(workspace: Path) -> list[str]:
    port = WEB_PORT if is_free(WEB_PORT) else find_free_ports(1)[0]
    web = ["python", "-m", "lockstep.orchestration.web_server", "-h", "127.0.0.1", "-p", str(port)]
    return [*web, "-w", str(workspace)]


def _find_option(command: Sequence[str], option: str) -> str:
    """The value of an option of a command."""
    return command[list(command).index(option) + 1]


def _say_step(line: str) -> None:
    SAY.print(f"[bold]>[/bold] {line}")


_LOCATION_QUERY = """
query Location($name: String!) {
  workspaceLocationEntryOrError(name: $name) {
    ... on WorkspaceLocationEntry {
      locationOrLoadError { __typename ... on PythonError { message causes { message } } }
    }
  }
}
"""


def find_dagster_problems(client: DagsterGraphQLClient, home: Path) -> list[str]:
    """Reasons why Dagster does not work yet, as text; empty when its daemons and the code location do.

    A location with an error loads its code again, which may be corrected by now.

    Args:
        client: Its web server.
        home: The folder of its instance.
    """
    from dagster_graphql import DagsterGraphQLClientError

    from lockstep.orchestration.launch import find_unhealthy_daemons

    if unhealthy := find_unhealthy_daemons(home):
        return [f"daemon {name} does not work yet" for name in unhealthy]
    try:
        problem = _find_load_error(client)
        if problem:
            client.reload_repository_location(LOCATION)
            problem = _find_load_error(client)
    except DagsterGraphQLClientError as error:
        return [f"the web server does not answer yet ({error})"]
    if problem is None:
        return ["the code location is not loaded yet"]
    return [f"code location: {problem}"] if problem else []


def _find_load_error(client: DagsterGraphQLClient) -> str | None:
    """The error of the code location, its first cause; empty without one, None if it is not loaded yet."""
    answer = client._execute(_LOCATION_QUERY, {"name": LOCATION})  # noqa: SLF001  # no method has this question
    entry = answer["workspaceLocationEntryOrError"]
    loaded = entry and entry["locationOrLoadError"]
    if not loaded:
        return None
    if loaded["__typename"] != "PythonError":
        return ""
    errors = [loaded, *loaded["causes"]]
    return str(errors[-1]["message"]).strip()


def start_streams(platform: LocalPlatform) -> Iterator[str]:
    """Request the start of each stream that is not stopped, held or halted, and wait until all of these write.

    The supervisors start them, a few at a time, and continue if this process ends.

    Raises:
        LockstepError: Some are slow. Nothing is ended.
    """
    wanted: list[str] = []
    for stream in find_streams(platform.repository).values():
        head = platform.head(stream.name)
        if (stays := _stays_down(head)) is not None:
            yield stays
            continue
        if head is None or head.desired is not Desired.RUNNING:
            version = 0 if head is None else head.desired_version
            record_start_request(StreamFolders(stream.name, platform.tables), "started by make up", version)
        wanted.append(stream.name)
    if wanted:
        yield f"waiting until {', '.join(wanted)} write: {platform.servers().console}/runs"
    yield from await_streams(wanted, partial(_look, platform), partial(_check_servers, platform))


def _look(platform: LocalPlatform, stream: str) -> StreamState:
    from lockstep.orchestration.launch import find_last_failure  # loads Dagster

    head = platform.head(stream)
    epoch = head.epoch if head is not None else 0
    pulse = read_heartbeat(StreamFolders(stream, platform.tables).control, epoch)
    return StreamState(epoch, pulse, find_last_failure(platform.dagster_home, stream))


def _check_servers(platform: LocalPlatform) -> None:
    for name in platform.servers().dead():
        raise platform.failed(name, f"{name} ended")


def _stays_down(head: Head | None) -> str | None:
    """Reason why a stream is not started, with the command that starts it; None when it is to be started."""
    if head is None or head.epoch == 0 or head.desired in {Desired.RUNNING, Desired.BOUNDED}:
        return None
    step = "resume" if head.desired is Desired.HALTED else "start"
    return f"{head.stream} stays {head.desired.value} ({head.reason}): lockstep {step} {head.stream}"


def keep_servers(platform: LocalPlatform, over: threading.Event) -> list[subprocess.Popen[bytes]]:
    """Start servers again that have died, each with its own command, until the end; Kafka at its address.

    Args:
        platform: The platform.
        over: Set to end it.

    Returns:
        Those that it started, and that live on.
    """
    at = dict[str, float]()
    pauses = dict[str, float]()
    processes = list[subprocess.Popen[bytes]]()
    while not over.wait(KEEP_SECONDS):
        processes = [process for process in processes if process.poll() is None]  # reaps the others
        servers = platform.servers()
        now = time.monotonic()
        for name in servers.dead():
            age = now - at.get(name, -math.inf)
            pause = pauses.get(name, 0.0)
            if name not in {KAFKA, *servers.commands} or age < pause:
                continue
            at[name] = now
            pauses[name] = min(2 * pause, KEEP_SECONDS_MAX) if age < KEEP_SECONDS_MAX else KEEP_SECONDS
            SAY.print(f"{name} had ended and is started again")
            try:
                if name == KAFKA:
                    platform.restart_kafka()
                else:
                    processes.append(platform.start(name, servers.commands[name]))
            except LockstepError as error:
                SAY.print(error.problem)
    return [process for process in processes if process.poll() is None]


FOLDER = ".live"
INTERRUPTED = 130
"""Exit code of a command that a signal ended, as shells report it."""
SAY = Screen(highlight=False, soft_wrap=True)


def main() -> None:
    """Run `start_platform` or `stop_platform`."""
    parser = argparse.ArgumentParser(prog="live", description="A live platform for demonstration.")
    parser.add_argument("what", choices=["up", "down", "keep"])
    parser.add_argument("repository", type=Path)
    parser.add_argument("--speed", type=float, default=SPEED, help=f"messages a second (default {SPEED:g})")
    wanted = parser.parse_args()
    repository = wanted.repository.absolute()
    try:
        if wanted.what == "keep":
            keep_servers(open_live_platform(repository), observe_end_signals())
            return
        with hold_folder_lock(repository / FOLDER):
            start_platform(repository, wanted.speed) if wanted.what == "up" else stop_platform(repository)
    except LockstepError as error:
        SAY.print(f"[red]error:[/red] {error.problem}\nnext: {error.next_step}")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def open_live_platform(repository: Path) -> LocalPlatform:
    """The platform of `make up`."""
    return LocalPlatform(repository, repository / FOLDER, detached=True, settings=SMALL_STREAMS)


def start_platform(repository: Path, speed: float) -> None:
    """Start all missing parts, and wait until they work. What runs is left as it is, also by an error.

    1. Suspend the keeper, which would start a missing part as well.
    2. Start the missing ones of Kafka, the feed and Dagster, then the keeper.
    3. Let the supervisors start streams; those that are stopped, held or halted stay so.

    An interrupt of a first start ends the processes that it has started.
    """
    if not speed > 0:
        raise LockstepError(f"SPEED={speed:g} is not a number of messages a second", next_step="make up SPEED=30")
    platform = open_live_platform(repository)
    is_new = not list_platform_processes(platform.folder)
    was_whole = _is_whole(platform)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(143))
    began = time.monotonic()
    try:
        _complete(platform, speed, was_whole=was_whole)
    except LockstepError:
        left = ", ".join(name for name in platform.servers().started if platform.is_running(name))
        SAY.print(f"left running: {left or 'nothing'}; make up completes it, make down ends it")
        raise
    except BaseException:
        if is_new:
            SAY.print("ending the started processes")
            with ignore_interrupts():
                platform.stop()
        raise
    SAY.print("it is up already" if was_whole else f"up after {time.monotonic() - began:.0f} s")
    _show(platform)


def _complete(platform: LocalPlatform, speed: float, *, was_whole: bool) -> None:
    """The steps of `start_platform`."""
    if not was_whole:
        platform.end(KEEPER)  # 1
        for step in start_servers(platform, speed):  # 2
            _say_step(step)
        platform.start(
            KEEPER, ["python", "-m", "lockstep.features.localdev.platform", "keep", str(platform.repository)]
        )
    for step in start_streams(platform):  # 3
        _say_step(step)


def stop_platform(repository: Path) -> None:
    """End everything; the folder stays."""
    platform = open_live_platform(repository)
    began = time.monotonic()
    count = len(list_platform_processes(platform.folder))
    if not count:
        SAY.print("nothing runs")
        return
    SAY.print(f"[bold]>[/bold] ending {count} processes; streams end at the next batch boundary")
    platform.stop()
    SAY.print(f"down after {time.monotonic() - began:.0f} s; `make up` continues from here, `make clean` removes it")


def _is_whole(platform: LocalPlatform) -> bool:
    """Whether each server of an earlier start lives, the keeper too, which is started last."""
    servers = platform.servers()
    has_all = KEEPER in servers.started and servers.commands.keys() <= servers.started.keys()
    return has_all and not servers.dead() and bool(list_platform_processes(platform.folder))


def _show(platform: LocalPlatform) -> None:
    servers = platform.servers()
    SAY.print(f"\n  live page  {servers.page}   (state, lag, alarms and history of all streams)")
    SAY.print(f"  Dagster    {servers.console}   (assets, runs, plots; it has no login: loopback only)")
    SAY.print(f"  Kafka      {servers.kafka}")
    SAY.print(f"  metrics    {servers.metrics}   (for Prometheus; the dashboard is deploy/grafana/lockstep.json)")
    if servers.outputs:
        SAY.print("  database   $MARKET_DATABASE below   (table market_books: the newest levels)")
        SAY.print(f"  topic      {MOVES_TOPIC}   (large moves of price levels)")
        SAY.print(f"  alerts     {platform.folder / ALERTS_FILE}   (the largest moves)")
    SAY.print(f"  tables     {platform.tables}")
    SAY.print(f"  logs       {platform.folder / 'logs'}")
    SAY.print("\ntry next, in a shell with the environment active (. .venv/bin/activate):")
    SAY.print(f"  {format_exports(platform.environment())}")
    SAY.print("  lockstep status order_books   its alarms, and where each partition stands")
    SAY.print("  lockstep verify order_books   its proof: table, current table, database and topic")
    SAY.print('  lockstep query "SELECT side, count(*) FROM order_books_current GROUP BY side"')
    SAY.print("  make down                     end it all; make clean removes it")


if __name__ == "__main__":
    main()
