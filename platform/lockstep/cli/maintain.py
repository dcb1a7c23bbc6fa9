"""What keeps the tables: closed hours, compaction, housekeeping, exports, retention, erasure, derived tables."""

from __future__ import annotations

import getpass
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec
import typer
from rich.console import Group, RenderableType

from lockstep.cli.app import (
    FAILED,
    AsJson,
    Panel,
    StreamName,
    find_folders,
    find_stream_or_exit,
    list_all_derived,
    load_settings_or_exit,
    open_handle,
    register_command,
    require_reason,
    show_error,
)
from lockstep.cli.output import (
    SHOWN_HOURS,
    make_derived_note,
    make_first_rows,
    make_grid,
    make_lines,
    make_more,
    print_answer,
    style_text,
)
from lockstep.errors import LockstepError
from lockstep.progress import report_items

if TYPE_CHECKING:
    from lockstep.declare.derived import Derived
    from lockstep.features.compaction.compact import Compacted, StreamCompactionPlan
    from lockstep.features.compaction.dataset import DatasetCompaction, DatasetPlan
    from lockstep.features.derived.derive import DerivedPlan, DerivedRun
    from lockstep.features.erase.erase import ErasePlan, SessionErased
    from lockstep.features.export.export import ExportPlan, ExportResult, WaitingHours
    from lockstep.features.retention.housekeeping import HousekeepingResult
    from lockstep.features.retention.messages import QuarantineRetained, QuarantineRetentionPlan
    from lockstep.features.retention.rows import Retained, RetentionPlan

T = TypeVar("T")


def _erase_plan(found: ErasePlan) -> RenderableType:
    columns = ("topic", "partition", "rows", "state entries", "quarantined", "late", "decisions", "unread offsets")
    rows = (
        (
            *(each.topic, each.partition, each.rows, each.state_entries, each.quarantined, each.late),
            *(each.decisions, each.unread),
        )
        for each in found.partitions
    )
    return make_lines(
        style_text(
            f"{found.stream}: batch {found.last_batch + 1} erases {found.rows} rows of the session with digest "
            f"{found.digest}; {found.files} files of {len(found.hours)} hours are written again, {found.bytes} bytes"
        ),
        style_text(f"no rewind goes below batch {found.last_batch + 1} afterwards"),
        make_first_rows(columns, rows),
        style_text("places that can hold a session, and when it is gone there:"),
        make_grid(("place", "holds", "gone"), ((each.place, each.holds, each.gone) for each in found.places)),
        *(style_text(f"note: {each}") for each in found.notes),
        make_derived_note(found.derived),
        *(style_text(f"refused: {each.problem}; next: {each.next_step}", "red") for each in found.refusals),
        None if found.refusals else style_text("nothing refuses it; repeat the command without --plan", "green"),
    )


def _erased(found: SessionErased) -> RenderableType:
    plan = found.plan
    return make_lines(
        style_text(
            f"{plan.stream}: batch {found.batch} erased {plan.rows} rows and {found.messages} quarantined or late "
            f"messages of the session with digest {plan.digest}"
        ),
        *(style_text(f"note: {each}") for each in plan.notes),
        make_derived_note(plan.derived),
        style_text(f"next: lockstep housekeeping {plan.stream} deletes the old files; lockstep verify {plan.stream}"),
    )


class Closed(msgspec.Struct, frozen=True):
    """A closed hour.

    Attributes:
        stream: Name of the stream.
        hour: The newest closed hour (UTC).
    """

    stream: str
    hour: str


@register_command("close order_books", Panel.MAINTAIN)
def close(stream: StreamName, as_json: AsJson = False) -> None:  # noqa: FBT002  # a flag
    """Close the open hour of a stream, so that it can be compacted."""
    from lockstep.operations.lifecycle import close_hour

    print_answer(Closed(stream, close_hour(find_folders(stream))), _closed, as_json=as_json)


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


