"""Restarts: after a kill -9, with and without the local store, and by a planned handover.

Ctrl-C (SIGINT) once lets the handover that is going on be the last one: messages end, all is measured, proven and
recorded as if so many had been asked for. A second one ends the benchmark without a record.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from types import FrameType
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from rich.console import Console

from benchmarks.live import LiveRunError, LiveStream, Pacer, Stage
from benchmarks.record import Conditions, Figure, GoalLine, Panel, Record, Series
from benchmarks.seen import Commit
from benchmarks.sensors import sensors
from benchmarks.workload import Size
from lockstep.features.rehearsal.process_usage import TreeMeter, TreeUsage
from lockstep.settings import KafkaSettings
from lockstep.verify.report import InvariantStatus
from lockstep.verify.verify import verify_stream

_SIZE = Size("restart", messages=165_000, topics=8, sessions=5_000, rows=200)
KILLS_SECONDS_MAX, HANDOVER_SECONDS_MAX = 100, 40
RESTART_MAX_SECONDS, HANDOVER_EXTRA_SECONDS, IDLE_CORES_MAX = 15.0, 1.0, 0.1
ACROSS_P99_MAX_SECONDS, ACROSS_SECONDS = 3.0, 5.0
"""The delay of messages across a handover counts from the start of the new process, which takes CPU time from the
stream, until so long after the first batch of the new run."""


@dataclass(frozen=True)
class Restarts:
    """Settings of the measurement.

    Attributes:
        size: The messages; sessions times rows is the state.
        rate: Messages a second while runs end and begin.
        settle_seconds: Between one restart and the next.
        idle_seconds: Watched at the end, without messages.
        trigger_seconds: A batch every so many seconds.
        handovers: Planned restarts, one after another.
    """

    size: Size = _SIZE
    rate: int = 1_000
    settle_seconds: float = 8.0
    idle_seconds: float = 20.0
    trigger_seconds: float = 1.0
    handovers: int = 5


def plan_restarts(handovers: int, rate: int) -> Restarts:
    """Settings with messages for as long as all restarts take on a busy machine."""
    seconds = KILLS_SECONDS_MAX + handovers * HANDOVER_SECONDS_MAX
    return Restarts(replace(_SIZE, messages=_SIZE.sessions + rate * seconds), rate=rate, handovers=handovers)


class RestartResult(msgspec.Struct, frozen=True):
    """Results; seconds are from the start of the new process until its first batch is visible.

    Attributes:
        kept_seconds: After a kill -9.
        lost_seconds: After a kill -9, with the local store removed.
        gaps_seconds: Of each handover, from the last batch of the old run to the first of the new one.
        handover_seconds: A planned restart, from the new process's start; median.
        batch_seconds: Median time between two batches before the handover.
        idle: CPU time of the stream without messages.
        rows: Rows in the table at the end, equal to those of the bare loop.
        messages: Messages sent while runs ended and began.
        behind_seconds_max: Largest delay of the pacer behind its rate.
        across_percentiles: Event to visible across all handovers, percentiles 0 to 100, in seconds.
        across_p99_seconds: The 99th percentile of each handover.
        verified: The result of `lockstep verify` at the end.
    """

    kept_seconds: float
    lost_seconds: float
    gaps_seconds: list[float]
    handover_seconds: float
    batch_seconds: float
    idle: TreeUsage
    rows: int
    messages: int
    behind_seconds_max: float
    across_percentiles: list[float]
    across_p99_seconds: list[float]
    verified: str


def measure_restart(restarts: Restarts, *, bootstrap_servers: str, folder: Path, console: Console) -> Record:
    """Kill, restart and hand over one stream while messages keep arriving.

    Raises:
        LiveRunError: A part of the run failed.
        WrongRowsError: The table differs from the expected rows.
    """
    conditions = Conditions.now()
    stage = Stage(bootstrap_servers, restarts.size, folder / "restart", restarts.trigger_seconds)
    stage.open()
    with stage.observed(), ExitStack() as stack:
        result = _Restarting(restarts, stage, console, stack).run()
    settings = msgspec.to_builtins(restarts) | {"state_rows": restarts.size.sessions * restarts.size.rows}
    details = {"result": msgspec.to_builtins(result)}
    return conditions.record("restart", settings, figures(result), panels(result), details)


class _HandedOver(NamedTuple):
    """One handover: its gap, the time from the new process's start, the time between two batches before, its span."""

    gap_seconds: float
    from_start_seconds: float
    batch_seconds: float
    began_ns: int
    ended_ns: int


