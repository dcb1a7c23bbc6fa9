"""Watches a Delta table's log from outside and records when each version could first be read.

A separate program, so that the measured run does not share its interpreter. It polls for the next
entry 200 times a second, as a reader that polls the log does; an entry appears whole or not at all.
Standard library only.

    python observer.py TABLE REPORT     appends "version nanoseconds-since-1970" lines to REPORT
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from pathlib import Path

POLL_SECONDS = 0.005


def observe(table: Path, report: Path, done: threading.Event) -> None:
    """Record the time of each version, from 0 on, until `done`."""
    version = 0
    with report.open("a", buffering=1) as lines:
        while not done.is_set():
            if (table / "_delta_log" / f"{version:020d}.json").exists():
                lines.write(f"{version} {time.time_ns()}\n")
                version += 1
            else:
                time.sleep(POLL_SECONDS)  # not done.wait(): a signal handler that sets it would wait for its lock


if __name__ == "__main__":
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    observe(Path(sys.argv[1]), Path(sys.argv[2]), ended)
