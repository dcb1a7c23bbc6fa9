"""Runs that do not begin: one that nobody could see is refused, one that has nothing to do is skipped."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from dagster import Failure, MaterializeResult, MetadataValue

from lockstep.engine.liveness import Phase, pulse, writer_lives
from lockstep.orchestration.names import OUTCOME_TAG, stream_job
from lockstep.table import log
from lockstep.table.commit import OutputLog
from lockstep.table.layout import StreamFolders

if TYPE_CHECKING:
    from pathlib import Path

    from dagster import AssetExecutionContext, DagsterInstance, DagsterRun
    from dagster._core.definitions.metadata import RawMetadataValue

    from lockstep.engine.hands import AnyStream

SKIPPED = "skipped"
"""Metadata of a materialization for which no run was needed, and the outcome of such a run."""


def up_to_date(stream: AnyStream, root: Path, context: AssetExecutionContext) -> MaterializeResult[None] | None:
    """What a run that ends by itself gives where a never-ending one writes; None where none does.

    It may not take over from that run and then end, and it has nothing to add: so it leaves the table alone and
    succeeds, and what comes after the table goes on.
    """
    folders = StreamFolders(stream.name, root)
    if not never_ending_run_lives(folders):
        return None
    note = f"a never-ending run keeps {stream.name} up to date; this run left the table alone"
    context.log.info("%s (to hand over to a new one, launch the job %s)", note, stream_job(stream))
    context.instance.add_run_tags(context.run_id, {OUTCOME_TAG: SKIPPED})
    head = OutputLog(folders.table).base().head
    last = pulse(folders.control, head.epoch)
    run = last.run_id if last is not None else ""
    known = context.instance.get_run_by_id(run) is not None if run else False
    live: RawMetadataValue = MetadataValue.dagster_run(run) if known else "not a run of this Dagster instance"
    return MaterializeResult(metadata={SKIPPED: note, "live_run": live, "epoch": head.epoch, "batch": head.batch})


def refuse_unseen(stream: AnyStream, instance: DagsterInstance, run: DagsterRun) -> None:
    """A run that goes on for ever must be visible somewhere, or nobody can stop it.

    Raises:
        Failure: Says why, and what to do instead.
    """
    alone = run.remote_job_origin is None and not os.environ.get("DAGSTER_HOME")
    if instance.is_ephemeral or alone:
        raise Failure(
            f"{stream.name} would run for ever on a Dagster instance that ends with this command\n"
            "  next: export DAGSTER_HOME=<an existing folder> and run it again, or give the run "
            "configuration available_now: true",
            allow_retries=False,
        )


def never_ending_run_lives(folders: StreamFolders) -> bool:
    """Whether a run that is never to end holds the table and counts; takes a second when one does."""
    if not log.exists(folders.table):
        return False
    epoch = OutputLog(folders.table).base().head.epoch
    last = pulse(folders.control, epoch)
    if last is None or not last.never_ending or last.phase is not Phase.WRITING:
        return False
    return writer_lives(folders.control, epoch)
