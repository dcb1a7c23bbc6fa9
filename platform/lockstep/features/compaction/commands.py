"""Compaction on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lockstep.cli.app import (
    AsJson,
    Panel,
    find_folders,
    load_settings_or_exit,
    register_command,
)
from lockstep.cli.output import print_described

StreamOrPath = Annotated[
    str,
    typer.Argument(metavar="STREAM|PATH", help="A stream; with a slash in it, the folder of a plain Parquet dataset."),
]


@register_command("compact order_books --plan", Panel.MAINTAIN)
def compact(
    stream: StreamOrPath,
    plan: Annotated[bool, typer.Option("--plan", help="Show hours, files, cost and gain.")] = False,  # noqa: FBT002  # a flag
    remove_old: Annotated[  # noqa: FBT002  # a flag
        bool, typer.Option("--remove-old", help="Of a PATH: delete the generations before the current one.")
    ] = False,
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """Rewrite the small files of closed hours as large ones, in order; the ledger's too. Dagster does so every hour.

    The open hour of a stream that has been idle for an hour is closed first. That of a live one is compacted too, once
    it has more than 720 small files; they are rewritten a second time when it is closed.

    A PATH such as ./readings is a dataset of somebody else and is never changed: its rows are written as a new
    generation in ./readings.compacted, which readers open as ./readings.compacted/current.
    """
    if "/" in stream:
        _compact_dataset(Path(stream), plan=plan, remove_old=remove_old, as_json=as_json)
        return
    if remove_old:
        problem = "only a PATH has generations; replaced files of a stream are deleted by: lockstep housekeeping"
        raise typer.BadParameter(problem, param_hint="--remove-old")
    from lockstep.features.compaction.compact import compact as do_compact
    from lockstep.features.compaction.compact import plan_compaction

    folders = find_folders(stream)
    size = load_settings_or_exit().target_file_bytes
    if plan:
        print_described(plan_compaction(folders, target_bytes=size), as_json=as_json)
    else:
        print_described(do_compact(folders, target_bytes=size), as_json=as_json)


def _compact_dataset(dataset: Path, *, plan: bool, remove_old: bool, as_json: bool) -> None:
    from lockstep.features.compaction.dataset import compact_dataset, plan_dataset

    size = load_settings_or_exit().target_file_bytes
    if plan:
        print_described(plan_dataset(dataset, target_bytes=size), as_json=as_json)
    else:
        compaction = compact_dataset(dataset, target_bytes=size, remove_old=remove_old)
        print_described(compaction, as_json=as_json)
