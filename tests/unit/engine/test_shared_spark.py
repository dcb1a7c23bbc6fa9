"""Shared parts of the streams of a process: cores, executors, and the clock of a job that waits for others."""

from __future__ import annotations

from itertools import chain
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from hypothesis import given
from hypothesis import strategies as st

from lockstep.engine.driver.shared_spark import SURPLUS, TURNS, JobClock, SharedSpark

if TYPE_CHECKING:
    from pyspark import SparkContext

REST = 300.0
Late = tuple[str, frozenset[str], float]


def make_shared(*runs: str, cores: int = 4) -> SharedSpark:
    shared = SharedSpark(cast("SparkContext", SimpleNamespace(defaultParallelism=cores, master="local[4]")))
    for run in runs:
        shared.add(run)
    return shared


@given(st.integers(1, 64), st.integers(1, 5))
def test_one_of_several_streams_leaves_a_core_to_the_others(cores: int, streams: int) -> None:
    shared = make_shared(*map(str, range(streams)))
    expected = cores if streams == 1 else max(1, cores - 1)
    assert shared.limit_cores(cores) == expected
    for run in range(1, streams):
        shared.remove(str(run))
    assert shared.limit_cores(cores) == cores


def test_the_executor_of_one_stream_is_replaced_when_it_is_late_twice_lately() -> None:
    shared = make_shared("a")
    assert shared.note_late("a", frozenset({"1", "2"}), 1_000.0, REST) == frozenset()
    assert shared.note_late("a", frozenset({"2", "3"}), 1_100.0, REST) == {"2"}
    assert shared.note_late("a", frozenset({"2"}), 1_400.0, REST) == frozenset()


@given(st.lists(st.tuples(st.sampled_from("abc"), st.frozensets(st.sampled_from("12")), st.floats(0.0, 400.0))))
def test_the_executor_of_several_streams_is_replaced_only_when_it_is_late_for_two_of_them(
    cancelled: list[Late],
) -> None:
    shared = make_shared("a", "b", "c")
    now = 0.0
    last = dict[str, tuple[str, float]]()
    for run, executors, pause in cancelled:
        now += pause
        expected = {each for each in executors if each in last and last[each][0] != run and now - last[each][1] < REST}
        assert shared.note_late(run, executors, now, REST) == expected
        last |= dict.fromkeys(executors, (run, now))


def test_surplus_is_judged_by_the_tasks_of_all_streams() -> None:
    shared = make_shared("a", "b", cores=2)
    shared.start_job("a", [b"a"], [])
    for _ in range(200):
        assert shared.start_job("b", [b"b"], []) == [(0, b"b")]
    shared.end_job("a")
    started = [shared.start_job("b", [b"b"], []) for _ in range(200)]
    assert sorted(chain.from_iterable(started)) == [*[(0, b"b")] * 200, (1, SURPLUS)]


@given(st.floats(0.0, 30.0), st.floats(0.0, 30.0))
def test_the_clock_of_a_job_runs_from_its_first_task(waiting: float, working: float) -> None:
    began = 1_000.0
    clock = JobClock(began, lambda: now >= began + waiting)
    read = 0.0
    for tenth in range(round((waiting + working) * 10)):
        now = began + tenth / 10
        read = clock.read(now)
        assert read <= max(0.0, now - began - waiting)
    assert read >= working - 1.2


@given(st.integers(1, 50))
def test_pools_are_taken_in_turn_and_are_a_few_for_each_stream(streams: int) -> None:
    shared = make_shared(*map(str, range(streams)))
    taken = [shared.choose_pool() for _ in range(3 * TURNS * streams)]
    pools = sorted(set(taken))
    assert len(pools) == TURNS * streams
    start = taken.index(pools[0])
    assert taken[start : start + len(pools)] == pools
