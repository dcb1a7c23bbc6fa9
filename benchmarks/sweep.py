"""Sweeps: the same messages over more topics, or over more sessions, each point with the bare loop.

The compared figure is CPU time per message without start-up; start-up is a run over the smoke size.
The rows of every run equal those of the bare loop, those of the smoke size equal those of the plain fold.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import msgspec
from rich.console import Console

from benchmarks.record import Conditions, Figure, GoalLine, Panel, Record, Series
from benchmarks.report import Result
from benchmarks.rounds import Bench, Run, prove, result_of
from benchmarks.systems import LOCKSTEP, READY, REFERENCE, System
from benchmarks.verify import expected
from benchmarks.workload import SESSIONS, SMOKE, TOPICS, Size

_UNIT = "CPU s per million messages"


@dataclass(frozen=True)
class Sweep:
    """Settings of a sweep.

    Attributes:
        name: Name of the benchmark, and of the count that grows: a field of `Size`.
        sizes: The points, in order of that count.
        base: The count that ratios are taken to.
        ratio_max: Goal of the last point's ratio.
        smoke: The size whose runs measure start-up.
        systems: The bare loop, and lockstep with one fold or several.
    """

    name: str
    sizes: Sequence[Size]
    base: int
    ratio_max: float
    smoke: Size = SMOKE
    systems: Sequence[System] = (REFERENCE, LOCKSTEP)

    def count(self, size: Size) -> int:
        """The position of a size on the axis."""
        return int(getattr(size, self.name))

    def only(self, counts: str) -> Sweep:
        """The sweep over some of its counts, given as "8,1000"; over all of them for an empty text."""
        kept = [size for size in self.sizes if not counts or str(self.count(size)) in counts.split(",")]
        return replace(self, sizes=kept)


BY_TOPICS = Sweep("topics", TOPICS, base=8, ratio_max=1.3)
BY_SESSIONS = Sweep("sessions", SESSIONS, base=1_000, ratio_max=2.0, systems=(REFERENCE, LOCKSTEP, READY))


@dataclass(frozen=True)
class Point:
    """One size of a sweep and the usage of each system."""

    size: Size
    results: Sequence[Result]

    def per_million(self, smoke: Size) -> dict[str, float]:
        """CPU seconds per million messages of each system, start-up left out."""
        found = {each.system: each.steady_per_million(self.size, smoke) for each in self.results}
        return {name: value for name, value in found.items() if value is not None}


def measure_sweep(
    sweep: Sweep, *, repeat: int, batch_messages: int, bootstrap_servers: str, folder: Path, console: Console
) -> Record:
    """Run both systems over all sizes, in turns, and prove their rows.

    Raises:
        WrongRowsError: A system wrote other rows.
        CommandFailedError: A system failed.
    """
    conditions = Conditions.now()
    bench = Bench(sweep.systems, batch_messages, bootstrap_servers, folder, console)
    start_up = bench.rounds(sweep.smoke, repeat)
    prove(start_up, expected(sweep.smoke))
    runs: dict[Size, dict[str, list[Run]]] = {size: defaultdict(list) for size in sweep.sizes}
    for _ in range(repeat):
        for size in sweep.sizes:
            for system, each in bench.rounds(size, 1).items():
                runs[size][system] += each
    points = [_point(size, start_up, found) for size, found in runs.items()]
    settings = {
        "repeat": repeat,
        "batch_messages": batch_messages,
        "sizes": [msgspec.to_builtins(s) for s in sweep.sizes],
    }
    details = {size.name: msgspec.to_builtins(point.results) for size, point in zip(sweep.sizes, points, strict=True)}
    return conditions.record(sweep.name, settings, figures(sweep, points), [panel(sweep, points)], details)


def _point(size: Size, start_up: dict[str, list[Run]], runs: dict[str, list[Run]]) -> Point:
    right = runs[REFERENCE.name][0].digest
    prove(runs, right)
    return Point(size, [result_of(name, right, start_up[name], each) for name, each in runs.items()])


def figures(sweep: Sweep, points: Sequence[Point]) -> list[Figure]:
    """The figures of each fold."""
    folds = [system for system in sweep.systems if system is not REFERENCE]
    return list(chain.from_iterable(_figures(sweep, points, fold) for fold in folds))


def _figures(sweep: Sweep, points: Sequence[Point], fold: System) -> list[Figure]:
    """The cost at each point, and the ratio of each to the base; the last one has the goal."""
    cost = {sweep.count(point.size): point.per_million(sweep.smoke) for point in points}
    base = cost[sweep.base][fold.name]
    last = max(cost)
    rounds = len(points[0].results[0].runs)
    name = "" if fold is LOCKSTEP else f"{fold.name}: "
    found = [Figure(f"{name}{count:,} {sweep.name}", each[fold.name], _UNIT) for count, each in cost.items()]
    for count, each in cost.items():
        if count != sweep.base:
            goal = sweep.ratio_max if count == last else None
            label = f"{name}{count:,} {sweep.name} to {sweep.base:,}"
            found.append(Figure(label, each[fold.name] / base, "", goal, rounds))
    for count, each in cost.items():
        label = f"{name}{count:,} {sweep.name}, lockstep to bare loop"
        found.append(Figure(label, each[fold.name] / each[REFERENCE.name], ""))
    return found


def panel(sweep: Sweep, points: Sequence[Point]) -> Panel:
    """Cost over the count, both systems, with the goal's line."""
    counts = [float(sweep.count(point.size)) for point in points]
    cost = [point.per_million(sweep.smoke) for point in points]
    base = cost[counts.index(float(sweep.base))][LOCKSTEP.name]
    return Panel(
        kind="sweep",
        title=f"{points[0].size.messages:,} messages over more {sweep.name}",
        x_label=sweep.name,
        y_label=_UNIT,
        series=[Series(each.name, [point[each.name] for point in cost], counts) for each in reversed(sweep.systems)],
        goals=[GoalLine(f"goal: {sweep.ratio_max:g} x {sweep.base:,} {sweep.name}", "y", base * sweep.ratio_max)],
    )
