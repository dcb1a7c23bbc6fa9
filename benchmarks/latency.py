"""Live latency: from a message's creation to its row being visible in the Delta table, at a steady rate.

lockstep and the bare loop with one Parquet file and one Delta commit a trigger take turns, on the same messages, seen
by the same observer.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median

import msgspec
import numpy as np
import numpy.typing as npt
from rich.console import Console

from benchmarks.live import BARE, LOCKSTEP, READY, LiveProgram, LiveStream, Pacer, Stage
from benchmarks.pacer import Paced
from benchmarks.record import Conditions, Figure, GoalLine, Panel, Record, Series
from benchmarks.workload import Size
from lockstep.features.rehearsal.process_usage import TreeMeter, TreeUsage

TOPICS, SESSIONS, ROWS = 8, 200, 200
P50_MAX_SECONDS, P99_MAX_SECONDS, IDLE_CORES_MAX = 0.3, 0.6, 0.1
CORES_MAX = {0.25: 0.6, 1.0: 0.3}
RATIO_MAX = 1.5
OURS = (LOCKSTEP, READY)
FAST_SECONDS = 0.25
"""The trigger that has goals for its latency."""


@dataclass(frozen=True)
class Live:
    """Settings of the measurement.

    Attributes:
        rate: Messages a second over all topics.
        warm_seconds: Sent before the measured time.
        seconds: Measured.
        idle_seconds: Watched afterwards, without messages.
        triggers_seconds: One run of either program in each round.
        rounds: Turns; a figure is the median of its rounds.
    """

    rate: int = 10_000
    warm_seconds: int = 10
    seconds: int = 60
    idle_seconds: int = 15
    triggers_seconds: Sequence[float] = (FAST_SECONDS, 1.0)
    rounds: int = 2

    def size(self, trigger_seconds: float) -> Size:
        """The messages of a run."""
        paced = self.rate * (self.warm_seconds + self.seconds)
        messages = TOPICS * (SESSIONS // TOPICS + paced // TOPICS)
        return Size(f"live-{int(trigger_seconds * 1000)}ms", messages, TOPICS, SESSIONS, ROWS)


class LiveResult(msgspec.Struct, frozen=True):
    """Results of one run.

    Attributes:
        program: Name of what ran.
        trigger_seconds: Its trigger.
        percentiles: Delay in seconds at each percent from 0 to 100, over all measured messages.
        delay_max_seconds: The largest.
        messages: Measured messages.
        busy: CPU time while messages came.
        idle: CPU time afterwards.
        batches: Batches seen since then.
        batch_seconds_median: Of those, from plan to commit; 0 for the bare loop, which notes none.
        paced: The pacer's report.
        rows: Rows in the table at the end, equal to those of the bare loop.
    """

    program: str
    trigger_seconds: float
    percentiles: Sequence[float]
    delay_max_seconds: float
    messages: int
    busy: TreeUsage
    idle: TreeUsage
    batches: int
    batch_seconds_median: float
    paced: Paced
    rows: int


def measure_latency(live: Live, *, bootstrap_servers: str, folder: Path, console: Console) -> Record:
    """In each round one run of either program for each trigger.

    Raises:
        LiveRunError: A part of a run failed.
        WrongRowsError: The table differs from the expected rows.
    """
    conditions = Conditions.now()
    results = []
    for number, trigger, program in product(range(live.rounds), live.triggers_seconds, (BARE, *OURS)):
        output = folder / f"live-{number}-{trigger:g}-{program.module}"
        stage = Stage(bootstrap_servers, live.size(trigger), output, trigger, program)
        with console.status(f"{program.name}, {live.rate:,} messages/s, {live.seconds} s, a batch every {trigger:g} s"):
            results.append(_run(live, stage))
        console.print(_line(results[-1]))
    settings = msgspec.to_builtins(live) | {"topics": TOPICS, "sessions": SESSIONS, "rows": ROWS}
    details = {"runs": msgspec.to_builtins(results)}
    return conditions.record("latency", settings, figures(results), panels(live, results), details)


def _run(live: Live, stage: Stage) -> LiveResult:
    """One run.

    1. Snapshots are sent and committed, the program is up, the pacer has made its messages.
    2. Messages are sent; the first seconds are not measured.
    3. All messages are committed; then the idle program is measured.
    4. The program is stopped, and its rows are proven.
    """
    first, until = stage.size.sessions_per_topic, stage.size.messages_per_topic
    stage.open()
    with stage.observed(), Pacer(stage, live.rate, first, until) as pacer, LiveStream(stage) as stream:
        stage.wait_until_committed(stage.size.sessions, stream.process)  # 1
        pacer.go()
        time.sleep(live.warm_seconds)  # 2
        meter, began = TreeMeter(stream.pid), time.time_ns()
        paced = pacer.finish()
        busy, ended = meter.finish(), time.time_ns()
        stage.wait_until_committed(stage.size.messages, stream.process)  # 3
        meter = TreeMeter(stream.pid)
        time.sleep(live.idle_seconds)
        idle = meter.finish()
        stream.stop()  # 4
    rows, delays = stage.prove(), stage.delays().between(began, ended)
    batch_seconds = stage.batch_seconds(began) if stage.program in OURS else []
    return LiveResult(
        program=stage.program.name,
        trigger_seconds=stage.trigger_seconds,
        percentiles=_percentiles(delays),
        delay_max_seconds=float(delays.max()),
        messages=len(delays),
        busy=busy,
        idle=idle,
        batches=len(batch_seconds),
        batch_seconds_median=median(batch_seconds or [0.0]),
        paced=paced,
        rows=rows,
    )


def _percentiles(delays: npt.NDArray[np.float64]) -> list[float]:
    return [float(value) for value in np.percentile(delays, range(101))]


def figures(results: Sequence[LiveResult]) -> list[Figure]:
    """The promised figures, and further ones."""
    found: list[Figure] = []
    for trigger in dict.fromkeys(result.trigger_seconds for result in results):
        bare = _of(results, trigger, BARE)
        for program in OURS:
            name = "" if program is LOCKSTEP else f"{program.name}: "
            found += _figures(f"trigger {trigger:g} s: {name}", trigger, bare, _of(results, trigger, program))
    return found


def _of(results: Sequence[LiveResult], trigger_seconds: float, program: LiveProgram) -> list[LiveResult]:
    """The runs of a program at a trigger, in order of the rounds."""
    return [each for each in results if each.trigger_seconds == trigger_seconds and each.program == program.name]


def _figures(name: str, trigger_seconds: float, bare: Sequence[LiveResult], ours: Sequence[LiveResult]) -> list[Figure]:
    is_fast = trigger_seconds == FAST_SECONDS
    found = []
    for percent, seconds_max in ((50, P50_MAX_SECONDS), (99, P99_MAX_SECONDS)):
        delay = f"event to visible, p{percent}"
        pairs = [(one.percentiles[percent], other.percentiles[percent]) for one, other in zip(bare, ours, strict=True)]
        ratio = median(other / one for one, other in pairs)
        found += [
            Figure(
                f"{name}{delay}", median(other for _, other in pairs), "s", seconds_max if is_fast else None, len(pairs)
            ),
            Figure(f"{name}{BARE.name}: {delay}", median(one for one, _ in pairs), "s"),
            Figure(f"{name}{delay}, to the {BARE.name}", ratio, "", RATIO_MAX if is_fast else None, len(pairs)),
        ]
    return [
        *found,
        Figure(
            f"{name}load", median(each.busy.cores for each in ours), "cores", CORES_MAX.get(trigger_seconds), len(ours)
        ),
        Figure(f"{name}{BARE.name}: load", median(each.busy.cores for each in bare), "cores"),
        Figure(f"{name}load while idle", median(each.idle.cores for each in ours), "cores"),
        Figure(f"{name}batch, median", median(each.batch_seconds_median for each in ours), "s"),
    ]


def panels(live: Live, results: Sequence[LiveResult]) -> list[Panel]:
    """The delays as a cumulative curve, and the load by kind of process."""
    last = results[-len(live.triggers_seconds) * (1 + len(OURS)) :]
    percents = list(map(float, range(101)))
    curves = [Series(_label(each), percents, each.percentiles) for each in last]
    roles = list(results[0].busy.cpu_seconds)
    labels = [_label(each) for each in results]
    loads = [
        Series(role, [each.busy.cpu_seconds[role] / each.busy.wall_seconds for each in results], labels=labels)
        for role in roles
    ]
    goals = {CORES_MAX[each.trigger_seconds] for each in results if each.trigger_seconds in CORES_MAX}
    return [
        Panel(
            kind="curve",
            title=f"Event to visible in Delta at {live.rate:,} messages/s",
            x_label="delay (s)",
            y_label="messages seen by then (%)",
            series=curves,
            goals=[
                GoalLine("goal p50 at 0.25 s", "x", P50_MAX_SECONDS),
                GoalLine("goal p99 at 0.25 s", "x", P99_MAX_SECONDS),
            ],
        ),
        Panel(
            kind="bars",
            title="Load of the whole process tree",
            x_label="program, trigger",
            y_label="CPU s per s (cores)",
            series=loads,
            goals=[GoalLine(f"goal {goal:g}", "y", goal) for goal in sorted(goals)],
        ),
    ]


def _label(result: LiveResult) -> str:
    return f"{result.program}, {result.trigger_seconds:g} s"


def _line(result: LiveResult) -> str:
    p50, p99 = result.percentiles[50], result.percentiles[99]
    return (
        f"{_label(result)}: p50 {p50:.3f} s, p99 {p99:.3f} s, {result.busy.cores:.2f} cores, "
        f"{result.idle.cores:.2f} idle, pacer behind {result.paced.behind_seconds_max:.3f} s at most"
    )
