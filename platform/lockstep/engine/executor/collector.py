"""Keeps Python's collector of reference cycles off state: it would scan all sessions again and again.

It is off during a task, and looks once at what the task left behind, but not at the sessions that the worker has kept
decoded since earlier ones. In a worker of Spark that is PySpark's own look after each task, once the result is sent.
Now and then it sees all: a cycle within a state that was replaced is garbage that nothing else frees.
"""

from __future__ import annotations

import gc
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lockstep.spark.surplus_worker import is_serving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

POLL_SECONDS = 60.0
"""Between two looks at what outlives tasks."""


class CollectorSchedule:
    """The collector of this process, between and during tasks."""

    def __init__(self, seconds: float = POLL_SECONDS, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Changes nothing yet."""
        self._seconds, self._clock, self._looked_at = seconds, clock, clock()

    @contextmanager
    def pause(self) -> Iterator[None]:
        """No collection in this context, one of what was made in it afterwards; of everything when a look is due."""
        gc.freeze()
        gc.disable()
        try:
            yield
        finally:
            if self._clock() - self._looked_at >= self._seconds:
                self._looked_at = self._clock()
                gc.unfreeze()
            if not is_serving():
                gc.collect()
                gc.freeze()
                gc.enable()
