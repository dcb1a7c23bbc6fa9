"""Child and detached processes.

Dagster starts processes of its own, these start Java, and that starts Python again; a killed process leaves orphaned
children behind. All of them keep the environment of their start. So a variable there marks the processes of the
platform, never a name, and never a pid alone, which may be reused by another process: a signal goes through a handle
of exactly the process that was checked.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence


# Run by a bare interpreter in the child, before the command: PR_SET_PDEATHSIG is 1 and survives exec. The
# check of the parent closes the gap in which it died before the call to prctl. `preexec_fn` would do the
# same in a copy of the parent, where it can deadlock as soon as there are threads.
_TIE = """
import ctypes, os, signal, sys
owner = int(sys.argv[1])
ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)
if os.getppid() != owner:
    sys.exit("the owner is gone")
os.execvp(sys.argv[2], sys.argv[2:])
"""

# Signals that a shell's `&` or nohup had ignored stay ignored over exec, and Dagster would not receive its end.
_ALONE = """
import os, signal, sys
for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)
os.execvp(sys.argv[1], sys.argv[1:])
"""

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h

NO_CHANGE: Mapping[str, str] = MappingProxyType({})

# Below the range of Linux's ephemeral ports for outgoing connections, so that a port stays free while
# its server is being restarted.
PORTS = range(20_000, 32_000)


def start_child(
    command: Sequence[str], *, folder: Path, log: Path, environment: Mapping[str, str] = NO_CHANGE
) -> subprocess.Popen[bytes]:
    """Start a process in its own session that the kernel kills when this thread's process ends.

    Call it from a thread that lives as long as the process is needed: Linux ties a child to the thread
    that started it.

    Args:
        command: The command and its arguments.
        folder: Its working folder.
        log: Where its output and errors go, appended.
        environment: Variables in addition to those of this process.
    """
    tied = ["-c", _TIE, str(os.getpid()), *command]
    return _start(tied, folder=folder, log=log, environment=environment)


def start_detached(
    command: Sequence[str], *, folder: Path, log: Path, environment: Mapping[str, str] = NO_CHANGE
) -> subprocess.Popen[bytes]:
    """Start a process in its own session that survives the end of this one, and of its terminal.

    It handles every signal, even those that this process ignores. Arguments as of `start_child`.
    """
    return _start(["-c", _ALONE, *command], folder=folder, log=log, environment=environment)


def _start(
    launch: Sequence[str], *, folder: Path, log: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Run a launcher above by a bare interpreter, which becomes the command."""
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", *launch],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={**os.environ, **environment},
        )


def adopt_orphans() -> None:
    """Make this process the parent of all its descendants whose own parents end, so that none is lost."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1)


def end_descendants(seconds: float, *, but: int | None = None) -> None:
    """Ask every process below this one except one to end, and kill the rest after the given seconds.

    Needs `adopt_orphans` first: otherwise a daemon's grandchildren would not be found.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + seconds
        while (alive := [pid for pid in list_descendants() if pid != but]) and time.monotonic() < deadline:
            for pid in alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            time.sleep(0.2)
            _reap()


