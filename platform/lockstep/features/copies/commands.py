"""Copies of streams on the command line."""

from __future__ import annotations

import getpass
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

from lockstep.cli.app import (
    SAVEPOINTS,
    AsJson,
    Panel,
    StreamName,
    find_folders,
    make_group,
    open_handle,
    register_command,
    require_reason,
)
from lockstep.cli.output import (
    make_first_rows,
    make_lines,
    print_answer,
    style_text,
)
from lockstep.cli.plan_question import PlanOnly, Yes, ask_for_plan
from lockstep.integrity.resume_options import SHOWN_MAX

if TYPE_CHECKING:
    from lockstep.features.copies.backup import CopyReport
    from lockstep.features.copies.rebuild import RebuildPlan
    from lockstep.features.copies.relocate import ImportPlan, SavepointExport, SavepointImported


savepoint = make_group("savepoint", Panel.RECOVER, SAVEPOINTS)


@register_command(
    "savepoint export order_books before-release /exports/order_books", Panel.RECOVER, name="export", within=savepoint
)
def export_savepoint(  # an option a question
    stream: StreamName,
    name: Annotated[str, typer.Argument(help="Name of the savepoint; `lockstep savepoint list STREAM` lists them.")],
    path: Annotated[Path, typer.Argument(help="Folder of the export, of this savepoint alone.")],
    *,
    plan: Annotated[bool, typer.Option("--plan", help="Show how much would be copied.")] = False,
    as_json: AsJson = False,
) -> None:
    """Copy state and positions of a savepoint to a folder, to begin the stream with it in another table root.

    Works while the stream runs. Rows are not copied: `lockstep backup` copies all.
    """
    from lockstep.features.copies import relocate

    done = relocate.export_savepoint(open_handle(stream), name, path, plan_only=plan)
    print_answer(done, _savepoint_exported, as_json=as_json)


