"""A complete installation for each module: Kafka, tables and Dagster homes; runs are real processes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from dagster import DagsterInstance

from lockstep.addresses import to_uri
from lockstep.control.heartbeat import Phase, read_heartbeat
from lockstep.features.localdev.processes import NO_CHANGE, find_free_ports
from lockstep.features.localdev.producer import produce
from lockstep.features.localdev.recordings import Recorded, read_recorded_days, to_sent
from lockstep.orchestration.code_server import is_inner_server
from lockstep.orchestration.launch import create_dagster_storage
from lockstep.settings import ScheduleSettings
from lockstep.table import delta_log
from lockstep.table.commit import OutputLog
from lockstep.table.layout import StreamFolders
from lockstep.table.ledger import read_positions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from dagster import DagsterRun

    from lockstep.table.head import Head

ROOT = Path(__file__).parents[2]
RECORDINGS = Path(__file__).parents[1] / "recordings" / "binance_l2"
DEADLINE_SECONDS = 240
"""A start takes some ten seconds on an idle machine, and ten times as long on a busy machine."""
POLL_SECONDS = 0.3
"""A poll opens a Dagster instance or the log of a table: some ten ms of CPU, for minutes."""
NEVER = "0 0 29 2 *"
"""A schedule that is due on a leap day only: tests launch the jobs themselves, at any minute of the hour."""


def wait_until(condition: Callable[[], bool], what: str, seconds: float = DEADLINE_SECONDS) -> None:
    """Wait for a condition; on timeout, fail with its name."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(POLL_SECONDS)


@cache
def messages() -> tuple[Recorded, ...]:
    """Return the messages of a market, as a correct producer sends them."""
    return to_sent(read_recorded_days(RECORDINGS, "spot_btcusdt")).messages


def is_listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


@dataclass
class Run:
    """A run in a separate process, with all processes that it started."""

    process: subprocess.Popen[bytes]
    output: Path
    family: dict[int, psutil.Process] = field(default_factory=dict)

    def look(self) -> None:
        """Record the processes that it has started so far."""
        if self.process.poll() is None:
            for child in psutil.Process(self.process.pid).children(recursive=True):
                self.family.setdefault(child.pid, child)

    def suspend(self, what: str) -> list[psutil.Process]:
        """Suspend its processes whose command contains this text."""
        self.look()
        found = []
        for each in self.family.values():
            with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                if what in " ".join(each.cmdline()):
                    each.suspend()
                    found.append(each)
        return found

    def wait(self) -> int:
        """Wait for the end and return the exit code."""
        return self.process.wait(DEADLINE_SECONDS)

    def all_gone(self) -> bool:
        """Whether all its processes have ended."""
        return self.process.poll() is not None and not any(each.is_running() for each in self.family.values())

    def said(self) -> str:
        """Return all its output."""
        return self.output.read_text(errors="replace")


@dataclass(frozen=True)
class Daemon:
    """Dagster's daemon, its code server, and the runs that they launched."""

    process: subprocess.Popen[bytes]
    output: Path
    server: subprocess.Popen[bytes] | None = None
    family: dict[int, psutil.Process] = field(default_factory=dict)

    def look(self) -> list[psutil.Process]:
        """Record the processes that it has started so far, and return the living processes."""
        for parent in (self.process, self.server):
            if parent is not None and parent.poll() is None:
                whole = psutil.Process(parent.pid)
                for each in (whole, *whole.children(recursive=True)):
                    self.family.setdefault(each.pid, each)
        return [each for each in self.family.values() if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]

    def code_server(self) -> psutil.Process:
        """Return the parent process of the runs."""
        return next(each for each in self.look() if is_inner_server(each))

    def worker_of(self, pid: int) -> psutil.Process:
        """Return the process of a run by the pid in its liveness file."""
        return next(each for each in self.look() if each.pid == pid)

    def kill_all(self) -> None:
        """Kill all processes, suspended first: no process may start between the second listing and its kill.

        Python's resource tracker survives: it removes the semaphores of the killed processes from /dev/shm, and ends.
        """
        for each in self.look():
            with suppress(psutil.NoSuchProcess):
                each.suspend()
        family = self.look()
        for each in family:
            with suppress(psutil.NoSuchProcess):
                if "multiprocessing.resource_tracker" in " ".join(each.cmdline()):
                    each.resume()
                else:
                    each.kill()
        self.process.wait()
        if self.server is not None:
            self.server.wait()
        psutil.wait_procs(family, timeout=DEADLINE_SECONDS)


