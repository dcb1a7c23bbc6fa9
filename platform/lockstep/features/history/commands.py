"""Rewind, savepoints, shadows and their comparison on the command line."""

from __future__ import annotations

import getpass
import webbrowser
from collections.abc import Sequence
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
    find_stream_or_exit,
    list_all_streams,
    load_settings_or_exit,
    make_group,
    open_handle,
    refuse_unwritable_page,
    register_command,
    require_reason,
)
from lockstep.cli.output import make_grid, make_lines, print_answer, print_described, print_note, style_text
from lockstep.cli.plan_question import PlanOnly, Yes, carry_out
from lockstep.errors import LockstepError

if TYPE_CHECKING:
    from lockstep.features.history.diff import StreamDiff
    from lockstep.features.history.shadow import ShadowShown
    from lockstep.operations.stream_handle import StreamHandle


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
        str | None, typer.Option(callback=require_reason, help="Reason, stored in the ledger; not needed for --plan.")
    ] = None,
    *,
    accept_expired: Annotated[
        bool, typer.Option("--accept-expired", help="Lose rows whose messages neither Kafka nor the archive has.")
    ] = False,
    plan: PlanOnly = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Go back to an earlier batch: rows, state and positions, in one commit; then stopped.

    Another rewind reverses it, to a batch that it undid. Exit code 1, with the reason, if something
    that it needs is gone.
    """
    from lockstep.features.history.rewind import prepare_rewind

    handle = open_handle(stream)
    if why is None and not plan:
        raise typer.BadParameter("name the reason; the ledger keeps it", param_hint="--why")
    cause = f"{why} ({getpass.getuser()})"
    carry_out(
        lambda: prepare_rewind(handle, to, cause=cause, accept_expired=accept_expired),
        plan_only=plan,
        yes=yes,
        as_json=as_json,
    )


savepoint = make_group("savepoint", Panel.RECOVER, SAVEPOINTS)
shadow = make_group("shadow", Panel.RECOVER, "Try new code next to a stream, compare it, and make it the stream.")

SavepointName = Annotated[str, typer.Argument(help="Name of the savepoint.")]
ShadowName = Annotated[str | None, typer.Option(help="Name of the shadow; by default STREAM_shadow.")]


@register_command(
    'savepoint make order_books before-release --why "version 2 of the fold"',
    Panel.RECOVER,
    name="make",
    within=savepoint,
)
def make_savepoint(  # an option a question
    stream: StreamName,
    name: SavepointName,
    why: Annotated[
        str, typer.Option(callback=require_reason, help="Reason, stored with the savepoint.")
    ] = "made by hand",
    *,
    at: Annotated[
        str | None, typer.Option(help="An earlier batch, as `lockstep rewind --to` takes it; by default the newest.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Keep a batch restorable for longer than rewind_hours: its rows, state and log entry are not deleted.

    Works while the stream runs. `lockstep rewind --to NAME` goes back to it.
    """
    from lockstep.features.history.savepoint import make_savepoint as keep_batch

    made = keep_batch(find_folders(stream), name, who=getpass.getuser(), why=why, at=at)
    print_described(made, as_json=as_json)


@register_command("savepoint list order_books", Panel.RECOVER, name="list", within=savepoint)
def list_savepoints(stream: StreamName, as_json: AsJson = False) -> None:  # noqa: FBT002  # a flag
    """List the savepoints of a stream, and the earliest batch to which it can go back without one."""
    from lockstep.features.history.savepoint import list_savepoints as read_savepoints

    print_described(read_savepoints(find_folders(stream)), as_json=as_json)


