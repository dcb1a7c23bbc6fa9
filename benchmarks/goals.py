"""The table of goals and figures in docs/benchmarks.md: made from the kept results, never by hand."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec
from rich.table import Table

from benchmarks.record import RESULTS, Figure, Panel, Record, Series
from benchmarks.report import Report

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "benchmarks.md"
BEGIN, END = "<!-- figures: `python -m benchmarks plots` writes this -->", "<!-- end of figures -->"
ORDER = (
    *("pairs", "main", "peers", "topics", "sessions", "latency", "restart", "state", "startup", "driver"),
    *("growth-1s", "growth-5s", "growth-300s", "compaction", "amplification", "quality"),
)
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
        figures += [
            Figure(f"{result.system} to {first.system} loop, without start-up", steady / base, "", RATIO_MAX),
            Figure(f"{result.system}, without start-up", steady, "CPU s per million messages", CPU_MAX),
            Figure("time of a message, start-up included", 1e6 / per_second, "us", round(1e6 / RATE_MIN, 2)),
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
        goal = "" if figure.goal is None else f"<= {_shown(figure.goal)}"
        verdict = {None: "", True: "met", False: "missed"}[figure.is_met]
        found.add_row(figure.name, f"{_shown(figure.value)} {figure.unit}", goal, verdict)
    return found


def table(records: Iterable[Record]) -> str:
    """All figures as a table in Markdown, and the conditions under which they were measured."""
    lines = ["| benchmark | figure | measured | goal | |", "|---|---|---:|---:|---|"]
    lines += [_row(record.benchmark, figure) for record in records for figure in record.figures]
    lines += [
        "",
        "| benchmark | measured on | commit | load of the machine before | versions |",
        "|---|---|---|---:|---|",
    ]
    lines += [_conditions(record) for record in records]
    return "\n".join(lines) + "\n"


def plots(records: Iterable[Record], document: Path = DOCUMENT, results: Path = RESULTS) -> str:
    """All plots as images in Markdown, each with its titles."""
    folder = Path(os.path.relpath(results, document.parent)).as_posix()
    shown = (f"![{'; '.join(p.title for p in each.panels)}]({folder}/{each.file_name}.svg)" for each in records)
    return "\n\n".join(shown) + "\n"


def embed(text: str, document: str) -> str:
    """The document with the text in its marked place."""
    before, _, rest = document.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{text}\n{END}{after}"


def renew_document(document: Path = DOCUMENT, results: Path = RESULTS) -> None:
    """Write the table and the plots of the newest results into the document."""
    found = newest(results)
    document.write_text(embed(f"{table(found)}\n{plots(found, document, results)}", document.read_text()))


def _row(benchmark: str, figure: Figure) -> str:
    goal = "" if figure.goal is None else f"<= {_shown(figure.goal)}"
    verdict = {None: "", True: "met", False: "**missed**"}[figure.is_met]
    unit = f" {figure.unit}" if figure.unit else ""
    return f"| {benchmark} | {figure.name} | {_shown(figure.value)}{unit} | {goal} | {verdict} |"


def _conditions(record: Record) -> str:
    machine = record.hardware
    named = ", ".join(f"{name} {record.versions[name]}" for name in ("python", "pyspark", "deltalake", "librdkafka"))
    where = f"{record.date}, {machine.cores} cores {machine.processor}, {machine.memory_gb:g} GB"
    return f"| {record.benchmark} | {where} | {record.commit} | {machine.load_average:g} | {named} |"


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"  # noqa: PLR2004  # three digits tell enough
