"""What the checks of `Strict` cost: the same batches, folded in memory with them and without any, in turns.

The share is smaller than the spread of the pairs, and may come out negative.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from benchmarks.calibration import compute_spread
from benchmarks.engine_files import Batch, fold_batches, make_sensor_batches
from benchmarks.record import Conditions, Figure, GoalLine, Panel, Record, Series
from benchmarks.sensors import sensors, unchecked_sensors
from lockstep.declare.stream import AnyStream

SHARE_MAX = 0.05
_HOUR, _TOPICS = "2026-01-01T00", r"sensors\..+"


@dataclass(frozen=True)
class Turns:
    """Settings of the measurement.

    Attributes:
        batches: Batches of a turn.
        messages: Messages of a batch.
        pairs: Pairs of turns that count, after one that does not.
    """

    batches: int = 4
    messages: int = 50_000
    pairs: int = 20


def measure_strictness(turns: Turns, *, folder: Path, console: Console) -> Record:
    """Fold in turns; each pair gives a share.

    Raises:
        ValueError: The two streams did not write as many rows.
    """
    conditions = Conditions.now()
    batches = list(make_sensor_batches(turns.batches, turns.messages))
    found = list[tuple[float, float]]()
    for number in range(turns.pairs + 1):
        order = (sensors, unchecked_sensors)[:: -1 if number % 2 else 1]
        seconds = {make: _fold(make(_TOPICS), batches, folder) for make in order}
        if seconds[sensors][1] != seconds[unchecked_sensors][1]:
            raise ValueError(f"rows of Strict and of NoIntegrity differ: {seconds}")
        found.append((seconds[sensors][0], seconds[unchecked_sensors][0]))
        console.print(f"pair {number}: Strict {found[-1][0]:.2f} CPU s, without checks {found[-1][1]:.2f}")
    counted, messages = found[1:], sum(len(log) for batch in batches for log in batch.values())
    settings: dict[str, object] = {"messages": messages, "batches": turns.batches, "pairs": turns.pairs}
    return conditions.record("strictness", settings, figures(counted), [panel(counted)], {"seconds": counted})


def _fold(stream: AnyStream, batches: Sequence[Batch], folder: Path) -> tuple[float, int]:
    """CPU seconds and rows."""
    with tempfile.TemporaryDirectory(dir=folder) as root:
        gc.collect()
        began = time.process_time()
        rows = sum(file.rows for file in fold_batches(stream, batches, Path(root), hour=_HOUR))
        return time.process_time() - began, rows


def figures(seconds: Sequence[tuple[float, float]]) -> list[Figure]:
    """What the checks take of the time with them, by pairs and by the least time of each.

    Args:
        seconds: CPU seconds with checks and without, of each pair.
    """
    middle, low, high = compute_spread([1 - without / strict for strict, without in seconds])
    least = 1 - min(without for _, without in seconds) / min(strict for strict, _ in seconds)
    what = "share of a task's CPU time that Strict takes more than NoIntegrity without evidence"
    return [
        Figure(f"{what}, median of pairs", middle, "", SHARE_MAX, len(seconds)),
        Figure(f"{what}, lower quartile", low, ""),
        Figure(f"{what}, upper quartile", high, ""),
        Figure(f"{what}, by the least time of each", least, ""),
    ]


def panel(seconds: Sequence[tuple[float, float]]) -> Panel:
    """The share of each pair."""
    shares, pairs = [1 - without / strict for strict, without in seconds], list(range(1, len(seconds) + 1))
    return Panel(
        kind="curve",
        title="The same batches with and without checks, in turns",
        x_label="pair",
        y_label="share that Strict takes more",
        series=[Series("share", shares, pairs)],
        goals=[GoalLine("goal", "y", SHARE_MAX)],
    )