class _Restarting:
    """One stream and its restarts."""

    def __init__(self, restarts: Restarts, stage: Stage, console: Console, stack: ExitStack) -> None:
        self._restarts, self._stage, self._console, self._stack = restarts, stage, console, stack
        self._stream = self._started()

    def run(self) -> RestartResult:
        """All restarts of the stream.

        1. The state is made and committed; messages begin to arrive.
        2. kill -9, and start again. 3. The same with the local store removed.
        4. Again and again another run takes over from the running one.
        5. Messages end; the idle stream is measured, stopped, its rows compared with the bare loop's, and verified.
        """
        stage, size = self._stage, self._restarts.size
        first, until = size.sessions_per_topic, size.messages_per_topic
        with Pacer(stage, self._restarts.rate, first, until) as pacer:
            stage.wait_until_committed(size.sessions, self._stream.process)  # 1
            pacer.go()
            kept = self._killed("local copy of state kept", lambda: None)  # 2
            lost = self._killed("local copy of state lost", self._lose_local_copy)  # 3
            handed_over = self._hand_over_repeatedly()  # 4
            time.sleep(ACROSS_SECONDS)
            sent = pacer.finish(early=True)
        stage.wait_until_committed(size.sessions + sent.messages, self._stream.process)  # 5
        idle = self._idle()
        self._stream.stop()
        across = self._delays_across(handed_over)
        return RestartResult(
            kept_seconds=kept,
            lost_seconds=lost,
            gaps_seconds=[each.gap_seconds for each in handed_over],
            handover_seconds=median(each.from_start_seconds for each in handed_over),
            batch_seconds=median(each.batch_seconds for each in handed_over),
            idle=idle,
            rows=stage.prove(),
            messages=sent.messages,
            behind_seconds_max=sent.behind_seconds_max,
            across_percentiles=[float(value) for value in np.percentile(np.concatenate(across), range(101))],
            across_p99_seconds=[float(np.percentile(each, 99)) for each in across],
            verified=self._verify(),
        )

    def _hand_over_repeatedly(self) -> list[_HandedOver]:
        with _requested_end() as ends:
            found = [self._handed_over()]
            while len(found) < self._restarts.handovers and not ends.is_set():
                found.append(self._handed_over())
        return found

    def _delays_across(self, handed_over: Sequence[_HandedOver]) -> list[npt.NDArray[np.float64]]:
        """Seconds from creation to visibility of the messages of each handover."""
        delays = self._stage.delays()
        return [delays.between(each.began_ns, each.ended_ns) for each in handed_over]

    def _verify(self) -> str:
        """The result of `lockstep verify`.

        Raises:
            LiveRunError: Something is violated, or not proven.
        """
        kafka = KafkaSettings(bootstrap_servers=self._stage.bootstrap_servers)
        with self._console.status("lockstep verify ..."):
            report = verify_stream(sensors(self._stage.size.pattern), self._stage.folders, kafka)
        if report.status is not InvariantStatus.PROVEN:
            raise LiveRunError(
                f"verify: {report.status.value}: {report.violations[:3]} {report.notes}", self._stage.log
            )
        return f"{report.status.value}: {report.messages:,} messages, batch {report.batch}"

    def _started(self) -> LiveStream:
        return self._stack.enter_context(LiveStream(self._stage))

    def _killed(self, what: str, meanwhile: Callable[[], None]) -> float:
        time.sleep(self._restarts.settle_seconds)
        self._stream.kill()
        meanwhile()
        before = self._stage.commits()
        self._stream = self._started()
        seconds = self._seconds(self._first_after(before))
        self._console.print(f"kill -9, {what}: {seconds:.2f} s to the first batch")
        return seconds

    def _lose_local_copy(self) -> None:
        """Hidden from the new run immediately; workers of the killed one may still write for a moment."""
        self._stage.local.rename(self._stage.folder / "lost")

    def _handed_over(self) -> _HandedOver:
        time.sleep(self._restarts.settle_seconds)
        old, epoch = self._stream, self._stage.commits()[-1].epoch
        self._stream = self._started()
        first = self._first_after(self._stage.commits())
        old.wait_for_end()
        before = [commit for commit in self._stage.commits() if commit.epoch == epoch]
        gap_seconds = (first.seen_ns - before[-1].seen_ns) / 1e9
        self._console.print(f"handover: gap {gap_seconds:.2f} s")
        ended_ns = first.seen_ns + int(ACROSS_SECONDS * 1e9)
        return _HandedOver(gap_seconds, self._seconds(first), _usual(before), self._stream.started_ns, ended_ns)

    def _first_after(self, before: Sequence[Commit]) -> Commit:
        """Wait for the first batch of a newer epoch."""

        def newer() -> list[Commit]:
            return [commit for commit in self._stage.commits() if commit.epoch > before[-1].epoch]

        self._stage.wait("the new run commits", lambda: bool(newer()), self._stream.process)
        return newer()[0]

    def _seconds(self, first: Commit) -> float:
        return (first.seen_ns - self._stream.started_ns) / 1e9

    def _idle(self) -> TreeUsage:
        meter = TreeMeter(self._stream.pid)
        time.sleep(self._restarts.idle_seconds)
        return meter.finish()


