"""Faults at exact system calls of a real process, by strace: the product has no hook, and a log proves the fault.

strace is attached to a process that already works: Java's start under it would take a minute. It filters by one path
and one call, so that it counts only that call on that path. It runs without `--seccomp-bpf`, which loses a signal to be
sent at a call.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest

from tests.faults.matrix.drivers import wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence

ATTACH_SECONDS_MAX = 60.0
needs_strace = pytest.mark.skipif(
    shutil.which("strace") is None, reason="not run: strace is missing (Debian: apt-get install strace)"
)


@dataclass(frozen=True)
class Injection:
    """A fault at a system call.

    Attributes:
        call: The system call.
        does: The effect in strace's syntax, such as "signal=SIGKILL" or "error=ENOSPC".
        path: The file of the call; None for every file.
        when: Which of the calls, counted for each thread: "1", "2+".
    """

    call: str
    does: str
    path: Path | None = None
    when: str = "1"

    @property
    def options(self) -> list[str]:
        """Arguments of strace."""
        about = [] if self.path is None else ["-P", str(self.path)]
        return [*about, "-e", f"trace={self.call}", "-e", f"inject={self.call}:{self.does}:when={self.when}"]


class Tracer:
    """strace on running processes, or on single threads of them, until the block ends."""

    def __init__(self, log: Path, injection: Injection, pids: Sequence[int], *, follow: bool = True) -> None:
        """Trace nothing before the block starts.

        Args:
            log: Output of strace.
            injection: The fault.
            pids: Processes or threads to trace.
            follow: Whether to trace all their threads, and the processes that they start.
        """
        self._log = log
        self._pids = pids
        self._injection = injection
        self._follow = ["-f"] if follow else []

    def __enter__(self) -> Self:
        whom = [part for pid in self._pids for part in ("-p", str(pid))]
        command = ["strace", "-q", *self._follow, "-o", str(self._log), *self._injection.options, *whom]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        deadline = time.monotonic() + ATTACH_SECONDS_MAX
        while not all(_is_traced(pid) for pid in self._pids):
            if self._process.poll() is not None:
                said = (self._process.stderr.read() if self._process.stderr else b"").decode()
                pytest.skip(f"not run: strace may not trace here: {said.strip()}")
            assert time.monotonic() < deadline, "strace does not attach"
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        if self._process.stderr:
            self._process.stderr.close()

    @property
    def lines(self) -> list[str]:
        """Calls on the path, as strace shows them."""
        text = self._log.read_text() if self._log.exists() else ""
        return [line for line in text.splitlines() if f"{self._injection.call}(" in line]

    @property
    def text(self) -> str:
        """The complete log of strace."""
        return self._log.read_text() if self._log.exists() else ""

    def wait_for_call(self) -> str:
        """Wait for the call and return its line in the log."""
        wait_until(lambda: bool(self.lines), f"{self._injection.call} on {self._injection.path}")
        return self.lines[-1]


def _is_traced(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    return "TracerPid:\t0" not in status
