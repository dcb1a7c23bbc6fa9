"""A sweep measures each size by both systems, proves their rows, and judges the ratio of the last to the base."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from rich.console import Console

from benchmarks.feed import feed
from benchmarks.goals import load
from benchmarks.measure import Usage
from benchmarks.plots import draw
from benchmarks.record import Figure, save
from benchmarks.report import Result
from benchmarks.sweep import Point, Sweep, figures, measure_sweep
from benchmarks.workload import Size

if TYPE_CHECKING:
    from pathlib import Path

    from lockstep.features.localdev.broker import Broker


def result(system: str, start_up: float, whole: float) -> Result:
    used = [Usage(0, cpu, cpu, 1, 0) for cpu in (start_up, whole)]
    return Result(system, 1, "0", used[:1], used[1:])


def test_ratios_leave_start_up_out_and_only_the_last_has_the_goal() -> None:
    sizes = [Size(f"t{count}", 1_020_000, topics=count) for count in (1, 8, 1_000)]
    sweep = Sweep("topics", sizes, base=8, ratio_max=1.3, smoke=Size("s", 20_000))
    points = [
        Point(size, [result("bare", 1, 6), result("lockstep", 10, 10 + cost)])
        for size, cost in zip(sizes, (8, 10, 15), strict=True)
    ]
    found = {figure.name: figure for figure in figures(sweep, points)}
    assert found["1,000 topics"] == Figure("1,000 topics", 15.0, "CPU s per million messages")
    assert found["1,000 topics to 8"] == Figure("1,000 topics to 8", 1.5, "", 1.3, rounds=1)
    assert found["1,000 topics to 8"].is_met is None
    assert found["1 topics to 8"] == Figure("1 topics to 8", 0.8, "", rounds=1)
    assert found["8 topics, lockstep to bare loop"].value == 2.0


@pytest.mark.slow
def test_a_small_sweep_runs_through(broker: Broker, topic_family: str, tmp_path: Path) -> None:
    name = topic_family.replace("_", "-")
    smoke = Size(f"{name}-s", 400, topics=2, sessions=10, rows=3)
    sizes = [Size(f"{name}-{count}", 1_200, topics=count, sessions=20, rows=3) for count in (1, 4)]
    for size in (smoke, *sizes):
        feed(broker.bootstrap_servers, size, tmp_path)
    record = measure_sweep(
        Sweep("topics", sizes, base=1, ratio_max=1.3, smoke=smoke),
        repeat=1,
        batch_messages=500,
        bootstrap_servers=broker.bootstrap_servers,
        folder=tmp_path,
        console=Console(quiet=True),
    )
    assert msgspec.json.encode(load(save(record, tmp_path))) == msgspec.json.encode(record)
    assert [each["rows"] for runs in record.details.values() for each in runs] == [1_180] * 4  # type: ignore[attr-defined]  # as written
    assert draw(record, tmp_path).stat().st_size < 100_000
