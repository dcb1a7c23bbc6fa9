"""The bare loop, lockstep and other systems over the same topics in one run, in turns."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import median

import msgspec
from rich.console import Console

from benchmarks.calibration import compute_spread, judge_calibration, mark_doubtful, spin
from benchmarks.peers.systems import PEERS, Peer
from benchmarks.record import Conditions, Figure, Panel, Record, Series
from benchmarks.report import Report, Result
from benchmarks.rounds import Plan, measure_all
from benchmarks.systems import LOCKSTEP, READY, REFERENCE
from benchmarks.workload import SMOKE, Size
from lockstep.errors import EnvironmentProblem

BARE_RATIOS_MAX = {LOCKSTEP.name: 1.25, READY.name: 0.7}
"""The most that either fold may cost of the bare loop."""


def measure_peers(
    names: Sequence[str], size: Size, repeat: int, *, bootstrap_servers: str, folder: Path, console: Console
) -> Record:
    """Measure some peers next to lockstep, with both its folds, and the bare loop; the rows of all are proven equal.

    Raises:
        WrongRowsError: A system wrote other rows.
        CommandFailedError: A system failed.
    """
    conditions, before = Conditions.now(), spin()
    peers, missing = prepare_peers([PEERS[name] for name in names], console)
    systems = (REFERENCE, LOCKSTEP, READY, *(peer.system for peer in peers))
    plan = Plan(size, SMOKE, systems, repeat, batch_messages=200_000)
    report = measure_all(plan, bootstrap_servers, folder, console)
    machine = conditions.hardware
    doubts = judge_calibration(before, spin(), machine.load_average, machine.cores)
    return make_record(report, conditions, missing, doubts)


def prepare_peers(peers: Sequence[Peer], console: Console) -> tuple[list[Peer], dict[str, str]]:
    """The peers that can be built here, and for the others the reason."""
    found, missing = [], {}
    for peer in peers:
        try:
            with console.status(f"building {peer.system.name} ..."):
                peer.prepare()
        except EnvironmentProblem as problem:
            missing[peer.system.name] = str(problem)
            console.print(f"{peer.system.name} is left out: {problem}", style="yellow", markup=False)
        else:
            found.append(peer)
    return found, missing


def make_record(report: Report, conditions: Conditions, missing: dict[str, str], doubts: Sequence[str]) -> Record:
    """The figures of all systems, and lockstep's ratio to each."""
    found = {result.system: result for result in report.results}
    figures = [figure for result in report.results for figure in _figures(result, report)]
    others = (name for name in found if name == REFERENCE.name or name in PEERS)
    for ours, name in product((LOCKSTEP.name, READY.name), others):
        middle, low, high = compute_spread(compute_pair_ratios(found[ours], found[name]))
        goal = PEERS[name].ratio_max if name in PEERS else BARE_RATIOS_MAX[ours]
        figures += [
            Figure(f"{ours} to {name}, median of the pairs", middle, "", goal, len(report.results[0].runs)),
            Figure(f"{ours} to {name}, quartiles of the pairs apart", high - low, ""),
        ]
    settings: dict[str, object] = {
        "messages": report.size.messages,
        "batch_messages": report.batch_messages,
        "rounds": len(found[LOCKSTEP.name].runs),
        "left_out": missing,
        "doubts": list(doubts),
    }
    details: dict[str, object] = {"results": msgspec.to_builtins(report.results)}
    return mark_doubtful(conditions.record("peers", settings, figures, _panels(report), details), doubts)


def compute_pair_ratios(one: Result, other: Result) -> list[float]:
    """CPU time of one to the other's, without start-up, round by round."""
    return [
        (mine.cpu_seconds - one.start_up_cpu_seconds) / (theirs.cpu_seconds - other.start_up_cpu_seconds)
        for mine, theirs in zip(one.runs, other.runs, strict=True)
    ]


def _figures(result: Result, report: Report) -> list[Figure]:
    steady = result.steady_per_million(report.size, report.smoke) or 0.0
    wall = median(run.wall_seconds for run in result.runs) - median(run.wall_seconds for run in result.start_up)
    return [
        Figure(f"{result.system}, without start-up", steady, "CPU s per million messages"),
        Figure(f"{result.system}, without start-up", _rate(report, wall), "messages/s"),
        Figure(f"{result.system}: peak memory", result.peak_memory_mb, "MB"),
        Figure(f"{result.system}: start-up", result.start_up_cpu_seconds, "CPU s"),
    ]


def _rate(report: Report, wall_seconds: float) -> float:
    messages = report.size.messages - report.smoke.messages
    return messages / wall_seconds if wall_seconds > 0 else 0.0


def _panels(report: Report) -> list[Panel]:
    labels = [result.system for result in report.results]
    cost = [result.steady_per_million(report.size, report.smoke) or 0.0 for result in report.results]
    panel = Panel(
        kind="bars",
        title=f"{report.size.messages:,} messages, without start-up",
        x_label="system",
        y_label="CPU s per million messages",
        series=[Series("CPU", cost, labels=labels)],
    )
    memory = Panel(
        kind="bars",
        title="peak memory of all processes",
        x_label="system",
        y_label="MB",
        series=[Series("memory", [result.peak_memory_mb for result in report.results], labels=labels)],
    )
    return [panel, memory]
