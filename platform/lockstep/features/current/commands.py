"""Current tables on the command line."""

from __future__ import annotations

from typing import Annotated

import typer

from lockstep.cli.app import AsJson, Panel, StreamName, find_folders, find_stream_or_exit, register_command
from lockstep.cli.output import print_described


@register_command("current order_books --plan", Panel.MAINTAIN)
def current(
    stream: StreamName,
    *,
    remake: Annotated[bool, typer.Option("--remake", help="Make all rows from the states of the sessions.")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Show how far it is behind, and its next refresh.")] = False,
    as_json: AsJson = False,
) -> None:
    """Refresh the current table of a stream: one row a session and key. For streams that declare `current=True`.

    Dagster does so every minute. Readers see the previous rows until the new rows replace them, all together.
    """
    from lockstep.features.current.refresh import plan_current, refresh_current

    declared = find_stream_or_exit(stream)
    folders = find_folders(stream)
    if plan:
        print_described(plan_current(declared, folders), as_json=as_json)
    else:
        print_described(refresh_current(declared, folders, remake=remake), as_json=as_json)
