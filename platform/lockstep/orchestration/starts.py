"""Runs of streams that were launched and do not write yet, of all requesters."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from dagster import DagsterRunStatus, RunsFilter

from lockstep.control.heartbeat import list_epochs, read_heartbeat
from lockstep.orchestration.names import name_stream_job
from lockstep.orchestration.run_statuses import NOT_WORKING_YET
from lockstep.table.layout import StreamFolders

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from dagster import DagsterInstance

    from lockstep.declare.stream import AnyStream


START_MINUTES_MAX = 10
"""An older run that does not write does not count as a start in progress: it may be dead, and Dagster does not know."""


def find_starting_runs(streams: Iterable[AnyStream], root: Path, instance: DagsterInstance) -> dict[str, str]:
    """The id of a young run that does not write yet, by the name of its stream.

    Args:
        streams: The streams.
        root: The table root.
        instance: Dagster's instance.
    """
    jobs = {name_stream_job(stream): stream.name for stream in streams}
    young = RunsFilter(
        statuses=[*NOT_WORKING_YET, DagsterRunStatus.STARTED],
        # An older run may be dead without Dagster's knowledge.
        created_after=datetime.now(UTC) - timedelta(minutes=START_MINUTES_MAX),
    )
    starting: dict[str, str] = {}
    for run in instance.get_runs(young):
        stream = jobs.get(run.job_name)
        if stream is None or stream in starting:
            continue
        # A started run that has claimed the table works, and takes no core for its start any more.
        if run.status is not DagsterRunStatus.STARTED or not _has_claimed(
            run.run_id, StreamFolders(stream, root).control
        ):
            starting[stream] = run.run_id
    return starting


def _has_claimed(run_id: str, control: Path) -> bool:
    """Whether the newest epoch is that of a run; not if that cannot be read."""
    try:
        epochs = list_epochs(control)
        last = read_heartbeat(control, max(epochs)) if epochs else None
    except OSError:
        return False
    return last is not None and last.run_id == run_id
