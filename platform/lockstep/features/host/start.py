"""Starts a stream in a host that runs: the host is its driver, and Dagster is not asked."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.control.heartbeat import is_run_counting, run_heartbeat
from lockstep.errors import LockstepError
from lockstep.operations.lifecycle import Started, check_startable, set_running
from lockstep.table.layout import StreamFolders
from lockstep.time_limit import SLOW, describe_silence

if TYPE_CHECKING:
    from lockstep.declare.stream import AnyStream
    from lockstep.settings import Settings

HOSTS = "_hosts"
"""Folder of the heartbeats of hosts, in the table root."""
POLL_SECONDS = 0.5
WRITE_SECONDS_MAX = 300.0
"""A host reads the desired state of a stream that waits every two seconds, and starts it without a new Spark."""


def show_host(root: Path, group: str) -> AbstractContextManager[None]:
    """Heartbeat of a host while the block lasts, by which `lockstep start` finds it.

    Two hosts of a group, of which one replaces the other, count in the same file.
    """
    return run_heartbeat(root / HOSTS, group)


def is_host_alive(root: Path, group: str) -> bool:
    """Whether a host of a group runs on these tables; polls for some seconds."""
    return is_run_counting(root / HOSTS, group)


def start_in_host(stream: AnyStream, settings: Settings, who: str) -> Started | None:
    """Start a stream in the host of its group, and wait until it writes; None without such a host.

    Args:
        stream: The stream.
        settings: The table root.
        who: The user who starts it.

    Raises:
        StreamHalted: It waits for an operator.
        Fenced: Another run claimed at the same moment.
        LockstepError: The host does not start it.
    """
    group = stream.host_group
    root = settings.table_root
    if group is None or not is_host_alive(root, group):
        return None
    folders = StreamFolders(stream.name, root)
    found = check_startable(folders)
    if found.never_ending:
        return Started(stream.name, f"host {group}", found.epoch, was_running=True)
    if found.epoch and not found.lives:
        set_running(folders, found, f"lockstep start ({who})")
    return Started(stream.name, f"host {group}", _await_writer(folders, group), was_running=False)


def _await_writer(folders: StreamFolders, group: str) -> int:
    """The epoch that writes.

    Raises:
        StreamHalted: The stream halted at its start.
        LockstepError: Nothing writes in time.
    """
    deadline = time.monotonic() + WRITE_SECONDS_MAX
    while time.monotonic() < deadline:
        found = check_startable(folders)
        if found.never_ending:
            return found.epoch
        time.sleep(POLL_SECONDS)
    raise LockstepError(
        describe_silence(f"host {group}", WRITE_SECONDS_MAX, verb=f"start {folders.stream}"),
        next_step=f"{SLOW}; its output has the reason, for example an error of the stream; the desired state of "
        f"{folders.stream} stays running, and the host tries again",
    )
