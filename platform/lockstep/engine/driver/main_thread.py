"""Runs work beside the main thread, which only waits for the work's end or for a signal.

A Terminate that meets the main thread inside py4j hangs there, and batches go on. So all Spark work
of a step runs in one other thread (PySpark replaces the SIGINT handler when it starts on the main
one), and the main thread's handlers only note that a stop is wanted.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from types import FrameType


T = TypeVar("T")

TICK_SECONDS = 0.5
"""How often the main thread looks up. A signal does not wait for it, the end of the work neither."""
ABANDON_SECONDS = 3.0
"""How long abandoned work may take to notice; then its process ends without it."""


class StopTimeout(Exception):  # not an error: a stop that did not wait for the batch
    """The work did not end in time after a stop was asked for; it was left as it was."""


class StopSignal:
    """Whether a stop is wanted, since when and why. Set once, from any thread or signal handler.

    Attributes:
        wanted: The event that the work looks at.
        reason: Who asked, for people.
    """

    def __init__(self) -> None:
        self.wanted = threading.Event()
        self.reason = ""
        self._since = 0.0

    def ask(self, reason: str) -> None:
        """Ask for a stop; the first reason stays."""
        if not self.wanted.is_set():
            self.reason, self._since = reason, time.monotonic()
            self.wanted.set()

    def seconds(self) -> float:
        """Seconds since a stop was asked for; 0 while none is."""
        return time.monotonic() - self._since if self.wanted.is_set() else 0.0


def run_off_main_thread(
    work: Callable[[], T],
    stopping: StopSignal,
    *,
    patience_seconds: float,
    tick: Callable[[], None],
    abandon: Callable[[], None],
) -> T:
    """Run work in a thread of its own while this one waits.

    1. Take the signals; start.
    2. Wait for the end; tick meanwhile.
    3. Past the patience after a stop: abandon, and wait a moment more.
    4. Give the result, or raise what the work raised.

    Args:
        work: Looks at `stopping.wanted` by itself.
        stopping: Where signals, and whoever else, ask for a stop.
        patience_seconds: How long the work may go on after a stop was asked for.
        tick: Called about twice a second, on this thread.
        abandon: Makes whatever the work waits for end at once.

    Raises:
        Abandoned: The work had to be abandoned.
    """
    job = _Job(work)
    with _signals_to(stopping):
        job.start()
        while not job.ended.wait(TICK_SECONDS):
            tick()
            if stopping.seconds() > patience_seconds:
                abandon()
                job.ended.wait(ABANDON_SECONDS)
                raise StopTimeout(stopping.reason)
    return job.result()


class _Job(Generic[T]):
    """One piece of work in a daemon thread: the end of the process does not wait for it."""

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
        except BaseException as error:  # noqa: BLE001  # nothing is lost: raised again on the main thread
            self._error = error
        finally:
            self.ended.set()


@contextmanager
def _signals_to(stopping: StopSignal) -> Iterator[None]:
    """SIGINT and SIGTERM ask for a stop while this lasts. Off the main thread nothing is changed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handler(number: int, _: FrameType | None) -> None:
        stopping.ask(signal.Signals(number).name)

    held = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, before in held.items():
            signal.signal(number, before)
