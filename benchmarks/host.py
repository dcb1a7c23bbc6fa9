"""Many streams in one host: memory and CPU time of a process tree without messages, with messages, and a handover.

A stream counts as started when its first batch is committed. Memory is the largest sum of the proportional set sizes.
A second host then takes all streams while messages arrive. The gap of a stream is the time from the last batch of the
first host to the first batch of the second, by the times in the log of its table.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
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
from lockstep.table.commit_kinds import BATCH
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
SUCCESSOR_LOG = "successor.log"
ROWS = 20
ROLES = (DRIVER, JVM, WORKERS)
RUN_SECONDS_MAX = 7_200.0
"""Longer than an hour without messages, which precedes the rest."""
SETTLE_SECONDS = 15.0
PAUSE_SECONDS = 0.05
STOP_SECONDS_MAX = 120.0
START_GOAL_SECONDS = 60.0
IDLE_GOAL_BYTES = 2_500_000_000
IDLE_GOAL_CORES = 0.2
BUSY_GOAL_BYTES = 4_000_000_000
BUSY_GOAL_CORES = 1.5
HANDOVER_EXTRA_SECONDS = 1.0
"""Goal for a handover in addition to the interval of the trigger."""


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


class _Batch(msgspec.Struct, frozen=True):
    epoch: int
    written_at: datetime


class HostUsage(msgspec.Struct, frozen=True):
    """Results.

    Attributes:
        start_seconds: From the start of the process until each stream has committed.
        idle: Usage without messages.
        busy: Usage with messages.
        handover_seconds: From the start of the second host until each stream has committed in it.
        gaps_seconds: Gap of each stream.
        sent: Messages that were sent.
        proven: Streams that `lockstep verify` proves at the end.
    """

    start_seconds: float
    idle: TreeUsage
    busy: TreeUsage
    handover_seconds: float
    gaps_seconds: list[float]
    sent: int
    proven: int


def measure_host(hosted: HostedStreams, *, bootstrap_servers: str, folder: Path, console: Console) -> Record:
    """Measure a host.

    1. Start it, and watch it without and with messages.
    2. Start a second host, which takes all streams while messages arrive; end the first.
    3. End the second, and prove the streams.

    Raises:
        LiveRunError: A stream did not start, a host ended, or a stream is not proven.
    """
    conditions = Conditions.now()
    feed = _Feed(hosted, bootstrap_servers)
    _make_project(hosted, folder)
    first = _Host(hosted, bootstrap_servers, folder, LOG)
    second = _Host(hosted, bootstrap_servers, folder, SUCCESSOR_LOG)
    with first.running():
        start_seconds = first.wait_until_writing(epoch=1)  # 1
        console.print(f"{hosted.streams} streams write after {start_seconds:.1f} s")
        idle = _watch(first.process, max(hosted.seconds, hosted.idle_seconds), console, "idle")
        with feed.sending():
            busy = _watch(first.process, hosted.seconds, console, "busy")
            with second.running():  # 2
                handover_seconds = second.wait_until_writing(epoch=2)
                first.end()
                feed.end()
                second.wait_for_messages(feed.sent)
                second.end()  # 3
    gaps = [_find_gap_seconds(each) for each in _list_folders(hosted, folder)]
    console.print(f"handover: {handover_seconds:.1f} s, gaps of {min(gaps):.1f} to {max(gaps):.1f} s")
    proven = _count_proven(hosted, bootstrap_servers, folder)
    if proven < hosted.streams:
        raise LiveRunError(f"only {proven} of {hosted.streams} streams are proven", folder / LOG)
    usage = HostUsage(start_seconds, idle, busy, handover_seconds, gaps, sum(feed.sent), proven)
    details = {"usage": msgspec.to_builtins(usage)}
    settings = msgspec.to_builtins(hosted)
    return conditions.record("host", settings, make_figures(hosted, usage), make_panels(usage), details)


def make_figures(hosted: HostedStreams, usage: HostUsage) -> list[Figure]:
    """The figures; the goals are those of 50 streams with 200 messages a second at a trigger of 5 s."""
    has_goals = hosted == HostedStreams(seconds=hosted.seconds, idle_seconds=hosted.idle_seconds)
    gap_goal_seconds = hosted.trigger_seconds + HANDOVER_EXTRA_SECONDS
    busy_name = f"{hosted.rate} messages/s each"
    figures = [
        Figure("all streams write", usage.start_seconds, "s", START_GOAL_SECONDS),
        Figure("memory without messages", usage.idle.memory_bytes_max / 1e9, "GB", IDLE_GOAL_BYTES / 1e9),
        Figure("CPU without messages", usage.idle.cores, "cores", IDLE_GOAL_CORES),
        Figure(f"memory, {busy_name}", usage.busy.memory_bytes_max / 1e9, "GB", BUSY_GOAL_BYTES / 1e9),
        Figure(f"CPU, {busy_name}", usage.busy.cores, "cores", BUSY_GOAL_CORES),
        Figure("largest gap of a handover", max(usage.gaps_seconds), "s", gap_goal_seconds),
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


def _make_project(hosted: HostedStreams, folder: Path) -> None:
    (folder / "assets").mkdir()
    (folder / "tables").mkdir()
    declared = DECLARED.format(count=hosted.streams, trigger_seconds=hosted.trigger_seconds)
    (folder / "assets" / "hosted.py").write_text(declared)


def _list_folders(hosted: HostedStreams, folder: Path) -> list[StreamFolders]:
    return [StreamFolders(f"{PREFIX}_{number}", folder / "tables") for number in range(hosted.streams)]


class _Host:
    """A process of `lockstep host` in the project.

    Attributes:
        process: The process, once it runs.
    """

    process: subprocess.Popen[bytes]

    def __init__(self, hosted: HostedStreams, bootstrap_servers: str, folder: Path, log: str) -> None:
        self._hosted = hosted
        self._bootstrap_servers = bootstrap_servers
        self._folder = folder
        self._log = folder / log
        self._began = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run it during the block."""
        self._began = time.monotonic()
        self.process = start_child(
            [sys.executable, "-m", "lockstep.cli", "host"],
            folder=self._folder,
            log=self._log,
            environment={
                "PYTHONPATH": f"{ROOT / 'platform'}:{ROOT}",
                "LOCKSTEP_KAFKA__BOOTSTRAP_SERVERS": self._bootstrap_servers,
                "LOCKSTEP_TABLE_ROOT": str(self._folder / "tables"),
                "LOCKSTEP_LOCAL_ROOT": str(self._folder / "local"),
            },
        )
        try:
            yield
        finally:
            self.process.kill()
            self.process.wait()

    def wait_until_writing(self, epoch: int) -> float:
        """Wait until each stream has committed a batch with an epoch; return the seconds since the start."""
        waiting = _list_folders(self._hosted, self._folder)
        while waiting := [each for each in waiting if not _has_written(each, epoch)]:
            self._pause(f"{len(waiting)} streams have not started")
        return time.monotonic() - self._began

    def wait_for_messages(self, sent: Sequence[int]) -> None:
        """Wait until all messages are committed."""
        for folders, messages in zip(_list_folders(self._hosted, self._folder), sent, strict=True):
            while _read_offset(folders) < messages:
                self._pause(f"{folders.stream} has not committed its {messages} messages")

    def end(self) -> None:
        """End it by SIGTERM."""
        self.process.terminate()
        if self.process.wait(STOP_SECONDS_MAX) != 0:
            raise LiveRunError(f"the host ended with exit code {self.process.returncode}", self._log)

    def _pause(self, problem: str) -> None:
        if self.process.poll() is not None:
            raise LiveRunError(f"the host ended with exit code {self.process.returncode}", self._log)
        if time.monotonic() - self._began > RUN_SECONDS_MAX:
            raise LiveRunError(problem, self._log)
        time.sleep(PAUSE_SECONDS)


