"""One stage of a load test: the stream, the producer and the observer, each a separate process, at one rate."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import psutil
import pyarrow as pa

from lockstep.control.heartbeat import read_heartbeat
from lockstep.declare.stream import AnyStream
from lockstep.engine.driver.import_roots import find_import_roots
from lockstep.engine.driver.metrics import BatchReport
from lockstep.engine.driver.run import require_registry
from lockstep.errors import LockstepError
from lockstep.features.localdev.processes import ignore_interrupts, start_child
from lockstep.features.rehearsal import observer
from lockstep.features.rehearsal.load_plan import Load, StagePlan
from lockstep.features.rehearsal.loaded_stream import BATCHES, FAILURE, SETTINGS, STREAM, StreamFailure
from lockstep.features.rehearsal.paced_producer import GO, READY, SENT, TIMES, SentReport
from lockstep.features.rehearsal.process_usage import DRIVER, JVM, WORKERS, TreeMeter, TreeUsage
from lockstep.settings import Settings, SparkSettings
from lockstep.spark.session import is_local
from lockstep.storage import find_storage
from lockstep.table import commit_kinds, delta_log
from lockstep.table.layout import StreamFolders
from lockstep.table.ledger import LedgerRow, read_ledger
from lockstep.time_limit import SLOW, describe_silence, end_process
from lockstep.verify.report import InvariantStatus
from lockstep.verify.verify import verify_stream

PATIENCE_SECONDS = 180.0
POLL_SECONDS = 0.2
"""A stream starts within some ten seconds on an idle machine, and ten times as long on a busy one."""
DRAIN_SECONDS_MIN = 30.0
DRAIN_SHARE = 2.0
"""A backlog is waited for as long, or for so many times the duration of the sending."""
END_SECONDS = 10.0
FULL_BATCH = 0.95
SEEN = "seen"
LOG = "stage.log"
LOG_TAIL_LINES = 15

Times = npt.NDArray[np.int64]


class BatchFigures(msgspec.Struct, frozen=True):
    """Figures of batches.

    Attributes:
        count: Number of batches.
        seconds_median: Wall time of a batch.
        seconds_max: The longest.
        commit_seconds_median: Wall time of its commit.
        rows: Rows written.
        state_bytes: State written.
    """

    count: int
    seconds_median: float
    seconds_max: float
    commit_seconds_median: float
    rows: int
    state_bytes: int


class StageResult(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a stage. Rates, CPU and delays are of the measured part, without its first seconds.

    Attributes:
        label: The rate as asked for.
        load: The figures by which it is judged.
        sent: Report of the producer.
        committed: Messages committed in the end.
        lag_messages: Messages sent and not committed when the last was sent.
        drain_seconds: From the last message sent to the last commit; None if the stream did not drain.
        latency_p50_seconds: Event to visible in Delta, median; None if nothing was committed in time.
        latency_p99_seconds: The same, 99th percentile.
        latency_max_seconds: The same, maximum.
        cpu_seconds_per_million_messages: Of the stream: driver, JVM and workers.
        usage: CPU and memory of the stream's processes.
        machine_cores: Cores of this machine in use, by any process.
        batches: The committed batches.
        files: Data files.
        file_bytes_median: Size of a data file.
        table_bytes: Size of all data files.
        backlog: (seconds since the first message, messages sent and not committed), at each commit.
        proof: Result of `lockstep verify` of the table.
        proven_messages: Messages that it read again.
        failure: The error that ended the stream, or the producer early; empty without one.
    """

    label: str
    load: Load
    sent: SentReport
    committed: int
    lag_messages: int
    drain_seconds: float | None
    latency_p50_seconds: float | None
    latency_p99_seconds: float | None
    latency_max_seconds: float | None
    cpu_seconds_per_million_messages: float | None
    usage: TreeUsage
    machine_cores: float
    batches: BatchFigures
    files: int
    file_bytes_median: int
    table_bytes: int
    backlog: tuple[tuple[float, int], ...]
    proof: str
    proven_messages: int
    failure: str


