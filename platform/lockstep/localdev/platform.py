"""The local platform: Kafka, Dagster, feed and streams (`make up`, `make down`).

python -m lockstep.localdev.platform up REPOSITORY --speed 30
    python -m lockstep.localdev.platform down REPOSITORY
    python -m lockstep.localdev.platform kafka REPOSITORY

All files are in REPOSITORY/.live; `down` keeps them, and the next `up` continues. `make kafka` is Kafka alone,
in REPOSITORY/.kafka, until Ctrl-C.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console as Screen

from lockstep.declare.discovery import find_streams
from lockstep.declare.stream import AnyStream
from lockstep.engine.driver.handover import Phase, read_heartbeat
from lockstep.errors import LockstepError
from lockstep.localdev import log_rotation
from lockstep.localdev.broker import Broker, Ports
from lockstep.localdev.demo import find_tool, format_exports
from lockstep.localdev.feed import SPEED
from lockstep.localdev.processes import (
    MARK,
    ProcessHandle,
    find_free_ports,
    is_alive,
    is_free,
    list_platform_processes,
    read_process_handle,
    start_detached,
    stop_all,
)
from lockstep.table import delta_log
from lockstep.table.commit import OutputLog
from lockstep.table.delta_log import Desired, Head
from lockstep.table.layout import StreamFolders

if TYPE_CHECKING:
    from collections.abc import Mapping


ANSWER_SECONDS = 20.0

HEALTH = """{
  instance { daemonHealth { allDaemonStatuses { daemonType required healthy } } }
  workspaceOrError { ... on Workspace { locationEntries {
    name locationOrLoadError { __typename ... on PythonError { message } } } } }
}"""
UNFINISHED = """{ runsOrError(filter: {statuses: [STARTING, STARTED, CANCELING]}) {
  ... on Runs { results { runId jobName } } } }"""
STATUS = """query ($run: ID!) { runOrError(runId: $run) { ... on Run { status } } }"""
LAUNCH = """mutation ($job: String!, $location: String!, $tags: [ExecutionTag!]!) {
  launchRun(executionParams: {
    selector: {repositoryLocationName: $location, repositoryName: "__repository__", jobName: $job},
    mode: "default", executionMetadata: {tags: $tags}}) {
    __typename ... on LaunchRunSuccess { run { runId } } ... on Error { message } } }"""


class PlatformRun(msgspec.Struct, frozen=True, rename="camel"):
    """A run that is alive in Dagster."""

    run_id: str
    job_name: str


class _Daemon(msgspec.Struct, rename="camel"):
    daemon_type: str
    required: bool
    healthy: bool | None


class _Location(msgspec.Struct, rename="camel"):
    name: str
    location_or_load_error: dict[str, str] | None


class _Launched(msgspec.Struct):
    run: dict[str, str] | None = None
    message: str = ""


class DagsterClient:
    """Dagster's web server at an address."""

    def __init__(self, address: str) -> None:
        self.address = address

    def troubles(self) -> list[str]:
        """Problems of Dagster, as text; empty when it is healthy."""
        try:
            data = self.ask(HEALTH, {})
        except (OSError, msgspec.DecodeError) as error:
            return [f"the web server does not answer yet ({error})"]
        daemons = msgspec.convert(data["instance"]["daemonHealth"]["allDaemonStatuses"], list[_Daemon])
        locations = msgspec.convert(data["workspaceOrError"]["locationEntries"], list[_Location])
        sick = [
            f"daemon {each.daemon_type} does not work yet" for each in daemons if each.required and not each.healthy
        ]
        return sick + [f"code location {each.name}: {why}" for each in locations if (why := _why_not(each))]

    def unfinished(self) -> list[PlatformRun]:
        """Runs that are alive in Dagster."""
        return msgspec.convert(self.ask(UNFINISHED, {})["runsOrError"]["results"], list[PlatformRun])

    def launch(self, job: str, location: str, tags: Mapping[str, str]) -> str:
        """Launch a job; gives the id of its run.

        Raises:
            LockstepError: Dagster refused.
        """
        listed = [{"key": key, "value": value} for key, value in tags.items()]
        said = self.ask(LAUNCH, {"job": job, "location": location, "tags": listed})
        launched = msgspec.convert(said["launchRun"], _Launched)
        if launched.run is None:
            raise LockstepError(f"Dagster did not launch {job}: {launched.message}", next_step=f"see {self.address}")
        return launched.run["runId"]

    def failed(self, run: str) -> bool:
        """Whether a run has failed."""
        return bool(self.ask(STATUS, {"run": run})["runOrError"].get("status") == "FAILURE")

    def ask(self, query: str, variables: Mapping[str, object]) -> dict[str, Any]:
        """Run a GraphQL query; gives its `data`.

        Raises:
            LockstepError: The query is invalid.
        """
        body = msgspec.json.encode({"query": query, "variables": variables})
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.address}/graphql", body, headers)  # noqa: S310  # our own loopback address
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:  # noqa: S310
                said = msgspec.json.decode(answer.read())
        except urllib.error.HTTPError as error:  # the response to an invalid query has the reason
            said = {"errors": error.read().decode(errors="replace")}
        if "errors" in said:
            raise LockstepError(f"Dagster does not understand: {said['errors']}", next_step="report it with this text")
        return dict(said["data"])


