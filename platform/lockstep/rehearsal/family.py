"""The processes of one live platform: found by a mark in their environment, ended in order.

Dagster starts processes of its own, these start Java, and that starts Python again; whoever is killed leaves
children behind that belong to nobody. What all of them keep is the environment that they were started with. So
the mark there says who belongs to the platform, never a name, and never a pid alone, which may have passed to
another process: a signal goes through a handle of the very process that was looked at.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

MARK = "LOCKSTEP_LIVE"
"""Environment variable that all processes of a live platform carry; its value is their folder."""
LOOK_SECONDS = 0.2


class Member(msgspec.Struct, frozen=True):
    """One process.

    Attributes:
        pid: Its process id.
        started: When it was started, in clock ticks since the machine was; tells it from a later one of that pid.
        parent: The process id of its parent.
    """

    pid: int
    started: int
    parent: int


def family(folder: Path) -> dict[int, Member]:
    """The living processes of the platform in this folder, by pid."""
    mark = f"{MARK}={folder}".encode()
    found = (_member(int(path.name), mark) for path in Path("/proc").iterdir() if path.name.isdigit())
    return {member.pid: member for member in found if member is not None}


def end_family(folder: Path, servers: Collection[int], broker: Collection[int]) -> None:
    """End all processes of the platform, whatever state they are in; within 30 s.

    1. Ask what nobody of the family is responsible for, and what a server started, to end: the feed, and the runs,
       which end their own Java at a batch boundary (a stream's own bound for that is 20 s).
    2. Ask everything but the broker.
    3. Ask the broker.
    4. Kill what is left.

    Args:
        folder: The folder of the platform.
        servers: Pids of the servers that are still needed while runs end.
        broker: Pid of the broker, needed by all.
    """

    def runs(member: Member, all_of_it: Collection[int]) -> bool:
        kept = {*servers, *broker}
        return member.pid not in kept and (member.parent not in all_of_it or member.parent in kept)

    waves: list[tuple[Callable[[Member, Collection[int]], bool], signal.Signals, float]] = [
        (runs, signal.SIGTERM, 21.0),
        (lambda member, _: member.pid not in broker, signal.SIGTERM, 3.0),
        (lambda *_: True, signal.SIGTERM, 3.0),
        (lambda *_: True, signal.SIGKILL, 2.0),
    ]
    for chosen, number, seconds in waves:
        _end(folder, chosen, number, seconds)


def is_alive(member: Member) -> bool:
    """Whether this very process lives."""
    stat = _stat(member.pid)
    return stat is not None and stat.started == member.started


def member_of(pid: int) -> Member | None:
    """The process of a pid; None when there is none, or only what is left of one."""
    return _stat(pid)


def _end(
    folder: Path, chosen: Callable[[Member, Collection[int]], bool], number: signal.Signals, seconds: float
) -> None:
    deadline, told = time.monotonic() + seconds, set[Member]()
    while time.monotonic() < deadline:
        alive = family(folder)
        left = [member for member in alive.values() if chosen(member, alive) and _hears(member, number)]
        if not left:
            return
        for member in left:
            if member not in told:  # once: a second signal would break off what the first one ends in order
                told.add(member)
                _tell(member, number)
        time.sleep(LOOK_SECONDS)


def _hears(member: Member, number: signal.Signals) -> bool:
    """Whether a process does not ignore a signal; what does, such as Python's resource tracker, ends by itself."""
    try:
        status = Path(f"/proc/{member.pid}/status").read_text()
    except OSError:
        return False
    ignored = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigIgn:"))
    return not ignored >> (number - 1) & 1


def _tell(member: Member, number: signal.Signals) -> None:
    """Send a signal to this very process, if it is still there."""
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(member.pid)
        try:
            if is_alive(member):
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)


def _member(pid: int, mark: bytes) -> Member | None:
    try:
        marked = mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # ended, or somebody else's
        return None
    return _stat(pid) if marked else None


def _stat(pid: int) -> Member | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    state, parent, started = fields[0], int(fields[1]), int(fields[19])
    return None if state in "ZX" else Member(pid, started, parent)
