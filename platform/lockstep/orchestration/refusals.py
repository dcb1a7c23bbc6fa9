"""Runs that are refused at once, because they could not end well."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from dagster import Failure

from lockstep.declare.triggers import AvailableNow
from lockstep.engine.liveness import Phase, pulse, writer_lives
from lockstep.orchestration.names import stream_job
from lockstep.table import log
from lockstep.table.commit import OutputLog
from lockstep.table.layout import StreamFolders

if TYPE_CHECKING:
    from pathlib import Path

    from dagster import DagsterInstance, DagsterRun

    from lockstep.declare.triggers import Trigger
    from lockstep.engine.hands import AnyStream


def refuse(stream: AnyStream, root: Path, trigger: Trigger, instance: DagsterInstance, run: DagsterRun) -> None:
    """Refuse a run that could not end well.

    Raises:
        Failure: Says why, and what to do instead.
    """
    if isinstance(trigger, AvailableNow):
        _refuse_to_end_another(stream, StreamFolders(stream.name, root))
    else:
        _refuse_unseen(stream, instance, run)


def _refuse_to_end_another(stream: AnyStream, folders: StreamFolders) -> None:
    """A run that ends by itself may not take over from one that is never to end."""
    if not never_ending_run_lives(folders):
        return
    raise Failure(
        f"a never-ending run of {stream.name} is writing; this run would take over from it and then end.\n"
        f"  next: leave {stream.name}/table out of the selection (it is up to date), or launch the job "
        f"{stream_job(stream)}, which hands over to a run that goes on",
        allow_retries=False,
    )


def _refuse_unseen(stream: AnyStream, instance: DagsterInstance, run: DagsterRun) -> None:
    """A run that goes on for ever must be visible somewhere, or nobody can stop it."""
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
