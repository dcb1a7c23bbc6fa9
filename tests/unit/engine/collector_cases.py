"""Objects that outlive tasks cost the garbage collector nothing, and cycles are collected."""

from __future__ import annotations

import gc
import mmap
import weakref
from typing import TYPE_CHECKING

import pytest

from lockstep.engine.executor.collector import GROWTH_BYTES, POLL_SECONDS, CollectorSchedule, read_memory_bytes
from lockstep.spark.surplus_worker import with_end

if TYPE_CHECKING:
    from collections.abc import Iterator


class Cycle:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _thawed() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.unfreeze()
    gc.enable()


def test_no_task_waits_for_the_collector_while_the_process_does_not_grow() -> None:
    with CollectorSchedule().pause():
        assert not gc.isenabled()
        left = weakref.ref(Cycle())
    assert gc.isenabled()
    assert left() is not None


def test_a_process_that_grows_by_cycles_is_collected_after_the_next_task() -> None:
    memory = [GROWTH_BYTES]  # of a process that returns no memory to the system, unlike this process
    schedule = CollectorSchedule(read_memory=lambda: memory[-1])
    with schedule.pause():
        found = weakref.ref(Cycle())
        memory.append(3 * GROWTH_BYTES)  # the memory of a task itself is not growth
    assert found() is not None
    with schedule.pause():
        pass
    assert found() is None
    with schedule.pause():  # measured again: this task is not blamed for earlier tasks
        found = weakref.ref(Cycle())
    assert found() is not None


def test_the_memory_of_a_process_is_what_it_holds() -> None:
    """A mapping is used because a large process may serve an allocation from memory that it already holds."""
    before = read_memory_bytes()
    with mmap.mmap(-1, GROWTH_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as held:
        for at in range(0, GROWTH_BYTES, mmap.PAGESIZE):
            held[at] = 1
        assert read_memory_bytes() - before > GROWTH_BYTES / 2


def test_the_collector_finds_nothing_to_look_at_between_tasks() -> None:
    """PySpark calls it after each task: a visit of all objects that the task decoded would double the cost."""
    with CollectorSchedule().pause():
        made = [Cycle() for _ in range(1_000)]
    assert len(gc.get_objects()) < len(made)


def test_what_outlives_tasks_is_looked_at_now_and_then() -> None:
    times = [0.0]
    schedule = CollectorSchedule(clock=lambda: times[0])
    kept = Cycle()
    gone = weakref.ref(kept)
    with schedule.pause():
        del kept
    assert gone() is not None  # frozen: not visited
    times[0] = POLL_SECONDS
    with schedule.pause():
        pass
    assert gone() is None


def test_an_error_in_a_task_leaves_the_collector_on() -> None:
    with pytest.raises(ZeroDivisionError), CollectorSchedule().pause():
        raise ZeroDivisionError
    assert gc.isenabled()


def test_a_worker_of_spark_leaves_the_look_to_pyspark_which_sends_the_result_first() -> None:
    times = [0.0]
    schedule = CollectorSchedule(clock=lambda: times[0])
    left: list[weakref.ref[Cycle]] = []
    made: list[Cycle] = []

    def task() -> None:
        with schedule.pause():
            left.append(weakref.ref(Cycle()))
            made.extend(Cycle() for _ in range(1_000))
        assert not gc.isenabled()
        assert left[0]() is not None

    with_end(task)()
    assert gc.isenabled()
    assert len(gc.get_objects()) < len(made)  # for PySpark's collection after every task
    times[0] = POLL_SECONDS
    with_end(task)()
    assert left[0]() is not None
    gc.collect()  # PySpark's
    assert left[0]() is None
    assert left[1]() is None


def test_a_task_of_another_kind_finds_the_collector_on() -> None:
    def fail() -> None:
        with CollectorSchedule().pause():
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        with_end(fail)()
    assert gc.isenabled()
