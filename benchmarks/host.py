"""Many streams in one host: memory and CPU time of a process tree without messages, then with messages.

A stream counts as started when its first batch is committed. Memory is the largest sum of the proportional set sizes.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich.console import Console

from benchmarks.hosted_streams import PREFIX, make_hosted_streams
from benchmarks.live import LiveRunError
from benchmarks.messages import Row, RowChange, Snapshot, Update
from benchmarks.record import Conditions, Figure, Panel, Record, Series
from lockstep.features.localdev.processes import start_child
from lockstep.features.rehearsal.process_usage import DRIVER, JVM, WORKERS, TreeMeter, TreeUsage
from lockstep.settings import KafkaSettings
from lockstep.table import delta_log
from lockstep.table.commit import OutputLog
from lockstep.table.layout import StreamFolders
from lockstep.table.ledger import read_positions
from lockstep.table.positions import read_position
from lockstep.verify.report import InvariantStatus
from lockstep.verify.verify import verify_stream

ROOT = Path(__file__).resolve().parents[1]
DECLARED = """
from benchmarks.hosted_streams import make_hosted_streams

streams = make_hosted_streams({count}, {trigger_seconds})
"""
LOG = "host.log"
ROWS = 20
ROLES = (DRIVER, JVM, WORKERS)
START_SECONDS_MAX = 600.0
SETTLE_SECONDS = 15.0
PAUSE_SECONDS = 0.05
STOP_SECONDS_MAX = 120.0
START_GOAL_SECONDS = 60.0
IDLE_GOAL_BYTES = 2_500_000_000
IDLE_GOAL_CORES = 0.2
BUSY_GOAL_BYTES = 4_000_000_000
BUSY_GOAL_CORES = 1.5


@dataclass(frozen=True)
class HostedStreams:
    """Settings of the measurement.

    Attributes:
        streams: Number of streams.
        rate: Messages a second of each stream while they are busy.
        seconds: Duration of each measurement.
        idle_seconds: Duration of the measurement without messages, if it is longer.
        trigger_seconds: Trigger of all streams.
    """

    streams: int = 50
    rate: int = 200
    seconds: float = 60.0
    idle_seconds: float = 0.0
    trigger_seconds: float = 5.0


class HostUsage(msgspec.Struct, frozen=True):
    """Results.

    Attributes:
        start_seconds: From the start of the process until each stream has committed.
        idle: Usage without messages.
        busy: Usage with messages.
        sent: Messages that were sent.
        proven: Streams that `lockstep verify` proves at the end.
    """

    start_seconds: float
    idle: TreeUsage
    busy: TreeUsage
    sent: int
    proven: int


def measure_host(hosted: HostedStreams, *, bootstrap_servers: str, folder: Path, console: Console) -> Record:
    """Start a host, watch it without and with messages, end it, and prove its streams.

    Raises:
        LiveRunError: A stream did not start, the host ended, or a stream is not proven.
    """
    conditions = Conditions.now()
    feed = _Feed(hosted, bootstrap_servers)
    with _run_host(hosted, bootstrap_servers, folder) as process:
        began = time.monotonic()
        _await_streams(hosted, folder, process)
        start_seconds = time.monotonic() - began
        console.print(f"{hosted.streams} streams write after {start_seconds:.1f} s")
        idle = _watch(process, max(hosted.seconds, hosted.idle_seconds), console, "idle")
        with feed.sending():
            busy = _watch(process, hosted.seconds, console, "busy")
        _await_end(hosted, folder, process, feed.sent)
        process.terminate()
        if process.wait(STOP_SECONDS_MAX) != 0:
            raise LiveRunError(f"the host ended with exit code {process.returncode}", folder / LOG)
    usage = HostUsage(start_seconds, idle, busy, sum(feed.sent), _count_proven(hosted, bootstrap_servers, folder))
    if usage.proven < hosted.streams:
        raise LiveRunError(f"only {usage.proven} of {hosted.streams} streams are proven", folder / LOG)
    details = {"usage": msgspec.to_builtins(usage)}
    settings = msgspec.to_builtins(hosted)
    return conditions.record("host", settings, make_figures(hosted, usage), make_panels(usage), details)


def make_figures(hosted: HostedStreams, usage: HostUsage) -> list[Figure]:
    """The figures; the goals are those of 50 streams with 200 messages a second at a trigger of 5 s."""
    has_goals = hosted == HostedStreams(seconds=hosted.seconds, idle_seconds=hosted.idle_seconds)
    busy_name = f"{hosted.rate} messages/s each"
    figures = [
        Figure("all streams write", usage.start_seconds, "s", START_GOAL_SECONDS),
        Figure("memory without messages", usage.idle.memory_bytes_max / 1e9, "GB", IDLE_GOAL_BYTES / 1e9),
        Figure("CPU without messages", usage.idle.cores, "cores", IDLE_GOAL_CORES),
        Figure(f"memory, {busy_name}", usage.busy.memory_bytes_max / 1e9, "GB", BUSY_GOAL_BYTES / 1e9),
        Figure(f"CPU, {busy_name}", usage.busy.cores, "cores", BUSY_GOAL_CORES),
    ]
    return [each if has_goals else msgspec.structs.replace(each, goal=None) for each in figures]


def make_panels(usage: HostUsage) -> list[Panel]:
    """CPU time by role, without and with messages."""
    series = [_make_bars("without messages", usage.idle), _make_bars("with messages", usage.busy)]
    title = "CPU of a host by role"
    return [Panel(kind="bars", title=title, x_label="role", y_label="cores", series=series)]


def _make_bars(name: str, used: TreeUsage) -> Series:
    return Series(name, [used.cpu_seconds[role] / used.wall_seconds for role in ROLES], labels=ROLES)


def _watch(process: subprocess.Popen[bytes], seconds: float, console: Console, name: str) -> TreeUsage:
    meter = TreeMeter(process.pid)
    time.sleep(SETTLE_SECONDS)
    meter.restart()
    time.sleep(seconds)
    used = meter.finish()
    shown = {role: round(seconds / used.wall_seconds, 3) for role, seconds in used.cpu_seconds.items()}
    console.print(f"{name}: {used.cores:.2f} cores {shown}, {used.memory_bytes_max / 1e9:.2f} GB")
    return used


@contextmanager
def _run_host(hosted: HostedStreams, bootstrap_servers: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`lockstep host` with the streams, in a new project."""
    (folder / "assets").mkdir()
    (folder / "tables").mkdir()
    declared = DECLARED.format(count=hosted.streams, trigger_seconds=hosted.trigger_seconds)
    (folder / "assets" / "hosted.py").write_text(declared)
    process = start_child(
        [sys.executable, "-m", "lockstep.cli", "host"],
        folder=folder,
        log=folder / LOG,
        environment={
            "PYTHONPATH": f"{ROOT / 'platform'}:{ROOT}",
            "LOCKSTEP_KAFKA__BOOTSTRAP_SERVERS": bootstrap_servers,
            "LOCKSTEP_TABLE_ROOT": str(folder / "tables"),
            "LOCKSTEP_LOCAL_ROOT": str(folder / "local"),
        },
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _list_folders(hosted: HostedStreams, folder: Path) -> list[StreamFolders]:
    return [StreamFolders(f"{PREFIX}_{number}", folder / "tables") for number in range(hosted.streams)]


def _await_streams(hosted: HostedStreams, folder: Path, process: subprocess.Popen[bytes]) -> None:
    """Wait until each stream has committed a batch."""
    waiting = _list_folders(hosted, folder)
    deadline = time.monotonic() + START_SECONDS_MAX
    while waiting := [each for each in waiting if _read_batch(each) == 0]:
        _refuse_ended(process, folder)
        if time.monotonic() > deadline:
            raise LiveRunError(f"{len(waiting)} streams have not started", folder / LOG)
        time.sleep(PAUSE_SECONDS)


def _read_batch(folders: StreamFolders) -> int:
    return OutputLog(folders.table).base().head.batch if delta_log.has_log(folders.table) else 0


def _await_end(hosted: HostedStreams, folder: Path, process: subprocess.Popen[bytes], sent: Sequence[int]) -> None:
    """Wait until all messages are committed."""
    deadline = time.monotonic() + START_SECONDS_MAX
    for folders, messages in zip(_list_folders(hosted, folder), sent, strict=True):
        while _read_offset(folders) < messages:
            _refuse_ended(process, folder)
            if time.monotonic() > deadline:
                raise LiveRunError(f"{folders.stream} has not committed its {messages} messages", folder / LOG)
            time.sleep(PAUSE_SECONDS)


def _read_offset(folders: StreamFolders) -> int:
    """The next offset to read of the only partition."""
    (row,) = read_positions(folders, OutputLog(folders.table).base().head).values()
    return read_position(row).next_offset


def _refuse_ended(process: subprocess.Popen[bytes], folder: Path) -> None:
    if process.poll() is not None:
        raise LiveRunError(f"the host ended with exit code {process.returncode}", folder / LOG)


def _count_proven(hosted: HostedStreams, bootstrap_servers: str, folder: Path) -> int:
    kafka = KafkaSettings(bootstrap_servers=bootstrap_servers)
    streams = make_hosted_streams(hosted.streams, hosted.trigger_seconds)
    reports = (verify_stream(stream, StreamFolders(stream.name, folder / "tables"), kafka) for stream in streams)
    return sum(report.status is InvariantStatus.PROVEN for report in reports)


class _Feed:
    """The producer of all streams."""

    def __init__(self, hosted: HostedStreams, bootstrap_servers: str) -> None:
        """Create the topics, with a snapshot in each."""
        self._hosted = hosted
        self._over = threading.Event()
        self.sent = [0] * hosted.streams
        topics = [NewTopic(f"{PREFIX}.{number}", 1, 1) for number in range(hosted.streams)]
        admin = AdminClient({"bootstrap.servers": bootstrap_servers})  # the answers end with their client
        for created in admin.create_topics(topics).values():
            created.result()
        self._producer = Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 20, "acks": "all"})
        rows = [Row(row, "open", "row", 0.0, 0.0, 0.0, 0.0, 0, flag=True) for row in range(ROWS)]
        for number in range(hosted.streams):
            self._send(number, Snapshot("s", 1, _now_us(), "host", rows))
        self._producer.flush()

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Send messages at the rate during the block."""
        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()
            self._producer.flush()

    def _run(self) -> None:
        began = time.monotonic()
        base = list(self.sent)
        while not self._over.wait(PAUSE_SECONDS):
            due = int((time.monotonic() - began) * self._hosted.rate)
            for number in range(self._hosted.streams):
                while self.sent[number] - base[number] < due:
                    sequence = self.sent[number] + 1
                    change = RowChange(sequence % ROWS, v0=float(sequence), q=sequence)
                    self._send(number, Update("s", sequence, _now_us(), "host", [change]))
            self._producer.poll(0)

    def _send(self, number: int, message: Snapshot | Update) -> None:
        self._producer.produce(f"{PREFIX}.{number}", msgspec.json.encode(message), "s")
        self.sent[number] += 1


def _now_us() -> int:
    return time.time_ns() // 1_000
