"""The order in which the tasks of a batch are started, and when a worker is no longer needed."""

from __future__ import annotations

from lockstep.engine.driver.spark_job import EMPTY, PLACES_MAX, SURPLUS, SURPLUS_BATCHES, WorkerPlaces

ONE, TWO = [b"a"], [b"a", b"b"]


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
