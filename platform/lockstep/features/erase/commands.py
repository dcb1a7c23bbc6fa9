"""Erasure on the command line."""

from __future__ import annotations

import getpass
from typing import Annotated

import typer

from lockstep.cli.app import (
    AsJson,
    Panel,
    StreamName,
    open_handle,
    register_command,
    require_reason,
)
from lockstep.cli.plan_question import PlanOnly, Yes, carry_out


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
        bool, typer.Option("--drop-savepoints", help="Delete all savepoints: they keep the erased data.")
    ] = False,
    plan: PlanOnly = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Erase one session: rows, state, quarantined and late messages. No rewind, savepoint or time travel has it back.

    All other rows stay as they are, in their order, which is proven before the commit. Housekeeping deletes the old
    files: lockstep housekeeping STREAM does so immediately. Kafka is not changed. Exit code 1 if something refuses it.
    """
    from lockstep.features.erase.erase import EraseRequest, prepare_erasure, read_context

    wanted = EraseRequest(session=session, topic=topic, drop_state=drop_state, drop_savepoints=drop_savepoints)
    handle = open_handle(stream)
    context = read_context(handle)
    cause = f"{why} ({getpass.getuser()})"
    carry_out(
        lambda: prepare_erasure(handle.folders, wanted, context, cause=cause),
        plan_only=plan,
        yes=yes,
        as_json=as_json,
    )
