"""CPU time and memory of a live process tree, by role of its processes."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

import msgspec
import psutil

SAMPLE_SECONDS = 0.25
SAMPLES_A_MEMORY = 8
"""The proportional set size of a JVM takes milliseconds to read."""
DRIVER = "driver"
JVM = "jvm"
WORKERS = "workers"


def find_role(process: psutil.Process) -> str:
    """The role of a process of a run, by its command. Raises psutil.Error if it has just ended."""
    if process.name() == "java":
        return JVM
    return WORKERS if any("worker_daemon" in part for part in process.cmdline()) else DRIVER


class TreeUsage(msgspec.Struct, frozen=True):
    """CPU time of a tree while it was watched.

    Attributes:
        wall_seconds: Duration of the watch.
        cpu_seconds: User and system time by role: driver (Python), jvm, workers (Python).
        memory_bytes_max: Largest sum of the proportional set sizes.
    """

    wall_seconds: float
    cpu_seconds: dict[str, float]
    memory_bytes_max: int = 0

    @property
    def cores(self) -> float:
        """CPU seconds a second, of the whole tree."""
        return sum(self.cpu_seconds.values()) / self.wall_seconds


class TreeMeter(threading.Thread):
    """Watches a process and all its descendants from its creation to `finish`.

    A process that ends meanwhile counts with its usage at the last sample, at most a quarter
    second short; nothing is counted twice, because only each process's own time is.
    """

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._root = psutil.Process(pid)
        self._done = threading.Event()
        self._roles: dict[psutil.Process, str] = {}
        self._before: dict[psutil.Process, float] = {}
        self._now: dict[psutil.Process, float] = {}
        self._memory_bytes_max = 0
        self._looks = 0
        self._began = time.monotonic()
        self._look()
        self._before = dict(self._now)
        self.start()

    def run(self) -> None:
        """Sample four times a second."""
        while not self._done.wait(SAMPLE_SECONDS):
            self._look()

    def restart(self) -> None:
        """Count CPU time and duration from now on."""
        self._look()
        self._before = dict(self._now)
        self._began = time.monotonic()

    def finish(self) -> TreeUsage:
        """Take a last sample, and return the usage."""
        self._done.set()
        self.join()
        self._look()
        used = dict.fromkeys((DRIVER, JVM, WORKERS), 0.0)
        for process, seconds in self._now.items():
            used[self._roles[process]] += seconds - self._before.get(process, 0.0)
        return TreeUsage(time.monotonic() - self._began, used, self._memory_bytes_max)

    def _look(self) -> None:
        with_memory = self._looks % SAMPLES_A_MEMORY == 0
        memory_bytes = 0
        self._looks += 1
        with suppress(psutil.NoSuchProcess):
            for process in (self._root, *self._root.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):  # it has just ended
                    used = process.cpu_times()
                    self._now[process] = used.user + used.system
                    self._roles[process] = self._role(process)
                    memory_bytes += process.memory_full_info().pss if with_memory else 0
        self._memory_bytes_max = max(self._memory_bytes_max, memory_bytes)

    def _role(self, process: psutil.Process) -> str:
        if process == self._root:
            return DRIVER
        return JVM if process.name() == "java" else WORKERS