@register_command("savepoint delete order_books before-release", Panel.RECOVER, name="delete", within=savepoint)
def delete_savepoint(
    stream: StreamName,
    name: SavepointName,
    why: Annotated[
        str, typer.Option(callback=require_reason, help="Reason, stored in the table's log.")
    ] = "deleted by hand",
    *,
    plan: PlanOnly = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete a savepoint. Housekeeping then deletes the files that only this savepoint kept."""
    from lockstep.features.history.savepoint import prepare_deletion

    folders = find_folders(stream)
    who = getpass.getuser()
    carry_out(lambda: prepare_deletion(folders, name, who=who, why=why), plan_only=plan, yes=yes, as_json=as_json)


@register_command(
    "shadow begin order_books --code ../fix --from before-release", Panel.RECOVER, name="begin", within=shadow
)
def begin_shadow(  # noqa: PLR0913  # an option a question
    stream: StreamName,
    start: Annotated[
        str,
        typer.Option(
            "--from", help="The batch whose state and positions it inherits, as `lockstep rewind --to` takes it."
        ),
    ],
    code: Annotated[
        str,
        typer.Option(
            help="The new code: the folder of a checkout, a file, or a module; by default assets/ declares --name."
        ),
    ] = "",
    name: ShadowName = None,
    why: Annotated[
        str, typer.Option(callback=require_reason, help="Reason, stored with the shadow.")
    ] = "started by hand",
    *,
    accept_deleted: Annotated[
        bool, typer.Option("--accept-deleted", help="Leave out topics that were deleted or re-created since.")
    ] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Show where it would start.")] = False,
    as_json: AsJson = False,
) -> None:
    """Start a shadow: new code with its own tables, from the state and positions of a batch.

    The stream is not touched, but for a savepoint that keeps the batch. `lockstep run`, `stop`, `status`, `verify` and
    the others take the shadow's name; `lockstep shadow promote` makes it the stream.
    """
    from lockstep.features.history.shadow import SUFFIX, prepare_shadow

    chosen = name or f"{stream}{SUFFIX}"
    source = _open_source(stream, chosen, start, code)
    who = getpass.getuser()
    carry_out(
        lambda: prepare_shadow(source, chosen, start, code=code, who=who, why=why, accept_deleted=accept_deleted),
        plan_only=plan,
        yes=True,
        as_json=as_json,
    )


@register_command("shadow list order_books", Panel.RECOVER, name="list", within=shadow)
def list_shadows(stream: StreamName, as_json: AsJson = False) -> None:  # noqa: FBT002  # a flag
    """List the shadows of a stream: the first batch of each, its code, and how far it has read."""
    from lockstep.features.history import shadow as shadows

    listed = shadows.list_shadows(find_stream_or_exit(stream).name, load_settings_or_exit().table_root)
    print_answer(listed, lambda shown: _shadows(stream, shown), as_json=as_json)


@register_command("shadow drop order_books", Panel.RECOVER, name="drop", within=shadow)
def drop_shadow(
    stream: StreamName, name: ShadowName = None, *, plan: PlanOnly = False, yes: Yes = False, as_json: AsJson = False
) -> None:
    """Delete a shadow with all its tables, and the savepoint that kept its batch."""
    from lockstep.features.history.shadow import SUFFIX, prepare_drop

    chosen = name or f"{stream}{SUFFIX}"
    settings = load_settings_or_exit()
    who = getpass.getuser()
    carry_out(lambda: prepare_drop(stream, chosen, settings, who=who), plan_only=plan, yes=yes, as_json=as_json)


def _open_source(stream: str, name: str, start: str, code: str) -> StreamHandle:
    """The stream with the code of its shadow."""
    from lockstep.features.history.shadow import load_shadow_code, name_shadow
    from lockstep.operations.stream_handle import StreamHandle

    if not code and name not in list_all_streams():
        command = f"lockstep shadow begin {stream} --code FOLDER --from {start}"
        step = f"name the new code: {command}; or declare {name} in assets/"
        raise LockstepError(f"no --code is given, and assets/ declares no stream {name!r}", next_step=step)
    declared = load_shadow_code(code, stream, name) if code else find_stream_or_exit(name)
    return StreamHandle(name_shadow(declared, stream), load_settings_or_exit())


@register_command("shadow promote order_books order_books_shadow --plan", Panel.RECOVER, name="promote", within=shadow)
def promote(  # noqa: PLR0913  # an option a question
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
    accept_deleted: Annotated[
        bool,
        typer.Option("--accept-deleted", help="Although it lacks rows of topics that were deleted or re-created."),
    ] = False,
    plan: PlanOnly = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Make a shadow the stream: rows up to its start stay, its rows replace the later rows, in one commit; stopped.

    Deploy the code of the shadow for the stream first. The shadow stays until `lockstep shadow drop STREAM`. A
    rewind reverses a promotion. Exit code 1, with the reason, if something does not agree.
    """
    from lockstep.features.history.promote import prepare_promotion

    handle = open_handle(stream)
    cause = f"{why} ({getpass.getuser()})"
    carry_out(
        lambda: prepare_promotion(
            handle,
            name,
            cause=cause,
            accept_behind=accept_behind,
            accept_code=accept_code,
            accept_deleted=accept_deleted,
        ),
        plan_only=plan,
        yes=yes,
        as_json=as_json,
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
        return style_text(f"{stream} has no shadow; start one: lockstep shadow begin {stream} --code ... --from ...")
    return make_grid(columns, rows)


DIFFERENT = 1


@register_command(
    "shadow diff order_books order_books_v2 --topic order_books.eth", Panel.RECOVER, name="diff", within=shadow
)
def diff(
    stream: StreamName,
    other: Annotated[str, typer.Argument(metavar="OTHER", help="The stream to compare it with.")],
    topic: Annotated[str | None, typer.Option(help="Only rows of this topic.")] = None,
    samples: Annotated[int, typer.Option(min=0, help="Most rows that are shown.")] = 20,
    html: Annotated[Path | None, typer.Option(help="Write it to this file as a page, too.")] = None,
    *,
    show: Annotated[bool, typer.Option("--open", help="Open the page; without --html in a temporary file.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare the rows of two streams of the same topics, over the offsets that both have read.

    For another fold, class or option under another name: which rows are missing, added or changed, in which columns.
    Exit code 0 equal, 1 different.
    """
    from lockstep.features.history.diff import compare_streams, write_diff_page

    refuse_unwritable_page(html, "--html")
    difference = compare_streams(find_folders(stream), find_folders(other), topic=topic, samples=samples)
    if html is not None or show:
        file = write_diff_page(difference, html)
        print_note(f"page: {file}")
        if show:
            webbrowser.open(file.as_uri())
    print_answer(difference, _show_diff, as_json=as_json)
    if not difference.is_equal:
        raise typer.Exit(DIFFERENT)


def _show_diff(found: StreamDiff) -> RenderableType:
    head = (
        f"{found.left} (batch {found.left_batch}) and {found.right} (batch {found.right_batch}), {found.partitions} "
        f"partitions: {found.equal} rows equal, {found.missing} missing, {found.added} added, {found.changed} changed"
    )
    color = "green" if found.is_equal else "red"
    parts: list[RenderableType] = [style_text(head, color)]
    if found.columns:
        parts.append(make_grid(("column", "rows"), [(column.column, column.rows) for column in found.columns]))
    if found.samples:
        parts.append(_show_samples(found))
    parts += [style_text(f"note: {note}", "yellow") for note in found.notes]
    return make_lines(*parts, style_text(f"next: {found.next_step}"))


def _show_samples(found: StreamDiff) -> RenderableType:
    rows: list[tuple[object, ...]] = []
    for row in found.samples:
        message = f"{row.topic}/{row.partition}@{row.emit_offset}"
        for column, (left, right) in row.values.items():
            rows.append((row.kind, message, row.row, column, str(left), str(right)))
    return make_grid(("kind", "message", "row", "column", found.left, found.right), rows)