def _why_not(location: _Location) -> str:
    """Reason why a code location is not loaded; empty when it is."""
    loaded = location.location_or_load_error
    if loaded is None:
        return "loading"
    return loaded.get("message", "") if loaded["__typename"] == "PythonError" else ""


KAFKA_PORT, CONSOLE_PORT = 9092, 3000
"""Default ports; others are chosen where these are in use."""
LOCATION = "lockstep"
PATIENCE_SECONDS, LOOK_SECONDS = 240.0, 0.5
"""All is up after some 30 s on an idle machine, and ten times as long on a busy one."""
SERVERS = {"MALLOC_ARENA_MAX": "2", "DAGSTER_GRPC_TIMEOUT_SECONDS": "240"}
"""The sensors run on new threads of the code server each time: with a malloc arena for each, it held 340 MB of free
memory after 20 minutes. It confirms the start of a run once that has loaded the code, which takes 60 s (Dagster's
own limit) on a machine full of other work."""
HEAP, MASTER = "512m", "local[1,3]"
"""Of each stream: its JVM only schedules, and a demonstration needs only one core of each stream."""


class Servers(msgspec.Struct, frozen=True):
    """The started processes, as recorded in the folder.

    Attributes:
        kafka: Address of the broker.
        console: Address of Dagster's web server.
        started: The processes by name: kafka, logs, feed, code, web, daemon.
    """

    kafka: str = ""
    console: str = ""
    started: dict[str, ProcessHandle] = {}

    def pids(self, *names: str) -> tuple[int, ...]:
        """Pids of the live ones."""
        return tuple(m.pid for name, m in self.started.items() if name in names and is_alive(m))

    def dead(self) -> tuple[str, ...]:
        """Names of those that have ended."""
        return tuple(name for name, member in self.started.items() if not is_alive(member))


def _usual_ports(listeners: Iterable[str]) -> Ports:
    return replace(Ports.choose(listeners), clients=_port(KAFKA_PORT))


class UsualBroker(Broker):
    """A broker on the usual port, if it is free."""

    _ports = staticmethod(_usual_ports)


class DetachedBroker(UsualBroker):
    """A broker that outlives this process; its pid is recorded to end it."""

    _starter = staticmethod(start_detached)


