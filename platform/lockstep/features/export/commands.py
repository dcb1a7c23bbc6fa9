"""Exports on the command line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

from lockstep.cli.app import (
    AsJson,
    Panel,
    StreamName,
    find_folders,
    find_stream_or_exit,
    load_settings_or_exit,
    register_command,
)
from lockstep.cli.output import (
    SHOWN_HOURS,
    make_grid,
    make_lines,
    make_more,
    print_answer,
    style_text,
)

if TYPE_CHECKING:
    from lockstep.features.export.export import ExportPlan, ExportResult, WaitingHours


@register_command("export betting_markets --plan", Panel.MAINTAIN)
def export(
    stream: StreamName,
    plan: Annotated[bool, typer.Option("--plan", help="Show what would be written.")] = False,  # noqa: FBT002  # a flag
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """Write the hours that no rewind can go back to as plain Parquet, each once. For streams that declare an `Export`.

    Dagster does so every hour.
    """
    from lockstep.features.export.export import export_stream, plan_export

    declared, folders = find_stream_or_exit(stream), find_folders(stream)
    size = load_settings_or_exit().target_file_bytes
    if plan:
        print_answer(plan_export(declared, folders, target_bytes=size), _export_plan, as_json=as_json)
    else:
        print_answer(export_stream(declared, folders, target_bytes=size), _exported, as_json=as_json)


def _export_plan(found: ExportPlan) -> RenderableType:
    hours = ((each.hour, len(each.files), each.rows, each.bytes) for each in found.hours[-SHOWN_HOURS:])
    return make_lines(
        style_text(
            f"{found.stream}: {found.exported} hours are in {found.folder}, {len(found.hours)} would be written"
        ),
        make_grid(("hour", "files", "rows", "bytes"), hours) if found.hours else None,
        make_more(len(found.hours) - SHOWN_HOURS),
        *_waiting(found.waiting),
    )


def _exported(found: ExportResult) -> RenderableType:
    written = f"{len(found.hours)} hours, {found.files} files, {found.rows} rows, {found.bytes} bytes"
    return make_lines(style_text(f"{found.stream}: {written} written to {found.folder}"), *_waiting(found.waiting))


def _waiting(waiting: Iterable[WaitingHours]) -> Iterator[RenderableType]:
    for each in waiting:
        span = each.oldest_hour if each.hours == 1 else f"{each.oldest_hour} to {each.newest_hour}"
        yield style_text(f"{each.hours} not yet ({span}): {each.reason.value}")
