"""Dagster's code server, whose code is loaded again by Reload, and which ends its runs before itself.

    python -m lockstep.orchestration.code_server ARGUMENTS OF dagster code-server start

Dagster's proxy starts an inner server, and another at each Reload; the earlier server stays until its runs have ended.
The proxy does not notice the end of an inner server: this program kills the proxy then, and ends, so that a process
manager starts both again. Runs continue, unless the manager ends them, as a container does.

Runs are processes of an inner server. At SIGTERM it waits for them without asking them to end, and a container
is killed when its grace period is over. This program asks each run first: a stream ends at its next batch boundary, its
desired state stays `running`, and the supervisor starts it again with the next code server.

Why: docs/decisions/0067-the-code-server-is-dagsters-proxy.md
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress

import psutil

from lockstep.child_process import make_tied_command

POLL_SECONDS = 0.2
WATCH_SECONDS = 2.0
"""Between two checks of the inner server: each reads the processes of the machine, which takes some milliseconds."""
PATIENCE_SECONDS = 60.0
"""For the end of all runs. A stream's own bound is `Limits.stop_timeout_seconds`, 20 by default."""
HEARTBEAT_SECONDS = 600
"""An inner server without its proxy's heartbeats for this time starts no further run, and ends after its last one; it
checks once in this time. Dagster's 30 s are short for a busy machine."""
LOAD_SECONDS = 300
"""Time for an inner server to start and load the code: a module that hangs would end Reload for good."""
_START = (
    *(sys.executable, "-m", "dagster", "code-server", "start"),
    *("--heartbeat-ttl", str(HEARTBEAT_SECONDS), "--startup-timeout", str(LOAD_SECONDS)),
)


def serve(arguments: Sequence[str], wanted: threading.Event) -> int:
    """Run the code server until it ends, or until its end is wanted; its exit code.

    Args:
        arguments: Those of `dagster code-server start`.
        wanted: Set when it is to end, after its runs.
    """
    with subprocess.Popen(make_tied_command([*_START, *arguments])) as server:
        try:
            _watch(server, wanted)
            if server.poll() is None:
                end_runs(psutil.Process(server.pid), PATIENCE_SECONDS)
                server.terminate()
        except BaseException:
            server.kill()  # the end of this block waits for it
            raise
        return server.wait()


def _watch(server: subprocess.Popen[bytes], wanted: threading.Event) -> None:
    """Return when the end is wanted, or after the end of the proxy, which the end of the newest inner server causes."""
    proxy = psutil.Process(server.pid)
    inner: set[psutil.Process] = set()
    while not wanted.wait(WATCH_SECONDS):
        inner |= _list_inner_servers(proxy) | _list_ended(proxy)
        newest = max(inner, key=psutil.Process.create_time, default=None)
        if newest is not None and not _is_alive(newest):
            sys.stderr.write("the inner server with the code ended, so this code server ends\n")
            server.kill()  # SIGTERM would wait for all runs of its inner servers
            server.wait()
        if server.poll() is not None:
            _end_idle(inner)
            return
        inner = {process for process in inner if _is_alive(process)}


def _end_idle(inner: Iterable[psutil.Process]) -> None:
    """Ask inner servers without runs to end, which would wait for heartbeats of their proxy."""
    for process in inner:
        with suppress(psutil.Error):
            if not any(map(is_run, process.children())):
                process.terminate()


def end_runs(proxy: psutil.Process, patience_seconds: float) -> None:
    """Ask each run of a code server once to end, and wait until none is left or the patience is over."""
    deadline = time.monotonic() + patience_seconds
    asked = set[psutil.Process]()
    while (runs := _find_runs(proxy)) and time.monotonic() < deadline:
        for run in runs - asked:
            with suppress(psutil.Error):
                run.terminate()
        asked |= runs
        time.sleep(POLL_SECONDS)


def _find_runs(proxy: psutil.Process) -> set[psutil.Process]:
    """The processes in which Dagster launched runs."""
    runs = set[psutil.Process]()
    for inner in _list_inner_servers(proxy):
        with suppress(psutil.Error):
            runs.update(filter(is_run, inner.children()))
    return runs


def is_run(process: psutil.Process) -> bool:
    """Whether this child of an inner server is a run; other children of it do not have these words."""
    with suppress(psutil.Error):
        return "multiprocessing.spawn" in " ".join(process.cmdline())
    return False


def _list_inner_servers(proxy: psutil.Process) -> set[psutil.Process]:
    """The inner servers of a proxy, those that wait for their last runs too."""
    with suppress(psutil.Error):
        return set(filter(is_inner_server, proxy.children()))
    return set()


def _list_ended(proxy: psutil.Process) -> set[psutil.Process]:
    """The ended children of a proxy, which waits for none: an inner server may end before it was seen alive."""
    with suppress(psutil.Error):
        return {process for process in proxy.children() if not _is_alive(process)}
    return set()


def is_inner_server(process: psutil.Process) -> bool:
    """Whether a process is a server that has loaded the code; runs are its children."""
    with suppress(psutil.Error):
        return {"api", "grpc"} <= set(process.cmdline())
    return False


def _is_alive(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def main() -> None:
    """Serve until SIGTERM or SIGINT."""
    wanted = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: wanted.set())
    sys.exit(serve(sys.argv[1:], wanted))


if __name__ == "__main__":
    main()
