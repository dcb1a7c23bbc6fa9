"""The summary in docs/benchmarks.md and the page of all figures: made from the kept results, never by hand."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from rich.table import Table

from benchmarks.record import RESULTS, Figure, Panel, Record, Series
from benchmarks.report import Report

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "benchmarks.md"
FIGURES = RESULTS / "README.md"
FIGURES_HEAD = "# Figures\n\nThe newest result of each benchmark of [docs/benchmarks.md](../../docs/benchmarks.md).\n"
SUMMARY = ("<!-- summary: `python -m benchmarks plots` writes this -->", "<!-- end of summary -->")
ORDER = (
    *("pairs", "main", "peers", "topics", "sessions", "latency", "restart", "state", "startup", "driver"),
    *("live-shape", "partitions", "host"),
    *("strictness", "growth-1s", "growth-5s", "growth-300s", "compaction", "amplification", "quality"),
)
UNIT = "(unit)"
GRIDS: Mapping[str, Sequence[tuple[str, str, str]]] = {
    "peers": (
        (r"([\w -]+), without start-up", r"\1", f"without start-up, {UNIT}"),
        (r"([\w -]+): (peak memory|start-up)", r"\1", rf"\2, {UNIT}"),
        (r"(lockstep|ready fold) to ([\w-]+), median of the pairs", r"\2", r"\1 to it"),
        (r"(lockstep|ready fold) to ([\w-]+), quartiles of the pairs apart", r"\2", r"\1 to it, quartiles apart"),
    ),
    "topics": ((r"([\d,]+ topics)", r"\1", UNIT), (r"([\d,]+ topics),? (.+)", r"\1", r"\2")),
    "sessions": ((r"([\d,]+ sessions)", r"\1", UNIT), (r"([\d,]+ sessions),? (.+)", r"\1", r"\2")),
    "latency": ((r"(trigger [\d.]+ s): (.+)", r"\2", r"\1"),),
    "live-shape": ((r"(.+?: (?:by hand, )?\w+)(?:, |: )(.+)", r"\1", rf"\2, {UNIT}"),),
    **{f"growth-{trigger}s": ((r"(.+), (days? [\d ]+(?:to .+)?)", r"\1", r"\2"),) for trigger in (1, 5, 300)},
    "compaction": (
        (r"(.*(?:lockstep|delta-rs optimize|Spark OPTIMIZE)), without start-up", r"\1", UNIT),
        (r"(.*(?:lockstep|delta-rs optimize|Spark OPTIMIZE)): (.+)", r"\1", r"\2"),
    ),
}
"""Figures that the document shows as a grid: (pattern of the name, row, column) of each benchmark.

