"""The order in which the tasks of a batch start, and the time when a worker is no longer needed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lockstep.engine.driver.shared_spark import EMPTY, PLACES_MAX, SURPLUS, SURPLUS_BATCHES, WorkerPlaces

ONE = [b"a"]
TWO = [b"a", b"b"]


def test_a_bin_is_started_in_the_place_in_which_it_ended() -> None:
    places = WorkerPlaces(2)
    assert places.arrange(TWO, []) == [(0, b"a"), (1, b"b")]
    assert places.arrange(TWO, [1, 0]) == [(1, b"b"), (0, b"a")]


def test_an_empty_task_holds_the_place_of_a_bin_that_a_batch_does_not_have() -> None:
    places = WorkerPlaces(2)
    places.arrange(TWO, [])
    assert places.arrange(ONE, [0, 1]) == [(0, b"a"), (1, EMPTY)]
    assert places.arrange(ONE, [1, 0]) == [(1, EMPTY), (0, b"a")]


def test_a_worker_that_no_batch_needs_for_a_while_is_ended_once() -> None:
    places = WorkerPlaces(2)
    places.arrange(TWO, [])
    started = [[task for _, task in places.arrange(ONE, [])] for _ in range(SURPLUS_BATCHES + 2)]
    assert started == [*[[b"a", EMPTY]] * (SURPLUS_BATCHES - 1), [b"a", SURPLUS], *[[b"a"]] * 2]
    assert [task for _, task in places.arrange(TWO, [0])] == TWO


def test_a_worker_that_one_of_these_batches_needs_is_kept() -> None:
    places = WorkerPlaces(2)
    for _ in range(3):
        places.arrange(TWO, [])
        started = [task for _ in range(SURPLUS_BATCHES - 1) for _, task in places.arrange(ONE, [])]
        assert SURPLUS not in started


def test_of_many_workers_none_is_held_by_empty_tasks_and_all_too_many_are_ended() -> None:
    many = PLACES_MAX + 4
    places = WorkerPlaces(many)
    places.arrange([b"a"] * (many + 1), [])
    started = [places.arrange(ONE, []) for _ in range(SURPLUS_BATCHES)]
    assert [len(tasks) for tasks in started] == [*[1] * (SURPLUS_BATCHES - 1), many]


@given(st.integers(2, 20), st.integers(1, 8), st.data())
def test_of_several_streams_no_task_is_empty_and_a_worker_ends_only_after_as_many_batches_of_each(
    streams: int, cores: int, data: st.DataObject
) -> None:
    places = WorkerPlaces(cores)
    places.arrange([b"a"] * cores, [], streams=streams)
    for _ in range(SURPLUS_BATCHES * streams - 1):
        unfinished = data.draw(st.integers(0, cores - 1), label="unfinished") if cores > 1 else 0
        ended = data.draw(st.lists(st.integers(0, cores), unique=True), label="ended")
        assert places.arrange(ONE, ended, streams=streams, unfinished=unfinished) == [(0, b"a")]
    last = [task for _, task in places.arrange(ONE, [], streams=streams, unfinished=0)]
    assert last[0] == b"a"
    assert EMPTY not in last


def test_workers_that_several_streams_do_not_need_are_ended() -> None:
    places = WorkerPlaces(4)
    places.arrange([b"a"] * 4, [], streams=3)
    started = [places.arrange(ONE, [], streams=3, unfinished=1) for _ in range(3 * SURPLUS_BATCHES)]
    assert [len(tasks) for tasks in started] == [*[1] * (3 * SURPLUS_BATCHES - 1), 3]
    assert [task for _, task in started[-1]] == [b"a", SURPLUS, SURPLUS]