@dataclass(frozen=True)
class Installation:
    """One Kafka and one table root, with any number of Dagster homes."""

    folder: Path
    bootstrap_servers: str
    runs: list[Run] = field(default_factory=list)
    code: str = ""
    """The module of a code location other than the repository's."""
    tables: Path | None = None
    """The table root, if it differs from the default."""
    make_storage: Callable[[Path], str] = lambda _: ""
    """The part of dagster.yaml that names a storage other than SQLite for a Dagster home."""

    @property
    def folders(self) -> StreamFolders:
        """The folders of the stream."""
        return StreamFolders("order_books", self.tables or self.folder / "tables")

    def produce(self, topic: str, first: int, until: int) -> None:
        """Send a part of the recording."""
        produce(self.bootstrap_servers, f"order_books.{topic}", messages()[first:until])

    def environment(self, home: str) -> dict[str, str]:
        """Return the environment of a run, with a separate home, temporary folder and Dagster home."""
        places = {"HOME": home, "TMPDIR": f"{home}/temporary", "DAGSTER_HOME": f"{home}/dagster"}
        for place in places.values():
            (self.folder / place).mkdir(parents=True, exist_ok=True)
        instance = self.folder / places["DAGSTER_HOME"] / "dagster.yaml"
        instance.write_text((ROOT / "deploy" / "dagster.yaml").read_text() + self.make_storage(instance.parent))
        return {
            # The jars are in the user's cache; a new home would download them again.
            "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache")),
            **os.environ,
            **{name: str(self.folder / place) for name, place in places.items()},
            **self.settings(),
        }

    def settings(self) -> dict[str, str]:
        """Return the settings as environment variables."""
        return {
            "LOCKSTEP_KAFKA__BOOTSTRAP_SERVERS": self.bootstrap_servers,
            "LOCKSTEP_TABLE_ROOT": to_uri(self.tables or self.folder / "tables"),
            "LOCKSTEP_LOCAL_ROOT": str(self.folder / "local"),
            "LOCKSTEP_SPARK__MASTER": "local[2,3]",
            **{f"LOCKSTEP_SCHEDULES__{name.upper()}": NEVER for name in ScheduleSettings.model_fields},
        }

    def start(self, *arguments: str, home: str = "home", without: str = "") -> Run:
        """Start a command of Dagster in a separate process."""
        environment = {name: value for name, value in self.environment(home).items() if name != without}
        output = self.folder / f"run-{len(self.runs)}.log"
        with output.open("wb") as log_file:
            command = [sys.executable, "-m", "dagster", *arguments, "-m", self.code or "definitions"]
            process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log_file, stderr=log_file)
        self.runs.append(Run(process, output))
        return self.runs[-1]

    def kill_runs(self) -> None:
        """Kill the runs that were started here: a surviving run would write into the next test."""
        for each in self.runs:
            each.process.kill()
            each.process.wait()

    def run_command(self, module: str, *arguments: str, home: str = "home") -> None:
        """Run a command to its end, which must succeed."""
        command = [sys.executable, "-m", module, *arguments]
        said = subprocess.run(
            command, cwd=ROOT, env=self.environment(home), capture_output=True, text=True, check=False
        )
        assert said.returncode == 0, said.stdout + said.stderr

    def materialize(self, *, available_now: bool, home: str = "home", without: str = "") -> Run:
        """Start `dagster asset materialize` of the stream."""
        config = {"ops": {"order_books__table": {"config": {"available_now": available_now}}}}
        arguments = ["asset", "materialize", "--select", "order_books/table", "--config-json", json.dumps(config)]
        return self.start(*arguments, home=home, without=without)

    @contextmanager
    def daemon(
        self, home: str = "home", more: Mapping[str, str] = NO_CHANGE, *, served: bool = False
    ) -> Iterator[Daemon]:
        """Run a daemon of a home until the block ends, with all processes that it starts.

        Args:
            home: Folder of its Dagster home.
            more: Additional environment variables.
            served: Whether it uses a permanent code server, as in docker-compose.yml, with the schedules of one stream.
                Otherwise the daemon replaces its code server each minute, which costs six seconds of CPU.
        """
        environment = {**self.environment(home), **more}
        create_dagster_storage(self.folder / home / "dagster")
        server = self._start_code_server(environment) if served else None
        workspace = str(self.workspace) if served else "workspace.yaml"
        output = self.folder / f"daemon-{time.monotonic_ns()}.log"
        process = self._start_dagster(environment, output, "dagster._daemon", "run", "-w", workspace)
        daemon = Daemon(process, output, server)
        try:
            yield daemon
        finally:
            daemon.kill_all()

    @property
    def workspace(self) -> Path:
        """The workspace of a permanent code server."""
        return self.folder / "workspace.yaml"

    def _start_code_server(self, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start a code server and wait until it answers: it opens its port after it has loaded the definitions."""
        (port,) = find_free_ports(1)
        where = {"host": "127.0.0.1", "port": port, "location_name": "lockstep"}
        self.workspace.write_text(json.dumps({"load_from": [{"grpc_server": where}]}))
        code = self.code or "tests.support.one_stream"
        arguments = ("--host", "127.0.0.1", "--port", str(port), "-m", code, "--location-name", "lockstep")
        output = self.folder / f"code-server-{time.monotonic_ns()}.log"
        server = self._start_dagster(environment, output, "lockstep.orchestration.code_server", *arguments)
        try:
            wait_until(lambda: server.poll() is not None or is_listening(port), "the code server answers")
            assert server.poll() is None, output.read_text()
        except BaseException:
            server.kill()
            server.wait()
            raise
        return server

    def _start_dagster(self, environment: Mapping[str, str], output: Path, *command: str) -> subprocess.Popen[bytes]:
        with output.open("wb") as log_file:
            return subprocess.Popen(
                [sys.executable, "-m", *command], cwd=ROOT, env=environment, stdout=log_file, stderr=log_file
            )

    def daemon_said(self) -> str:
        """Return the end of the newest daemon's output."""
        return max(self.folder.glob("daemon-*.log")).read_text(errors="replace")[-8000:]

    def head(self) -> Head:
        """Return the head of the table."""
        return OutputLog(self.folders.table).base().head

    def dagster(self, home: str = "home") -> DagsterInstance:
        """Return Dagster's instance of a home."""
        return DagsterInstance.from_config(str(self.folder / home / "dagster"))

    def stream_runs(self, home: str = "home") -> list[DagsterRun]:
        """List the runs launched to write the stream, the newest first."""
        with self.dagster(home) as instance:
            return [run for run in instance.get_runs() if run.job_name in {"order_books_stream", "__ASSET_JOB"}]

    def epoch(self) -> int:
        """Return the epoch that holds the table; 0 without a table."""
        return OutputLog(self.folders.table).base().head.epoch if delta_log.has_log(self.folders.table) else 0

    def writes(self, epoch: int) -> bool:
        """Whether this epoch holds the table and its last heartbeat reports writing."""
        last = read_heartbeat(self.folders.control, epoch)
        return self.epoch() == epoch and last is not None and last.phase is Phase.WRITING

    def position(self, topic: str) -> int:
        """Return the next offset to read of a topic of one partition; -1 if it is not subscribed."""
        if not delta_log.has_log(self.folders.table):
            return -1
        rows = read_positions(self.folders, OutputLog(self.folders.table).base().head).values()
        return next((row.until for row in rows if row.topic == f"order_books.{topic}"), -1)
