"""The result of a load test for people: rows of a text table, and one HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from lockstep.features.rehearsal.load_plan import Laps, find_limit
from lockstep.features.rehearsal.load_stage import StageResult
from lockstep.features.rehearsal.load_test import LoadPlan, LoadTestResult
from lockstep.features.rehearsal.process_usage import DRIVER, JVM, WORKERS
from lockstep.html_page import Bar, Fact, Line, Page, Section, TableOf, draw_bars, draw_lines, render_page

STAGE_COLUMNS = (
    *("rate", "sent/s", "committed/s", "sustained", "lag", "drained", "p50", "p99", "cores", "CPU s/M", "memory"),
    *("batch", "files", "file", "state", "proof"),
)
LAPS = {
    Laps.NEW_KEYS: "repeated under new message keys: each lap starts new sessions, so state grows with the laps",
    Laps.SAME_SESSIONS: "repeated unchanged: each session restarts with its snapshot",
    Laps.ONCE: "sent once: the class refuses or drops these sessions the second time",
}


def list_plan_facts(plan: LoadPlan) -> list[tuple[str, object]]:
    """Names and values of a load test's plan."""
    minutes = plan.present_seconds / 60
    trigger = f"{plan.trigger} instead of the stream's own" if plan.trigger_replaced else plan.trigger
    return [
        ("stream", plan.stream),
        ("present load", f"{plan.present_per_second:,.1f} messages/s in the busiest minute of {minutes:.0f}"),
        ("on average", f"{plan.mean_per_second:,.1f} messages/s"),
        ("copies", f"{plan.topics} topics, {plan.partitions} partitions"),
        (
            "sample",
            f"{plan.sample_messages:,} messages, {_size(plan.sample_bytes)}; {plan.skipped:,} read and left out",
        ),
        ("the sample is", LAPS[plan.laps]),
        ("trigger", trigger),
        ("disk", f"{_size(plan.disk_bytes_max)} at most at a time: Kafka, table and state; deleted after each stage"),
        ("scratch folder", plan.scratch),
    ]


def list_stage_rows(result: LoadTestResult) -> Iterator[tuple[object, ...]]:
    """One row a stage, as `STAGE_COLUMNS`."""
    for stage in result.stages:
        cpu_seconds = stage.cpu_seconds_per_million_messages
        yield (
            stage.label,
            f"{stage.load.sent_per_second:,.0f}",
            f"{stage.load.committed_per_second:,.0f}",
            "yes" if stage.load.is_sustained else "no",
            f"{stage.lag_messages:,}",
            _seconds(stage.drain_seconds) or "no",
            _seconds(stage.latency_p50_seconds),
            _seconds(stage.latency_p99_seconds),
            f"{stage.usage.cores:.2f}",
            None if cpu_seconds is None else f"{cpu_seconds:.1f}",
            _size(stage.usage.memory_bytes_max),
            _seconds(stage.batches.seconds_median),
            stage.files,
            _size(stage.file_bytes_median),
            _size(stage.batches.state_bytes),
            stage.proof,
        )


def write_load_report(result: LoadTestResult, path: Path) -> None:
    """Write the page: one file without anything to fetch."""
    path.write_text(render_page(make_page(result)), encoding="utf-8")


def make_page(result: LoadTestResult) -> Page:
    """The page."""
    sustained = all(stage.load.is_sustained for stage in result.stages) and not result.failure
    plan = result.plan
    return Page(
        title=f"Load test of {plan.stream}",
        verdict=result.sustainable.sentence,
        is_good=sustained,
        facts=tuple(Fact(name, str(value)) for name, value in list_plan_facts(plan)),
        sections=(
            Section("Stages", tables=(_stage_table(result),), note="; ".join(_list_failures(result))),
            Section("Messages sent and not committed", charts=(_draw_backlog(result.stages),)),
            Section("Event to visible in Delta", charts=(_draw_latency(result.stages),)),
            Section("CPU", charts=(_draw_cores(result),), note=f"This machine has {result.cores} cores."),
            Section("Limits", tables=(_limit_table(result),)),
            Section("Scope and limits of this test", note=_SHOWS),
        ),
    )


_SHOWS = (
    "The same declaration read copies of real messages, with their keys, sizes and order within each session, from as "
    "many partitions, into separate tables on the same disk; lockstep verify read all of them again. Broker, "
    "producer and stream shared this machine. Not shown: compressed topics and open transactions, growth of state over "
    "days, compaction and other readers, bursts within a second, a network between broker and stream."
)


def _list_failures(result: LoadTestResult) -> Iterator[str]:
    """What ended stages, and the test."""
    yield from (f"{stage.label}: {stage.failure}" for stage in result.stages if stage.failure)
    if result.failure:
        yield result.failure


def _stage_table(result: LoadTestResult) -> TableOf:
    rows = [tuple(map(_text, row)) for row in list_stage_rows(result)]
    return _turn(TableOf(STAGE_COLUMNS, rows))


def _turn(table: TableOf) -> TableOf:
    """Columns as rows: a stage is a column, so that the page fits a phone."""
    names, *figures = zip(table.columns, *table.rows, strict=True)
    return TableOf(names, figures)


def _limit_table(result: LoadTestResult) -> TableOf:
    columns = (
        "rate",
        "limit",
        "tasks",
        "driver and JVM",
        "producer",
        "machine",
        "commit",
        "hottest partition",
        "full batches",
    )
    rows = tuple(
        (
            stage.label,
            find_limit(stage.load).value,
            f"{stage.load.task_cores:.2f} of {stage.load.task_slots} cores",
            f"{stage.load.driver_cores:.2f} cores",
            f"{stage.load.producer_cores:.2f} cores",
            f"{stage.load.machine_share:.0%} of its CPU",
            f"{stage.load.commit_share:.0%} of batch time",
            f"{stage.load.hottest_share:.0%} of task CPU",
            f"{stage.load.full_batches_share:.0%}",
        )
        for stage in result.stages
    )
    return _turn(TableOf(columns, rows))


def _draw_backlog(stages: Sequence[StageResult]) -> str:
    lines: list[Line] = []
    for stage in stages:
        points = tuple((seconds, float(lag)) for seconds, lag in stage.backlog)
        lines.append(Line(stage.label, points))
    return draw_lines(lines, x_label="seconds since the first message", y_label="messages")


def _draw_latency(stages: Sequence[StageResult]) -> str:
    bars: list[Bar] = []
    for stage in stages:
        latencies = (("p50", stage.latency_p50_seconds), ("p99", stage.latency_p99_seconds))
        bars += [
            Bar(f"{stage.label} {name}", value, f"{value:.2f} s") for name, value in latencies if value is not None
        ]
    return draw_bars(bars, "seconds")


def _draw_cores(result: LoadTestResult) -> str:
    bars: list[Bar] = []
    for stage in result.stages:
        bars += [Bar(f"{stage.label} {name}", cores, f"{cores:.2f}") for name, cores in _list_cores(stage)]
    return draw_bars(bars, "cores")


def _list_cores(stage: StageResult) -> Iterator[tuple[str, float]]:
    names = {WORKERS: "tasks", DRIVER: "driver", JVM: "JVM"}
    for role, name in names.items():
        yield name, stage.usage.cpu_seconds[role] / stage.usage.wall_seconds
    yield "producer of the test", stage.load.producer_cores
    yield "whole machine", stage.machine_cores


def _text(cell: object) -> str:
    return "-" if cell is None else str(cell)


def _seconds(value: float | None) -> str | None:
    return None if value is None else f"{value:.2f} s"


def _size(size: int) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:,.1f} {unit}"
    return f"{size} B"
