"""docs/benchmarks.md and the page of all figures match the stored results."""

from __future__ import annotations

import re
from collections import Counter
from itertools import chain
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.goals import (
    DOCUMENT,
    FIGURES,
    ORDER,
    QUESTIONS,
    embed,
    format_number,
    make_figures,
    newest,
    summarize,
    table,
)
from benchmarks.plots import draw
from benchmarks.record import PAIRED_ROUNDS_MIN, RESULTS, Conditions, Figure, Record
from benchmarks.report import Hardware

VERSIONS = dict.fromkeys(("python", "pyspark", "deltalake", "librdkafka"), "1")
HARDWARE = Hardware(processor="x", cores=2, memory_gb=1.0, kernel="x", load_average=0.0)


def test_summary_and_figures_are_those_of_the_kept_results() -> None:
    document = DOCUMENT.read_text()
    assert embed(summarize(newest(RESULTS)), document) == document
    assert make_figures() == FIGURES.read_text()


def test_every_question_of_the_summary_has_its_figures() -> None:
    found = {(record.benchmark, figure.name) for record in newest(RESULTS) for figure in record.figures}
    assert [at for _, named in QUESTIONS for _, at in named if at not in found] == []


def test_every_benchmark_has_a_result_whose_plot_is_the_one_shown(tmp_path: Path) -> None:
    shown = re.findall(r"!\[[^\]]+\]\(([^)]+\.svg)\)", FIGURES.read_text())
    records = newest(RESULTS)
    assert [record.benchmark for record in records] == [name for name in ORDER if name in shown_names(shown)]
    assert len(records) >= 5
    assert [Path(name).name for name in shown] == [f"{record.file_name}.svg" for record in records]
    for record, name in zip(records, shown, strict=True):
        kept = (FIGURES.parent / name).read_text()
        assert axis_texts(draw(record, tmp_path).read_text()) == axis_texts(kept)


def shown_names(plots_shown: list[str]) -> set[str]:
    return {Path(name).stem.split("-", maxsplit=3)[3] for name in plots_shown}


def axis_texts(svg: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]+)</text>", svg)


@pytest.mark.parametrize(("value", "verdict"), [(0.3, "met"), (0.31, "**missed**")])
def test_a_goal_is_the_most_that_may_be(value: float, verdict: str) -> None:
    found = Conditions.now().record("x", {}, [Figure("p50", value, "s", 0.3)], [], {})
    assert f"| p50 | {value:g} s | <= 0.3, {verdict} |" in table(found)


def test_figures_of_one_row_are_a_grid_and_a_goal_of_a_whole_column_is_named_once() -> None:
    figures = [
        Figure("metadata", 9, "MB"),
        Figure("a start, day 30 to day 2", 0.5, "", 1.2),
        Figure("a start, day 30", 2, "CPU s"),
        Figure("a batch, day 30 to day 2", 1.5, "", 1.6),
        Figure("a batch, day 30", 3, "CPU s"),
    ]
    record = Conditions(date="", commit="", versions=VERSIONS, hardware=HARDWARE).record("growth-5s", {}, [], [], {})
    shown = table(msgspec.structs.replace(record, figures=figures))
    assert "| metadata | 9 MB |  |" in shown
    assert "| | day 30 to day 2 | day 30 |" in shown
    assert "| a batch | 1.5 (<= 1.6, met) | 3 CPU s |" in shown
    same = [msgspec.structs.replace(figure, goal=1.6 if figure.goal else None) for figure in figures]
    assert "| | day 30 to day 2 (<= 1.6, met) | day 30 |" in table(msgspec.structs.replace(record, figures=same))


def test_no_figure_of_a_result_is_missing_in_its_tables() -> None:
    for record in newest(RESULTS):
        cells = Counter(cell.split()[0] for cell in table(record).split("|") if cell.strip())
        assert Counter(format_number(figure.value) for figure in record.figures) - cells == Counter()


@given(rounds=st.integers(1, 40), value=st.floats(0, 2), goal=st.floats(0, 2))
def test_a_figure_of_few_paired_rounds_is_not_judged(rounds: int, value: float, goal: float) -> None:
    figure = Figure("ratio", value, "", goal, rounds)
    shown = table(
        Conditions(date="", commit="", versions=VERSIONS, hardware=HARDWARE).record("x", {}, [figure], [], {})
    )
    assert figure.is_met == (None if rounds < PAIRED_ROUNDS_MIN else value <= goal)
    assert (f"not judged: rounds {rounds}" in shown) == (rounds < PAIRED_ROUNDS_MIN)


def test_no_kept_figure_of_few_rounds_is_judged() -> None:
    figures = chain.from_iterable(record.figures for record in newest(RESULTS))
    assert {figure.is_met for figure in figures if figure.has_few_rounds} == {None}


def test_a_table_takes_only_the_marked_place() -> None:
    first = embed(
        "one\n", "before\n<!-- summary: `python -m benchmarks plots` writes this --><!-- end of summary -->\nafter\n"
    )
    assert embed("one\n", first) == first
    assert "one" not in embed("two\n", first)
    assert first.startswith("before\n")
    assert first.endswith("after\n")


def test_a_record_names_its_commit_and_versions() -> None:
    record = Conditions.now().record("x", {"a": 1}, [], [], {})
    assert isinstance(record, Record)
    assert re.fullmatch(r"unknown|[0-9a-f]{7,}\+?", record.commit)
    assert "pyspark" in record.versions
