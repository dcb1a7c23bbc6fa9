"""Erasure on the command line."""

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

from lockstep.cli.app import (
    AsJson,
    Panel,
    StreamName,
    open_handle,
    register_command,
    require_reason,
)
from lockstep.cli.output import (
    make_effects,
    make_first_rows,
    make_grid,
    make_lines,
    print_answer,
    style_text,
)
from lockstep.cli.plan_question import PlanOnly, Yes, ask_for_plan

if TYPE_CHECKING:
    from lockstep.features.erase.erase import ErasePlan, SessionErased


def _erase_plan(found: ErasePlan) -> RenderableType:
    columns = ("topic", "partition", "rows", "state entries", "quarantined", "late", "decisions", "unread offsets")
    rows = (
        (
            *(each.topic, each.partition, each.rows, each.state_entries, each.quarantined, each.late),
            *(each.decisions, each.unread),
        )
        for each in found.partitions
    )
    return make_lines(
        style_text(
            f"{found.stream}: batch {found.last_batch + 1} erases {found.rows} rows of the session with digest "
            f"{found.digest}; {found.files} files of {len(found.hours)} hours are written again, {found.bytes} bytes"
        ),
        style_text(f"no rewind goes below batch {found.last_batch + 1} afterwards"),
        make_first_rows(columns, rows),
        style_text("places that can hold a session, and when it is gone there:"),
        make_grid(("place", "holds", "gone"), ((each.place, each.holds, each.gone) for each in found.places)),
        *(style_text(f"note: {each}") for each in found.notes),
        make_effects(found.followers),
        *(style_text(f"refused: {each.problem}; next: {each.next_step}", "red") for each in found.obstacles),
        None if found.obstacles else style_text("nothing refuses it; repeat the command without --plan", "green"),
    )


def _erased(found: SessionErased) -> RenderableType:
    plan = found.plan
    return make_lines(
        style_text(
            f"{plan.stream}: batch {found.batch} erased {plan.rows} rows and {found.messages} quarantined or late "
            f"messages of the session with digest {plan.digest}"
        ),
        *(style_text(f"note: {each}") for each in plan.notes),
        make_effects(plan.followers),
        style_text(f"next: lockstep housekeeping {plan.stream} deletes the old files; lockstep verify {plan.stream}"),
    )


@register_command('erase order_books --session eth --why "request 4711" --plan', Panel.MAINTAIN)
def erase(  # noqa: PLR0913  # an option a decision
    stream: StreamName,
    session: Annotated[str, typer.Option(help="The session, as the column _session has it.")],
    why: Annotated[
        str, typer.Option(callback=require_reason, help="Reason, stored and shown: it must not name the session.")
    ] = "by hand",
    *,
    topic: Annotated[str, typer.Option(help="Only in this topic; by default in all.")] = "",
    drop_state: Annotated[
        bool,
        typer.Option("--drop-state", help="Erase it although it has state, which its next message would continue."),
    ] = False,
    drop_savepoints: Annotated[
        bool, typer.Option("--drop-savepoints", help="Delete all savepoints: they keep what is erased.")
    ] = False,
    plan: PlanOnly = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Erase one session: rows, state, quarantined and late messages. No rewind, savepoint or time travel has it back.

    All other rows stay as they are, in their order, which is proven before the commit. Housekeeping deletes the old
    files: lockstep housekeeping STREAM does so at once. Kafka is not changed. Exit code 1 where something refuses it.
    """
    from lockstep.features.erase.erase import EraseRequest, erase_session, plan_erasure, read_context

    wanted = EraseRequest(session=session, topic=topic, drop_state=drop_state, drop_savepoints=drop_savepoints)
    handle = open_handle(stream)
    folders, context = handle.folders, read_context(handle)
    if plan:
        print_answer(plan_erasure(folders, wanted, context), _erase_plan, as_json=as_json)
        return
    ask_for_plan(lambda: plan_erasure(folders, wanted, context), _erase_plan, yes=yes)
    done = erase_session(folders, wanted, context, who=getpass.getuser(), why=why)
    print_answer(done, _erased, as_json=as_json)
