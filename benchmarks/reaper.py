"""Runs one command and measures the CPU time and memory of all its processes.

A program of its own, started by `benchmarks.measure`: the kernel adds a process's CPU time to the
one that waits for it, so a process that adopts all orphans (a "child subreaper") and waits for all
of them loses nothing, not even daemons that end long after their parents. Standard library only, so
that it starts immediately.

    python reaper.py REPORT COMMAND...      writes REPORT (JSON) when all has ended
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import FrameType

# Processes that outlive the command get this long, then SIGKILL: a figure without the
# daemons' time would be wrong, and an endless wait gives none.
LEFT_BEHIND_SECONDS_MAX = 30.0
SAMPLE_SECONDS = 0.25
_POLL_SECONDS = 0.05
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


class _Ended(BaseException):
    """The caller is gone, or has requested the end."""


class _Sampler(threading.Thread):
    """Samples all descendants four times a second: peak memory, and CPU time that no parent counts.

    A process whose parent ignores SIGCHLD (Spark's daemon of Python workers does) is reaped by the
    kernel, which adds its time to no process: its last sample counts, at most a quarter second short. Where that parent
    ends first, this process reaps it, and the sample does not count.

    Attributes:
        peak_bytes: Peak memory of all descendants.
        reaped: Processes that this one has waited for.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak_bytes = 0
        self.reaped: set[int] = set()
        self._uncounted_seconds: dict[int, float] = {}
        self._done, self._is_whole = threading.Event(), False

    @property
    def uncounted_seconds(self) -> float:
        """CPU time of all processes without a waiting parent."""
        return sum(seconds for pid, seconds in self._uncounted_seconds.items() if pid not in self.reaped)

    def run(self) -> None:
        while not self._done.wait(SAMPLE_SECONDS):
            below = descendants(os.getpid())
            self.peak_bytes = max(self.peak_bytes, sum(map(_memory_bytes, below)))
            for pid in below:
                seconds = _cpu_seconds_if_uncounted(pid)
                if seconds is not None:
                    self._uncounted_seconds[pid] = seconds
        self._is_whole = True

    def finish(self) -> None:
        """Stop sampling. Raises RuntimeError where it failed before: the figures would miss processes."""
        self._done.set()
        self.join()
        if not self._is_whole:
            raise RuntimeError("sampling failed, see above: CPU time and memory are not whole")


def run(command: list[str]) -> dict[str, float]:
    """Run a command to the end of its last descendant.

    1. Adopt orphans; end when the caller ends. 2. Run the command and sample memory. 3. Wait for
    the command, and for every other process that ends meanwhile. 4. Wait for leftover processes.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # 1
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    signal.signal(signal.SIGTERM, _end)
    sampler = _Sampler()
    began = time.monotonic()
    try:
        pid = subprocess.Popen(command).pid  # 2
        sampler.start()
        exit_code = _wait_for(pid, sampler.reaped)  # 3
        wall_seconds = time.monotonic() - began
        left_behind = _wait_for_the_rest(sampler.reaped)  # 4
    finally:
        _kill_descendants()
    sampler.finish()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "exit_code": exit_code,
        "cpu_seconds": used.ru_utime + used.ru_stime + sampler.uncounted_seconds,
        "wall_seconds": wall_seconds,
        # ru_maxrss is the largest single process: it also sees a peak between two samples.
        "peak_memory_bytes": max(sampler.peak_bytes, used.ru_maxrss * 1024),
        "left_behind": left_behind,
    }


def descendants(pid: int) -> list[int]:
    """All current descendants of a process."""
    found: list[int] = []
    for child in _children(pid):
        found += [child, *descendants(child)]
    return found


def _children(pid: int) -> list[int]:
    """A process's children, of all its threads."""
    children: list[int] = []
    with contextlib.suppress(OSError):  # a process that has just ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):  # a thread that has just ended
                children += map(int, (task / "children").read_text().split())
    return children


def _memory_bytes(pid: int) -> int:
    """Proportional set size: a page shared by n processes counts 1/n for each."""
    with contextlib.suppress(OSError):  # a process that has just ended
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def _cpu_seconds_if_uncounted(pid: int) -> float | None:
    """CPU time of a process whose parent ignores its end; None for all others."""
    with contextlib.suppress(OSError, StopIteration):  # a process that has just ended
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        parent = Path(f"/proc/{fields[1]}/status").read_text().splitlines()
        ignored = next(int(line.split()[1], 16) for line in parent if line.startswith("SigIgn:"))
        if ignored >> (signal.SIGCHLD - 1) & 1:
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return None


def _wait_for(pid: int, reaped: set[int]) -> int:
    while True:
        ended, status = os.wait()
        reaped.add(ended)
        if ended == pid:
            return os.waitstatus_to_exitcode(status)


def _wait_for_the_rest(reaped: set[int]) -> int:
    """Wait for all other descendants, killing them after the deadline; returns how many were killed."""
    deadline = time.monotonic() + LEFT_BEHIND_SECONDS_MAX
    killed = 0
    while _reap(reaped):
        if time.monotonic() > deadline:
            killed += _kill_descendants()
        time.sleep(_POLL_SECONDS)
    return killed


def _reap(reaped: set[int]) -> bool:
    """Reap everything that has ended; returns whether any child is left."""
    try:
        while pid := os.waitpid(-1, os.WNOHANG)[0]:
            reaped.add(pid)
    except ChildProcessError:
        return False
    return True


def _kill_descendants() -> int:
    below = descendants(os.getpid())
    for pid in below:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return len(below)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _end(_signal: int, _frame: FrameType | None) -> None:
    raise _Ended


if __name__ == "__main__":
    try:
        Path(sys.argv[1]).write_text(json.dumps(run(sys.argv[2:])))
    except (_Ended, KeyboardInterrupt):  # terminated, and all descendants have ended: nothing to report
        raise SystemExit(128 + signal.SIGTERM) from None
