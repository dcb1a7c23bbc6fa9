"""The report: one self-contained page with the verdict, the equation, and the places where a rule is violated."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from lockstep.features.quality.check import (
    Checked,
    CheckHistoryEntry,
    Coverage,
    LastCheck,
    keep_result,
    make_result_path,
)
from lockstep.features.quality.increment import find_matching_versions
from lockstep.features.quality.report import QualityReport, build_report, write_report
from lockstep.features.quality.rules import PartitionSummary, RuleOutcome, RuleResult
from lockstep.html_page import LETTER_WIDTH, WIDTH, Bar, Line, draw_bars, draw_lines
from lockstep.rules import Severity
from lockstep.storage import find_storage
from tests.features.quality.stream_tables import clean_batches, write

if TYPE_CHECKING:
    from pathlib import Path

COUNTED: dict[str, int] = {
    **dict.fromkeys(("offsets_read", "messages", "rows"), 1_010),
    "offsets_read": 1_012,
    "holes": 2,
    "messages_with_rows": 990,
    "quarantined": 5,
    "skipped": 12,
    "unexplained_messages": 3,
}
SUMMARY = msgspec.convert(
    {name: COUNTED.get(name, 0) for name in PartitionSummary.__struct_fields__ if not name.endswith("_time_us")}
    | {"topic_id": "id", "topic": "sensors.a", "violations": {}, "reached": 1_012}
    | {"first_event_time_us": None, "last_event_time_us": None},
    PartitionSummary,
)
RESULTS = (
    RuleResult(
        rule="completeness",
        sentence="Nothing is missing.",
        outcome=RuleOutcome.FAILED,
        observed=3,
        worst=({"topic": "sensors.a", "partition": 0, "unexplained_messages": 3},),
    ),
    RuleResult(
        rule="value_in_range",
        sentence="value is at least <0>.",
        outcome=RuleOutcome.FAILED,
        observed=1,
        severity=Severity.WARNING,
        rows=1_500,
        sample=({"topic": "sensors.a", "partition": 0, "offset": 131},),
    ),
    RuleResult(rule="sequence", sentence="Numbers rise.", outcome=RuleOutcome.PASSED, observed=0),
    RuleResult(rule="wrong_sql", sentence="Nobody knows.", outcome=RuleOutcome.CRASHED, observed=None, reason="no SQL"),
    RuleResult(rule="idle", sentence="All is well.", outcome=RuleOutcome.NOTHING_NEW, observed=0),
)


def stored(root: Path, results: tuple[RuleResult, ...] = RESULTS) -> QualityReport:
    """Return the report of a stream whose last check had these results."""
    folders = write(root, clean_batches(2))
    checked = Checked(
        stream=folders.stream,
        versions=find_matching_versions(folders),
        coverage=Coverage(full=False, reason="", since=3, files=6, rows=198, size=9_000),
        partitions=(SUMMARY,),
        results=results,
    )
    outcomes = {result.rule: result.outcome for result in results}
    history = tuple(
        CheckHistoryEntry(1.7e9 + 3600 * hour, hour, hour == 0, 198, outcomes, hour * 7 % 11, hour * 3.0)
        for hour in range(30)
    )
    path = make_result_path(folders)
    find_storage(path).replace(path, msgspec.json.encode(LastCheck(checked, history)))
    return write_report(folders)


def test_the_page_shows_the_verdict_the_equation_and_each_rule(tmp_path: Path) -> None:
    report = stored(tmp_path)
    page = report.file.read_text()
    assert report.verdict == (
        "2 of 5 rules violated: completeness, value_in_range. Not judged, the check crashed: wrong_sql."
    )
    assert report.verdict in page
    assert not report.holds
    text = re.sub(r"<[^>]+>", "|", page)
    assert "offsets read||1,012" in text
    assert "= messages||1,010" in text
    assert "unexplained||3" in text
    assert "value is at least &lt;0&gt;." in page
    for shown in ("Where completeness is violated", "sensors.a", "131", "check crashed", "nothing new", "Growth"):
        assert shown in page
    assert page.count("<svg") == 2  # lag and freshness
    assert re.search(r"""(src|href)=|url\(|@import|<script|https?:""", page) is None  # nothing is fetched


def test_a_stream_that_was_never_checked_says_so(tmp_path: Path) -> None:
    report = write_report(write(tmp_path, clean_batches(1)))
    assert (report.verdict, report.holds) == ("Nothing was checked yet.", False)
    assert "lockstep check sensors" in report.file.read_text()


def test_a_stream_whose_rules_hold_is_good(tmp_path: Path) -> None:
    report = stored(tmp_path, tuple(result for result in RESULTS if result.rule in {"sequence", "idle"}))
    assert (report.verdict, report.holds) == ("1 of 2 rules hold; 1 had nothing to check.", True)


def test_names_and_values_of_others_are_text_of_the_page_and_nothing_else(tmp_path: Path) -> None:
    hostile = "<script>'\x00\u202e{{ 7 * 7 }}"
    failed = RuleResult(
        rule="value_in_range",
        sentence=hostile,
        outcome=RuleOutcome.FAILED,
        observed=1,
        worst=({"topic": hostile, "rows": 1},),
        sample=({"session": hostile, "offset": 131},),
        reason=hostile,
    )
    page = stored(tmp_path, (failed,)).file.read_text()
    assert page.count("&lt;script&gt;&#39;\\x00\\u202e{{ 7 * 7 }}") == 5
    assert "<script" not in page
    assert all(each.isprintable() or each == "\n" for each in page)
    chart = draw_bars([Bar(hostile, 1, hostile)], hostile)
    assert chart.count("&lt;script&gt;&#x27;\\x00\\u202e") == 3


def test_a_message_from_the_future_is_no_younger_than_now(tmp_path: Path) -> None:
    batches = clean_batches(1)
    future = datetime(2200, 1, 1, tzinfo=UTC)
    for part in batches[0].values():
        part.change_ledger(newest_timestamp=future)
    folders = write(tmp_path, batches)
    coverage = Coverage(full=True, reason="", since=None, files=3, rows=99, size=9_000)
    versions = find_matching_versions(folders)
    checked = Checked(stream=folders.stream, versions=versions, coverage=coverage, partitions=(), results=())
    keep_result(folders, checked, ())
    assert [point.freshness_seconds for point in build_report(folders).history] == [0]


def test_the_ticks_of_small_values_differ() -> None:
    chart = draw_lines([Line("lag", [(0, 0), (0.003, 1)])], x_label="hours", y_label="messages")
    ticks = re.findall(r">([\d.]+)</text>", chart)
    assert ticks == [text for pair in zip(Y_TICKS, X_TICKS, strict=True) for text in pair]


Y_TICKS = ["0", "0.25", "0.5", "0.75", "1"]
X_TICKS = ["0", "0.0008", "0.0016", "0.0024", "0.0032"]


def test_a_chart_of_many_lines_shows_each_name_within_its_width() -> None:
    names = [f"stream_with_a_long_name_{number}" for number in range(9)]
    chart = draw_lines([Line(name, [(0, 0), (1, 1)]) for name in names], x_label="seconds", y_label="messages")
    starts = [float(start) for start in re.findall(r'<text x="([0-9.]+)" y="[0-9]+">stream_', chart)]
    assert len(starts) == len(names)
    assert max(starts) + LETTER_WIDTH * len(names[0]) <= WIDTH
