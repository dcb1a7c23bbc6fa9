"""The report of a stream's quality: one page for people, of the stored results of the last check and housekeeping."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from rich.filesize import decimal

from lockstep.features.quality.check import Checked, CheckHistoryEntry, read_last_check
from lockstep.features.quality.rules import PartitionSummary, RuleOutcome, RuleResult
from lockstep.html_page import Bar, Fact, Line, Page, Section, TableOf, draw_bars, draw_lines, render_page
from lockstep.operations.alarms import CompactionDebt
from lockstep.operations.durations import format_count, format_duration
from lockstep.operations.growth import DiskGrowth, read_growth
from lockstep.operations.inspect.health import read_debt
from lockstep.operations.quarantine import QuarantineFilter, list_quarantine
from lockstep.operations.stream_table import open_table
from lockstep.storage import find_storage
from lockstep.table.layout import StreamFolders
from lockstep.table.live_files import TARGET_BYTES

REPORT_FILE = "report.html"
MARKS = {
    RuleOutcome.PASSED: "\u2713",
    RuleOutcome.FAILED: "\u2717",
    RuleOutcome.CRASHED: "!",
    RuleOutcome.NOTHING: "\u00b7",
    RuleOutcome.NOTHING_NEW: "\u00b7",
}
"""Outcomes in the history of a rule, a character each."""
MARKS_MAX = 16
_LEGEND = (
    "Last checks, the newest at the end: \u2713 passed, \u2717 failed, ! the check crashed, \u00b7 nothing to check."
)


class Term(msgspec.Struct, frozen=True):
    """A term of an equation: its name and value."""

    name: str
    value: int


class Equation(msgspec.Struct, frozen=True):
    """The messages that were read, and their outcomes.

    Attributes:
        total: The messages that were read.
        parts: Its parts.
        unexplained: The unexplained rest, summed without the sign batch by batch.
    """

    total: Term
    parts: tuple[Term, ...]
    unexplained: int


class QualityReport(msgspec.Struct, frozen=True, kw_only=True):
    """The quality of a stream, as of its last check.

    Attributes:
        stream: Name of the stream.
        verdict: The result in one sentence.
        holds: Every rule that was judged holds, and there was one.
        file: The page.
        checked: The last check; None before the first.
        completeness: Of offsets, then of messages.
        history: The checks so far, the newest last.
        quarantine: Messages in quarantine by cause, the most first.
        debt: Closed hours that wait for compaction.
        growth: Files and bytes, as of the last housekeeping.
    """

    stream: str
    verdict: str
    holds: bool
    file: Path
    checked: Checked | None
    completeness: tuple[Equation, ...]
    history: tuple[CheckHistoryEntry, ...]
    quarantine: tuple[Term, ...]
    debt: CompactionDebt
    growth: DiskGrowth | None


def make_report_path(folders: StreamFolders) -> Path:
    """The file of the page."""
    return folders.quality / REPORT_FILE


def write_report(folders: StreamFolders, *, target_bytes: int = TARGET_BYTES) -> QualityReport:
    """Write the page of a stream: one file that fetches nothing.

    Raises:
        NoTable: The stream has never run.
    """
    erasure = open_table(folders).base().head.erasure
    report = build_report(folders, target_bytes=target_bytes)
    find_storage(report.file).replace(report.file, render_page(make_quality_page(report)).encode())
    # The page may show rows of a session that was erased meanwhile.
    if open_table(folders).base().head.erasure != erasure:
        find_storage(report.file).delete(report.file)
        return write_report(folders, target_bytes=target_bytes)
    return report


def build_report(folders: StreamFolders, *, target_bytes: int = TARGET_BYTES) -> QualityReport:
    """Collect the stored facts about a stream; needs neither Spark nor Kafka.

    Raises:
        NoTable: The stream has never run.
    """
    head = open_table(folders).base().head
    last = read_last_check(folders)
    causes = Counter[str]()
    for group in list_quarantine(folders, QuarantineFilter()).groups:
        causes[group.cause] += group.messages
    checked = None
    history: tuple[CheckHistoryEntry, ...] = ()
    completeness: tuple[Equation, ...] = ()
    if last is not None:
        checked = last.checked
        history = last.history
        completeness = compute_equations(last.checked.partitions)
    verdict, holds = judge_results(checked.results if checked else ())
    return QualityReport(
        stream=folders.stream,
        verdict=verdict,
        holds=holds,
        file=make_report_path(folders),
        checked=checked,
        completeness=completeness,
        history=history,
        quarantine=tuple(Term(cause, messages) for cause, messages in causes.most_common()),
        debt=read_debt(folders, head, time.time(), target_bytes),
        growth=read_growth(folders),
    )


def judge_results(results: Sequence[RuleResult]) -> tuple[str, bool]:
    """The verdict in one sentence, and whether it is a good one."""
    crashed = [result.rule for result in results if result.crashed]
    failed = [result.rule for result in results if result.outcome is RuleOutcome.FAILED]
    passed = sum(result.passed for result in results)
    sentences: list[str] = []
    if failed:
        sentences.append(f"{len(failed)} of {len(results)} rules violated: {', '.join(failed)}.")
    if crashed:
        sentences.append(f"Not judged, the check crashed: {', '.join(crashed)}.")
    if sentences:
        return " ".join(sentences), False
    if not passed:
        return "Nothing was checked yet.", False
    if passed == len(results):
        return f"{passed} of {len(results)} rules hold.", True
    return f"{passed} of {len(results)} rules hold; {len(results) - passed} had nothing to check.", True


def compute_equations(places: Sequence[PartitionSummary]) -> tuple[Equation, ...]:
    """Completeness of offsets and of messages, over all partitions."""

    def add(*names: str) -> int:
        total = 0
        for place in places:
            total += sum(getattr(place, name) for name in names)
        return total

    offsets = Equation(
        Term("offsets read", add("offsets_read")),
        (
            Term("messages", add("messages")),
            Term("offsets without a message", add("holes")),
            Term("losses accepted by an operator", add("accepted_losses")),
        ),
        add("unexplained_offsets", "gap_offsets", "overlap_offsets"),
    )
    messages = Equation(
        Term("messages read or released", add("messages", "released")),
        (
            Term("with rows", add("messages_with_rows")),
            Term("accepted without a row", add("accepted_without_row")),
            Term("skipped", add("skipped")),
            Term("dropped by the rule of the class", add("dropped")),
            Term("in quarantine", add("quarantined")),
            Term("late", add("late")),
            Term("buffered for later", add("buffered")),
        ),
        add("unexplained_messages"),
    )
    return offsets, messages


def make_quality_page(report: QualityReport) -> Page:
    """The page."""
    sections = [section for section in _list_sections(report) if section.tables or section.charts or section.note]
    return Page(
        title=f"Quality of {report.stream}",
        verdict=report.verdict,
        is_good=report.holds,
        facts=tuple(_list_facts(report)),
        sections=tuple(sections),
    )


def _list_facts(report: QualityReport) -> Iterator[Fact]:
    if report.checked is None or not report.history:
        yield Fact("next", f"lockstep check {report.stream}")
        return
    last = report.history[-1]
    yield Fact("checked at", f"{datetime.fromtimestamp(last.at, UTC):%Y-%m-%d %H:%M} UTC")
    yield Fact("table", f"version {report.checked.versions.table}, {report.checked.rows:,} rows")
    yield Fact("read by this check", report.checked.coverage.describe())
    percent = report.checked.completeness_percent
    yield Fact("completeness", "no offset was read yet" if percent is None else f"{percent} %")
    yield Fact("lag at the last batch", f"{last.lag_messages:,} messages")
    if last.freshness_seconds is not None:
        yield Fact("age of the newest message at its commit", format_duration(last.freshness_seconds) or "")


def _list_sections(report: QualityReport) -> Iterator[Section]:
    tables = tuple(map(_make_equation, report.completeness))
    yield Section("Completeness", tables, note=" ".join(map(_describe_equation, report.completeness)))
    results = report.checked.results if report.checked else ()
    if results:
        yield Section("Rules", (_make_rules(results, report.history),), note=_LEGEND)
    for result in results:
        if result.worst or result.sample:
            yield _make_violations(result)
    if report.quarantine:
        bars = [Bar(term.name, term.value, f"{term.value:,}") for term in report.quarantine]
        yield Section("Quarantine by cause", charts=(draw_bars(bars, "messages"),))
    yield Section("Lag and freshness, check by check", charts=tuple(_draw_history(report.history)))
    debt = report.debt
    waiting = "No closed hour waits for compaction"
    if debt.hours:
        waiting = f"{debt.files:,} small files of {format_count(debt.hours, 'closed hour')} wait for compaction"
    if report.growth is None:
        yield Section("Growth", note=f"{waiting}.")
    else:
        measured = f"Measured at {report.growth.measured_at:%Y-%m-%d %H:%M} UTC."
        yield Section("Growth", (_make_growth(report.growth),), note=f"{waiting}. {measured}")


def _make_violations(result: RuleResult) -> Section:
    places = tuple(_make_table(rows) for rows in (result.worst, result.sample) if rows)
    note = f"{result.sentence.rstrip('.')}."
    if len(places) > 1:
        note += " The worst partitions, then the first rows."
    return Section(f"Where {result.rule} is violated", places, note=note)


def _describe_equation(equation: Equation) -> str:
    """The equation as a sentence, without the terms that are zero."""
    parts = " + ".join(f"{part.value:,} {part.name}" for part in equation.parts if part.value) or "0"
    sentence = f"{equation.total.value:,} {equation.total.name} = {parts}"
    if equation.unexplained:
        sentence += f", with {equation.unexplained:,} unexplained"
    return f"{sentence}."


def _make_equation(equation: Equation) -> TableOf:
    signs = ("=", *("+" for _ in equation.parts[1:]))
    rows = [(f"{sign} {part.name}", f"{part.value:,}") for sign, part in zip(signs, equation.parts, strict=True)]
    rows.append(("unexplained", f"{equation.unexplained:,}"))
    mark = "bad" if equation.unexplained else "good"
    return TableOf((equation.total.name, f"{equation.total.value:,}"), rows, {len(rows) - 1: mark})


def _make_rules(results: Sequence[RuleResult], history: Sequence[CheckHistoryEntry]) -> TableOf:
    shown = history[-MARKS_MAX:]
    rows: list[tuple[str, ...]] = []
    marks: dict[int, str] = {}
    for number, result in enumerate(results):
        outcome = result.outcome.value
        if result.outcome in {RuleOutcome.FAILED, RuleOutcome.CRASHED}:
            # A rule that passes has a severity, too, which would only alarm here.
            outcome = f"{outcome} ({result.severity.value})"
            marks[number] = "bad"
        elif result.outcome is RuleOutcome.PASSED:
            marks[number] = "good"
        violations = "-" if result.observed is None else f"{result.observed:,}"
        # A rule that was declared later has no outcome in the checks before.
        checks = "".join(MARKS[point.outcomes[result.rule]] for point in shown if result.rule in point.outcomes)
        promise = f"{result.sentence} {result.reason}".strip()
        rows.append((result.rule, outcome, violations, checks, promise))
    return TableOf(("rule", "outcome", "violations", "last checks", "promise"), rows, marks)


def _make_table(rows: Sequence[dict[str, int | str | None]]) -> TableOf:
    return TableOf([name.replace("_", " ") for name in rows[0]], list(map(_show_row, rows)))


def _show_row(row: dict[str, int | str | None]) -> list[str]:
    return [_show(name, value) for name, value in row.items()]


def _show(name: str, value: int | str | None) -> str:
    """A cell; an offset stays as a command takes it."""
    if value is None:
        return "-"
    if isinstance(value, int) and not name.endswith("offset"):
        return f"{value:,}"
    return str(value)


def _draw_history(history: Sequence[CheckHistoryEntry]) -> Iterator[str]:
    if len(history) < 2:  # noqa: PLR2004  # a line has two ends
        return
    points = sorted(history, key=lambda point: point.at)
    lag: list[tuple[float, float]] = []
    age: list[tuple[float, float]] = []
    for point in points:
        hours = (point.at - points[0].at) / 3600
        lag.append((hours, float(point.lag_messages)))
        if point.freshness_seconds is not None:
            age.append((hours, point.freshness_seconds))
    for name, line, unit in (("lag", lag, "messages"), ("freshness", age, "seconds")):
        if line:
            yield draw_lines([Line(f"{name}, {unit}", line)], x_label="hours since the first check shown", y_label=unit)


def _make_growth(growth: DiskGrowth) -> TableOf:
    rows: list[tuple[str, ...]] = []
    for files in growth.kinds:
        a_day = "-" if files.bytes_a_day is None else decimal(int(files.bytes_a_day))
        in_30_days = "-" if files.bytes_in_30_days is None else decimal(files.bytes_in_30_days)
        rows.append((files.kind.value, f"{files.files:,}", decimal(files.bytes), a_day, in_30_days))
    return TableOf(("files of", "number", "size", "a day", "in 30 days"), rows)
