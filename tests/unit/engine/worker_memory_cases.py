"""The memory limit of a worker: a task above it fails, even if it catches errors; a task below it does not."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from lockstep.engine.executor import worker_memory
from lockstep.engine.executor.limits import EngineLimit, LimitKind, WorkerMemoryExceeded, find_limit
from lockstep.engine.executor.worker_memory import MemoryWatch, find_default_limit, read_memory_bytes

SPARE_BYTES = 150_000_000
BLOCK_BYTES = 40_000_000
"""Above the largest threshold of malloc (32 MB): smaller blocks may reuse memory that earlier tests have freed."""
BLOCKS = 10
SECONDS_MAX = 20.0

Work = Callable[[list[bytes]], None]


@pytest.fixture
def watch() -> MemoryWatch:
    return MemoryWatch()


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    yield
    gc.collect()


def wait_for_watch() -> Iterator[None]:
    """Instructions of Python, at which the watch raises its error."""
    began = time.monotonic()
    while time.monotonic() - began < SECONDS_MAX:
        yield
        time.sleep(0.005)


def fill(held: list[bytes]) -> None:
    """Allocate between instructions of Python, as a fold does; then wait for the watch."""
    for _ in wait_for_watch():
        if len(held) < BLOCKS:
            held.append(b"x" * BLOCK_BYTES)


def fill_in_one_instruction(held: list[bytes]) -> None:
    held.append(b"x" * (BLOCKS * BLOCK_BYTES))
    for _ in wait_for_watch():
        pass


def fill_and_catch(held: list[bytes]) -> None:
    with suppress(MemoryError):
        fill(held)


def fill_and_raise_another(held: list[bytes]) -> None:
    try:
        fill(held)
    except MemoryError:
        raise ValueError("of the user") from None


def catch_every_error(held: list[bytes]) -> None:
    """Catch two errors of the watch, which raises the second after a pause."""
    for _ in range(2):
        with suppress(MemoryError):
            fill(held)


@pytest.mark.parametrize(
    "work", [fill, fill_in_one_instruction, fill_and_catch, fill_and_raise_another, catch_every_error]
)
def test_a_task_that_passes_the_limit_fails_also_if_it_catches_the_errors(work: Work, watch: MemoryWatch) -> None:
    held = list[bytes]()
    limit = read_memory_bytes() + SPARE_BYTES
    expected = rf"had \d+ MB, more than spark.worker_memory_mb = {limit // 1_000_000}$"
    with pytest.raises(WorkerMemoryExceeded, match=expected) as raised, watch.watch(limit):
        work(held)
    assert find_limit(raised.value) is LimitKind.WORKER_MEMORY
    held.clear()


def test_a_worker_ends_after_a_task_that_leaves_more_than_half_of_the_limit(
    watch: MemoryWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = list[bool]()
    monkeypatch.setattr(worker_memory, "end_after_task", lambda: ended.append(True))
    memory = read_memory_bytes()
    with watch.watch(memory * 4):
        pass
    assert ended == []
    with watch.watch(memory + SPARE_BYTES):
        held = b"x" * (SPARE_BYTES // 2)
    assert (len(held), ended) == (SPARE_BYTES // 2, [True])


def test_no_error_of_the_watch_reaches_the_work_after_the_task(watch: MemoryWatch) -> None:
    for _ in range(3):
        with suppress(WorkerMemoryExceeded), watch.watch(read_memory_bytes() // 2):
            pass  # it ends before the first poll
        time.sleep(3 * worker_memory.POLL_SECONDS)


def test_the_limit_is_half_of_the_memory_of_the_machine_by_default(watch: MemoryWatch) -> None:
    assert find_default_limit() > SPARE_BYTES
    with watch.watch(None):
        time.sleep(3 * worker_memory.POLL_SECONDS)


def test_the_error_names_the_setting() -> None:
    error = EngineLimit(LimitKind.WORKER_MEMORY, "WorkerMemoryExceeded: had 2 MB")
    assert "spark.worker_memory_mb" in error.next_step