@contextmanager
def _requested_end() -> Iterator[threading.Event]:
    """Set by the first SIGINT in this context; a second one has its usual effect."""
    ends, before = threading.Event(), signal.getsignal(signal.SIGINT)

    def end(_signal: int, _frame: FrameType | None) -> None:
        ends.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, end)
    try:
        yield ends
    finally:
        signal.signal(signal.SIGINT, before)


def _usual(commits: Sequence[Commit]) -> float:
    """Median seconds from one batch to the next, without the first of a run, which has a backlog."""
    times = [commit.seen_ns / 1e9 for commit in commits[1:]]
    return median(after - before for before, after in pairwise(times))


def figures(result: RestartResult) -> list[Figure]:
    """The promised figures."""
    gap_max = result.batch_seconds + HANDOVER_EXTRA_SECONDS
    return [
        Figure("kill -9 to first batch, local copy kept", result.kept_seconds, "s", RESTART_MAX_SECONDS),
        Figure("kill -9 to first batch, local copy lost", result.lost_seconds, "s", RESTART_MAX_SECONDS),
        Figure("handover: from last to first batch, median", median(result.gaps_seconds), "s", round(gap_max, 2)),
        Figure(f"the longest of {len(result.gaps_seconds)} handovers", max(result.gaps_seconds), "s"),
        Figure("event to visible across handovers, p50", result.across_percentiles[50], "s"),
        Figure("event to visible across handovers, p99", result.across_percentiles[99], "s", ACROSS_P99_MAX_SECONDS),
        Figure("the slowest handover, p99", max(result.across_p99_seconds), "s"),
        Figure("handover: from the new run's start to its first batch", result.handover_seconds, "s"),
        Figure("one batch to the next before the handover", result.batch_seconds, "s"),
        Figure("load while idle", result.idle.cores, "cores", IDLE_CORES_MAX),
    ]


def panels(result: RestartResult) -> list[Panel]:
    """The waits as bars, each with its goal."""
    labels = ["kill -9", "kill -9, local copy lost"]
    waits = Panel(
        kind="bars",
        title="Restart with 1 M rows of state",
        x_label="how the run before ended",
        y_label="start to first batch (s)",
        series=[Series("start to first batch", [result.kept_seconds, result.lost_seconds], labels=labels)],
        goals=[GoalLine(f"goal {RESTART_MAX_SECONDS:g} s", "y", RESTART_MAX_SECONDS)],
    )
    gap = Panel(
        kind="bars",
        title="Planned handover",
        x_label="between two batches",
        y_label="gap (s)",
        series=[
            Series(
                "gap",
                [result.batch_seconds, median(result.gaps_seconds), max(result.gaps_seconds)],
                labels=["usual", "handover", "the longest"],
            )
        ],
        goals=[GoalLine("goal: 1 batch + 1 s", "y", result.batch_seconds + HANDOVER_EXTRA_SECONDS)],
    )
    return [waits, gap]
