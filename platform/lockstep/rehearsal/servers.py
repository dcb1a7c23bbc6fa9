"""The live platform: which processes it is made of, where they are, and how they come up."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec

from lockstep.declare.find import streams_in
from lockstep.engine.hands import AnyStream
from lockstep.engine.liveness import Phase, pulse
from lockstep.errors import LockstepError
from lockstep.rehearsal import log_rotation
from lockstep.rehearsal.broker import Broker, Ports
from lockstep.rehearsal.console import Console
from lockstep.rehearsal.family import MARK, Member, is_alive, member_of
from lockstep.rehearsal.process import free_ports, is_free, start_alone
from lockstep.rehearsal.stage import tool
from lockstep.table import log
from lockstep.table.commit import OutputLog
from lockstep.table.head import Desired, Head
from lockstep.table.layout import StreamFolders

KAFKA_PORT, CONSOLE_PORT = 9092, 3000
"""What people expect; others are taken where these are in use."""
LOCATION = "lockstep"
PATIENCE_SECONDS, LOOK_SECONDS = 240.0, 0.5
"""All is up after some 30 s on an idle machine, and ten times as long on a busy one."""
SERVERS = {"MALLOC_ARENA_MAX": "2", "DAGSTER_GRPC_TIMEOUT_SECONDS": "240"}
"""The sensors' looks come on ever other threads of the code server: with an arena for each, it held 340 MB of free
memory after 20 minutes. It answers that a run has started once that has loaded the code, which takes 60 s (Dagster's
own limit) where a machine is full of other work."""
HEAP, MASTER = "512m", "local[1,3]"
"""Of each stream: its JVM only schedules, and a feed to look at needs one core of no stream."""


class Servers(msgspec.Struct, frozen=True):
    """What was started, as written to the folder.

    Attributes:
        kafka: Address of the broker.
        console: Address of Dagster's web server.
        started: The processes by name: kafka, logs, feed, code, web, daemon.
    """

    kafka: str = ""
    console: str = ""
    started: dict[str, Member] = {}

    def pids(self, *names: str) -> tuple[int, ...]:
        """Process ids of those that still live."""
        return tuple(m.pid for name, m in self.started.items() if name in names and is_alive(m))

    def dead(self) -> tuple[str, ...]:
        """Names of those that have ended."""
        return tuple(name for name, member in self.started.items() if not is_alive(member))


def _usual_ports(listeners: Iterable[str]) -> Ports:
    return replace(Ports.choose(listeners), clients=_port(KAFKA_PORT))


class UsualBroker(Broker):
    """A broker on the usual port, where that is free."""

    _ports = staticmethod(_usual_ports)


class LoneBroker(UsualBroker):
    """One that outlives this process; whoever ends it finds it by its pid."""

    _starter = staticmethod(start_alone)


@dataclass(frozen=True)
class Platform:
    """A live platform.

    Attributes:
        repository: The folder that holds `definitions.py`.
        folder: Everything it makes.
    """

    repository: Path
    folder: Path

    @property
    def tables(self) -> Path:
        """The table root."""
        return self.folder / "tables"

    def environment(self) -> dict[str, str]:
        """What a user would export to work on it by hand."""
        return {
            "DAGSTER_HOME": str(self.folder / "dagster"),
            "LOCKSTEP_KAFKA__BOOTSTRAP_SERVERS": (self.servers() or Servers()).kafka,
            "LOCKSTEP_TABLE_ROOT": str(self.tables),
            "LOCKSTEP_LOCAL_ROOT": str(self.folder / "local"),
            "LOCKSTEP_SPARK__DRIVER_MEMORY": HEAP,
            "LOCKSTEP_SPARK__MASTER": MASTER,
        }

    def servers(self) -> Servers | None:
        """What was started last and not ended by `down`; None when nothing was."""
        try:
            return msgspec.json.decode(self._record.read_bytes(), type=Servers)
        except FileNotFoundError:
            return None

    def forget(self) -> None:
        """Take note that all of it has ended."""
        self._record.unlink(missing_ok=True)

    def start(self, speed: float) -> Iterator[str]:
        """Start the processes one after another, and say which; see `live.up`."""
        for part in ("kafka", "tables", "dagster", "logs"):
            (self.folder / part).mkdir(parents=True, exist_ok=True)
        os.environ[MARK] = str(self.folder)  # the broker, too, is found by it
        os.environ |= SERVERS
        self._write(Servers())
        yield "starting Kafka"
        broker = LoneBroker.start(self.folder / "kafka")
        self._add("kafka", broker.pid, kafka=broker.bootstrap_servers)
        broker.write_address(self.folder / "kafka.address")
        self._start("logs", ["python", log_rotation.__file__, str(self.folder / "logs")])
        yield f"feeding {speed:g} recorded messages a second"
        self._start("feed", ["python", "-m", "lockstep.rehearsal.feed", str(self.repository), "--speed", str(speed)])
        heads = [(stream, self._head(stream)) for stream in streams_in(self.repository).values()]
        yield "starting Dagster: code location, web server, daemon"
        console = self._start_dagster()
        self._wait(lambda: not console.troubles(), lambda: "; ".join(console.troubles()))
        yield from self._start_streams(console, heads)

    def _start_dagster(self) -> Console:
        """One code server for the web server and the daemon; runs are its children."""
        from lockstep.orchestration.launch import create_dagster_storage  # loads Dagster

        shutil.copy(self.repository / "deploy" / "dagster.yaml", self.folder / "dagster" / "dagster.yaml")
        create_dagster_storage(self.folder / "dagster")
        code = free_ports(1)[0]
        server = {"host": "127.0.0.1", "port": code, "location_name": LOCATION}
        workspace = self.folder / "workspace.yaml"
        workspace.write_bytes(msgspec.yaml.encode({"load_from": [{"grpc_server": server}]}))
        serve = ["dagster", "api", "grpc", "-h", "127.0.0.1", "-p", str(code), "-m", "definitions"]
        self._start("code", [*serve, "--location-name", LOCATION, "-d", str(self.repository)])
        port = _port(CONSOLE_PORT)
        self._wait(lambda: not is_free(code), lambda: "the code server does not listen yet")
        self._start("web", ["dagster-webserver", "-h", "127.0.0.1", "-p", str(port), "-w", str(workspace)])
        self._start("daemon", ["dagster-daemon", "run", "-w", str(workspace)])
        console = Console(f"http://127.0.0.1:{port}")
        self._write(msgspec.structs.replace(self.servers() or Servers(), console=console.address))
        return console

    def _start_streams(self, console: Console, heads: list[tuple[AnyStream, Head | None]]) -> Iterator[str]:
        """Launch streams that have not run yet, leave those that are to be running to the supervisor; wait for both.

        Args:
            console: The web server.
            heads: The streams as they were before the daemon was started.
        """
        from lockstep.orchestration.names import CAUSE_TAG, stream_job  # loads Dagster

        launched: list[tuple[AnyStream, int, str]] = []
        for stream, head in heads:
            if (stays := _stays_down(head)) is not None:
                yield stays
            elif head is not None and head.desired is Desired.RUNNING:
                launched.append((stream, head.epoch, ""))
            else:
                run = console.launch(stream_job(stream), LOCATION, {CAUSE_TAG: "make up"})
                launched.append((stream, head.epoch if head is not None else 0, run))
        for stream, epoch, run in launched:
            how = f"{console.address}/runs/{run}" if run else "its supervisor starts it again"
            yield f"{stream.name}: {how}"
            self._wait(partial(self._writes, stream, epoch, console, run), f"{stream.name} does not write yet".__str__)

    def _head(self, stream: AnyStream) -> Head | None:
        folders = StreamFolders(stream.name, self.tables)
        return OutputLog(folders.table).base().head if log.exists(folders.table) else None

    def _writes(self, stream: AnyStream, after: int, console: Console, run: str) -> bool:
        if run and console.failed(run):
            raise LockstepError(
                f"the run of {stream.name} failed", next_step=f"dagster run list, then read {self._log('code')}"
            )
        head = self._head(stream)
        epoch = head.epoch if head is not None else 0
        last = pulse(StreamFolders(stream.name, self.tables).control, epoch)
        return epoch > after and last is not None and last.phase is Phase.WRITING

    def _start(self, name: str, command: list[str]) -> None:
        whole = [tool(command[0]), *command[1:]]
        process = start_alone(whole, folder=self.repository, log=self._log(name), environment=self.environment())
        self._add(name, process.pid)

    def _add(self, name: str, pid: int | None, *, kafka: str = "") -> None:
        servers, member = self.servers() or Servers(), member_of(pid or 0)
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
        """Whole or not at all: `down` reads it."""
        draft = self._record.with_suffix(".draft")
        draft.write_bytes(msgspec.json.encode(servers))
        draft.replace(self._record)

    def _log(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"

    @property
    def _record(self) -> Path:
        return self.folder / "servers.json"


def _stays_down(head: Head | None) -> str | None:
    """Why a stream is not started, and what starts it; None when it is to be started."""
    if head is None or head.epoch == 0 or head.desired in {Desired.RUNNING, Desired.BOUNDED}:
        return None
    step = "resume" if head.desired is Desired.HALTED else "start"
    return f"{head.stream} stays {head.desired.value} ({head.reason}): lockstep {step} {head.stream}"


def _port(usual: int) -> int:
    return usual if is_free(usual) else free_ports(1)[0]
