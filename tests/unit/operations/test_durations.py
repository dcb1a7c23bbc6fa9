"""Pauses that double have a limit, after any number of repetitions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lockstep.operations.durations import compute_back_off

SECONDS = st.floats(0.01, 1_000.0)


@given(repetitions=st.integers(0, 10**9), seconds=SECONDS, factor=st.floats(1.0, 1_000.0))
def test_a_pause_doubles_up_to_its_limit(repetitions: int, seconds: float, factor: float) -> None:
    seconds_max = seconds * factor
    pause = compute_back_off(repetitions, seconds, seconds_max)
    assert seconds <= pause <= seconds_max
    assert compute_back_off(repetitions + 1, seconds, seconds_max) == min(2 * pause, seconds_max)


def test_the_first_pauses() -> None:
    assert [compute_back_off(each, 1.0, 60.0) for each in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
