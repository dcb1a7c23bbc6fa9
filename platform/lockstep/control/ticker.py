"""Calls many short functions at one interval on few threads.

A process of fifty streams had a hundred threads that counted heartbeats: each wake-up of a thread cost three times as
much as its write. A call that takes long delays the other calls of its thread, so functions that send a request over a
network have a thread each.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

LOG = logging.getLogger("lockstep")


class Ticker:
    """Calls functions at an interval until each is removed."""

    def __init__(self, name: str, seconds: float, functions_max: int) -> None:
        """No thread runs without a function.

        Args:
            name: Name of the threads.
            seconds: Interval.
            functions_max: Functions of a thread.
        """
        self._name = name
        self._seconds = seconds
        self._functions_max = functions_max
        self._lock = threading.Lock()
        self._threads = list[list[_Ticked]]()

    def add(self, function: Callable[[], None]) -> Callable[[], None]:
        """Call a function from now on, for the first time after an interval.

        Returns:
            Ends the calls. When it returns, no call runs any more.
        """
        ticked = _Ticked(function)
        with self._lock:
            place = next((each for each in self._threads if len(each) < self._functions_max), None)
            if place is None:
                place = [ticked]
                self._threads.append(place)
                threading.Thread(target=self._run, args=(place,), name=self._name, daemon=True).start()
            else:
                place.append(ticked)

        def remove() -> None:
            with self._lock:
                if ticked in place:
                    place.remove(ticked)
            ticked.close()

        return remove

    def _run(self, place: list[_Ticked]) -> None:
        due = time.monotonic()
        while True:
            due = max(due + self._seconds, time.monotonic())  # a late round is not repeated
            time.sleep(max(0.0, due - time.monotonic()))
            with self._lock:
                if not place:
                    self._threads.remove(place)
                    return
                functions = tuple(place)
            for ticked in functions:
                ticked.call()


class _Ticked:
    """A function that is not called after its end."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function
        self._lock = threading.Lock()
        self._is_closed = False

    def call(self) -> None:
        with self._lock:
            if self._is_closed:
                return
            try:
                self._function()
            except Exception:  # the outermost edge of a thread that calls other functions, too
                LOG.warning("a call at an interval failed; it is repeated", exc_info=True)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