@register_command("derive book_activity --plan", Panel.MAINTAIN)
def derive(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Name of a derived table; all by default.")] = None,
    *,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Compute all rows again, whatever is there.")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Show what is unread, and what would be rebuilt.")] = False,
    as_json: AsJson = False,
) -> None:
    """Bring derived tables up to the tables of their streams. Dagster does so by the schedule of each.

    A table whose source was rewound, promoted or erased from, or whose checkpoint is lost, is rebuilt: readers see the
    old rows until the new ones replace them, all at once. Without a name, a table that fails leaves the others their
    turn; exit code 1 follows.
    """
    from lockstep.features.derived.derive import choose_derived, plan_derived, run_derived, start_session

    chosen, settings = choose_derived(name, list_all_derived()), load_settings_or_exit()
    root = settings.table_root
    if plan:
        planned, failed = _act_on_each(chosen, lambda each: plan_derived(each, root))
        print_answer(planned, _derived_plans, as_json=as_json)
    else:
        done, failed = _act_on_each(
            chosen, lambda each: run_derived(each, root, partial(start_session, each, settings), rebuild=rebuild)
        )
        print_answer(done, _derived_runs, as_json=as_json)
    for error in failed:
        show_error(error)
    if failed:
        raise typer.Exit(FAILED)


def _act_on_each(chosen: Sequence[Derived], act: Callable[[Derived], T]) -> tuple[list[T], list[LockstepError]]:
    """The results, and the errors of those that failed: none keeps the others from their turn."""
    done, failed = list[T](), list[LockstepError]()
    for each in report_items(chosen, "derived tables", len(chosen)):
        try:
            done.append(act(each))
        except LockstepError as error:
            failed.append(error)
    return done, failed


def _derived_plans(found: list[DerivedPlan]) -> RenderableType:
    from lockstep.features.derived.status import describe_next_run

    columns = ("derived table", "source", "version", "read from", "watermark (UTC)", "the next run")
    rows = (
        (each.name, source.stream, source.version, source.next_version, each.watermark, describe_next_run(each))
        for each in found
        for source in each.sources
    )
    return make_grid(columns, rows)


def _derived_runs(found: list[DerivedRun]) -> RenderableType:
    columns = ("derived table", "rows", "before", "version", "watermark (UTC)", "rebuilt because")
    rows = (
        (each.name, each.rows, each.rows_before, each.version, each.watermark, "; ".join(c.value for c in each.rebuilt))
        for each in found
    )
    return make_grid(columns, rows)


