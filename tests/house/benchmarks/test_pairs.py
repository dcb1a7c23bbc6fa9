"""Figures of the pairs of slices, and the split of the work between the sides."""

from __future__ import annotations

import re
from pathlib import Path
from subprocess import run
from sys import executable

import pytest

from benchmarks.pairs import (
    Pairs,
    Slice,
    compute_interval,
    compute_time_ratio,
    compute_used,
    make_record,
    pick_cores,
    plan_sides,
)
from benchmarks.record import Conditions, Record
from benchmarks.report import Hardware
from benchmarks.systems import environment
from benchmarks.workload import Size

QUIET = Hardware("x", cores=2, memory_gb=1, kernel="x", load_average=0.1)
SIZE = Size("some", 1_000, topics=5)


def record(*ratios: float, calibration: tuple[float, float] = (0.02, 0.02)) -> Record:
    conditions = Conditions("2026-01-01", "abc", {}, QUIET)
    slices = [(Slice(100_000, 0.5), Slice(200_000, ratio, ratio / 20)) for ratio in (9.0, *ratios)]
    first = [Slice(100_000, 0.6), Slice(200_000, 8.0)]
    return make_record(Pairs(SIZE, warm=1, pairs=len(ratios)), conditions, calibration, first, slices)


def test_every_topic_is_one_bare_loops_and_all_are_locksteps(tmp_path: Path) -> None:
    (_, _, bare), (_, _, ours) = plan_sides(Pairs(SIZE, batch_messages=100), 2, "host:1", tmp_path)
    names = SIZE.topic_names()
    readers = [[n for n, task in enumerate(bare) if re.fullmatch(task.topics, name)] for name in names]
    assert readers == [[0], [1], [0], [1], [0]]
    assert [task.batch_messages for task in (*bare, *ours)] == [50, 50, 100]
    assert all(re.fullmatch(ours[0].topics, name) for name in names)


def test_the_cores_are_swapped_from_pair_to_pair() -> None:
    assert [pick_cores([2, 5], number) for number in range(3)] == [(2, 5), (5, 2), (2, 5)]


def test_cpu_time_counts_new_processes_from_their_beginning() -> None:
    assert compute_used({1: 5.0, 2: 1.0}, {1: 6.5, 3: 0.25}) == 1.75


@pytest.mark.parametrize(("count", "interval"), [(5, (0, 4)), (6, (0, 5)), (20, (5, 14)), (100, (39, 60))])
def test_the_interval_of_the_median_is_that_of_the_sign_test(count: int, interval: tuple[float, float]) -> None:
    assert compute_interval([float(number) for number in reversed(range(count))]) == interval


def test_the_ratio_is_the_median_of_the_pairs_and_the_first_ones_are_apart() -> None:
    figures = {figure.name: figure for figure in record(1.1, 1.2, 1.4).figures}
    ratio = figures["lockstep to bare loops, median of 3 pairs"]
    assert ratio.value == pytest.approx(1.2)
    assert (ratio.rounds, ratio.is_met) == (3, None)
    assert figures["the first 1 batches after the start: median"].value == pytest.approx(9.0)
    assert figures["lockstep: start-up"].value == pytest.approx(6.8)
    assert figures["lockstep"].value == pytest.approx(6.0)


def test_what_is_serial_tells_what_more_workers_do() -> None:
    figures = {figure.name: figure for figure in record(1.1, 1.2, 1.4).figures}
    assert figures["two workers: time to that of one, by what is serial"].value == pytest.approx(0.525)
    assert compute_time_ratio(0.0, 4) == 0.25
    assert compute_time_ratio(1.0, 4) == 1.0


def test_a_run_whose_calibration_moved_has_no_verdict() -> None:
    figures = record(1.1, 1.2, 1.4, calibration=(0.02, 0.03)).figures
    assert {figure.is_met for figure in figures} == {None}


def test_a_side_says_what_it_did_and_waits_for_its_turn() -> None:
    code = "from benchmarks.systems import wait_for_turn; wait_for_turn(7); print('on')"
    given = run([executable, "-c", code], input="\n", capture_output=True, text=True, env=environment(), check=True)
    assert given.stdout == "done 7\non\n"
    ended = run([executable, "-c", code], input="", capture_output=True, text=True, env=environment(), check=False)
    assert (ended.returncode, ended.stdout) == (1, "done 7\n")