A column with `UNIT` has one unit; its cells are plain numbers.
"""
CPU_MAX, RATE_MIN, RATIO_MAX = 4.5, 350_000, 1.25


def newest(folder: Path) -> list[Record]:
    """The newest record of each benchmark in a folder, in the order of the document."""
    found: dict[str, Record] = {}
    for path in sorted(folder.glob("*.json")):
        record = load(path)
        found[record.benchmark] = record
    return [found[name] for name in ORDER if name in found]


def load(path: Path) -> Record:
    """Load a kept result; that of the main comparison is a `Report`."""
    content = path.read_bytes()
    if "benchmark" in msgspec.json.decode(content, type=dict[str, msgspec.Raw]):
        return msgspec.json.decode(content, type=Record)
    return record_of(msgspec.json.decode(content, type=Report))


def record_of(report: Report) -> Record:
    """The main comparison as a record like the others."""
    size, smoke = report.size, report.smoke
    first, *others = report.results
    settings: dict[str, object] = {"messages": size.messages, "batch_messages": report.batch_messages}
    figures = []
    for result in others:
        steady, base = result.steady_per_million(size, smoke), first.steady_per_million(size, smoke)
        if steady is None or base is None:
            continue
        per_second = result.messages_per_second(size)
        rounds = len(result.runs)
        figures += [
            Figure(f"{result.system} to {first.system} loop, without start-up", steady / base, "", RATIO_MAX, rounds),
            Figure(f"{result.system}, without start-up", steady, "CPU s per million messages", CPU_MAX, rounds),
            Figure("time of a message, start-up included", 1e6 / per_second, "us", round(1e6 / RATE_MIN, 2), rounds),
            Figure("start-up", result.start_up_cpu_seconds, "CPU s"),
        ]
    cost = [result.steady_per_million(size, smoke) or 0.0 for result in report.results]
    bars = Series("CPU", cost, labels=[result.system for result in report.results])
    panel = Panel(
        kind="bars",
        title=f"{size.messages:,} messages, without start-up",
        x_label="system",
        y_label="CPU s per million messages",
        series=[bars],
    )
    return Record(
        benchmark=size.name,
        date=report.date,
        commit=report.commit,
        versions=report.versions,
        hardware=report.hardware,
        settings=settings,
        figures=figures,
        panels=[panel],
    )


def shown(record: Record) -> Table:
    """The figures of one record, for the terminal."""
    found = Table("figure", "measured", "goal", "", title=record.benchmark)
    for figure in record.figures:
        found.add_row(figure.name, _measured(figure), _goal(figure), _verdict(figure).strip("*"))
    return found


def make_figures(results: Path = RESULTS) -> str:
    """The page of all figures: a paragraph with the conditions, the figures and the plot of each benchmark."""
    records = newest(results)
    versions = {_versions(record) for record in records}
    parts = [FIGURES_HEAD]
    if len(versions) == 1:
        parts.append(f"Versions of all: {versions.pop()}.\n")
    for record in records:
        of_versions = f"; {_versions(record)}" if versions else ""
        parts.append(f"**{record.benchmark}**, {_conditions(record)}{of_versions}\n")
        parts.append(table(record))
        title = record.panels[0].title if record.panels else record.benchmark
        parts.append(f"![{title}]({record.file_name}.svg)\n")
    return "\n".join(parts)


def table(record: Record) -> str:
    """The figures of a record in Markdown: those with a common row as a grid, the others as a list."""
    placed = [(figure, _place(record.benchmark, figure)) for figure in record.figures]
    sizes = Counter(place.column for _, place in placed if place)
    grid: dict[str, dict[str, Figure]] = {}
    single: list[Figure] = []
    for figure, place in placed:
        if place and sizes[place.column] > 1:
            grid.setdefault(place.row, {})[place.column] = figure
        else:
            single.append(figure)
    lines = _list(single) if single else []
    if grid:
        columns = [column for column, size in sizes.items() if size > 1]
        lines += ["", *_grid(grid, columns)] if lines else _grid(grid, columns)
    return "\n".join(lines) + "\n"


class _Place(NamedTuple):
    row: str
    column: str


def _place(benchmark: str, figure: Figure) -> _Place | None:
    """Row and column of a figure in the grid of its benchmark; None for a figure of the list."""
    for pattern, row, column in GRIDS.get(benchmark, ()):
        match = re.fullmatch(pattern, figure.name)
        if match:
            name = match.expand(column)
            return _Place(match.expand(row), name.replace(UNIT, figure.unit).strip(", "))
    return None


def _list(figures: Iterable[Figure]) -> list[str]:
    rows = [f"| {figure.name} | {_measured(figure)} | {_judged(figure)} |" for figure in figures]
    return ["| figure | measured | goal |", "|---|---:|---|", *rows]


def _grid(rows: Mapping[str, Mapping[str, Figure]], columns: Sequence[str]) -> list[str]:
    goals = {column: _common_goal(rows, column) for column in columns}
    heads = [f"{column} ({goal})" if goal else column for column, goal in goals.items()]
    lines = [f"| | {' | '.join(heads)} |", f"|---|{'---:|' * len(heads)}"]
    for row, figures in rows.items():
        cells = [_cell(figures[column], column, goals[column]) if column in figures else "" for column in columns]
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return lines


def _common_goal(rows: Mapping[str, Mapping[str, Figure]], column: str) -> str:
    """Goal and verdict of a column whose figures all have the same ones; empty for others."""
    judged = {_judged(figures[column]) for figures in rows.values() if column in figures}
    return judged.pop() if len(judged) == 1 else ""


def _cell(figure: Figure, column: str, goal_of_all: str) -> str:
    value = format_number(figure.value) if figure.unit and column.endswith(figure.unit) else _measured(figure)
    return value if goal_of_all or figure.goal is None else f"{value} ({_judged(figure)})"


def summarize(records: Iterable[Record]) -> str:
    """The figures that a reader asks for first, as a table in Markdown; those that were not measured are left out."""
    found = {(record.benchmark, figure.name): figure for record in records for figure in record.figures}
    lines = ["| question | result | goal | |", "|---|---|---|---|"]
    for question, named in QUESTIONS:
        asked = [(label, found[at]) for label, at in named if at in found]
        if asked:
            results = "; ".join(f"{label} {_measured(figure)}".strip() for label, figure in asked)
            goals, verdicts = (dict.fromkeys(map(each, (figure for _, figure in asked))) for each in (_goal, _verdict))
            lines.append(f"| {question} | {results} | {', '.join(goals)} | {'; '.join(verdicts)} |")
    return "\n".join(lines) + "\n"


def _of_peer(question: str, peer: str) -> tuple[str, list[tuple[str, tuple[str, str]]]]:
    folds = (("", "lockstep"), ("as a `ColumnFold`", "ready fold"))
    return question, [(label, ("peers", f"{fold} to {peer}, median of the pairs")) for label, fold in folds]


_LIVE = "trigger 0.25 s: "
QUESTIONS: Sequence[tuple[str, Sequence[tuple[str, tuple[str, str]]]]] = (
    _of_peer("CPU time of lockstep to Flink with heap state, same messages", "flink-heap"),
    _of_peer("to Flink with RocksDB state", "flink-rocksdb"),
    _of_peer("to Kafka Streams", "kafka-streams"),
    _of_peer("to PySpark's own stateful operator", "pyspark"),
    _of_peer("to Quix Streams", "quix"),
    _of_peer("to Bytewax", "bytewax"),
    (
        "CPU time of lockstep to a hand-written loop without any promise, in pairs",
        [
            ("", ("pairs", "lockstep to bare loops, median of 20 pairs")),
            ("as a `ColumnFold`, one after the other", ("peers", "ready fold to bare, median of the pairs")),
        ],
    ),
    (
        "event to visible in Delta at 10,000 messages/s, trigger 0.25 s",
        [
            ("p50", ("latency", f"{_LIVE}event to visible, p50")),
            ("p99", ("latency", f"{_LIVE}event to visible, p99")),
            ("load", ("latency", f"{_LIVE}load")),
        ],
    ),
    (
        "`kill -9` to the first batch, 1 M rows of state",
        [
            ("", ("restart", "kill -9 to first batch, local copy kept")),
            ("local store lost", ("restart", "kill -9 to first batch, local copy lost")),
        ],
    ),
    (
        "the same with 10 GB of state",
        [
            ("", ("state", "restart to first batch, local copy kept")),
            ("local store lost", ("state", "restart to first batch, local copy lost")),
        ],
    ),
    (
        "planned handover, last to first batch, median",
        [("", ("restart", "handover: from last to first batch, median"))],
    ),
    ("start-up: to the first commit", [("", ("startup", "start to first commit"))]),
    (
        "1,000,000 sessions to 1,000, CPU time of a message",
        [("", ("sessions", "1,000,000 sessions to 1,000"))],
    ),
)
"""What a reader asks first: (question, [(label, (benchmark, figure))])."""


def embed(text: str, document: str) -> str:
    """The document with the text as its summary."""
    begin, end = SUMMARY
    before, _, rest = document.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n\n{text}\n{end}{after}"


def renew_pages(document: Path = DOCUMENT, results: Path = RESULTS) -> None:
    """Write the summary of the newest results into the document, and the page of their figures."""
    document.write_text(embed(summarize(newest(results)), document.read_text()))
    (results / FIGURES.name).write_text(make_figures(results))


def _measured(figure: Figure) -> str:
    return f"{format_number(figure.value)} {figure.unit}".strip()


def _goal(figure: Figure) -> str:
    return "" if figure.goal is None else f"<= {format_number(figure.goal)}"


def _verdict(figure: Figure) -> str:
    if figure.goal is not None and figure.has_few_rounds:
        return f"not judged: rounds {figure.rounds}"
    return {None: "", True: "met", False: "**missed**"}[figure.is_met]


def _judged(figure: Figure) -> str:
    return f"{_goal(figure)}, {_verdict(figure)}" if figure.goal is not None else ""


def _conditions(record: Record) -> str:
    machine = record.hardware
    load = f"load {machine.load_average:g} before"
    hardware = f"{machine.cores} cores {machine.processor}, {machine.memory_gb:g} GB"
    return f"{record.date}, commit {record.commit}, {hardware}, {load}"


def _versions(record: Record) -> str:
    names = ("python", "pyspark", "deltalake", "librdkafka")
    return ", ".join(f"{name} {record.versions[name]}" for name in names)


def format_number(value: float) -> str:
    """A value as the document shows it."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"  # noqa: PLR2004  # three digits tell enough
