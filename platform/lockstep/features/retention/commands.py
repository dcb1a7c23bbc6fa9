"""Retention and housekeeping on the command line."""

from __future__ import annotations

import getpass
from datetime import timedelta
from functools import partial
from typing import Annotated

import typer

from lockstep.cli.app import (
    AsJson,
    Panel,
    StreamName,
    find_folders,
    find_stream_or_exit,
    load_settings_or_exit,
    register_command,
    require_reason,
)
from lockstep.cli.output import print_described
from lockstep.cli.plan_question import PlanOnly, Yes, carry_out


@register_command("housekeeping order_books --plan", Panel.MAINTAIN)
def housekeeping(
    stream: StreamName,
    plan: Annotated[bool, typer.Option("--plan", help="Show what would be deleted.")] = False,  # noqa: FBT002  # a flag
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """Delete files that nothing can need any more: old log entries, replaced files, unreachable state.

    Dagster does so every hour. The setting `rewind_hours` determines how far back a rewind can go. Rows, and
    messages of quarantine and late table, past the stream's declared retention of each are dropped first.
    """
    from lockstep.features.retention.housekeeping import run_housekeeping

    result = run_housekeeping(
        find_folders(stream),
        retention_seconds=load_settings_or_exit().rewind_hours * 3600,
        stream=find_stream_or_exit(stream),
        plan_only=plan,
    )
    print_described(result, as_json=as_json)


@register_command("expire order_books --days 90 --plan", Panel.MAINTAIN)
def expire(
    stream: StreamName,
    days: Annotated[int, typer.Option(help="Days of rows that stay, counted from the newest batch.", min=1)],
    why: Annotated[
        str, typer.Option(callback=require_reason, help="Reason, stored with the stream and shown.")
    ] = "by hand",
    *,
    quarantine: Annotated[
        bool, typer.Option("--quarantine", help="Drop messages of quarantine and late table instead of rows.")
    ] = False,
    plan: PlanOnly = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Drop the rows of whole closed hours that are older; the stream continues. `Stream(retention=...)` does so hourly.

    Housekeeping deletes the files once no rewind can go back to them (`rewind_hours`). With --quarantine, old
    messages of quarantine and late table go instead, for good: `Stream(quarantine_retention=...)` does so hourly.
    """
    from lockstep.features.retention.messages import prepare_quarantine_retention
    from lockstep.features.retention.rows import prepare_retention

    folders = find_folders(stream)
    keep = timedelta(days=days)
    cause = f"{why}, by {getpass.getuser()}"
    if quarantine:
        prepare_messages = partial(prepare_quarantine_retention, folders, keep, cause=cause)
        carry_out(prepare_messages, plan_only=plan, yes=yes, as_json=as_json)
    else:
        carry_out(partial(prepare_retention, folders, keep, cause=cause), plan_only=plan, yes=yes, as_json=as_json)
