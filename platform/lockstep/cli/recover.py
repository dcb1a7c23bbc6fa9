"""Go back, try, replace: rewind, savepoints, backups, shadows, rebuilt state, repair."""

from __future__ import annotations

import getpass
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    list_all_streams,
    load_settings_or_exit,
    open_handle,
    register_command,
    require_reason,
)
from lockstep.cli.output import (
    make_derived_note,
    make_first_rows,
    make_grid,
    make_lines,
    make_more,
    print_answer,
    style_text,
)
from lockstep.errors import LockstepError
from lockstep.integrity.resume_options import SHOWN_MAX

if TYPE_CHECKING:
    from lockstep.features.copies.backup import CopyReport
    from lockstep.features.copies.rebuild import RebuildPlan
    from lockstep.features.copies.relocate import ImportPlan, SavepointExport, SavepointImported
    from lockstep.features.history.promote import Promoted, PromotionPlan
    from lockstep.features.history.rewind import RewindPlan, Rewound
    from lockstep.features.history.savepoint import SavepointList
    from lockstep.features.history.shadow import ShadowDropped, ShadowPlan, ShadowShown
    from lockstep.operations.repair import Repair


@register_command(
    'rewind order_books --to order_books.eth/0@120 --why "wrong prices since Friday" --plan', Panel.RECOVER
)
def rewind(  # an option a question
    stream: StreamName,
    to: Annotated[
        str,
        typer.Option(
            help="A batch (4711), a time (2026-11-20T14:00, UTC), the name of a savepoint, or "
            "TOPIC/PARTITION@OFFSET: the last batch before that message."
        ),
    ],
    why: Annotated[
        str | None, typer.Option(callback=require_reason, help="Reason, stored in the ledger; not for --plan.")
    ] = None,
    *,
    accept_expired: Annotated[
        bool, typer.Option("--accept-expired", help="Lose rows whose messages Kafka no longer has.")
    ] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Show what would go and be read again.")] = False,
    as_json: AsJson = False,
) -> None:
    """Go back to an earlier batch: rows, state, positions, ledger and quarantine, in one commit; then stopped.

    A rewind can be taken back by another one, to a batch that it undid. Exit code 1, with the reason, where something
    that it needs is gone.
    """
    from lockstep.features.history.rewind import plan_rewind, rewind_stream

    handle = open_handle(stream)
    if plan:
        print_answer(plan_rewind(handle, to), _rewind_plan, as_json=as_json)
        return
    if why is None:
        raise typer.BadParameter("name the reason; the ledger keeps it", param_hint="--why")
    done = rewind_stream(handle, to, who=getpass.getuser(), why=why, accept_expired=accept_expired)
    print_answer(done, _rewound, as_json=as_json)


@register_command('savepoint order_books before-release --why "version 2 of the fold"', Panel.RECOVER)
def savepoint(  # an option a question
    stream: StreamName,
    name: Annotated[str, typer.Argument(help="Name of the savepoint; without one, all are listed.")] = "",
    why: Annotated[
        str, typer.Option(callback=require_reason, help="Reason, stored with the savepoint.")
    ] = "made by hand",
    *,
    at: Annotated[
        str | None, typer.Option(help="An earlier batch, as `lockstep rewind --to` takes it; by default the newest.")
    ] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Delete the savepoint.")] = False,
    as_json: AsJson = False,
) -> None:
    """Keep a batch restorable for longer than rewind_hours: its rows, state and log entry are not deleted.

    Works while the stream runs. `lockstep rewind --to NAME` goes back to it.
    """
    from lockstep.features.history.savepoint import drop_named_savepoint, list_savepoints, make_savepoint

    folders, who = find_folders(stream), getpass.getuser()
    if not name:
        found = list_savepoints(folders)
    elif delete:
        found = drop_named_savepoint(folders, name, who=who, why=why)
    else:
        found = make_savepoint(folders, name, who=who, why=why, at=at)
    print_answer(found, _savepoints, as_json=as_json)