def list_descendants(of: int | None = None) -> list[int]:
    """Processes below one, by default this one, that have not ended, nearest first."""
    found, todo = [], [of or os.getpid()]
    while todo:
        for children in Path(f"/proc/{todo.pop(0)}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                below = [int(pid) for pid in children.read_text().split()]
                found += below
                todo += below
    return [pid for pid in found if not _is_zombie(pid)]


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def _reap() -> None:
    """Reap adopted children that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def find_free_ports(count: int) -> tuple[int, ...]:
    """Different free loopback TCP ports; another process may still take one first."""
    shuffled = random.sample(PORTS, len(PORTS))
    return tuple(islice(filter(is_free, shuffled), count))


def is_free(port: int) -> bool:
    """Whether a server could listen on this loopback port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


MARK = "LOCKSTEP_LIVE"
"""Environment variable that all processes of a live platform carry; its value is their folder."""
LOOK_SECONDS = 0.2


class ProcessHandle(msgspec.Struct, frozen=True):
    """One process.

    Attributes:
        pid: Its process id.
        started: Start time in clock ticks since boot; distinguishes it from a later process with the same pid.
        parent: The process id of its parent.
    """

    pid: int
    started: int
    parent: int


def list_platform_processes(folder: Path) -> dict[int, ProcessHandle]:
    """The living processes of the platform in this folder, by pid."""
    mark = f"{MARK}={folder}".encode()
    found = (_member(int(path.name), mark) for path in Path("/proc").iterdir() if path.name.isdigit())
    return {member.pid: member for member in found if member is not None}


def stop_all(folder: Path, servers: Collection[int], broker: Collection[int]) -> None:
    """End all processes of the platform, whatever state they are in; within 30 s.

    1. Ask processes that no other one manages, and those that a server started, to end: the feed, and the runs,
       which end their own Java at a batch boundary (a stream's own bound for that is 20 s).
    2. Ask everything but the broker.
    3. Ask the broker.
    4. Kill the rest.

    Args:
        folder: The folder of the platform.
        servers: Pids of the servers that are still needed while runs end.
        broker: Pid of the broker, needed by all.
    """

    def runs(member: ProcessHandle, all_of_it: Collection[int]) -> bool:
        kept = {*servers, *broker}
        return member.pid not in kept and (member.parent not in all_of_it or member.parent in kept)

    waves: list[tuple[Callable[[ProcessHandle, Collection[int]], bool], signal.Signals, float]] = [
        (runs, signal.SIGTERM, 21.0),
        (lambda member, _: member.pid not in broker, signal.SIGTERM, 3.0),
        (lambda *_: True, signal.SIGTERM, 3.0),
        (lambda *_: True, signal.SIGKILL, 2.0),
    ]
    for chosen, number, seconds in waves:
        _end(folder, chosen, number, seconds)


def is_alive(member: ProcessHandle) -> bool:
    """Whether exactly this process lives."""
    stat = _stat(member.pid)
    return stat is not None and stat.started == member.started


def read_process_handle(pid: int) -> ProcessHandle | None:
    """The process with a pid; None if there is none or it is a zombie."""
    return _stat(pid)


def _end(
    folder: Path, chosen: Callable[[ProcessHandle, Collection[int]], bool], number: signal.Signals, seconds: float
) -> None:
    deadline, asked = time.monotonic() + seconds, set[ProcessHandle]()
    while time.monotonic() < deadline:
        alive = list_platform_processes(folder)
        left = [member for member in alive.values() if chosen(member, alive) and _hears(member, number)]
        if not left:
            return
        for member in left:
            if member not in asked:  # once: a second signal would break off what the first one ends in order
                asked.add(member)
                _tell(member, number)
        time.sleep(LOOK_SECONDS)


def _hears(member: ProcessHandle, number: signal.Signals) -> bool:
    """Whether a process does not ignore a signal; one that does, such as Python's resource tracker, ends by itself."""
    try:
        status = Path(f"/proc/{member.pid}/status").read_text()
    except OSError:
        return False
    ignored = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigIgn:"))
    return not ignored >> (number - 1) & 1


def _tell(member: ProcessHandle, number: signal.Signals) -> None:
    """Send a signal to exactly this process, if it still exists."""
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(member.pid)
        try:
            if is_alive(member):
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)


def _member(pid: int, mark: bytes) -> ProcessHandle | None:
    try:
        marked = mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # ended, or of another user
        return None
    return _stat(pid) if marked else None


def _stat(pid: int) -> ProcessHandle | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    state, parent, started = fields[0], int(fields[1]), int(fields[19])
    return None if state in "ZX" else ProcessHandle(pid, started, parent)
