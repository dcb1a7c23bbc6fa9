"""Child and detached processes.

Dagster starts processes, these start Java, and that starts Python again; a killed process leaves orphaned
children behind. All of them keep the environment of their start. So a variable there marks the processes of the
platform, never a name, and never a pid alone, which may be reused by another process: psutil compares the start time
of a process before it sends a signal.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec
import psutil

from lockstep.child_process import make_tied_command
from lockstep.errors import LockstepError
from lockstep.orchestration.code_server import is_inner_server, is_run

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from types import FrameType


# Signals that a shell's `&` or nohup had ignored stay ignored over exec, and Dagster would not receive its end.
_ALONE = """
import os, signal, sys
for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)
os.execvp(sys.argv[1], sys.argv[1:])
"""

_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def interrupt_by_signals() -> Iterator[None]:
    """Any signal that ends a command raises `KeyboardInterrupt`, also if a shell's `&` had them ignored."""
    with _handling(signal.default_int_handler):
        yield


@contextlib.contextmanager
def ignore_interrupts() -> Iterator[None]:
    """Ignore these signals: a second Ctrl-C would stop the deletion midway."""
    with _handling(signal.SIG_IGN):
        yield


@contextlib.contextmanager
def _handling(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread receives signals
        return
    before = {number: signal.signal(number, handler) for number in _ENDS}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


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
        log: The file for its output and errors, appended.
        environment: Variables in addition to those of this process.
    """
    return _start(make_tied_command(command), folder=folder, log=log, environment=environment)


def start_detached(
    command: Sequence[str], *, folder: Path, log: Path, environment: Mapping[str, str] = NO_CHANGE
) -> subprocess.Popen[bytes]:
    """Start a process in its own session that survives the end of this process, and of its terminal.

    It handles every signal, even those that this process ignores. Arguments as of `start_child`.
    """
    alone = [sys.executable, "-I", "-S", "-c", _ALONE, *command]
    return _start(alone, folder=folder, log=log, environment=environment)


def _start(
    launch: Sequence[str], *, folder: Path, log: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Run a command of a bare interpreter, which the wanted command replaces."""
    with log.open("ab") as output:
        return subprocess.Popen(
            launch,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={**os.environ, **environment},
        )


def find_free_ports(count: int) -> tuple[int, ...]:
    """Different free loopback TCP ports; another process may still take one first."""
    shuffled = random.SystemRandom().sample(PORTS, len(PORTS))
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
"""Environment variable that all processes of a local platform carry; its value is their folder."""
POLL_SECONDS = 0.2


class ProcessHandle(msgspec.Struct, frozen=True):
    """One process, as recorded for later processes.

    Attributes:
        pid: Its process id.
        started: Start time in seconds since boot, which no change of the clock moves; distinguishes it from a later
            process with the same pid.
    """

    pid: int
    started: float


def read_process_handle(pid: int) -> ProcessHandle | None:
    """The process with a pid; None if there is none or it is a zombie."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return ProcessHandle(pid, round(process.create_time() - psutil.boot_time(), 2))
    except psutil.NoSuchProcess:
        return None


def is_alive(process: ProcessHandle) -> bool:
    """Whether exactly this process lives."""
    return read_process_handle(process.pid) == process


def list_platform_processes(folder: Path) -> list[psutil.Process]:
    """The living processes of the platform in this folder."""
    processes = psutil.process_iter(["environ", "ppid"])
    return [process for process in processes if (process.info["environ"] or {}).get(MARK) == str(folder)]


_Choice = Callable[[psutil.Process, Mapping[int, psutil.Process]], bool]
"""Whether a process is asked to end, by all processes of its platform."""


def stop_all(folder: Path, servers: Collection[int], broker: Collection[int]) -> None:
    """End all processes of the platform, in any state; within 30 s.

    1. Ask processes that no other one manages, and the runs, to end: the feed, and the streams, which end their own
       Java at a batch boundary (a stream's own bound for that is 20 s).
    2. Ask everything but the broker.
    3. Ask the broker.
    4. Kill the rest.

    Args:
        folder: The folder of the platform.
        servers: Pids of the servers that are still needed while runs end.
        broker: Pid of the broker, needed by all.
    """
    kept = {*servers, *broker}

    def is_first(process: psutil.Process, all_of_it: Mapping[int, psutil.Process]) -> bool:
        parent = all_of_it.get(process.info["ppid"])
        return process.pid not in kept and (parent is None or (is_run(process) and is_inner_server(parent)))

    waves: list[tuple[_Choice, signal.Signals, float]] = [
        (is_first, signal.SIGTERM, 21.0),  # 1
        (lambda process, _: process.pid not in broker, signal.SIGTERM, 3.0),  # 2
        (lambda *_: True, signal.SIGTERM, 3.0),  # 3
        (lambda *_: True, signal.SIGKILL, 2.0),  # 4
    ]
    for chosen, number, seconds in waves:
        _end(folder, chosen, number, seconds)


def _end(folder: Path, chosen: _Choice, number: signal.Signals, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    asked = set[psutil.Process]()
    while time.monotonic() < deadline:
        alive = list_platform_processes(folder)
        by_pid = {process.pid: process for process in alive}
        left = [process for process in alive if chosen(process, by_pid) and _hears(process.pid, number)]
        if not left:
            return
        for process in left:
            if process not in asked:  # once: a second signal would break off the orderly end after the first
                asked.add(process)
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(number)
        time.sleep(POLL_SECONDS)


def _hears(pid: int, number: signal.Signals) -> bool:
    """Whether a process does not ignore a signal; one that does, such as Python's resource tracker, ends by itself."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    ignored = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigIgn:"))
    return not ignored >> (number - 1) & 1


def observe_end_signals() -> threading.Event:
    """Set by any signal that ends a command."""
    over = threading.Event()
    for number in _ENDS:
        signal.signal(number, lambda *_: over.set())
    return over


@contextlib.contextmanager
def hold_folder_lock(folder: Path) -> Iterator[None]:
    """Exclude a second command on a platform's folder, which would end or overwrite its processes and files.

    Raises:
        LockstepError: Another command works there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockstepError(f"another command works in {folder}", next_step="wait for its end") from None
        yield