@register_command(
    "export-savepoint order_books before-release /exports/order_books", Panel.RECOVER, name="export-savepoint"
)
def export_savepoint(  # an option a question
    stream: StreamName,
    name: Annotated[str, typer.Argument(help="Name of the savepoint; `lockstep savepoint STREAM` lists them.")],
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


@register_command("import-savepoint order_books /exports/order_books --plan", Panel.RECOVER, name="import-savepoint")
def import_savepoint(  # an option a question
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
    plan: Annotated[bool, typer.Option("--plan", help="Show where each partition would go on.")] = False,
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
    plan: Annotated[bool, typer.Option("--plan", help="Show how much would be copied.")] = False,
    as_json: AsJson = False,
) -> None:
    """Restore a stream from a backup to a table root that has nothing of it, all at once.

    Every digest is compared. Two roots of one stream do not know of each other: start one.
    """
    from lockstep.features.copies.backup import restore_backup

    print_answer(restore_backup(find_folders(stream), path, plan_only=plan), _restored, as_json=as_json)


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


@register_command("shadow order_books --code ../fix --from before-release", Panel.RECOVER)
def shadow(  # noqa: PLR0913  # an option a question
    stream: StreamName,
    code: Annotated[
        str,
        typer.Option(
            help="The new code: the folder of a checkout, a file, or a module; by default assets/ declares --name."
        ),
    ] = "",
    start: Annotated[
        str | None,
        typer.Option(
            "--from", help="The batch with whose state and positions it begins, as `lockstep rewind --to` takes it."
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the shadow; by default STREAM_shadow.")] = None,
    why: Annotated[
        str, typer.Option(callback=require_reason, help="Reason, stored with the shadow.")
    ] = "begun by hand",
    *,
    drop: Annotated[bool, typer.Option("--drop", help="Delete the shadow with all its tables.")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Show where it would begin.")] = False,
    as_json: AsJson = False,
) -> None:
    """Begin a shadow: new code with its own tables, from the state and positions of a batch. Without --from, list them.

    The stream is not touched, but for a savepoint that keeps the batch. `lockstep run`, `stop`, `status`, `diff`,
    `verify` and the others take the shadow's name; `lockstep promote` makes it the stream.
    """
    from lockstep.features.history.shadow import SUFFIX, drop_shadow, list_shadows

    settings, chosen, who = load_settings_or_exit(), name or f"{stream}{SUFFIX}", getpass.getuser()
    if drop:
        print_answer(drop_shadow(stream, chosen, settings, who=who), _shadow_dropped, as_json=as_json)
    elif start is None:
        found = list_shadows(find_stream_or_exit(stream).name, settings.table_root)
        print_answer(found, lambda shown: _shadows(stream, shown), as_json=as_json)
    else:
        _begin_shadow(stream, chosen, start, code, None if plan else why, as_json=as_json)


def _begin_shadow(stream: str, name: str, start: str, code: str, why: str | None, *, as_json: bool) -> None:
    """Begin a shadow, or show its plan where no reason is given."""
    from lockstep.features.history.shadow import begin_shadow, load_shadow_code, name_shadow, plan_shadow
    from lockstep.operations.tables import StreamHandle

    if not code and name not in list_all_streams():
        step = f"name the new code: lockstep shadow {stream} --code FOLDER --from {start}; or declare {name} in assets/"
        raise LockstepError(f"no --code is given, and assets/ declares no stream {name!r}", next_step=step)
    declared = load_shadow_code(code, stream, name) if code else find_stream_or_exit(name)
    source = StreamHandle(name_shadow(declared, stream), load_settings_or_exit())
    if why is None:
        print_answer(plan_shadow(source, name, start), _shadow_plan, as_json=as_json)
    else:
        begun = begin_shadow(source, name, start, code=code, who=getpass.getuser(), why=why)
        print_answer(begun, _shadow_begun, as_json=as_json)


@register_command("promote order_books order_books_shadow --plan", Panel.RECOVER)
def promote(  # an option a question
    stream: StreamName,
    name: Annotated[str, typer.Argument(metavar="SHADOW", help="Name of the shadow.")],
    why: Annotated[
        str, typer.Option(callback=require_reason, help="Reason, stored in the ledger and shown.")
    ] = "promoted by hand",
    *,
    accept_behind: Annotated[
        bool, typer.Option("--accept-behind", help="Although the shadow has not read as far as the stream.")
    ] = False,
    accept_code: Annotated[
        bool, typer.Option("--accept-code", help="Although the deployed code is not the shadow's, byte by byte.")
    ] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Show what would go and what would come.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make a shadow the stream: rows up to its beginning stay, its own replace the later ones, in one commit; stopped.

    Deploy the code of the shadow for the stream first. The shadow stays until `lockstep shadow STREAM --drop`. A
    promotion is taken back by `lockstep rewind`. Exit code 1, with the reason, where something does not agree.
    """
    from lockstep.features.history.promote import plan_promotion, promote_shadow

    handle = open_handle(stream)
    if plan:
        print_answer(plan_promotion(handle, name), _promotion_plan, as_json=as_json)
        return
    who = getpass.getuser()
    done = promote_shadow(handle, name, who=who, why=why, accept_behind=accept_behind, accept_code=accept_code)
    print_answer(done, _promoted, as_json=as_json)


def _promotion_plan(found: PromotionPlan) -> RenderableType:
    columns = ("topic", "partition", "position", "position of the shadow", "behind", "expired")
    rows = (
        (each.topic, each.partition, each.position, each.shadow_at, each.behind, each.expired)
        for each in found.partitions
    )
    return make_lines(
        style_text(
            f"{found.stream}: rows up to batch {found.to_batch} stay, {found.rows_gone} rows after it go, "
            f"{found.rows_added} rows of {found.shadow} come ({found.files} files, {found.bytes} bytes are copied)"
        ),
        style_text(
            f"batch {found.last_batch} becomes batch {found.batch} of generation {found.generation}; "
            f"{found.quarantined} messages come to quarantine and late table"
        ),
        make_first_rows(columns, rows),
        *(style_text(f"migrated: {each}") for each in found.migrated[:SHOWN_MAX]),
        make_derived_note(found.derived),
        *(style_text(f"refused: {each.problem}; next: {each.next_step}", "red") for each in found.obstacles),
        None if found.obstacles else style_text("nothing refuses it; repeat the command without --plan", "green"),
    )


def _promoted(found: Promoted) -> RenderableType:
    plan = found.plan
    published = "" if found.published else "; Kafka did not take the group offsets, the next start publishes them"
    return make_lines(
        style_text(
            f"{plan.stream}: {plan.shadow} promoted by batch {plan.batch} of generation {plan.generation}: "
            f"{plan.rows_gone} rows went, {plan.rows_added} came; stopped{published}"
        ),
        style_text(f"next: lockstep start {plan.stream}"),
        style_text(f"to delete the shadow: lockstep shadow {plan.stream} --name {plan.shadow} --drop"),
        style_text(f"to take it back: lockstep rewind {plan.stream} --to {plan.last_batch} --why '...'"),
        make_derived_note(plan.derived),
    )


def _shadow_plan(found: ShadowPlan) -> RenderableType:
    columns = ("topic", "partition", "begins at", "position of the stream", "expired")
    rows = ((each.topic, each.partition, each.begins_at, each.position, each.expired) for each in found.partitions)
    return make_lines(
        style_text(
            f"{found.name}: from batch {found.from_batch} of {found.stream}, whose last batch is {found.last_batch}: "
            f"{found.state_bytes} bytes of state files are read, {found.to_read} offsets up to the stream"
        ),
        make_first_rows(columns, rows),
        *(style_text(f"migrated: {each}") for each in found.migrated[:SHOWN_MAX]),
        *(style_text(f"refused: {each.problem}; next: {each.next_step}", "red") for each in found.obstacles),
        None if found.obstacles else style_text("nothing refuses it; repeat the command without --plan", "green"),
    )


def _shadow_begun(found: ShadowShown) -> RenderableType:
    return make_lines(
        style_text(f"{found.name}: begun from batch {found.from_batch} of {found.stream}"),
        style_text(f"next: lockstep run {found.name} --available-now, then lockstep diff {found.stream} {found.name}"),
    )


def _shadows(stream: str, found: Sequence[ShadowShown]) -> RenderableType:
    columns = ("shadow", "from batch", "begun (UTC)", "batch", "desired", "code", "cause")
    rows = (
        (
            each.name,
            each.from_batch,
            f"{each.begun_at:%Y-%m-%d %H:%M}",
            each.batch,
            each.desired,
            each.code or "assets/",
            each.cause,
        )
        for each in found
    )
    if not found:
        return style_text(f"{stream} has no shadow; begin one: lockstep shadow {stream} --code ... --from ...")
    return make_grid(columns, rows)


def _shadow_dropped(found: ShadowDropped) -> RenderableType:
    return style_text(f"{found.name}: deleted after batch {found.batch}; {found.stream} is not touched")


def _rewind_plan(found: RewindPlan) -> RenderableType:
    back = " (undone by an earlier rewind, it comes back)" if found.restores_undone else ""
    at = f" of {found.to_at:%Y-%m-%d %H:%M:%S} UTC" if found.to_at is not None else ""
    columns = ("topic", "partition", "position", "back to", "read again", "Kafka has from", "expired")
    rows = (
        (each.topic, each.partition, each.position, each.back_to, each.read_again, each.log_start, each.expired)
        for each in found.partitions
    )
    return make_lines(
        style_text(f"{found.stream}: back to batch {found.to_batch}{at}{back}, after batch {found.last_batch}"),
        style_text(
            f"{found.batches} batches and {found.rows} rows go, {found.quarantined} messages leave quarantine and late "
            f"table, {found.read_again} offsets are read again; generation {found.generation} begins"
        ),
        make_first_rows(columns, rows),
        *(style_text(f"accepted since, to be accepted again: {each}") for each in found.decisions[:SHOWN_MAX]),
        make_more(len(found.decisions) - SHOWN_MAX),
        *(style_text(f"adopted later, read again from its first offset: {each}") for each in found.topics[:SHOWN_MAX]),
        make_derived_note(found.derived),
        *(style_text(f"refused: {each.problem}; next: {each.next_step}", "red") for each in found.obstacles),
        None if found.obstacles else style_text("nothing refuses it; repeat the command without --plan", "green"),
    )


def _rewound(found: Rewound) -> RenderableType:
    plan = found.plan
    published = "" if found.published else "; Kafka did not take the group offsets, the next start publishes them"
    return make_lines(
        style_text(
            f"{plan.stream}: back at batch {plan.to_batch} by batch {found.batch} of generation {plan.generation}, "
            f"{plan.rows} rows went; stopped{published}"
        ),
        style_text(
            f"next: deploy the corrected code, then lockstep start {plan.stream}, or lockstep run {plan.stream}"
        ),
        style_text(f"to take it back: lockstep rewind {plan.stream} --to {plan.last_batch} --why '...'"),
        make_derived_note(plan.derived),
    )


def _savepoints(found: SavepointList) -> RenderableType:
    rows = (
        (each.name, each.batch, each.version, f"{each.made_at:%Y-%m-%d %H:%M}", each.cause) for each in found.savepoints
    )
    return make_lines(
        style_text(f"{found.stream}: a rewind can go back to batch {found.rewind_floor}, and to its savepoints:"),
        make_grid(("savepoint", "batch", "version", "made (UTC)", "cause"), rows),
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
            f"in another table root: lockstep import-savepoint {found.stream} {shlex.quote(found.target)} --plan"
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


class Reset(msgspec.Struct, frozen=True):
    """Result of a reset.

    Attributes:
        stream: Name of the stream; its next run makes a new table.
    """

    stream: str


@register_command("reset order_books --new", Panel.RECOVER)
def reset(
    stream: StreamName,
    new: Annotated[bool, typer.Option("--new", help="Read everything into a new table; there must be none.")],
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """Allow a stream whose table was deleted to begin again, where `Topics(start=...)` says; else a start refuses.

    Deletes the positions that were published to Kafka, nothing else.
    """
    from lockstep.operations.lifecycle import reset_new

    if not new:
        raise typer.BadParameter("say --new")
    name = find_stream_or_exit(stream).name
    reset_new(name, load_settings_or_exit())
    print_answer(Reset(name), _reset, as_json=as_json)


@register_command("repair order_books --apply", Panel.RECOVER)
def repair(
    stream: StreamName,
    apply: Annotated[bool, typer.Option("--apply", help="Repair what can be repaired safely.")] = False,  # noqa: FBT002  # a flag
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """Run every startup check; with --apply repair what can be repaired safely.

    Repairable: a torn newest log entry, commits of other tools, a ledger behind the table. Exit code 1 while
    anything is left to do.
    """
    from lockstep.operations.repair import repair_stream as do_repair

    found = do_repair(find_folders(stream), apply=apply)
    print_answer(found, _checks, as_json=as_json)
    if not found.whole:
        raise typer.Exit(FAILED)


@register_command("rebuild order_books --plan", Panel.RECOVER)
def rebuild(
    stream: StreamName,
    plan: Annotated[bool, typer.Option("--plan", help="Show what would be read again.")] = False,  # noqa: FBT002  # a flag
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """Rebuild lost or damaged state files from an older state and Kafka's messages, byte by byte.

    Each batch since that state is folded again, and must give the state that the ledger describes. Refused where Kafka
    no longer has the messages, or where the code folds otherwise than then; nothing is changed then.
    """
    from lockstep.features.copies.rebuild import rebuild_state

    print_answer(rebuild_state(open_handle(stream), plan_only=plan), _rebuilt, as_json=as_json)


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


def _reset(found: Reset) -> RenderableType:
    return style_text(f"{found.stream}: its next run makes a new table and reads every topic as if for the first time")


def _checks(found: Repair) -> RenderableType:
    rows = ((c.check, c.condition, c.found, c.next_step) for c in found.checks)
    return make_grid(("check", "condition", "found", "next"), rows)