@dataclass(frozen=True)
class LocalPlatform:
    """A live platform.

    Attributes:
        repository: The folder that holds `definitions.py`.
        folder: All its files.
    """

    repository: Path
    folder: Path

    @property
    def tables(self) -> Path:
        """The table root."""
        return self.folder / "tables"

    def environment(self) -> dict[str, str]:
        """Environment variables for manual work with it."""
        return {
            "DAGSTER_HOME": str(self.folder / "dagster"),
            "LOCKSTEP_KAFKA__BOOTSTRAP_SERVERS": (self.servers() or Servers()).kafka,
            "LOCKSTEP_TABLE_ROOT": str(self.tables),
            "LOCKSTEP_LOCAL_ROOT": str(self.folder / "local"),
            "LOCKSTEP_SPARK__DRIVER_MEMORY": HEAP,
            "LOCKSTEP_SPARK__MASTER": MASTER,
        }

    def servers(self) -> Servers | None:
        """The processes started last and not ended by `stop_platform`; None without any."""
        try:
            return msgspec.json.decode(self._record.read_bytes(), type=Servers)
        except FileNotFoundError:
            return None

    def forget(self) -> None:
        """Record that all of it has ended."""
        self._record.unlink(missing_ok=True)

    def start(self, speed: float) -> Iterator[str]:
        """Start the processes one after another, and report each; see `live.up`."""
        for part in ("kafka", "tables", "dagster", "logs"):
            (self.folder / part).mkdir(parents=True, exist_ok=True)
        os.environ[MARK] = str(self.folder)  # marks the broker, too
        os.environ |= SERVERS
        self._write(Servers())
        yield "starting Kafka"
        broker = DetachedBroker.start(self.folder / "kafka")
        self._add("kafka", broker.pid, kafka=broker.bootstrap_servers)
        broker.write_address(self.folder / "kafka.address")
        self._start("logs", ["python", log_rotation.__file__, str(self.folder / "logs")])
        yield f"feeding {speed:g} recorded messages a second"
        self._start("feed", ["python", "-m", "lockstep.localdev.feed", str(self.repository), "--speed", str(speed)])
        heads = [(stream, self._head(stream)) for stream in find_streams(self.repository).values()]
        yield "starting Dagster: code location, web server, daemon"
        console = self._start_dagster()
        self._wait(lambda: not console.troubles(), lambda: "; ".join(console.troubles()))
        yield from self._start_streams(console, heads)

    def _start_dagster(self) -> DagsterClient:
        """One code server for the web server and the daemon; runs are its children."""
        from lockstep.orchestration.launch import create_dagster_storage  # loads Dagster

        shutil.copy(self.repository / "deploy" / "dagster.yaml", self.folder / "dagster" / "dagster.yaml")
        create_dagster_storage(self.folder / "dagster")
        code = find_free_ports(1)[0]
        server = {"host": "127.0.0.1", "port": code, "location_name": LOCATION}
        workspace = self.folder / "workspace.yaml"
        workspace.write_bytes(msgspec.yaml.encode({"load_from": [{"grpc_server": server}]}))
        serve = ["dagster", "api", "grpc", "-h", "127.0.0.1", "-p", str(code), "-m", "definitions"]
        self._start("code", [*serve, "--location-name", LOCATION, "-d", str(self.repository)])
        port = _port(CONSOLE_PORT)
        self._wait(lambda: not is_free(code), lambda: "the code server does not listen yet")
        self._start("web", ["dagster-webserver", "-h", "127.0.0.1", "-p", str(port), "-w", str(workspace)])
        self._start("daemon", ["dagster-daemon", "run", "-w", str(workspace)])
        console = DagsterClient(f"http://127.0.0.1:{port}")
        self._write(msgspec.structs.replace(self.servers() or Servers(), console=console.address))
        return console

    def _start_streams(self, console: DagsterClient, heads: list[tuple[AnyStream, Head | None]]) -> Iterator[str]:
        """Launch streams that have not run yet, leave those in the state `running` to the supervisor; wait for both.

        Args:
            console: The web server.
            heads: Heads of the streams before the daemon was started.
        """
        from lockstep.orchestration.names import CAUSE_TAG, name_stream_job  # loads Dagster

        launched: list[tuple[AnyStream, int, str]] = []
        for stream, head in heads:
            if (stays := _stays_down(head)) is not None:
                yield stays
            elif head is not None and head.desired is Desired.RUNNING:
                launched.append((stream, head.epoch, ""))
            else:
                run = console.launch(name_stream_job(stream), LOCATION, {CAUSE_TAG: "make up"})
                launched.append((stream, head.epoch if head is not None else 0, run))
        for stream, epoch, run in launched:
            how = f"{console.address}/runs/{run}" if run else "its supervisor starts it again"
            yield f"{stream.name}: {how}"
            self._wait(partial(self._writes, stream, epoch, console, run), f"{stream.name} does not write yet".__str__)

    def _head(self, stream: AnyStream) -> Head | None:
        folders = StreamFolders(stream.name, self.tables)
        return OutputLog(folders.table).base().head if delta_log.has_log(folders.table) else None

    def _writes(self, stream: AnyStream, after: int, console: DagsterClient, run: str) -> bool:
        if run and console.failed(run):
            raise LockstepError(
                f"the run of {stream.name} failed", next_step=f"dagster run list, then read {self._log('code')}"
            )
        head = self._head(stream)
        epoch = head.epoch if head is not None else 0
        last = read_heartbeat(StreamFolders(stream.name, self.tables).control, epoch)
        return epoch > after and last is not None and last.phase is Phase.WRITING

    def _start(self, name: str, command: list[str]) -> None:
        whole = [find_tool(command[0]), *command[1:]]
        process = start_detached(whole, folder=self.repository, log=self._log(name), environment=self.environment())
        self._add(name, process.pid)

    def _add(self, name: str, pid: int | None, *, kafka: str = "") -> None:
        servers, member = self.servers() or Servers(), read_process_handle(pid or 0)
        if member is None:
            raise self._ended(name)
        started = {**servers.started, name: member}
        self._write(msgspec.structs.replace(servers, started=started, kafka=kafka or servers.kafka))

    def _wait(self, ready: Callable[[], bool], not_yet: Callable[[], str]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not ready():
            for name in (self.servers() or Servers()).dead():
                raise self._ended(name)
            if time.monotonic() > deadline:
                raise LockstepError(
                    f"not up after {PATIENCE_SECONDS:.0f} s: {not_yet()}", next_step=f"read {self.folder / 'logs'}"
                )
            time.sleep(LOOK_SECONDS)

    def _ended(self, name: str) -> LockstepError:
        path = self._log(name)
        tail = "\n".join(path.read_text(errors="replace").splitlines()[-15:]) if path.exists() else ""
        return LockstepError(f"{name} ended at once:\n{tail}", next_step=f"read {path}")

    def _write(self, servers: Servers) -> None:
        """Write the record atomically: `stop_platform` reads it."""
        draft = self._record.with_suffix(".draft")
        draft.write_bytes(msgspec.json.encode(servers))
        draft.replace(self._record)

    def _log(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"

    @property
    def _record(self) -> Path:
        return self.folder / "servers.json"


def _stays_down(head: Head | None) -> str | None:
    """Reason why a stream is not started, with the command that starts it; None when it is to be started."""
    if head is None or head.epoch == 0 or head.desired in {Desired.RUNNING, Desired.BOUNDED}:
        return None
    step = "resume" if head.desired is Desired.HALTED else "start"
    return f"{head.stream} stays {head.desired.value} ({head.reason}): lockstep {step} {head.stream}"


def _port(usual: int) -> int:
    return usual if is_free(usual) else find_free_ports(1)[0]


FOLDER = ".live"
SAY = Screen(highlight=False, soft_wrap=True)


def main() -> None:
    """Run `start_platform` or `stop_platform`."""
    parser = argparse.ArgumentParser(prog="live", description="A live platform for demonstration.")
    parser.add_argument("what", choices=["up", "down", "kafka"])
    parser.add_argument("repository", type=Path)
    parser.add_argument("--speed", type=float, default=SPEED, help=f"messages a second (default {SPEED:g})")
    wanted = parser.parse_args()
    repository = wanted.repository.absolute()
    try:
        if wanted.what == "kafka":
            run_kafka(repository / ".kafka")
            return
        with _alone(repository / FOLDER):
            start_platform(repository, wanted.speed) if wanted.what == "up" else stop_platform(repository)
    except LockstepError as error:
        SAY.print(f"[red]error:[/red] {error.problem}\nnext: {error.next_step}")
        sys.exit(1)


def start_platform(repository: Path, speed: float) -> None:
    """Start all missing parts, and wait until they work.

    1. If all of it runs, print its addresses and change nothing. If only parts of it run, refuse.
    2. Start Kafka, the feed and Dagster; on an error end all of it again.
    3. Launch streams that have not run yet as runs of Dagster; the supervisors restart those in the state `running`
       and close their earlier dead runs; streams that are stopped, held or halted stay so.
    """
    if not speed > 0:
        raise LockstepError(f"SPEED={speed:g} is no number of messages a second", next_step="make up SPEED=30")
    platform = LocalPlatform(repository, repository / FOLDER)
    if _is_up(platform):  # 1
        SAY.print("it is up already")
        _show(platform)
        return
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(143))
    began = time.monotonic()
    try:
        for step in platform.start(speed):  # 2, 3
            SAY.print(f"[bold]>[/bold] {step}")
    except BaseException:
        SAY.print("ending what was started")
        _end(platform)
        raise
    SAY.print(f"up after {time.monotonic() - began:.0f} s")
    _show(platform)


def stop_platform(repository: Path) -> None:
    """End everything; the folder stays."""
    platform = LocalPlatform(repository, repository / FOLDER)
    began, count = time.monotonic(), len(list_platform_processes(platform.folder))
    if not count:
        SAY.print("nothing runs")
        return
    SAY.print(f"[bold]>[/bold] ending {count} processes; streams end at the next batch boundary")
    _end(platform)
    SAY.print(f"down after {time.monotonic() - began:.0f} s; `make up` goes on from here, `make clean` removes it")


def run_kafka(folder: Path) -> None:
    """Only the bundled Kafka, until a signal; its topics stay in the folder for the next time."""
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    with UsualBroker.start(folder) as broker:
        SAY.print(f"Kafka answers at {broker.bootstrap_servers}; Ctrl-C ends it, its topics stay in {folder}")
        SAY.print(f"  {format_exports({'LOCKSTEP_KAFKA__BOOTSTRAP_SERVERS': broker.bootstrap_servers})}")
        while not over.wait(LOOK_SECONDS):
            if broker.pid is None:
                raise LockstepError("Kafka has ended by itself", next_step=f"read {broker.log}")


def _end(platform: LocalPlatform) -> None:
    servers = platform.servers()
    needed = servers.pids("code", "web") if servers else ()
    stop_all(platform.folder, needed, servers.pids("kafka") if servers else ())
    left = list_platform_processes(platform.folder)
    if left:
        raise LockstepError(f"processes {sorted(left)} do not end", next_step="look at them with ps; then make down")
    platform.forget()


def _is_up(platform: LocalPlatform) -> bool:
    """Whether all of it runs.

    Raises:
        LockstepError: Only parts of it do.
    """
    alive = list_platform_processes(platform.folder)
    if not alive:
        return False
    servers = platform.servers()
    dead = servers.dead() if servers else ("its records",)
    if dead:
        raise LockstepError(f"it is up in part: {', '.join(dead)} ended", next_step="make down, then make up")
    return True


def _show(platform: LocalPlatform) -> None:
    servers = platform.servers() or Servers()
    SAY.print(f"\n  Dagster    {servers.console}   (assets, runs, plots; it has no login: loopback only)")
    SAY.print(f"  Kafka      {servers.kafka}")
    SAY.print(f"  tables     {platform.tables}")
    SAY.print(f"  logs       {platform.folder / 'logs'}")
    SAY.print("\ntry next, in a shell with the environment active (. .venv/bin/activate):")
    SAY.print(f"  {format_exports(platform.environment())}")
    SAY.print("  lockstep status order_books   where each partition stands")
    SAY.print("  make down                     end it all; make clean removes it")


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Exclude a second `start_platform` or `stop_platform`, which would interfere with this one."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockstepError("another `make up` or `make down` works here", next_step="wait for its end") from None
        yield


if __name__ == "__main__":
    main()
