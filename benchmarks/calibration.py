"""Tells how far figures of a shared machine can be trusted: the same loop before and after, and the machine's load.

CPU time is not immune to neighbours: the same code took 1.75 times as long next to busy ones.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from benchmarks.record import Figure, Record

SPINS, SPIN_STEPS = 15, 400_000

OFF_MAX = 1.1
"""The spins before and after may differ by this ratio."""

LOAD_A_CORE_MAX = 0.5
"""Of what ran before: above this the figures are those of a machine that others used."""


def spin() -> float:
    """CPU seconds of a fixed loop: the median of some, about 0.3 s in all."""
    return sorted(_spin_once() for _ in range(SPINS))[SPINS // 2]


def judge_calibration(before: float, after: float, load: float, cores: int) -> list[str]:
    """Reasons not to trust the figures of a run; empty for a quiet machine.

    Args:
        before: `spin` before the run.
        after: `spin` after it.
        load: Load average of the machine before the run.
        cores: Its cores.
    """
    reasons = []
    if max(before, after) > min(before, after) * OFF_MAX:
        reasons.append(f"the calibration took {before * 1e3:.1f} ms before and {after * 1e3:.1f} ms after")
    if load > cores * LOAD_A_CORE_MAX:
        reasons.append(f"the load before was {load:g} on {cores} cores")
    return reasons


def compute_spread(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Median and quartiles of ratios: (median, lower, upper)."""
    ordered = sorted(ratios)
    last = len(ordered) - 1
    middle, low, high = (ordered[round(last * share)] for share in (0.5, 0.25, 0.75))
    if len(ordered) % 2 == 0:
        middle = (ordered[last // 2] + ordered[last // 2 + 1]) / 2
    return middle, low, high


def mark_doubtful(record: Record, doubts: Sequence[str]) -> Record:
    """The record of a machine that was not quiet: without verdicts, as its figures judge nothing."""
    if not doubts:
        return record
    figures = [Figure(f"{figure.name} (at load)", figure.value, figure.unit) for figure in record.figures]
    panels = [msgspec.structs.replace(panel, title=f"{panel.title}, at load") for panel in record.panels]
    return msgspec.structs.replace(record, figures=figures, panels=panels)


def _spin_once() -> float:
    began, total = time.process_time(), 0
    for step in range(SPIN_STEPS):
        total += step ^ (total & 0xFFFF)
    return time.process_time() - began
