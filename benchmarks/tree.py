"""CPU time of a live process tree, by role of its processes."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import msgspec

from benchmarks.reaper import descendants

SAMPLE_SECONDS = 0.25
_TICKS = os.sysconf("SC_CLK_TCK")
DRIVER, JVM, WORKERS = "driver", "jvm", "workers"


class TreeUsage(msgspec.Struct, frozen=True):
    """CPU time of a tree while it was watched.

    Attributes:
        wall_seconds: Duration of the watch.
        cpu_seconds: User and system time by role: driver (Python), jvm, workers (Python).
    """

    wall_seconds: float
    cpu_seconds: dict[str, float]

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
        self._pid, self._done = pid, threading.Event()
        self._roles: dict[int, str] = {}
        self._before: dict[int, float] = {}
        self._now: dict[int, float] = {}
        self._began = time.monotonic()
        self._look()
        self._before = dict(self._now)
        self.start()

    def run(self) -> None:
        """Sample four times a second."""
        while not self._done.wait(SAMPLE_SECONDS):
            self._look()

    def finish(self) -> TreeUsage:
        """Take a last sample, and return the usage."""
        self._done.set()
        self.join()
        self._look()
        used = dict.fromkeys((DRIVER, JVM, WORKERS), 0.0)
        for pid, seconds in self._now.items():
            used[self._roles[pid]] += seconds - self._before.get(pid, 0.0)
        return TreeUsage(time.monotonic() - self._began, used)

    def _look(self) -> None:
        for pid in (self._pid, *descendants(self._pid)):
            try:
                head, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
            except OSError:  # it has just ended
                continue
            fields = rest.split()
            self._now[pid] = (int(fields[11]) + int(fields[12])) / _TICKS
            self._roles[pid] = DRIVER if pid == self._pid else JVM if head.endswith("(java") else WORKERS
