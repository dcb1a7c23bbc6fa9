"""The limit of a Python worker's memory: a task that passes it fails, and its worker ends.

The streams of a process share its workers. Without a limit, the kernel ends a process when the memory of the machine is
used up: perhaps the driver, the JVM or a broker.

A worker that has more than half of the limit after a task ends as well. So a task that fails has added more than half
of it: the memory that tasks of other streams have left does not count against it.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from lockstep.engine.executor.limits import WorkerMemoryExceeded
from lockstep.spark.surplus_worker import end_after_task

POLL_SECONDS = 0.1
"""A fold in Python that allocates as fast as it can passes the limit by some 100 MB meanwhile."""
AGAIN_SECONDS = 1.0
"""Pause before the next error in a task that has not failed yet: it may have caught the first."""
SHARE_OF_MACHINE = 2
"""By default a worker may have half of the memory: one of two workers leaves the rest to all other processes."""
CONTROL_GROUPS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""The limit of a container, in version 2 and 1 of control groups."""
_STATUS = Path("/proc/self/statm")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def read_memory_bytes() -> int:
    """Resident memory without mapped files, which the kernel can drop; 0 if the system has no /proc."""
    try:
        _, resident, shared, *_ = _STATUS.read_text().split()
    except OSError:
        return 0
    return (int(resident) - int(shared)) * _PAGE_BYTES


@cache
def find_default_limit() -> int:
    """Half of the memory of the container, or of the machine."""
    memory = os.sysconf("SC_PHYS_PAGES") * _PAGE_BYTES
    for path in CONTROL_GROUPS:
        with suppress(OSError, ValueError):  # another version, or "max"
            memory = min(memory, int(path.read_text()))
    return memory // SHARE_OF_MACHINE


class MemoryWatch:
    """Watches the memory of this process while it runs a task, on one thread for all tasks."""

    def __init__(self) -> None:
        """Watches nothing yet."""
        self._lock = threading.Lock()
        self._has_task = threading.Event()
        self._thread: threading.Thread | None = None
        self._limit = 0
        self._task_thread: int | None = None
        self._exceeded = 0

    @contextmanager
    def watch(self, limit_bytes: int | None) -> Iterator[None]:
        """Watch the task of the block, which runs on this thread.

        Args:
            limit_bytes: Maximum memory of the process; by default half of the machine's.

        Raises:
            WorkerMemoryExceeded: The task passed the limit. It is raised even if the task caught the errors of the
                watch or raised another error.
        """
        limit = limit_bytes or find_default_limit()
        self._begin(limit)
        try:
            yield
        finally:
            self._end()
            if self._exceeded or read_memory_bytes() > limit // 2:
                end_after_task()
            if self._exceeded:  # Python makes the errors of the watch without arguments
                worker = f"its Python worker had {self._exceeded // 1_000_000} MB"
                raise WorkerMemoryExceeded(f"{worker}, more than spark.worker_memory_mb = {limit // 1_000_000}")

    def _begin(self, limit: int) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._poll, name="memory", daemon=True)
            self._thread.start()
        with self._lock:
            self._limit = limit
            self._exceeded = 0
            self._task_thread = threading.get_ident()
        self._has_task.set()

    def _end(self) -> None:
        """No error is raised from now on."""
        self._has_task.clear()
        with self._lock:
            if self._task_thread is not None:
                _raise_in(self._task_thread, None)
            self._task_thread = None

    def _poll(self) -> None:
        while True:
            self._has_task.wait()
            time.sleep(POLL_SECONDS)
            memory = read_memory_bytes()
            # Under the lock: no error may be raised in a thread whose task has ended.
            with self._lock:
                if self._task_thread is None or memory <= self._limit:
                    continue
                self._exceeded = max(self._exceeded, memory)
                _raise_in(self._task_thread, WorkerMemoryExceeded)
            time.sleep(AGAIN_SECONDS)


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    """Raise an error in a thread, at its next instruction of Python; None withdraws an error that waits."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error) if error else None)
