"""Starts streams in their host.

A host that runs reads the desired state of its streams, and starts them without a new Spark. If Dagster runs the hosts
of a group, its sensor starts a host for the first stream that is to run.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lockstep.control.start_request import record_start_request
from lockstep.errors import LockstepError
from lockstep.features.host.presence import is_host_alive
from lockstep.operations.lifecycle import Started, check_startable, set_running
from lockstep.operations.stream_table import try_read_head
from lockstep.table.head import Desired
from lockstep.table.layout import StreamFolders
from lockstep.time_limit import SLOW, describe_silence

if TYPE_CHECKING:
    from lockstep.declare.stream import AnyStream
    from lockstep.settings import Settings

POLL_SECONDS = 0.5
WRITE_SECONDS_MAX = 300.0
"""A host reads the desired state of a stream that waits every two seconds. A host that Dagster starts needs half a
minute, ten times as long on a busy machine."""


def start_in_host(stream: AnyStream, settings: Settings, who: str) -> Started | None:
    """Start a stream in the host of its group, and wait until it writes; None without such a host.

    Args:
        stream: The stream.
        settings: The table root, and the hosts of Dagster.
        who: The user who starts it.

    Raises:
        StreamHalted: It waits for an operator.
        Fenced: Another run claimed at the same moment.
        LockstepError: The host does not start it.
    """
    group = stream.host_group
    if group is None or not _has_host(group, settings):
        return None
    folders = StreamFolders(stream.name, settings.table_root)
    epoch = _request(folders, f"lockstep start ({who})")
    if epoch is not None:
        return Started(stream.name, f"host {group}", epoch, was_running=True)
    return Started(stream.name, f"host {group}", _await_writer(folders, group), was_running=False)


def start_group(group: str, streams: Sequence[AnyStream], settings: Settings, who: str) -> tuple[Started, ...]:
    """Start exactly the streams that were stopped with the host of a group, and wait until they write.

    Args:
        group: Name of the group.
        streams: All streams.
        settings: The table root, and the hosts of Dagster.
        who: The user who starts them.

    Raises:
        LockstepError: The group has no host, none of its streams was stopped with it, or the host does not start one.
    """
    if not _has_host(group, settings):
        raise LockstepError(
            f"no host of the group {group} runs",
            next_step=f"start one: lockstep host --group {group}; or name {group} in dagster.hosts of the settings",
        )
    of_group = [StreamFolders(each.name, settings.table_root) for each in streams if each.host_group == group]
    chosen = [folders for folders in of_group if _is_stopped_with_host(folders, group)]
    if not chosen:
        raise LockstepError(
            f"no stream of the group {group} was stopped with its host",
            next_step="start a stream that was stopped by itself: lockstep start STREAM",
        )
    for folders in chosen:
        _request(folders, f"lockstep start --group {group} ({who})")
    return tuple(
        Started(folders.stream, f"host {group}", _await_writer(folders, group), was_running=False) for folders in chosen
    )


def _has_host(group: str, settings: Settings) -> bool:
    return group in settings.dagster.hosts or is_host_alive(settings.table_root, group)


def _is_stopped_with_host(folders: StreamFolders, group: str) -> bool:
    """Whether the reason of the stop is that of `stop_streams` (termination.py)."""
    head = try_read_head(folders)
    return head is not None and head.desired is Desired.STOPPED and head.reason.startswith(f"host {group} terminated")


def _request(folders: StreamFolders, cause: str) -> int | None:
    """Let the host start a stream; returns the epoch of a never-ending run that writes it already.

    Raises:
        StreamHalted: It waits for an operator.
        Fenced: Another run claimed at the same moment.
    """
    refusal = check_startable(folders)
    if refusal.never_ending:
        return refusal.epoch
    if refusal.epoch and not refusal.lives:
        set_running(folders, refusal, cause)
    elif not refusal.epoch:  # no claim can record it yet
        record_start_request(folders, cause, refusal.desired_version)
    return None


def _await_writer(folders: StreamFolders, group: str) -> int:
    """The epoch that writes.

    Raises:
        StreamHalted: The stream halted at its start.
        LockstepError: Nothing writes in time.
    """
    deadline = time.monotonic() + WRITE_SECONDS_MAX
    while time.monotonic() < deadline:
        refusal = check_startable(folders)
        if refusal.never_ending:
            return refusal.epoch
        time.sleep(POLL_SECONDS)
    raise LockstepError(
        describe_silence(f"host {group}", WRITE_SECONDS_MAX, verb=f"start {folders.stream}"),
        next_step=f"{SLOW}; its output has the reason, for example an error of the stream, or Dagster's daemon does "
        f"not run; the desired state of {folders.stream} stays running, and the host tries again",
    )
