"""Compaction on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

from lockstep.cli.app import (
    AsJson,
    Panel,
    find_folders,
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
    from lockstep.features.compaction.compact import Compacted, StreamCompactionPlan
    from lockstep.features.compaction.dataset import DatasetCompaction, DatasetPlan


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

    folders, size = find_folders(stream), load_settings_or_exit().target_file_bytes
    if plan:
        print_answer(plan_compaction(folders, target_bytes=size), _compaction_plan, as_json=as_json)
    else:
        print_answer(do_compact(folders, target_bytes=size), _compacted, as_json=as_json)


def _compact_dataset(dataset: Path, *, plan: bool, remove_old: bool, as_json: bool) -> None:
    from lockstep.features.compaction.dataset import compact_dataset, plan_dataset

    size = load_settings_or_exit().target_file_bytes
    if plan:
        print_answer(plan_dataset(dataset, target_bytes=size), _dataset_plan, as_json=as_json)
    else:
        done = compact_dataset(dataset, target_bytes=size, remove_old=remove_old)
        print_answer(done, _dataset_compacted, as_json=as_json)


def _compaction_plan(found: StreamCompactionPlan) -> RenderableType:
    table, ledger, sides = found.table, found.ledger, found.side_tables
    bins = (
        (f"{b.commit_hour}{' (open)' if b.is_minor else ''}", len(b.files), 1, b.size, b.rows)
        for b in table.bins[-SHOWN_HOURS:]
    )
    left = ((f.reason.value, f.hours, f.files, f.bytes, f.oldest_hour, f.newest_hour) for f in table.left)
    closes = f"closes hour {found.closes_hour}, as the stream is idle" if found.closes_hour else "closes no hour"
    total = f"table: {table.files_before} files become {table.files_after}, about {table.cpu_seconds:g} CPU seconds"
    return make_lines(
        style_text(f"{found.stream}: {closes}"),
        style_text(total),
        make_grid(("hour", "files", "become", "bytes", "rows"), bins) if table.bins else None,
        make_more(len(table.bins) - SHOWN_HOURS),
        make_grid(("left, because", "hours", "files", "bytes", "from", "to"), left),
        style_text(f"ledger: {sum(len(part.files) for part in ledger)} files become {len(ledger)}"),
        style_text(f"quarantine and late table: {sum(len(b.files) for b in sides)} files become {len(sides)}"),
    )


def _dataset_plan(found: DatasetPlan) -> RenderableType:
    what = f"{found.files_before} files of {found.rows} rows in {found.folders} folders"
    becomes = f"become {found.files_after} in generation {found.generation}; {found.bytes} bytes to rewrite"
    return make_lines(
        style_text(f"{found.dataset}: {what}: {found.reason or becomes}"),
        style_text(f"readers open {found.current}") if found.current else None,
        style_text(f"--remove-old would delete {', '.join(found.removable)}") if found.removable else None,
    )


def _dataset_compacted(found: DatasetCompaction) -> RenderableType:
    done = f"{found.plan.files_before} files became {found.plan.files_after}, {found.rows} rows, digest {found.digest}"
    return make_lines(
        style_text(done if found.is_published else found.plan.reason or "another compaction was faster"),
        style_text(f"readers open {found.current}") if found.current else None,
        style_text(f"deleted: {', '.join(found.removed)}") if found.removed else None,
    )


def _compacted(found: Compacted) -> RenderableType:
    sides = found.side_tables
    rows = (
        ("table", len(found.table.hours), found.table.files_before, found.table.files_after, found.table.rows),
        ("ledger", found.ledger.hours, found.ledger.files_before, found.ledger.files_after, found.ledger.rows),
        ("quarantine, late", sides.hours, sides.files_before, sides.files_after, sides.rows),
    )
    return make_grid(("table", "hours", "files before", "files after", "rows"), rows)