@register_command("housekeeping order_books --plan", Panel.MAINTAIN)
def housekeeping(
    stream: StreamName,
    plan: Annotated[bool, typer.Option("--plan", help="Show what would be deleted.")] = False,  # noqa: FBT002  # a flag
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """Delete files that nothing can need any more: old log entries, replaced files, unreachable state.

    Dagster does so every hour. The setting `rewind_hours` determines how far back a rewind can go. Rows, and
    messages of quarantine and late table, past the stream's declared retention of each are dropped first.
    """
    from lockstep.features.retention.housekeeping import run_housekeeping

    done = run_housekeeping(
        find_folders(stream),
        retention_seconds=load_settings_or_exit().rewind_hours * 3600,
        stream=find_stream_or_exit(stream),
        plan_only=plan,
    )
    print_answer(done, _housekeeping, as_json=as_json)


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


@register_command("expire order_books --days 90 --plan", Panel.MAINTAIN)
def expire(
    stream: StreamName,
    days: Annotated[int, typer.Option(help="Days of rows that stay, counted from the newest batch.", min=1)],
    why: Annotated[
        str, typer.Option(callback=require_reason, help="Reason, stored with the stream and shown.")
    ] = "by hand",
    quarantine: Annotated[  # noqa: FBT002  # a flag
        bool, typer.Option("--quarantine", help="Drop messages of quarantine and late table instead of rows.")
    ] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Show what would be dropped.")] = False,  # noqa: FBT002  # a flag
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """Drop the rows of whole closed hours that are older; the stream goes on. `Stream(retention=...)` does so hourly.

    Housekeeping deletes the files once no rewind can go back to them (`rewind_hours`). With --quarantine, old
    messages of quarantine and late table go instead, for good: `Stream(quarantine_retention=...)` does so hourly.
    """
    from lockstep.features.retention.messages import drop_old_messages, plan_quarantine_retention
    from lockstep.features.retention.rows import drop_old_rows, plan_retention

    folders, keep, cause = find_folders(stream), timedelta(days=days), f"{why}, by {getpass.getuser()}"
    if quarantine and plan:
        found = plan_quarantine_retention(folders, keep)
        print_answer(found, lambda found: _quarantine_retention(found, "would be"), as_json=as_json)
        return
    if quarantine:
        dropped = drop_old_messages(folders, keep, cause=cause)
        print_answer(dropped, _messages_dropped, as_json=as_json)
        return
    if plan:
        print_answer(plan_retention(folders, keep), lambda found: _retention(found, "would be"), as_json=as_json)
        return
    done = drop_old_rows(folders, keep, cause=cause)
    print_answer(done, _rows_dropped, as_json=as_json)


@register_command('erase order_books --session eth --why "request 4711" --plan', Panel.MAINTAIN)
def erase(  # noqa: PLR0913  # an option a decision
    stream: StreamName,
    session: Annotated[str, typer.Option(help="The session, as the column _session has it.")],
    why: Annotated[
        str, typer.Option(callback=require_reason, help="Reason, stored and shown: it must not name the session.")
    ] = "by hand",
    *,
    topic: Annotated[str, typer.Option(help="Only in this topic; by default in all.")] = "",
    drop_state: Annotated[
        bool,
        typer.Option("--drop-state", help="Erase it although it has state, which its next message would continue."),
    ] = False,
    drop_savepoints: Annotated[
        bool, typer.Option("--drop-savepoints", help="Delete all savepoints: they keep what is erased.")
    ] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Show what would be erased, and what refuses it.")] = False,
    as_json: AsJson = False,
) -> None:
    """Erase one session: rows, state, quarantined and late messages. No rewind, savepoint or time travel has it back.

    All other rows stay as they are, in their order, which is proven before the commit. Housekeeping deletes the old
    files: lockstep housekeeping STREAM does so at once. Kafka is not changed. Exit code 1 where something refuses it.
    """
    from lockstep.features.erase.erase import EraseRequest, erase_session, plan_erasure, read_context

    wanted = EraseRequest(session=session, topic=topic, drop_state=drop_state, drop_savepoints=drop_savepoints)
    handle = open_handle(stream)
    folders, context = handle.folders, read_context(handle)
    if plan:
        print_answer(plan_erasure(folders, wanted, context), _erase_plan, as_json=as_json)
        return
    done = erase_session(folders, wanted, context, who=getpass.getuser(), why=why)
    print_answer(done, _erased, as_json=as_json)


def _closed(found: Closed) -> RenderableType:
    return style_text(f"{found.stream}: hour {found.hour} is closed; new rows go to the hour after it")


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


def _retention(plan: RetentionPlan, verb: str) -> RenderableType:
    what = f"{plan.rows} rows of {plan.hours} hours before {plan.before_hour or '-'} {verb} dropped"
    return style_text(f"{plan.stream}: {what} ({len(plan.files)} files, {plan.bytes} bytes)")


def _rows_dropped(done: Retained) -> RenderableType:
    return _retention(done.plan, "were")


def _messages_dropped(done: QuarantineRetained) -> RenderableType:
    return _quarantine_retention(done.plan, "were")


def _quarantine_retention(plan: QuarantineRetentionPlan, verb: str) -> RenderableType:
    columns = ("table", "messages", "bytes", "files", "first hour", "last hour", "first batch", "last batch")
    rows = (
        (
            *(each.table, each.messages, each.bytes, len(each.files)),
            *(each.first_hour or "-", each.last_hour or "-", each.first_batch, each.last_batch),
        )
        for each in plan.tables
    )
    what = f"messages of batches up to {plan.batch}, committed before {plan.before_hour or '-'}, {verb} dropped"
    return make_lines(style_text(f"{plan.stream}: {what}"), make_grid(columns, rows))


def _housekeeping(found: HousekeepingResult) -> RenderableType:
    verb = "would be deleted" if found.planned_only else "deleted"
    rows = ((step.step, step.files, step.bytes) for step in found.steps)
    floor = style_text(f"{found.stream}: a rewind can go back to batch {found.rewind_floor}; {verb}:")
    return Group(floor, make_grid(("step", "files", "bytes"), rows))
