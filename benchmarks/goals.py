"""The table of goals and figures in docs/benchmarks.md: made from the kept results, never by hand."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from rich.table import Table

from benchmarks.record import RESULTS, Figure, Panel, Record, Series
from benchmarks.report import Report

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "benchmarks.md"
FIGURES = ("<!-- figures: `python -m benchmarks plots` writes this -->", "<!-- end of figures -->")
SUMMARY = ("<!-- summary: `python -m benchmarks plots` writes this -->", "<!-- end of summary -->")
ORDER = (
    *("pairs", "main", "peers", "topics", "sessions", "latency", "restart", "state", "startup", "driver"),
    *("live-shape", "partitions", "host"),
    *("strictness", "growth-1s", "growth-5s", "growth-300s", "compaction", "amplification", "quality"),
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


def embed(text: str, document: str, marks: tuple[str, str] = FIGURES) -> str:
    """The document with the text in its marked place."""
    begin, end = marks
    before, _, rest = document.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n\n{text}\n{end}{after}"


def renew(text: str, document: Path = DOCUMENT, results: Path = RESULTS) -> str:
    """The document's text with the summary, the table and the plots of the newest results."""
    found = newest(results)
    text = embed(summarize(found), text, SUMMARY)
    return embed(f"{table(found)}\n{plots(found, document, results)}", text)


def renew_document(document: Path = DOCUMENT, results: Path = RESULTS) -> None:
    """Write the summary, the table and the plots of the newest results into the document."""
    document.write_text(renew(document.read_text(), document, results))


def _row(benchmark: str, figure: Figure) -> str:
    return f"| {benchmark} | {figure.name} | {_measured(figure)} | {_goal(figure)} | {_verdict(figure)} |"


def _measured(figure: Figure) -> str:
    return f"{_shown(figure.value)} {figure.unit}".strip()


def _goal(figure: Figure) -> str:
    return "" if figure.goal is None else f"<= {_shown(figure.goal)}"


def _verdict(figure: Figure) -> str:
    if figure.goal is not None and figure.has_few_rounds:
        return f"not judged: rounds {figure.rounds}"
    return {None: "", True: "met", False: "**missed**"}[figure.is_met]


def _conditions(record: Record) -> str:
    machine = record.hardware
    named = ", ".join(f"{name} {record.versions[name]}" for name in ("python", "pyspark", "deltalake", "librdkafka"))
    where = f"{record.date}, {machine.cores} cores {machine.processor}, {machine.memory_gb:g} GB"
    return f"| {record.benchmark} | {where} | {record.commit} | {machine.load_average:g} | {named} |"


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"  # noqa: PLR2004  # three digits tell enough
