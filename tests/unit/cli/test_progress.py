"""Progress of long work: every item is yielded, and lines at intervals state the rate and the time left."""

from __future__ import annotations

import io
import itertools
import re

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from lockstep.cli.progress import LINE_SECONDS, ProgressBar, ProgressLines, format_progress
from lockstep.progress import report_items, send_progress


@given(items=st.lists(st.integers(), max_size=20), taken=st.integers(0, 20))
def test_tracked_items_are_the_items_and_each_is_reported_once(items: list[int], taken: int) -> None:
    noted = list[tuple[str, int, int]]()
    with send_progress(lambda *progress: noted.append(progress)):
        found = [item for item, _ in zip(report_items(items, "work", len(items)), range(taken), strict=False)]
    assert found == items[:taken]
    assert [done for _, done, _ in noted] == list(range(1, len(noted) + 1))
    assert len(noted) in {min(taken, len(items)), min(taken, len(items)) + 1}
    list(report_items(items, "later", len(items)))
    assert all(doing == "work" for doing, _, _ in noted)


@given(pauses=st.lists(st.floats(0, 40), min_size=1, max_size=60))
def test_lines_come_now_and_then_and_not_for_short_work(pauses: list[float]) -> None:
    now = [0.0]
    lines = list[tuple[float, str]]()
    shown = ProgressLines(lambda line: lines.append((now[0], line)), lambda: now[0])
    shown.note("work", 0, len(pauses))
    for done, pause in enumerate(pauses, 1):
        now[0] += pause
        shown.note("work", done, len(pauses))
    times = [0.0, *(at for at, _ in lines)]
    assert all(later - earlier >= LINE_SECONDS for earlier, later in itertools.pairwise(times))
    assert bool(lines) is (now[0] >= LINE_SECONDS)
    assert all(re.fullmatch(r"work: \d+ of \d+, [\d.]+/s, .+ left", line) for _, line in lines)


def test_a_line_names_rate_and_time_left() -> None:
    assert format_progress("copying files", 1_200, 3_600, 60.0) == "copying files: 1,200 of 3,600, 20.0/s, 2 min left"
    assert format_progress("w", 0, 5, 0.0) == "w: 0 of 5, 0.0/s, unknown time left"


def test_a_terminal_shows_a_bar_once_the_work_is_long() -> None:
    screen = io.StringIO()
    with ProgressBar(Console(file=screen, force_terminal=True, width=100)) as bar:
        bar.note("copying files", 1, 4)
        assert screen.getvalue() == ""
        bar._began -= 10  # noqa: SLF001  # as if it started ten seconds ago
        bar.note("copying files", 2, 4)
    assert "copying files" in screen.getvalue()
    assert "2/4" in screen.getvalue()
