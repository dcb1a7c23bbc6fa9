"""Heartbeats of hosts, by which commands, sensors and other hosts of a group find them."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from lockstep.control.heartbeat import (
    POLLS,
    RunHeartbeat,
    compute_poll_seconds,
    forget_run,
    is_process_gone,
    read_run_heartbeats,
    run_heartbeat,
)

HOSTS = "_hosts"
"""Folder of the heartbeats of hosts, in the table root."""


def find_heartbeat_folder(root: Path, group: str) -> Path:
    """The folder with a heartbeat file for each host of a group.

    Args:
        root: The table root.
        group: Name of the group.
    """
    return root / HOSTS / group


def is_host_alive(root: Path, group: str) -> bool:
    """Whether a host of a group runs on these tables; polls for some seconds."""
    folder = find_heartbeat_folder(root, group)
    first = read_run_heartbeats(folder)
    # A file alone proves nothing: only a counter that moves is a living host.
    for _ in range(POLLS if first else 0):
        time.sleep(compute_poll_seconds(folder))
        if read_run_heartbeats(folder).items() - first.items():
            return True
    return False


class HostPresence:
    """The heartbeat of a host, and those of the hosts of its group that started later."""

    def __init__(self, root: Path, group: str, host_id: str) -> None:
        """Nothing is written yet."""
        self._folder = find_heartbeat_folder(root, group)
        self._host_id = host_id
        self._older = frozenset[str]()
        self._later = dict[str, RunHeartbeat]()
        self._due = 0.0
        self._heartbeat = ExitStack()

    def __enter__(self) -> Self:
        """Start to count, and remove the files of hosts that were killed on this machine."""
        for host_id, found in read_run_heartbeats(self._folder).items():
            if is_process_gone(found.process):
                forget_run(self._folder, host_id)
        self._heartbeat.enter_context(run_heartbeat(self._folder, self._host_id))
        # After its own start: of two hosts that see each other here, neither is the successor.
        self._older = frozenset(read_run_heartbeats(self._folder)) | {self._host_id}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._heartbeat.close()

    def has_successor(self) -> bool:
        """Whether a host that started later counts: its heartbeat has changed between two polls."""
        if time.monotonic() < self._due:
            return False
        self._due = time.monotonic() + compute_poll_seconds(self._folder)
        later_before = self._later
        self._later = {
            host_id: found for host_id, found in read_run_heartbeats(self._folder).items() if host_id not in self._older
        }
        return any(host_id in later_before and later_before[host_id] != found for host_id, found in self._later.items())
