"""The live benchmarks in small: every part runs, every message is accounted for, and times are not judged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from rich.console import Console

from benchmarks.driver import Driver, measure_driver
from benchmarks.feed import feed
from benchmarks.goals import load
from benchmarks.large_state import LargeState, measure_large_state
from benchmarks.latency import Live, LiveResult, measure_latency
from benchmarks.plots import draw
from benchmarks.record import Record, save
from benchmarks.restart import Restarts, measure_restart
from benchmarks.workload import Size

if TYPE_CHECKING:
    from pathlib import Path

    from lockstep.features.localdev.broker import Broker

QUIET = Console(quiet=True)


def kept(record: Record, folder: Path) -> dict[str, float]:
    """Save, load and draw a record; return its figures by name."""
    assert msgspec.json.encode(load(save(record, folder))) == msgspec.json.encode(record)
    assert draw(record, folder).stat().st_size < 100_000
    return {figure.name: figure.value for figure in record.figures}


@pytest.mark.slow
def test_a_short_live_run_gives_delays_of_all_measured_messages(broker: Broker, tmp_path: Path) -> None:
    live = Live(rate=400, warm_seconds=1, seconds=2, idle_seconds=1, triggers_seconds=(0.25,), rounds=1)
    record = measure_latency(live, bootstrap_servers=broker.bootstrap_servers, folder=tmp_path, console=QUIET)
    found = kept(record, tmp_path / "results")
    assert 0 < found["trigger 0.25 s: event to visible, p50"] <= found["trigger 0.25 s: event to visible, p99"]
    assert found["trigger 0.25 s: load"] > 0
    assert found["trigger 0.25 s: event to visible, p50, to the bare loop"] > 0
    runs = msgspec.convert(record.details["runs"], list[LiveResult])
    assert found["trigger 0.25 s: ready fold: load"] > 0
    assert [run.program for run in runs] == ["bare loop", "lockstep", "ready fold"]
    for run in runs:
        assert 0 < run.messages <= 1_200 == run.rows == run.paced.messages


@pytest.mark.slow
def test_a_small_stream_is_killed_restarted_and_handed_over(broker: Broker, tmp_path: Path) -> None:
    size = Size("restart-small", messages=40_080, topics=2, sessions=80, rows=5)
    restarts = Restarts(size, rate=200, settle_seconds=2, idle_seconds=1, trigger_seconds=0.5, handovers=2)
    record = measure_restart(restarts, bootstrap_servers=broker.bootstrap_servers, folder=tmp_path, console=QUIET)
    found = kept(record, tmp_path / "results")
    assert found["handover: from last to first batch, median"] > 0
    assert 0 < found["event to visible across handovers, p99"] <= found["the slowest handover, p99"]
    result = record.details["result"]
    assert result["rows"] == result["messages"] > 0  # type: ignore[index]  # as written
    assert result["verified"].startswith("proven: ")  # type: ignore[index]  # as written


@pytest.mark.slow
def test_a_stream_with_state_restarts_with_and_without_its_local_copy(broker: Broker, tmp_path: Path) -> None:
    asked = LargeState(gigabytes=0.01, batch_messages=400)
    feed(broker.bootstrap_servers, asked.size, tmp_path)
    record = measure_large_state(
        asked, bootstrap_servers=broker.bootstrap_servers, folder=tmp_path / "x", console=QUIET
    )
    figures = {figure.name: figure.value for figure in record.figures}
    assert 0 < figures["state, durable files"] < figures["state, local copy"]
    assert all(value > 0 for value in figures.values())


@pytest.mark.slow
def test_a_few_partitions_show_what_a_batch_costs_the_driver(broker: Broker, tmp_path: Path) -> None:
    size = Size("driver-small", messages=1_220, topics=20, sessions=20, rows=2)
    driver = Driver(size, rate=300, warm_seconds=1, trigger_seconds=0.5)
    record = measure_driver(driver, bootstrap_servers=broker.bootstrap_servers, folder=tmp_path, console=QUIET)
    found = kept(record, tmp_path / "results")
    assert found["20 partitions: driver (plan, audit, commit)"] > 0
    assert record.details["result"]["rows"] == 1_200  # type: ignore[index]  # as written
