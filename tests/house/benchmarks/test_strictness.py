"""The checks' share of the time, for the same rows folded in turns."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import strictness
from benchmarks.strictness import SHARE_MAX, Turns, figures, measure_strictness

TURNS = Turns(batches=1, messages=2_000, pairs=2)


def test_the_share_is_of_the_time_with_checks() -> None:
    middle, low, high, least = figures([(2.0, 1.9), (2.0, 1.5), (4.0, 3.6)])
    assert [round(each.value, 3) for each in (middle, low, high, least)] == [0.1, 0.05, 0.25, 0.25]
    assert (middle.goal, least.goal) == (SHARE_MAX, None)


def test_pairs_are_folded_and_the_first_does_not_count(tmp_path: Path) -> None:
    record = measure_strictness(TURNS, folder=tmp_path, console=Console(quiet=True))
    assert (record.settings["messages"], len(record.panels[0].series[0].y)) == (2_000, 2)
    assert list(tmp_path.iterdir()) == []


def test_streams_that_write_other_rows_are_no_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = iter([(1.0, 10), (1.0, 11)])
    monkeypatch.setattr(strictness, "_fold", lambda *_: next(rows))
    with pytest.raises(ValueError, match="rows of Strict and of NoIntegrity differ"):
        measure_strictness(TURNS, folder=tmp_path, console=Console(quiet=True))
