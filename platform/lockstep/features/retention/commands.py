"""Retention and housekeeping on the command line."""

from __future__ import annotations

import getpass
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType

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
from lockstep.cli.output import (
    make_grid,
    make_lines,
    print_answer,
    style_text,
)
from lockstep.cli.plan_question import PlanOnly, Yes, ask_for_plan

if TYPE_CHECKING:
    from lockstep.features.retention.housekeeping import HousekeepingResult
    from lockstep.features.retention.messages import QuarantineRetained, QuarantineRetentionPlan
    from lockstep.features.retention.rows import Retained, RetentionPlan


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

    done = run_housekeeping(
        find_folders(stream),
        retention_seconds=load_settings_or_exit().rewind_hours * 3600,
        stream=find_stream_or_exit(stream),
        plan_only=plan,
    )
    print_answer(done, _housekeeping, as_json=as_json)


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
    """Drop the rows of whole closed hours that are older; the stream goes on. `Stream(retention=...)` does so hourly.

    Housekeeping deletes the files once no rewind can go back to them (`rewind_hours`). With --quarantine, old
    messages of quarantine and late table go instead, for good: `Stream(quarantine_retention=...)` does so hourly.
    """
    from lockstep.features.retention.messages import drop_old_messages, plan_quarantine_retention
    from lockstep.features.retention.rows import drop_old_rows, plan_retention

    folders, keep, cause = find_folders(stream), timedelta(days=days), f"{why}, by {getpass.getuser()}"
    if quarantine and plan:
        found = plan_quarantine_retention(folders, keep)
        print_answer(found, lambda found: _quarantine_retention(found, "would be"), as_json=as_json)
        return
    if quarantine:
        ask_for_plan(
            lambda: plan_quarantine_retention(folders, keep),
            lambda found: _quarantine_retention(found, "would be"),
            yes=yes,
        )
        dropped = drop_old_messages(folders, keep, cause=cause)
        print_answer(dropped, _messages_dropped, as_json=as_json)
        return
    if plan:
        print_answer(plan_retention(folders, keep), lambda found: _retention(found, "would be"), as_json=as_json)
        return
    ask_for_plan(lambda: plan_retention(folders, keep), lambda found: _retention(found, "would be"), yes=yes)
    done = drop_old_rows(folders, keep, cause=cause)
    print_answer(done, _rows_dropped, as_json=as_json)


def _retention(plan: RetentionPlan, verb: str) -> RenderableType:
    what = f"{plan.rows} rows of {plan.hours} hours before {plan.before_hour or '-'} {verb} dropped"
    return style_text(f"{plan.stream}: {what} ({len(plan.files)} files, {plan.bytes} bytes)")


def _rows_dropped(done: Retained) -> RenderableType:
    return _retention(done.plan, "were")


def _messages_dropped(done: QuarantineRetained) -> RenderableType:
    return _quarantine_retention(done.plan, "were")


def _quarantine_retention(plan: QuarantineRetentionPlan, verb: str) -> RenderableType:
    columns = ("table", "messages", "bytes", "files", "first hour", "last hour", "first batch", "last batch")
    rows = (
        (
            *(each.table, each.messages, each.bytes, len(each.files)),
            *(each.first_hour or "-", each.last_hour or "-", each.first_batch, each.last_batch),
        )
        for each in plan.tables
    )
    what = f"messages of batches up to {plan.batch}, committed before {plan.before_hour or '-'}, {verb} dropped"
    return make_lines(style_text(f"{plan.stream}: {what}"), make_grid(columns, rows))


def _housekeeping(found: HousekeepingResult) -> RenderableType:
    verb = "would be deleted" if found.planned_only else "deleted"
    rows = ((step.step, step.files, step.bytes) for step in found.steps)
    floor = style_text(f"{found.stream}: a rewind can go back to batch {found.rewind_floor}; {verb}:")
    return Group(floor, make_grid(("step", "files", "bytes"), rows))
