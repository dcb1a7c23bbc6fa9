"""Runs work off the main thread, which only waits for its end or for a signal.

A Terminate that reaches the main thread inside py4j hangs there while batches continue. So one other thread does all
Spark work of a step (PySpark replaces the SIGINT handler when it starts on the main thread), and the main thread's
handlers only record that a stop is wanted.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, TypeVar

from lockstep.errors import EnvironmentProblem, LockstepError

if TYPE_CHECKING:
    from types import FrameType


T = TypeVar("T")

TICK_SECONDS = 0.5
"""Poll interval of the main thread. Neither a signal nor the end of the work waits for it."""
ABANDON_SECONDS = 3.0
"""Time for abandoned work to notice; then its process ends without it."""


class StopTimeout(Exception):  # not an error: a stop that did not wait for the batch
    """The work did not end in time after a stop request; it was abandoned."""


class StopSignal:
    """Whether a stop is wanted, since when and why. Set once, from any thread or signal handler.

    Attributes:
        wanted: The event that the work checks.
        reason: Who asked, for display.
    """

    def __init__(self) -> None:
        self.wanted = threading.Event()
        self.reason = ""
        self._since = 0.0

    def ask(self, reason: str) -> None:
        """Request a stop; the first reason stays."""
        if not self.wanted.is_set():
            self.reason = reason
            self._since = time.monotonic()
            self.wanted.set()  # last: whoever sees the event reads the other two

    def seconds(self) -> float:
        """Seconds since the stop request; 0 without one."""
        if not self.wanted.is_set():
            return 0.0
        return time.monotonic() - self._since

    def explains(self, error: Exception) -> bool:
        """Whether an error is a side effect of the stop: a signal to the group also ends Spark's JVM and its Python.

        What lockstep found in tables, state or Kafka is none.
        """
        is_evidence = isinstance(error, LockstepError) and not isinstance(error, EnvironmentProblem)
        return isinstance(error, StopTimeout) or (self.wanted.is_set() and not is_evidence)


def run_off_main_thread(
    work: Callable[[], T],
    stopping: StopSignal,
    *,
    patience_seconds: float,
    tick: Callable[[], None],
    abandon: Callable[[], None],
) -> T:
    """Run work in its own thread while this thread waits.

    1. Install the signal handlers; start.
    2. Wait for the end; call `tick` meanwhile.
    3. After the patience following a stop: abandon, and wait a moment more.
    4. Return the result, or raise the error of the work.

    Args:
        work: Checks `stopping.wanted` itself.
        stopping: Receives stop requests from signals and others.
        patience_seconds: Time for the work to end after a stop request.
        tick: Called about twice a second, on this thread.
        abandon: Immediately ends each wait of the work.

    Raises:
        StopTimeout: The work had to be abandoned.
    """
    job = _Job(work)
    with _signals_to(stopping):  # 1
        job.start()
        while not job.ended.wait(TICK_SECONDS):  # 2
            tick()
            if stopping.seconds() > patience_seconds:
                abandon()  # 3
                job.ended.wait(ABANDON_SECONDS)
                raise StopTimeout(stopping.reason)
    return job.result()  # 4


class _Job(Generic[T]):
    """Work in a daemon thread: the end of the process does not wait for it."""

    def __init__(self, work: Callable[[], T]) -> None:
        self.ended = threading.Event()
        self._work = work
        self._result: list[T] = []
        self._error: BaseException | None = None

    def start(self) -> None:
        threading.Thread(target=self._run, name="spark-work", daemon=True).start()

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return self._result[0]

    def _run(self) -> None:
        try:
            self._result.append(self._work())
        except BaseException as error:  # noqa: BLE001  # raised again on the main thread
            self._error = error
        finally:
            self.ended.set()


@contextmanager
def _signals_to(stopping: StopSignal) -> Iterator[None]:
    """Turn SIGINT and SIGTERM into stop requests within the block. Off the main thread it changes nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handler(number: int, _: FrameType | None) -> None:
        stopping.ask(signal.Signals(number).name)

    previous = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, restored in previous.items():
            signal.signal(number, restored)
