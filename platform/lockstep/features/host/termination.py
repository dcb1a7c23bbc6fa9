"""The stop of the streams of a host whose run in Dagster a person terminated."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from lockstep.control.start_request import forget_start_request
from lockstep.foreign_errors import describe_error
from lockstep.operations.stream_table import try_read_head
from lockstep.orchestration.run_lifecycle import describe_termination, record_stop
from lockstep.table.head import Desired
from lockstep.table.layout import StreamFolders

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from dagster import DagsterInstance

LOG = logging.getLogger("lockstep")


def stop_streams(root: Path, group: str, launched: Mapping[str, str], instance: DagsterInstance, run_id: str) -> None:
    """Stop each running stream of a host by name, except those that another run writes.

    The reason of each stop names the host, so that `lockstep start --group` finds these streams again.

    Args:
        root: The table root.
        group: Name of the group.
        launched: Id of the last run of each stream in the host, by name; empty if unknown.
        instance: Dagster's instance.
        run_id: Dagster's id of the host's run.
    """
    reason = f"host {group} {describe_termination(instance, run_id)}"
    for stream, last in launched.items():
        folders = StreamFolders(stream, root)
        try:
            forget_start_request(folders)
            head = try_read_head(folders)
            if head is not None and head.desired is Desired.RUNNING:
                record_stop(folders, last, reason)
        except Exception as error:  # a damaged table is not to leave the others running
            text, trace = describe_error(error, stream)
            LOG.error("stream %s is not stopped: %s", stream, text, exc_info=trace)  # noqa: TRY400  # known ones have none
