"""Finds the job of a run in Dagster, and waits until its successor writes."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from dagster import DagsterInstance

from lockstep.control.heartbeat import Phase, read_heartbeat
from lockstep.operations.stream_table import try_read_head
from lockstep.orchestration.launch import POLL_SECONDS, WRITE_SECONDS_MAX, StartFailed
from lockstep.orchestration.names import find_host, name_host_job, name_stream_job
from lockstep.orchestration.run_statuses import UNFINISHED
from lockstep.time_limit import SLOW, describe_silence

if TYPE_CHECKING:
    from lockstep.declare.stream import AnyStream
    from lockstep.settings import Settings
    from lockstep.table.layout import StreamFolders


def find_run_job(stream: AnyStream, settings: Settings, run_id: str) -> str | None:
    """The job of Dagster that runs a stream; None if its process is none of Dagster's runs.

    Args:
        stream: The stream.
        settings: The hosts of Dagster.
        run_id: The run that writes.
    """
    if not os.environ.get("DAGSTER_HOME"):
        return None
    if find_host(stream, settings):
        return name_host_job(find_host(stream, settings))
    with DagsterInstance.get() as instance:
        run = instance.get_run_by_id(run_id) if run_id else None
    return name_stream_job(stream) if run is not None and run.status in UNFINISHED else None


def await_successor(stream: AnyStream, folders: StreamFolders, run_id: str, epoch: int) -> int:
    """Wait until a run writes the stream under a newer epoch; returns this epoch.

    Args:
        stream: The stream.
        folders: Folders of its tables.
        run_id: The launched run.
        epoch: The epoch before.

    Raises:
        StartFailed: No run writes it.
    """
    deadline = time.monotonic() + WRITE_SECONDS_MAX
    while time.monotonic() < deadline:
        head = try_read_head(folders)
        if head is not None and head.epoch > epoch:
            last = read_heartbeat(folders.control, head.epoch)
            if last is not None and last.phase is Phase.WRITING:
                return head.epoch
        _refuse_ended(stream, run_id)
        time.sleep(POLL_SECONDS)
    silence = describe_silence(f"run {run_id}", WRITE_SECONDS_MAX, verb="write")
    raise StartFailed(stream.name, run_id, silence, f"{SLOW}, and goes on: lockstep status {stream.name} shows it")


def _refuse_ended(stream: AnyStream, run_id: str) -> None:
    with DagsterInstance.get() as instance:
        run = instance.get_run_by_id(run_id)
    if run is not None and run.is_finished:
        raise StartFailed(stream.name, run_id, f"run {run_id} ended: {run.status.value}; the run before continues")
