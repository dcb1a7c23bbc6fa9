"""Exports on the command line."""

from __future__ import annotations

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
)
from lockstep.cli.output import print_described


@register_command("export betting_markets --plan", Panel.MAINTAIN)
def export(
    stream: StreamName,
    plan: Annotated[bool, typer.Option("--plan", help="Show what would be written.")] = False,  # noqa: FBT002  # a flag
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """Write closed hours as plain Parquet, each whole. For streams that declare an `Export`.

    Dagster does so every hour.
    """
    from lockstep.features.export.export import export_stream, plan_export

    declared = find_stream_or_exit(stream)
    folders = find_folders(stream)
    size = load_settings_or_exit().target_file_bytes
    if plan:
        print_described(plan_export(declared, folders, target_bytes=size), as_json=as_json)
    else:
        print_described(export_stream(declared, folders, target_bytes=size), as_json=as_json)
