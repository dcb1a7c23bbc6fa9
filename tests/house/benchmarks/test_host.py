"""Figures of many streams in one process: goals apply only to the settings for which they were promised."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.host import HostedStreams, HostUsage, make_figures, make_panels
from lockstep.features.rehearsal.process_usage import DRIVER, JVM, WORKERS, TreeUsage

IDLE = TreeUsage(10.0, {DRIVER: 1.0, JVM: 0.5, WORKERS: 0.5}, 900_000_000)
BUSY = TreeUsage(10.0, {DRIVER: 10.0, JVM: 4.0, WORKERS: 2.0}, 5_000_000_000)
USAGE = HostUsage(50.0, IDLE, BUSY, 40.0, [5.5, 6.5], sent=1, proven=50)


def test_figures_are_compared_with_the_goals_of_fifty_streams() -> None:
    figures = make_figures(HostedStreams(), USAGE)
    assert [round(each.value, 3) for each in figures] == [50.0, 0.9, 0.2, 5.0, 1.6, 6.5]
    assert [each.is_met for each in figures] == [True, True, True, False, False, False]
    assert make_panels(USAGE)[0].series[0].y == pytest.approx([0.1, 0.05, 0.05])


@given(st.integers(1, 100), st.integers(1, 500))
def test_other_numbers_of_streams_and_rates_have_no_goals(streams: int, rate: int) -> None:
    hosted = HostedStreams(streams, rate)
    promised = hosted == HostedStreams()
    assert all((each.goal is not None) is promised for each in make_figures(hosted, USAGE))
