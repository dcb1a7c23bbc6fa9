"""Go back, try, replace: rewind, savepoints, backups, shadows, rebuilt state, repair."""

from __future__ import annotations

import msgspec
import typer
from rich.console import RenderableType

from lockstep.cli.app import (
    FAILED,
    AsJson,
    Panel,
    StreamName,
    find_folders,
    find_stream_or_exit,
    load_settings_or_exit,
    register_command,
)
from lockstep.cli.output import print_answer, style_text
from lockstep.cli.plan_question import PlanOnly, Yes, carry_out


class Reset(msgspec.Struct, frozen=True):
    """Result of a reset.

    Attributes:
        stream: Name of the stream; its next run makes a new table.
    """

    stream: str


@register_command("reset order_books", Panel.RECOVER)
def reset(stream: StreamName, as_json: AsJson = False) -> None:  # noqa: FBT002  # a flag
    """Let a stream whose table was deleted start again, as `Topics(start=...)` declares; else a start refuses.

    Deletes the positions that were published to Kafka, nothing else; refused while the table exists.
    """
    from lockstep.operations.lifecycle import reset_new

    name = find_stream_or_exit(stream).name
    reset_new(name, load_settings_or_exit())
    print_answer(Reset(name), _reset, as_json=as_json)


@register_command("repair order_books --plan", Panel.RECOVER)
def repair(
    stream: StreamName,
    *,
    plan: PlanOnly = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Run every startup check, and repair what can be repaired safely.

    Repairable: a torn newest log entry, commits of other tools, a ledger behind the table. Exit code 1 while
    anything is left to do.
    """
    from lockstep.operations.repair import prepare_repair

    folders = find_folders(stream)
    result = carry_out(lambda: prepare_repair(folders, everything=yes), plan_only=plan, yes=yes, as_json=as_json)
    if not result.whole:
        raise typer.Exit(FAILED)


def _reset(found: Reset) -> RenderableType:
    return style_text(f"{found.stream}: its next run makes a new table and reads every topic as if for the first time")