def _has_written(folders: StreamFolders, epoch: int) -> bool:
    newest = next(_iterate_batches(folders), None) if delta_log.has_log(folders.table) else None
    return newest is not None and newest.epoch == epoch


def _iterate_batches(folders: StreamFolders) -> Iterator[_Batch]:
    """The batches of a stream, the newest first."""
    for version in range(OutputLog(folders.table).base().version, 0, -1):
        entry = delta_log.read_entry(folders.table, version)
        if entry is None or entry.head is None or entry.written_at is None:
            continue
        if entry.kind == BATCH.name:
            yield _Batch(entry.head.epoch, entry.written_at)


def _find_gap_seconds(folders: StreamFolders) -> float:
    """Seconds from the last batch of the first host to the first batch of the second."""
    for after, before in pairwise(_iterate_batches(folders)):
        if before.epoch < after.epoch:
            return (after.written_at - before.written_at).total_seconds()
    raise ValueError(f"{folders.stream} has no batches of two epochs")


def _read_offset(folders: StreamFolders) -> int:
    """The next offset to read of the only partition."""
    (row,) = read_positions(folders, OutputLog(folders.table).base().head).values()
    return read_position(row).next_offset


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
        self._thread = threading.Thread(target=self._run, daemon=True)
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
        self._thread.start()
        try:
            yield
        finally:
            self.end()

    def end(self) -> None:
        """Send no more; all messages are acknowledged."""
        self._over.set()
        self._thread.join()
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
        value = msgspec.json.encode(message)
        while True:
            try:
                self._producer.produce(f"{PREFIX}.{number}", value, "s")
                break
            except BufferError:  # a busy broker: wait until it has taken some
                self._producer.poll(PAUSE_SECONDS)
        self.sent[number] += 1


def _now_us() -> int:
    return time.time_ns() // 1_000
