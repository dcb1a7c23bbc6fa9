"""Replaces a never-ending run once a day, so that Dagster can delete the old run with its events and logs.

Months of events accumulate under a run of months, and Dagster deletes only whole runs. A rotation is a handover: the
new run takes over at a batch boundary and the old run ends with success.
"""

from __future__ import annotations

import time
import zlib
from datetime import timedelta
from typing import TYPE_CHECKING

from dagster import RunRequest, SkipReason

from lockstep.control.heartbeat import Phase, read_heartbeat
from lockstep.operations.durations import format_duration
from lockstep.operations.stream_table import has_table
from lockstep.orchestration.names import ROTATION, make_automatic_tags, make_run_configuration
from lockstep.orchestration.starts import find_starting_runs
from lockstep.table.commit import OutputLog
from lockstep.table.head import Desired
from lockstep.table.layout import StreamFolders

if TYPE_CHECKING:
    from dagster import DagsterInstance

    from lockstep.declare.stream import AnyStream
    from lockstep.settings import Settings


ROTATION_AGE_MIN = timedelta(hours=12)
"""A younger run was started for another reason, and stays until tomorrow."""
MINUTES_OF_AN_HOUR = 60


def make_rotation_cron(name: str) -> str:
    """Between three and four in the morning, UTC; each stream at another minute, as a start takes a core.

    Args:
        name: Name of the stream or host.
    """
    return f"{zlib.crc32(name.encode()) % MINUTES_OF_AN_HOUR} 3 * * *"


def rotate_stream(stream: AnyStream, settings: Settings, instance: DagsterInstance) -> RunRequest | SkipReason:
    """Request a run that takes over from the active writer, or return the reason to skip.

    Raises:
        TableError: The table does not match its head.
    """
    folders = StreamFolders(stream.name, settings.table_root)
    if not has_table(folders):
        return SkipReason(f"{stream.name} has no table yet")
    head = OutputLog(folders.table).base().head
    last = read_heartbeat(folders.control, head.epoch)
    if head.desired is not Desired.RUNNING or last is None or last.phase is not Phase.WRITING or not last.never_ending:
        return SkipReason(f"no never-ending run of {stream.name} writes ({head.desired.value}: {head.reason})")
    # A second successor would fence the first.
    if find_starting_runs([stream], settings.table_root, instance):
        return SkipReason("a run is on its way")
    record = None
    if last.run_id:
        record = instance.get_run_record_by_id(last.run_id)
    if record is None:
        return SkipReason("the run that writes is none of this Dagster: there is nothing to rotate")
    age = time.time() - (record.start_time or record.create_timestamp.timestamp())
    # A younger run was started for another reason.
    if age < ROTATION_AGE_MIN.total_seconds():
        return SkipReason(f"run {last.run_id} is {format_duration(age)} old")
    return RunRequest(
        run_key=f"{stream.name}-rotation-{last.run_id}",
        run_config=make_run_configuration(stream, available_now=False),
        tags=make_automatic_tags(ROTATION, f"{ROTATION} of a run of {format_duration(age)}", head.epoch),
    )