@register_command(
    "savepoint import order_books /exports/order_books --plan", Panel.RECOVER, name="import", within=savepoint
)
def import_savepoint(  # noqa: PLR0913  # an option a question
    stream: StreamName,
    path: Annotated[Path, typer.Argument(help="Folder of the export.")],
    why: Annotated[
        str, typer.Option(callback=require_reason, help="Reason, stored in the ledger and shown.")
    ] = "imported by hand",
    *,
    accept_expired: Annotated[
        bool, typer.Option("--accept-expired", help="Although Kafka no longer has all messages from there on.")
    ] = False,
    mirror: Annotated[
        str,
        typer.Option(help="In a cluster to which MirrorMaker copies the topics: its alias of the source cluster."),
    ] = "",
    plan: PlanOnly = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Begin a stream with an exported savepoint, in a table root that has nothing of it, all at once; then stopped.

    The next run goes on with its state, from its positions. Two roots of one stream do not know of each other: run one.
    """
    from lockstep.features.copies import relocate

    handle = open_handle(stream)
    if plan:
        print_answer(relocate.plan_import(handle, path, mirror=mirror), _import_plan, as_json=as_json)
        return
    ask_for_plan(lambda: relocate.plan_import(handle, path, mirror=mirror), _import_plan, yes=yes)
    done = relocate.import_savepoint(
        handle, path, who=getpass.getuser(), why=why, accept_expired=accept_expired, mirror=mirror
    )
    print_answer(done, _savepoint_imported, as_json=as_json)


@register_command("backup order_books /backups/order_books", Panel.RECOVER)
def backup(  # an option a question
    stream: StreamName,
    path: Annotated[Path, typer.Argument(help="Folder of the backup, of this stream alone.")],
    *,
    plan: Annotated[bool, typer.Option("--plan", help="Show how much would be copied.")] = False,
    as_json: AsJson = False,
) -> None:
    """Copy a stream while it runs: rows, ledger, quarantine, late table and state as of one batch.

    The second backup to the same folder copies what is new; the earlier one holds until the new one is whole.
    """
    from lockstep.features.copies.backup import make_backup

    print_answer(make_backup(find_folders(stream), path, plan_only=plan), _backed_up, as_json=as_json)


@register_command("restore order_books /backups/order_books --plan", Panel.RECOVER)
def restore(  # an option a question
    stream: StreamName,
    path: Annotated[Path, typer.Argument(help="Folder of the backup.")],
    *,
    plan: PlanOnly = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Restore a stream from a backup to a table root that has nothing of it, all at once.

    Every digest is compared. Two roots of one stream do not know of each other: start one.
    """
    from lockstep.features.copies.backup import restore_backup

    folders = find_folders(stream)
    if not plan:
        ask_for_plan(lambda: restore_backup(folders, path, plan_only=True), _restored, yes=yes)
    print_answer(restore_backup(folders, path, plan_only=plan), _restored, as_json=as_json)


def _backed_up(found: CopyReport) -> RenderableType:
    verb = "would be deleted" if found.plan_only else "deleted"
    deleted = f", {len(found.deleted)} of the earlier backup {verb}" if found.deleted else ""
    listed = found.deleted if found.plan_only else ()
    return make_lines(
        style_text(_copied(found, "backup") + deleted),
        *(style_text(f"  {name}") for name in listed),
        None
        if found.plan_only
        else style_text(f"to restore it: lockstep restore {found.stream} {shlex.quote(found.target)}"),
    )


def _restored(found: CopyReport) -> RenderableType:
    step = f"next: lockstep verify {found.stream}, then start it; the other root must not run any more"
    return make_lines(style_text(_copied(found, "restored")), None if found.plan_only else style_text(step))


def _copied(found: CopyReport, what: str) -> str:
    verb = "would be copied" if found.plan_only else "copied"
    return (
        f"{found.stream}: {what} of batch {found.batch} (version {found.version}), {found.files} files, "
        f"{found.bytes / 1e6:.1f} MB; {found.copied_files} files, {found.copied_bytes / 1e6:.1f} MB {verb}"
    )


def _savepoint_exported(found: SavepointExport) -> RenderableType:
    size = found.state_bytes if found.plan_only else found.written_bytes
    verb = "would be read" if found.plan_only else "written"
    return make_lines(
        style_text(
            f"{found.stream}: savepoint {found.savepoint} (batch {found.batch}) of {found.partitions} partitions, "
            f"{size / 1e6:.1f} MB {verb}"
        ),
        style_text(f"note: {found.remark}") if found.remark else None,
        None
        if found.plan_only
        else style_text(
            f"in another table root: lockstep savepoint import {found.stream} {shlex.quote(found.target)} --plan"
        ),
    )


def _import_plan(found: ImportPlan) -> RenderableType:
    columns = ("topic", "partition", "exported at", "goes on at", "Kafka has from", "to", "expired")
    rows = (
        (each.topic, each.partition, each.exported, each.position, each.log_start, each.log_end, each.expired)
        for each in found.partitions
    )
    return make_lines(
        style_text(
            f"{found.stream}: savepoint {found.savepoint} (batch {found.batch}, exported "
            f"{found.exported_at:%Y-%m-%d %H:%M} UTC) into {found.target}: {found.state_bytes / 1e6:.1f} MB, then "
            f"{found.to_read} offsets to read"
        ),
        make_first_rows(columns, rows),
        *(style_text(f"left out: {each} is retired, and not read here") for each in found.left_out[:SHOWN_MAX]),
        *(style_text(f"migrated: {each}") for each in found.migrated[:SHOWN_MAX]),
        *(style_text(f"refused: {each.problem}; next: {each.next_step}", "red") for each in found.obstacles),
        None if found.obstacles else style_text("nothing refuses it; repeat the command without --plan", "green"),
    )


def _savepoint_imported(found: SavepointImported) -> RenderableType:
    plan = found.plan
    published = "" if found.published else "; Kafka did not take the group offsets, the next start publishes them"
    return make_lines(
        style_text(
            f"{plan.stream}: begun with savepoint {plan.savepoint} (batch {plan.batch}) in {plan.target}, "
            f"{len(plan.partitions)} partitions; stopped{published}"
        ),
        style_text(f"next: lockstep verify {plan.stream}, then start it; the other root must not run any more"),
    )


@register_command("rebuild order_books --plan", Panel.RECOVER)
def rebuild(
    stream: StreamName,
    *,
    plan: PlanOnly = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Rebuild lost or damaged state files from an older state and Kafka's messages, byte by byte.

    Each batch since that state is folded again, and must give the state that the ledger describes. Refused where Kafka
    no longer has the messages, or where the code folds otherwise than then; nothing is changed then.
    """
    from lockstep.features.copies.rebuild import rebuild_state

    handle = open_handle(stream)
    if not plan:
        ask_for_plan(
            lambda: rebuild_state(handle, plan_only=True), _rebuilt, yes=yes, is_due=lambda plan: bool(plan.partitions)
        )
    print_answer(rebuild_state(handle, plan_only=plan), _rebuilt, as_json=as_json)


def _rebuilt(found: RebuildPlan) -> RenderableType:
    if not found.partitions:
        return style_text(f"{found.stream}: all state is whole, nothing to rebuild", "green")
    columns = ("topic", "partition", "from batch", "to batch", "read again from", "until", "batches")
    rows = (
        (each.topic, each.partition, each.from_batch, each.to_batch, each.start, each.until, each.batches)
        for each in found.partitions
    )
    done = f"{len(found.files)} state files rebuilt as they were; next: lockstep verify {found.stream}"
    return make_lines(
        style_text(f"{found.stream}: state of {len(found.partitions)} partitions cannot be read"),
        make_first_rows(columns, rows),
        *(
            style_text(f"refused: {each.topic}/{each.partition}: {each.refused}", "red")
            for each in found.partitions
            if each.refused
        ),
        style_text(done, "green") if found.files else None,
    )
