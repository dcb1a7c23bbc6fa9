"""Which processes a process has started, directly or not."""

from __future__ import annotations

import psutil


def list_descendants(pid: int) -> list[int]:
    """Process ids of the living processes below one; none when it has ended."""
    try:
        below = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return [process.pid for process in below if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
