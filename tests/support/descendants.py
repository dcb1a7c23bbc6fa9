"""List and end the processes that a process has started, directly or not."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Sequence

STOP_SECONDS_MAX = 20
"""A process that still runs after this time is killed."""


def list_descendants(pid: int) -> list[int]:
    """List the ids of living descendants of a process; empty if the process has ended."""
    try:
        below = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return [process.pid for process in below if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


def end_with_descendants(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """End processes and all their descendants, including suspended processes."""
    below: list[int] = []
    for process in processes:
        below += list_descendants(process.pid)
    for process in processes:
        process.terminate()
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS_MAX)
        process.kill()
        process.wait()
    for pid in below:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
