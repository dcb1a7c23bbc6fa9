"""Keeps Python's collector of reference cycles off state: it would scan all sessions again and again.

It is off during a task, and does not visit the objects that tasks leave behind, mostly state, until a collection is
due: once a minute, or when the process has grown. Then it visits all: a cycle in objects of a task, or in a replaced
state, is garbage that nothing else frees. In a worker of Spark, PySpark itself collects once the result is sent.
"""

from __future__ import annotations

import gc
import os
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.spark.surplus_worker import is_serving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

POLL_SECONDS = 60.0
"""At most between two collections."""
GROWTH_BYTES = 64_000_000
"""Growth of the process, from the start of a task to that of a later task, that makes a collection due: cycles may
hold all of it."""
_STATUS = Path("/proc/self/statm")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def read_memory_bytes() -> int:
    """Memory of this process that no file backs."""
    resident, shared = _STATUS.read_text().split()[1:3]
    return (int(resident) - int(shared)) * _PAGE_BYTES


class CollectorSchedule:
    """The collector of this process, between and during tasks."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        read_memory: Callable[[], int] = read_memory_bytes,
    ) -> None:
        """Changes nothing yet.

        Args:
            clock: In seconds.
            read_memory: Bytes of this process; by default those that no file backs.
        """
        self._clock = clock
        self._looked_at = clock()
        self._read_memory = read_memory
        self._bytes_then: int | None = None

    @contextmanager
    def pause(self) -> Iterator[None]:
        """No collection in this context; afterwards a full collection if it is due."""
        gc.freeze()  # the collector does not visit frozen objects
        gc.disable()
        bytes_now = self._read_memory()
        if self._bytes_then is None:  # the collection after the previous task is over
            self._bytes_then = bytes_now
        try:
            yield
        finally:
            is_time = self._clock() - self._looked_at >= POLL_SECONDS
            if is_time or bytes_now - self._bytes_then >= GROWTH_BYTES:
                self._looked_at = self._clock()
                self._bytes_then = None
                gc.unfreeze()
            else:
                gc.freeze()
            if not is_serving():  # in a worker PySpark collects once the result is sent
                gc.collect()
                gc.freeze()
                gc.enable()
