"""Copies of streams on the command line."""

from __future__ import annotations

import getpass
from pathlib import Path
from typing import Annotated

import typer

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
from lockstep.cli.output import print_described
from lockstep.cli.plan_question import PlanOnly, Yes, carry_out

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
    """Copy state and positions of a savepoint to a folder, to start the stream with it in another table root.

    Works while the stream runs. Rows are not copied: `lockstep backup` copies all.
    """
    from lockstep.features.copies.relocate import export_savepoint as copy_savepoint

    print_described(copy_savepoint(open_handle(stream), name, path, plan_only=plan), as_json=as_json)


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
    """Start a stream with an exported savepoint, in a table root that has nothing of it, in one step; then stopped.

    The next run continues with its state, from its positions. Two roots of one stream do not know of each other: run
    one.
    """
    from lockstep.features.copies.relocate import prepare_import

    handle = open_handle(stream)
    cause = f"{why} ({getpass.getuser()})"
    carry_out(
        lambda: prepare_import(handle, path, cause=cause, accept_expired=accept_expired, mirror=mirror),
        plan_only=plan,
        yes=yes,
        as_json=as_json,
    )


@register_command("backup order_books /backups/order_books", Panel.RECOVER)
def backup(  # an option a question
    stream: StreamName,
    path: Annotated[Path, typer.Argument(help="Folder of the backup, of this stream alone.")],
    *,
    plan: Annotated[bool, typer.Option("--plan", help="Show how much would be copied.")] = False,
    as_json: AsJson = False,
) -> None:
    """Copy a stream while it runs: rows, ledger, quarantine, late table and state as of one batch.

    A second backup to the same folder copies only new files; the earlier backup is valid until the new one is whole.
    """
    from lockstep.features.copies.backup import make_backup

    print_described(make_backup(find_folders(stream), path, plan_only=plan), as_json=as_json)


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
    from lockstep.features.copies.backup import prepare_restore

    folders = find_folders(stream)
    carry_out(lambda: prepare_restore(folders, path), plan_only=plan, yes=yes, as_json=as_json)


@register_command("rebuild order_books --plan", Panel.RECOVER)
def rebuild(
    stream: StreamName,
    *,
    plan: PlanOnly = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Rebuild lost or damaged state files from an older state and Kafka's messages, byte by byte.

    Each batch since that state is folded again, and must yield the state that the ledger describes. Refused if Kafka
    no longer has the messages, or if the code now folds otherwise; then nothing is changed.
    """
    from lockstep.features.copies.rebuild import prepare_rebuild

    handle = open_handle(stream)
    carry_out(lambda: prepare_rebuild(handle), plan_only=plan, yes=yes, as_json=as_json)