@dataclass(frozen=True)
class Stage:
    """One stage.

    Attributes:
        plan: Its rate and duration.
        stream: The declaration over the copied topics.
        settings: Settings with the scratch folders.
        folder: Files of its processes.
    """

    plan: StagePlan
    stream: AnyStream
    settings: Settings
    folder: Path

    @property
    def folders(self) -> StreamFolders:
        """The scratch tables."""
        return StreamFolders(self.stream.name, self.settings.table_root)

    @property
    def log(self) -> Path:
        """Output of all its processes."""
        return self.folder / LOG

    def run(self, say: Callable[[str], None]) -> StageResult:
        """Run it; its topics exist, and the producer's order is in the folder.

        1. Start stream and producer, and wait until both are ready.
        2. Send; the first seconds are not measured.
        3. Wait until the stream has committed everything, or its patience ends.
        4. Stop the stream, prove its table, and compute the figures.

        Raises:
            LockstepError: The stream did not start, or the producer failed.
        """
        self._write_stream()
        with self.run_process(observer.__file__, str(self.folders.table), str(self.folder / SEEN)):
            with (
                self.run_process("-m", "lockstep.features.rehearsal.loaded_stream", str(self.folder)) as stream,
                self.run_process("-m", "lockstep.features.rehearsal.paced_producer", str(self.folder)) as producer,
            ):
                self._wait_until_ready(stream, producer)  # 1
                say(f"{self.plan.label}: {self.plan.per_second:,.0f} messages/s for {self.plan.seconds:.0f} s")
                measured = self.measure(stream, producer)  # 2
                drained = self._drain(stream, measured)  # 3
                _stop(stream)
            say(f"{self.plan.label}: proving {count_committed(self.folder):,} messages")
        return self._result(measured, drained)  # 4

    def _write_stream(self) -> None:
        (self.folder / STREAM).write_bytes(self.stream.shipped())
        (self.folder / SETTINGS).write_bytes(msgspec.json.encode(self.settings.model_dump(mode="json")))

    @contextmanager
    def run_process(self, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run a Python program; it is gone at the end of the block, or before its output is deleted."""
        roots = [str(root) for root in find_import_roots(self.stream)]
        environment = {"PYTHONPATH": ":".join([*roots, *filter(None, sys.path)])}
        command = [sys.executable, *arguments]
        process = start_child(command, folder=self.folder, log=self.log, environment=environment)
        try:
            yield process
        finally:
            with ignore_interrupts():
                _end(process)

    def _wait_until_ready(self, stream: subprocess.Popen[bytes], producer: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (self.folder / READY).exists() or read_heartbeat(self.folders.control, 1) is None:
            if stream.poll() is not None or producer.poll() is not None:
                part = "the stream" if producer.poll() is None else "the producer"
                raise self._failed(part)
            if time.monotonic() > deadline:
                silence = describe_silence("the stream of the load test", PATIENCE_SECONDS, verb="write")
                raise LockstepError(
                    silence, next_step=f"{SLOW}: run it again with less other work; else read {self.log}"
                )
            time.sleep(POLL_SECONDS)

    def _failed(self, what: str) -> LockstepError:
        failure = read_failure(self.folder)
        if failure is not None:
            problem = failure.problem
            step = failure.next_step
        else:
            # It ended before it could note its error, as when an import fails.
            text = self.log.read_text(errors="replace") if self.log.exists() else ""
            problem = "\n".join(text.splitlines()[-LOG_TAIL_LINES:])
            step = f"lockstep run {self.stream.name.removeprefix('loadtest_')}"
        return LockstepError(f"{what} of the load test did not start: {problem}", next_step=step)

    def measure(self, stream: subprocess.Popen[bytes], producer: subprocess.Popen[bytes]) -> Measured:
        """Send, and measure the stream without the first seconds, until the producer has ended.

        Raises:
            LockstepError: The producer failed, or Kafka took no message.
        """
        meter = TreeMeter(stream.pid)  # now: a stream may end in the first seconds
        before_ns = time.time_ns()
        (self.folder / GO).touch()
        self._sleep_while_running(stream, self.plan.warm_seconds)
        # Start of Spark and first batches are no steady load.
        meter.restart()
        from_ns = time.time_ns()
        machine = _read_machine_cpu()
        while producer.poll() is None:
            if stream.poll() is not None:
                # It still reports what was sent until then.
                producer.terminate()
            time.sleep(POLL_SECONDS)
        until_ns = time.time_ns()
        used = _read_machine_cpu()
        usage = meter.finish()
        if not (self.folder / SENT).exists():
            raise self._failed("the producer")
        sent = msgspec.json.decode((self.folder / SENT).read_bytes(), type=SentReport)
        if not sent.messages:
            problem = f"Kafka took no message of the load test: {sent.failure or 'it was ended before'}"
            raise LockstepError(problem, next_step="lockstep doctor")
        cores = (used - machine) / max(0.1, (until_ns - from_ns) / 1e9)
        return Measured(before_ns, from_ns, until_ns, usage, cores, sent)

    def _sleep_while_running(self, stream: subprocess.Popen[bytes], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and stream.poll() is None:
            time.sleep(POLL_SECONDS)

    def _drain(self, stream: subprocess.Popen[bytes], measured: Measured) -> bool:
        """Wait for the commit of the last message; False if it does not arrive."""
        deadline = time.monotonic() + max(DRAIN_SECONDS_MIN, DRAIN_SHARE * self.plan.seconds)
        while count_committed(self.folder) < measured.sent.messages:
            if stream.poll() is not None or time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def _result(self, measured: Measured, drained: bool) -> StageResult:  # noqa: FBT001  # one fact of the stage
        proof = self._prove()
        failure = read_failure(self.folder)
        reports = read_reports(self.folder)
        ledger = [row for row in read_ledger(self.folders.ledger) if row.until > row.start]
        seen = read_seen(self.folders.table, self.folder / SEEN)
        times = read_times(self.folder)
        delays = compute_delays(ledger, seen, times, measured.from_ns)
        committed = sum(report.counts.messages for report in reports)
        sizes = self._file_sizes()
        last_ns = max(seen.values(), default=measured.until_ns)
        committed_per_second = compute_commit_rate(ledger, seen, measured)
        if not is_local(self.settings.spark.master):
            measured = add_reported_tasks(measured, reports, committed_per_second)
        proven = proof.is_proven and failure is None
        load = self._judged(measured, reports, ledger, committed_per_second, proven=proven)
        cpu_seconds = sum(measured.usage.cpu_seconds.values())
        paced = committed_per_second * measured.usage.wall_seconds
        return StageResult(
            label=self.plan.label,
            load=load,
            sent=measured.sent,
            committed=committed,
            lag_messages=count_lag(ledger, seen, measured),
            drain_seconds=max(0.0, (last_ns - measured.until_ns) / 1e9) if drained else None,
            latency_p50_seconds=_percentile(delays, 50),
            latency_p99_seconds=_percentile(delays, 99),
            latency_max_seconds=_percentile(delays, 100),
            cpu_seconds_per_million_messages=cpu_seconds / paced * 1e6 if paced else None,
            usage=measured.usage,
            machine_cores=measured.machine_cores,
            batches=make_batch_figures(reports),
            files=len(sizes),
            file_bytes_median=int(_median(sizes)),
            table_bytes=int(sum(sizes)),
            backlog=make_backlog(ledger, seen, times, measured.began_ns),
            proof=proof.status,
            proven_messages=proof.messages,
            failure=failure.problem if failure else describe_unsent(measured.sent, self.plan.messages),
        )

    def _prove(self) -> StageProof:
        try:
            registry = require_registry(self.stream, self.settings.registry)
            report = verify_stream(self.stream, self.folders, self.settings.kafka, registry)
        except LockstepError as error:
            return StageProof(f"not proven: {error.problem}", 0, is_proven=False)
        return StageProof(report.status.value, report.messages, is_proven=report.status is InvariantStatus.PROVEN)

    def _file_sizes(self) -> list[float]:
        actions = pa.table(delta_log.open_delta_table(self.folders.table).get_add_actions())
        return [float(str(size)) for size in actions.column("size_bytes").to_pylist()]

    def _judged(
        self,
        measured: Measured,
        reports: list[BatchReport],
        ledger: list[LedgerRow],
        committed_per_second: float,
        *,
        proven: bool,
    ) -> Load:
        wall = measured.usage.wall_seconds
        cpu = measured.usage.cpu_seconds
        by_partition: dict[tuple[str, int], float] = defaultdict(float)
        for row in ledger:
            by_partition[row.topic, row.partition] += row.cpu_seconds
        batch_seconds = sum(report.batch_seconds for report in reports)
        return Load(
            wanted_per_second=self.plan.per_second,
            sent_per_second=measured.sent.messages / measured.sent.seconds,
            committed_per_second=committed_per_second,
            is_proven=proven,
            producer_cores=measured.sent.cpu_seconds / measured.sent.seconds,
            driver_cores=(cpu[DRIVER] + cpu[JVM]) / wall,
            task_cores=cpu[WORKERS] / wall,
            task_slots=count_task_slots(self.settings.spark),
            machine_share=measured.machine_cores / (psutil.cpu_count() or 1),
            commit_share=sum(report.commit_seconds for report in reports) / batch_seconds if batch_seconds else 0.0,
            full_batches_share=self._count_full(reports) / max(1, len(reports)),
            hottest_share=max(by_partition.values(), default=0.0) / (sum(by_partition.values()) or 1.0),
        )

    def _count_full(self, reports: list[BatchReport]) -> int:
        """Batches of nearly as many messages as the declaration allows: shares of partitions are rounded down."""
        cores = count_task_slots(self.settings.spark)
        full = FULL_BATCH * self.stream.limits.find_batch_messages(cores)
        return sum(report.counts.messages >= full for report in reports)


class StageProof(msgspec.Struct, frozen=True):
    """Result of the proof of a stage's table.

    Attributes:
        status: As `lockstep verify` shows it.
        messages: Messages that it read again.
        is_proven: Whether all of it is proven.
    """

    status: str
    messages: int
    is_proven: bool


class Measured(msgspec.Struct, frozen=True):
    """The measurements while messages were sent.

    Attributes:
        began_ns: Time before the first message, in nanoseconds since 1970.
        from_ns: Beginning of the measured part.
        until_ns: Its end: the last message was acknowledged.
        usage: CPU and memory of the stream in the measured part.
        machine_cores: Cores in use, of the whole machine.
        sent: Report of the producer.
    """

    began_ns: int
    from_ns: int
    until_ns: int
    usage: TreeUsage
    machine_cores: float
    sent: SentReport


def describe_unsent(sent: SentReport, wanted: int) -> str:
    """Why the producer ended early; empty if it did not."""
    if not sent.failure:
        return ""
    return f"the producer of the test sent {sent.messages:,} of {wanted:,} messages: {sent.failure}"


def count_task_slots(spark: SparkSettings) -> int:
    """Tasks that run at once: by the cores of a local master, or by `spark.cores.max` of a cluster.

    Without the latter a cluster is taken to have as many cores as this machine.
    """
    match = re.match(r"local\[(\d+)", spark.master)
    in_cluster = spark.options.get("spark.cores.max", psutil.cpu_count() or 1)
    cores = match[1] if match else in_cluster
    return max(1, int(cores) // int(spark.options.get("spark.task.cpus", 1)))


def add_reported_tasks(measured: Measured, reports: list[BatchReport], committed_per_second: float) -> Measured:
    """The measurements, with the CPU time of tasks on a cluster, whose processes are not below the driver.

    By message it is that of all batches: a batch may start before the measured part, or end after it.

    Args:
        measured: With the usage of the driver and its JVM.
        reports: Of all batches; each has the CPU time that its tasks measured.
        committed_per_second: The stream's rate in the measured part.
    """
    usage = measured.usage
    messages = sum(report.counts.messages for report in reports)
    by_message = sum(report.cpu_seconds for report in reports) / messages if messages else 0.0
    cpu_seconds = {**usage.cpu_seconds, WORKERS: by_message * committed_per_second * usage.wall_seconds}
    return msgspec.structs.replace(measured, usage=msgspec.structs.replace(usage, cpu_seconds=cpu_seconds))


def read_reports(folder: Path) -> list[BatchReport]:
    """The reports of all batches."""
    path = folder / BATCHES
    if not path.exists():
        return []
    # The last line is empty, or not yet whole.
    lines = path.read_bytes().split(b"\n")[:-1]
    return [msgspec.json.decode(line, type=BatchReport) for line in lines]


def make_batch_figures(reports: list[BatchReport]) -> BatchFigures:
    """Figures of batches, from their reports."""
    return BatchFigures(
        count=len(reports),
        seconds_median=_median([report.batch_seconds for report in reports]),
        seconds_max=max((report.batch_seconds for report in reports), default=0.0),
        commit_seconds_median=_median([report.commit_seconds for report in reports]),
        rows=sum(report.rows for report in reports),
        state_bytes=sum(report.state_bytes for report in reports),
    )


def count_committed(folder: Path) -> int:
    """Messages committed so far."""
    return sum(report.counts.messages for report in read_reports(folder))


def read_failure(folder: Path) -> StreamFailure | None:
    """The error that ended the stream, if one did."""
    path = folder / FAILURE
    if not path.exists():
        return None
    return msgspec.json.decode(path.read_bytes(), type=StreamFailure)


def read_seen(table: Path, notes: Path) -> dict[int, int]:
    """When each batch became visible to the observer, in nanoseconds since 1970, by its number."""
    if not notes.exists():
        return {}
    seen: dict[int, int] = {}
    for line in notes.read_text().splitlines():
        version, seen_ns = map(int, line.split())
        entry = delta_log.read_entry(table, version)
        # Commits of other kinds have the batch before them in their heads.
        if entry is not None and entry.head is not None and entry.kind == commit_kinds.BATCH.name:
            seen[entry.head.batch] = seen_ns
    return seen


def read_times(folder: Path) -> dict[str, Times]:
    """When each message was sent, in milliseconds since 1970, by "topic/partition" and offset."""
    with np.load(folder / TIMES) as stored:
        return {name: stored[name] for name in stored.files}


def compute_delays(
    ledger: list[LedgerRow], seen: dict[int, int], times: dict[str, Times], since_ns: int
) -> npt.NDArray[np.float64]:
    """Seconds from sending to visibility of each message sent since then."""
    parts = [np.empty(0)]
    for row in ledger:
        if row.batch in seen:
            sent = times[f"{row.topic}/{row.partition}"][row.start : row.until]
            parts.append(seen[row.batch] / 1e9 - sent[sent >= since_ns // 1_000_000] / 1e3)
    return np.concatenate(parts)


def compute_commit_rate(ledger: list[LedgerRow], seen: dict[int, int], measured: Measured) -> float:
    """Messages committed a second between the first and the last commit of the measured part.

    A stream that commits less than twice in it is far behind: its rate is that of all its commits, from the first
    message on; 0 without any.
    """
    committed = dict.fromkeys(seen, 0)
    for row in ledger:
        if row.batch in committed:
            committed[row.batch] += row.messages
    commits = sorted((seen[batch], messages) for batch, messages in committed.items() if messages)
    chosen = [(seen_ns, messages) for seen_ns, messages in commits if measured.from_ns <= seen_ns <= measured.until_ns]
    if len(chosen) < 2:  # noqa: PLR2004  # a first and a last commit
        chosen = [(measured.began_ns, 0), *commits]
    # The messages of the first commit were committed before the time that is measured.
    (first_ns, _), *others = chosen
    if not others:
        return 0.0
    last_ns, _ = others[-1]
    return sum(messages for _, messages in others) / ((last_ns - first_ns) / 1e9)


def count_lag(ledger: list[LedgerRow], seen: dict[int, int], measured: Measured) -> int:
    """Messages sent and not committed when the last was sent."""
    committed = sum(row.messages for row in ledger if seen.get(row.batch, 2**63) <= measured.until_ns)
    return measured.sent.messages - committed


def make_backlog(
    ledger: list[LedgerRow], seen: dict[int, int], times: dict[str, Times], began_ns: int
) -> tuple[tuple[float, int], ...]:
    """Messages sent and not committed, before and after each commit."""
    every = np.sort(np.concatenate([np.empty(0, dtype=np.int64), *times.values()]))
    by_batch: dict[int, int] = {}
    for row in ledger:
        by_batch[row.batch] = by_batch.get(row.batch, 0) + row.messages
    committed = 0
    points = [(0.0, 0)]
    for batch, seen_ns in sorted(seen.items(), key=lambda item: item[1]):
        sent = int(np.searchsorted(every, seen_ns // 1_000_000))
        seconds = (seen_ns - began_ns) / 1e9
        if batch not in by_batch or seconds < 0:
            continue
        points.append((seconds, max(0, sent - committed)))
        committed += by_batch[batch]
        points.append((seconds, max(0, sent - committed)))
    return tuple(points)


def _percentile(delays: npt.NDArray[np.float64], percent: float) -> float | None:
    return float(np.percentile(delays, percent)) if len(delays) else None


def _median(values: list[float]) -> float:
    return float(np.median(values)) if values else 0.0


def _read_machine_cpu() -> float:
    """CPU seconds of this machine since its start, of all processes."""
    used = psutil.cpu_times()
    return float(used.user + used.nice + used.system + used.irq + used.softirq)


def _stop(stream: subprocess.Popen[bytes]) -> None:
    end_process(stream, PATIENCE_SECONDS)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it started."""
    below: list[psutil.Process] = []
    # Listed before its end: afterwards they have another parent.
    if process.poll() is None:
        below = psutil.Process(process.pid).children(recursive=True)
    end_process(process, END_SECONDS)
    # A JVM deletes its temporary files at its end.
    _, alive = psutil.wait_procs(below, END_SECONDS)
    for child in alive:
        child.kill()


def delete_stage_files(settings: Settings, folder: Path) -> None:
    """Delete the scratch tables, the local copies of state and the files of the processes."""
    for root in (settings.table_root, settings.local_root, folder):
        find_storage(root).delete_folder(root)
