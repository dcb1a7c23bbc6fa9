"""Dagster's code server, which ends its runs before itself: the command of a container.

    python -m lockstep.orchestration.code_server ARGUMENTS OF dagster api grpc

Runs are processes of the code server. At SIGTERM it waits for them without asking them to end, and a container is
killed when its grace period is over. This program asks each run first: a stream ends at its next batch boundary, its
desired state stays `running`, and the supervisor starts it again with the next code server.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

import psutil

POLL_SECONDS = 0.2
PATIENCE_SECONDS = 60.0
"""For the end of all runs. A stream's own bound is `Limits.stop_timeout_seconds`, 20 by default."""


def serve(arguments: Sequence[str], wanted: threading.Event) -> int:
    """Run the code server until it ends, or until its end is wanted; its exit code.

    Args:
        arguments: Those of `dagster api grpc`.
        wanted: Set when it is to end, after its runs.
    """
    with subprocess.Popen([sys.executable, "-m", "dagster", "api", "grpc", *arguments]) as server:
        while server.poll() is None and not wanted.wait(POLL_SECONDS):
            pass
        if server.poll() is None:
            end_runs(psutil.Process(server.pid), PATIENCE_SECONDS)
            server.terminate()
        return server.wait()


def end_runs(server: psutil.Process, patience_seconds: float) -> None:
    """Ask each run of a code server once to end, and wait until none is left or the patience is over."""
    deadline = time.monotonic() + patience_seconds
    asked = set[psutil.Process]()
    while (runs := _find_runs(server)) and time.monotonic() < deadline:
        for run in runs - asked:
            with suppress(psutil.NoSuchProcess):
                run.terminate()
        asked |= runs
        time.sleep(POLL_SECONDS)


def _find_runs(server: psutil.Process) -> set[psutil.Process]:
    """The processes that Dagster launched runs in; those that it loads code with hold none of these words."""
    runs = set[psutil.Process]()
    with suppress(psutil.NoSuchProcess):
        for child in server.children():
            with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                if "multiprocessing.spawn" in " ".join(child.cmdline()):
                    runs.add(child)
    return runs


def main() -> None:
    """Serve until SIGTERM or SIGINT."""
    wanted = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: wanted.set())
    sys.exit(serve(sys.argv[1:], wanted))


if __name__ == "__main__":
    main()
