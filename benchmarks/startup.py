"""Start-up: CPU time from a start to the first commit, and of `dagster asset materialize` without messages."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import msgspec
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich.console import Console

from benchmarks.live import LiveStream, Stage
from benchmarks.measure import Usage, run_measured
from benchmarks.record import Conditions, Figure, Panel, Record, Series
from benchmarks.systems import environment
from benchmarks.workload import Size
from lockstep.features.rehearsal.process_usage import TreeMeter, TreeUsage

SMALL = Size("startup", messages=800, topics=8, sessions=200, rows=20)
FIRST_COMMIT_MAX_SECONDS = 6.0
ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Startup:
    """Settings of the measurement.

    Attributes:
        repeat: Starts of each kind; the median counts.
    """

    repeat: int = 5


def measure_startup(startup: Startup, *, bootstrap_servers: str, folder: Path, console: Console) -> Record:
    """Starts into new tables, then materializations of a stream that has nothing to read.

    Raises:
        LiveRunError: A start failed.
        CommandFailedError: A materialization failed.
    """
    conditions, starts = Conditions.now(), list[TreeUsage]()
    for number in range(startup.repeat):
        starts.append(_start(Stage(bootstrap_servers, SMALL, folder / f"start-{number}", 1.0)))
        console.print(f"first commit: {sum(starts[-1].cpu_seconds.values()):.2f} CPU s {starts[-1].cpu_seconds}")
    materialized = _materialize(bootstrap_servers, folder, startup.repeat, console)
    details = {"starts": msgspec.to_builtins(starts), "materialized": msgspec.to_builtins(materialized)}
    settings = msgspec.to_builtins(startup)
    return conditions.record("startup", settings, figures(starts, materialized), panels(starts), details)


def _start(stage: Stage) -> TreeUsage:
    """CPU time from the start to the first batch that the observer sees."""
    stage.open()
    with stage.observed(), LiveStream(stage) as stream:
        meter = TreeMeter(stream.pid)
        stage.wait("the first commit", lambda: bool(stage.commits()), stream.process)
        used = meter.finish()
        stream.stop()
    return used


def _materialize(bootstrap_servers: str, folder: Path, repeat: int, console: Console) -> list[Usage]:
    """Materializations of `order_books/table`, after a first one that makes the tables."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    for created in admin.create_topics([NewTopic("order_books.empty", 1, 1)]).values():
        created.result()
    home = folder / "dagster"
    home.mkdir()
    shutil.copy(ROOT / "deploy" / "dagster.yaml", home)
    places = {
        "DAGSTER_HOME": str(home),
        "LOCKSTEP_KAFKA__BOOTSTRAP_SERVERS": bootstrap_servers,
        "LOCKSTEP_TABLE_ROOT": str(folder / "tables"),
        "LOCKSTEP_LOCAL_ROOT": str(folder / "local"),
    }
    config = json.dumps({"ops": {"order_books__table": {"config": {"available_now": True}}}})
    selected = ["--select", "order_books/table", "--config-json", config, "-m", "definitions"]
    command = [sys.executable, "-m", "dagster", "asset", "materialize", *selected]
    found = []
    for _ in range(repeat + 1):
        found.append(run_measured(command, environment() | places))
        console.print(f"materialize: {found[-1].cpu_seconds:.2f} CPU s, {found[-1].wall_seconds:.1f} s")
    return found[1:]


def figures(starts: Sequence[TreeUsage], materialized: Sequence[Usage]) -> list[Figure]:
    """The promised figure, its parts, and what Dagster adds."""
    first = median(sum(each.cpu_seconds.values()) for each in starts)
    parts = {role: median(each.cpu_seconds[role] for each in starts) for role in starts[0].cpu_seconds}
    return [
        Figure("start to first commit", first, "CPU s", FIRST_COMMIT_MAX_SECONDS),
        *(Figure(f"start to first commit: {role}", seconds, "CPU s") for role, seconds in parts.items()),
        Figure("start to first commit, wall time", median(each.wall_seconds for each in starts), "s"),
        Figure("dagster asset materialize, no messages", median(each.cpu_seconds for each in materialized), "CPU s"),
        Figure("the same, wall time", median(each.wall_seconds for each in materialized), "s"),
    ]


def panels(starts: Sequence[TreeUsage]) -> list[Panel]:
    """The starts, by kind of process."""
    labels = [str(number) for number in range(1, len(starts) + 1)]
    series = [
        Series(role, [each.cpu_seconds[role] for each in starts], labels=labels) for role in starts[0].cpu_seconds
    ]
    return [Panel(kind="bars", title="Start to first commit", x_label="start", y_label="CPU s", series=series)]
