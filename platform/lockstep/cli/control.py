"""Run, start, stop, hold, retire, resume, rewind, savepoint, backup, shadow, promote, close, repair, check, verify."""

from __future__ import annotations

import getpass
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from msgspec.structs import astuple
from rich.console import Group, RenderableType

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
    show_error,
)
from lockstep.cli.output import make_facts, make_grid, make_lines, print_answer, print_note, style_text
from lockstep.errors import LockstepError
from lockstep.integrity.resume_options import SHOWN_MAX

if TYPE_CHECKING:
    from lockstep.compaction.dataset import DatasetCompaction, DatasetPlan
    from lockstep.integrity.resume_options import Acceptance
    from lockstep.operations.backup import CopyReport
    from lockstep.operations.compact import Compacted, StreamCompactionPlan
    from lockstep.operations.derive import DerivedPlan, DerivedRun
    from lockstep.operations.erase import ErasePlan, SessionErased
    from lockstep.operations.export import ExportPlan, ExportResult, WaitingHours
    from lockstep.operations.housekeeping import HousekeepingResult
    from lockstep.operations.lifecycle import Stopped
    from lockstep.operations.promote import Promoted, PromotionPlan
    from lockstep.operations.rebuild import RebuildPlan
    from lockstep.operations.relocate import ImportPlan, SavepointExport, SavepointImported
    from lockstep.operations.repair import Repair
    from lockstep.operations.resume import ResumePreview
    from lockstep.operations.retain import RetentionPlan
    from lockstep.operations.retire import RetiredTopic
    from lockstep.operations.rewind import RewindPlan, Rewound
    from lockstep.operations.savepoint import SavepointList
    from lockstep.operations.shadow import ShadowDropped, ShadowPlan, ShadowShown
    from lockstep.orchestration.launch import Launched
    from lockstep.quality.check import Checked
    from lockstep.rehearsal.load_test import LoadPlan, LoadTestResult
    from lockstep.verify.report import ProvenRange, VerifyReport


class RunEnded(msgspec.Struct, frozen=True):
    """The end of a run.

    Attributes:
        stream: Name of the stream.
        outcome: How it ended.
    """

    stream: str
    outcome: str


@register_command("run order_books --available-now", Panel.RUN)
def run(
    stream: StreamName,
    available_now: Annotated[  # noqa: FBT002  # a flag of a command line
        bool, typer.Option("--available-now", help="Read up to the current end offsets, then end.")
    ] = False,
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """Run a stream in this process. Ctrl-C ends it at the next batch boundary; nothing is lost either way."""
    from lockstep.operations.foreground import format_report, run_in_foreground  # loads the engine

    outcome = run_in_foreground(
        find_stream_or_exit(stream),
        load_settings_or_exit(),
        available_now=available_now,
        report=lambda batch: print_note(format_report(batch)),
    )
    print_answer(
        RunEnded(stream, outcome.value), lambda ended: style_text(f"{ended.stream}: {ended.outcome}"), as_json=as_json
    )


@register_command("start order_books", Panel.RUN)
def start(stream: StreamName, as_json: AsJson = False) -> None:  # noqa: FBT002  # a flag
    """Launch the stream's Dagster job, set its desired state to running, and wait until it writes.

    Needs DAGSTER_HOME, workspace.yaml in this folder, and Dagster's daemon. Exit code 1, with the reason, when the run
    fails or does not begin.
    """
    from lockstep.orchestration.launch import start_stream

    launched = start_stream(
        find_stream_or_exit(stream), load_settings_or_exit(), Path.cwd(), who=getpass.getuser(), say=print_note
    )
    print_answer(launched, _launched, as_json=as_json)


@register_command('stop order_books --why "maintenance of the disk"', Panel.RUN)
def stop(
    stream: StreamName,
    why: Annotated[str, typer.Option(help="Reason, stored with the stream and shown.")] = "stopped by hand",
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """Stop a stream, wherever it runs, until an operator starts it again.

    A live writer ends at its batch boundary, or is fenced when that takes longer than the stream's stop_timeout.
    """
    print_answer(_set_desired(stream, why, hold=False), _stopped, as_json=as_json)


@register_command('hold order_books --why "the disk is replaced until noon"', Panel.RUN)
def hold(
    stream: StreamName,
    why: Annotated[str, typer.Option(help="Reason, stored with the stream and shown.")] = "held by hand",
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """Hold a stream: stop it, and refuse every run of it until `lockstep start` or `lockstep stop` releases it."""
    print_answer(_set_desired(stream, why, hold=True), _stopped, as_json=as_json)


@register_command('retire order_books order_books.delisted --why "no longer traded"', Panel.RUN)
def retire(
    stream: StreamName,
    topic: Annotated[str, typer.Argument(help="Name of the topic.")],
    why: Annotated[str, typer.Option(help="Reason, stored in the ledger.")] = "retired by hand",
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """Retire a topic whose messages are all read: it is not read until a message arrives, and may be deleted.

    A live writer does so with its next batch.
    """
    from lockstep.operations.retire import retire_topic

    print_answer(retire_topic(open_handle(stream), topic, who=getpass.getuser(), why=why), _retired, as_json=as_json)


def _retired(found: RetiredTopic) -> RenderableType:
    return style_text(
        f"{found.topic} is retired by {found.retired_by}: {found.partitions} partitions, {found.position} offsets "
        "read; it is read again from there when a message arrives"
    )


def _set_desired(stream: str, why: str, *, hold: bool) -> Stopped:
    from lockstep.engine.driver.handover import StopRequest
    from lockstep.operations.lifecycle import stop_stream as do_stop
    from lockstep.table.delta_log import Desired
    from lockstep.table.layout import StreamFolders

    declared = find_stream_or_exit(stream)
    request = StopRequest(why, getpass.getuser(), Desired.HELD if hold else Desired.STOPPED)
    folders = StreamFolders(declared.name, load_settings_or_exit().table_root)
    return do_stop(folders, request, patience_seconds=declared.limits.stop_timeout_seconds)


def _launched(found: Launched) -> RenderableType:
    if not found.run_id:
        return style_text(f"{found.stream}: epoch {found.epoch} is writing already; nothing was started")
    return make_lines(
        style_text(f"{found.stream}: run {found.run_id} of job {found.job} writes under epoch {found.epoch}"),
        style_text(f"see it: /runs/{found.run_id} of the web UI, or lockstep status {found.stream} --watch"),
    )


def _stopped(found: Stopped) -> RenderableType:
    how = {
        "the writer": "the writer ended at its batch boundary",
        "a fence": "its writer did not end in time and is fenced: nothing of its last batch is visible",
        "a claim": "no writer was left to ask",
        "none": "it did not run",
    }[found.ended_by]
    return style_text(f"{found.stream}: {found.desired} after batch {found.batch}; {how} ({found.reason})")


Several = list[str] | None


class CleanedUp(msgspec.Struct, frozen=True):
    """Leftovers of load tests that were deleted.

    Attributes:
        stream: Name of the stream.
        topics: The deleted topics.
    """

    stream: str
    topics: tuple[str, ...]


@register_command("loadtest order_books --rate 1x,10x --minutes 1 --report load.html", Panel.RUN)
def loadtest(  # noqa: PLR0913  # an option a decision
    stream: StreamName,
    *,
    rate: Annotated[str, typer.Option(help='Multiples of the present load, or messages a second: "500/s".')] = "1x,10x",
    minutes: Annotated[float, typer.Option(min=0.1, max=60, help="Duration of the sending at each rate.")] = 1.0,
    topics: Annotated[
        int | None, typer.Option("--topics", min=1, help="Only the N topics with the most messages.")
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Show what it would do; create nothing.")] = False,
    clean: Annotated[bool, typer.Option("--clean", help="Delete what a killed load test left behind.")] = False,
    report: Annotated[Path | None, typer.Option("--report", help="Write an HTML page with the figures.")] = None,
    as_json: AsJson = False,
) -> None:
    """Load a copy of a stream with copies of its messages: the highest sustainable rate, and what limits it.

    The stream's table, topics and consumer group are not touched; what is created is deleted at the end, also after
    Ctrl-C. Exit code 1 where a rate was not sustained.
    """
    from lockstep.rehearsal.load_report import has_folder, write_load_report
    from lockstep.rehearsal.load_test import delete_leftovers, hold_test_lock, prepare_load_test

    if report is not None and not has_folder(report):
        raise typer.BadParameter(f"there is no folder {report.absolute().parent}", param_hint="--report")
    declared = list_all_streams()
    handle = open_handle(stream)
    if clean:
        with hold_test_lock(handle):
            print_answer(CleanedUp(stream, delete_leftovers(handle)), _cleaned, as_json=as_json)
        return
    prepared = prepare_load_test(handle, tuple(declared.values()), rates=rate, minutes=minutes, topics_max=topics)
    if plan:
        print_answer(prepared.plan, _load_plan, as_json=as_json)
        return
    if not as_json:
        print_answer(prepared.plan, _load_plan, as_json=False)
    found = prepared.run(print_note)
    print_answer(found, _load_result, as_json=as_json)
    if report is not None:
        write_load_report(found, report)
        print_note(f"report: {report}")
    if found.failure or not all(stage.load.is_sustained for stage in found.stages):
        raise typer.Exit(FAILED)


def _cleaned(found: CleanedUp) -> RenderableType:
    return style_text(f"{found.stream}: deleted {len(found.topics)} topics: {', '.join(found.topics) or 'none'}")


def _load_plan(found: LoadPlan) -> RenderableType:
    from lockstep.rehearsal.load_report import list_plan_facts

    stages = (
        (each.label, f"{each.per_second:,.0f}", f"{each.seconds:.0f}", f"{each.messages:,}", f"{each.size / 1e6:,.1f}")
        for each in found.stages
    )
    left_out = ((each.topic, each.partition, f"{each.share:.1%}", each.why) for each in found.left_out)
    return make_lines(
        make_facts(list_plan_facts(found)),
        make_grid(("rate", "messages/s", "seconds", "messages", "MB"), stages),
        make_grid(("not copied", "partition", "share", "because"), left_out) if found.left_out else None,
    )


def _load_result(found: LoadTestResult) -> RenderableType:
    from lockstep.rehearsal.load_report import STAGE_COLUMNS, list_stage_rows

    return make_lines(
        make_grid(STAGE_COLUMNS, list_stage_rows(found)),
        *(style_text(f"{each.label}: {each.failure}", "red") for each in found.stages if each.failure),
        style_text(found.failure, "red") if found.failure else None,
        style_text(found.sustainable.sentence, "bold"),
    )


class Resumed(msgspec.Struct, frozen=True):
    """Result of a resume.

    Attributes:
        stream: Name of the stream.
        batch: Number of the resume batch.
        desired: The desired state now: the one before the halt.
    """

    stream: str
    batch: int
    desired: str


@register_command('resume order_books --why "producer lost it" --skip-session order_books.eth/0/eth', Panel.OPERATE)
def resume(  # noqa: PLR0913  # an option a kind
    stream: StreamName,
    why: Annotated[str, typer.Option(help="Cause of the halt; stored in the ledger.")],
    *,
    fixed: Annotated[bool, typer.Option("--fixed", help="Resume at the same offset: the cause is fixed.")] = False,
    accept_loss: Annotated[Several, typer.Option(help="TOPIC/PARTITION@FROM-UNTIL: skip these offsets.")] = None,
    skip_session: Annotated[
        Several, typer.Option(help="TOPIC/PARTITION/SESSION: quarantine it until its next snapshot.")
    ] = None,
    from_snapshot: Annotated[
        Several, typer.Option(help="TOPIC/PARTITION[@FROM-UNTIL]: all its sessions, until the next snapshot of each.")
    ] = None,
    accept_truncated: Annotated[Several, typer.Option(help="TOPIC/PARTITION: its sessions wait for snapshots.")] = None,
    accept_recreated: Annotated[Several, typer.Option(help="TOPIC: read the re-created topic from its start.")] = None,
    accept_gone: Annotated[Several, typer.Option(help="TOPIC: it was deleted; drop it from the subscription.")] = None,
    accept_growth: Annotated[Several, typer.Option(help="TOPIC: read its new partitions from their start.")] = None,
    accept_quarantine: Annotated[
        bool, typer.Option("--accept-quarantine", help="Let one burst go to quarantine, until it is over.")
    ] = False,  # a flag
    suggested: Annotated[
        bool, typer.Option("--suggested", help="For every other finding, the option that `lockstep status` proposes.")
    ] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Show what the options would do; resume nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Resume a halted stream after its cause was found.

    Each finding of the halt needs an option that covers it; all options except the flags may be repeated.
    """
    from lockstep.integrity import resume_options as kinds

    accepted: list[Acceptance] = [
        *_parsed(kinds.AcceptLoss.parse, accept_loss),
        *_parsed(kinds.SkipSession.parse, skip_session),
        *_parsed(kinds.FromSnapshot.parse, from_snapshot),
        *_parsed(kinds.Truncated.parse, accept_truncated),
        *_parsed(kinds.Recreated.parse, accept_recreated),
        *_parsed(kinds.AcceptDeleted.parse, accept_gone),
        *_parsed(kinds.AcceptGrowth.parse, accept_growth),
        *([kinds.Quarantined()] if accept_quarantine else ()),
        *([kinds.Fixed()] if fixed else ()),
    ]
    _plan_or_resume(stream, why, accepted, suggested=suggested, plan=plan, as_json=as_json)


def _plan_or_resume(  # the options of the command
    stream: str, why: str, accepted: list[Acceptance], *, suggested: bool, plan: bool, as_json: bool
) -> None:
    from lockstep.operations.resume import plan_resume, resume_stream

    folders = find_folders(stream)
    if plan:
        print_answer(plan_resume(folders, accepted, suggested=suggested), _resume_preview, as_json=as_json)
        return
    head = resume_stream(folders, why=why, who=getpass.getuser(), accepted=accepted, suggested=suggested)
    print_answer(Resumed(stream, head.batch, head.desired.value), _resumed, as_json=as_json)


def _parsed(parse: Callable[[str], Acceptance], given: Iterable[str] | None) -> Iterator[Acceptance]:
    for text in given or ():
        try:
            yield parse(text)
        except ValueError as wrong:
            raise typer.BadParameter(f"{text!r} is not {wrong}") from None


def _resume_preview(found: ResumePreview) -> RenderableType:
    columns = ("option", "cause", "topics", "partitions", "findings", "offsets")
    rows = [(f"--{each.option}", each.cause, *astuple(each)[2:]) for each in found.options]
    left = [style_text(f"without an option: {finding}") for finding in found.unanswered[:SHOWN_MAX]]
    return make_lines(
        make_grid(columns, rows), style_text(f"lockstep resume {found.stream} {found.command} --why '...'"), *left
    )


def _resumed(found: Resumed) -> RenderableType:
    name = found.stream
    resumed = f"{name}: resumed with batch {found.batch}; its desired state is {found.desired} again"
    if found.desired == "running":
        how = f"the supervisor starts it within a minute where Dagster's daemon runs, else lockstep run {name}"
        return style_text(f"{resumed}: {how}")
    return style_text(f"{resumed}; start it: lockstep start {name}, or lockstep run {name}")


@register_command(
    'rewind order_books --to order_books.eth/0@120 --why "wrong prices since Friday" --plan', Panel.OPERATE
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
    why: Annotated[str, typer.Option(help="Reason, stored in the ledger and shown.")],
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
    from lockstep.operations.rewind import plan_rewind, rewind_stream

    handle = open_handle(stream)
    if plan:
        print_answer(plan_rewind(handle, to), _rewind_plan, as_json=as_json)
        return
    done = rewind_stream(handle, to, who=getpass.getuser(), why=why, accept_expired=accept_expired)
    print_answer(done, _rewound, as_json=as_json)


@register_command('savepoint order_books before-release --why "version 2 of the fold"', Panel.OPERATE)
def savepoint(  # an option a question
    stream: StreamName,
    name: Annotated[str, typer.Argument(help="Name of the savepoint; without one, all are listed.")] = "",
    why: Annotated[str, typer.Option(help="Reason, stored with the savepoint.")] = "made by hand",
    *,
    at: Annotated[
        str | None, typer.Option(help="An earlier batch, as `lockstep rewind --to` takes it; by default the newest.")
    ] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Delete the savepoint.")] = False,
    as_json: AsJson = False,
) -> None:
    """Keep a batch restorable for longer than retention_hours: its rows, state and log entry are not deleted.

    Works while the stream runs. `lockstep rewind --to NAME` goes back to it.
    """
    from lockstep.operations.savepoint import drop_named_savepoint, list_savepoints, make_savepoint

    folders, who = find_folders(stream), getpass.getuser()
    if not name:
        found = list_savepoints(folders)
    elif delete:
        found = drop_named_savepoint(folders, name, who=who, why=why)
    else:
        found = make_savepoint(folders, name, who=who, why=why, at=at)
    print_answer(found, _savepoints, as_json=as_json)


@register_command(
    "export-savepoint order_books before-release /exports/order_books", Panel.OPERATE, name="export-savepoint"
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
    from lockstep.operations import relocate

    done = relocate.export_savepoint(open_handle(stream), name, path, plan_only=plan)
    print_answer(done, _savepoint_exported, as_json=as_json)


@register_command("import-savepoint order_books /exports/order_books --plan", Panel.OPERATE, name="import-savepoint")
def import_savepoint(  # an option a question
    stream: StreamName,
    path: Annotated[Path, typer.Argument(help="Folder of the export.")],
    why: Annotated[str, typer.Option(help="Reason, stored in the ledger and shown.")] = "imported by hand",
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
    from lockstep.operations import relocate

    handle = open_handle(stream)
    if plan:
        print_answer(relocate.plan_import(handle, path, mirror=mirror), _import_plan, as_json=as_json)
        return
    done = relocate.import_savepoint(
        handle, path, who=getpass.getuser(), why=why, accept_expired=accept_expired, mirror=mirror
    )
    print_answer(done, _savepoint_imported, as_json=as_json)


@register_command("backup order_books /backups/order_books", Panel.OPERATE)
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
    from lockstep.operations.backup import make_backup

    print_answer(make_backup(find_folders(stream), path, plan_only=plan), _backed_up, as_json=as_json)


@register_command("restore order_books /backups/order_books --plan", Panel.OPERATE)
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
    from lockstep.operations.backup import restore_backup

    print_answer(restore_backup(find_folders(stream), path, plan_only=plan), _restored, as_json=as_json)


def _backed_up(found: CopyReport) -> RenderableType:
    deleted = f", {found.deleted_files} of the earlier backup deleted" if found.deleted_files else ""
    return make_lines(
        style_text(_copied(found, "backup") + deleted),
        None if found.plan_only else style_text(f"to restore it: lockstep restore {found.stream} {found.target}"),
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


@register_command("shadow order_books --code ../fix --from before-release", Panel.OPERATE)
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
    why: Annotated[str, typer.Option(help="Reason, stored with the shadow.")] = "begun by hand",
    *,
    drop: Annotated[bool, typer.Option("--drop", help="Delete the shadow with all its tables.")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Show where it would begin.")] = False,
    as_json: AsJson = False,
) -> None:
    """Begin a shadow: new code with its own tables, from the state and positions of a batch. Without --from, list them.

    The stream is not touched, but for a savepoint that keeps the batch. `lockstep run`, `stop`, `status`, `diff`,
    `verify` and the others take the shadow's name; `lockstep promote` makes it the stream.
    """
    from lockstep.operations.shadow import SUFFIX, drop_shadow, list_shadows

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
    from lockstep.operations.shadow import begin_shadow, load_shadow_code, name_shadow, plan_shadow
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


@register_command("promote order_books order_books_shadow --plan", Panel.OPERATE)
def promote(  # an option a question
    stream: StreamName,
    name: Annotated[str, typer.Argument(metavar="SHADOW", help="Name of the shadow.")],
    why: Annotated[str, typer.Option(help="Reason, stored in the ledger and shown.")] = "promoted by hand",
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
    from lockstep.operations.promote import plan_promotion, promote_shadow

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
        for each in found.partitions[:SHOWN_SCOPES]
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
        make_grid(columns, rows) if found.partitions else None,
        _more(len(found.partitions) - SHOWN_SCOPES),
        *(style_text(f"migrated: {each}") for each in found.migrated[:SHOWN_MAX]),
        _derived_note(found.derived),
        *(style_text(f"refused: {each.problem}; next: {each.next_step}", "red") for each in found.obstacles),
        None if found.obstacles else style_text("nothing refuses it; say it again without --plan", "green"),
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
        _derived_note(plan.derived),
    )


def _shadow_plan(found: ShadowPlan) -> RenderableType:
    columns = ("topic", "partition", "begins at", "position of the stream", "expired")
    rows = (
        (each.topic, each.partition, each.begins_at, each.position, each.expired)
        for each in found.partitions[:SHOWN_SCOPES]
    )
    return make_lines(
        style_text(
            f"{found.name}: from batch {found.from_batch} of {found.stream}, whose last batch is {found.last_batch}: "
            f"{found.state_bytes} bytes of state files are read, {found.to_read} offsets up to the stream"
        ),
        make_grid(columns, rows) if found.partitions else None,
        _more(len(found.partitions) - SHOWN_SCOPES),
        *(style_text(f"migrated: {each}") for each in found.migrated[:SHOWN_MAX]),
        *(style_text(f"refused: {each.problem}; next: {each.next_step}", "red") for each in found.obstacles),
        None if found.obstacles else style_text("nothing refuses it; say it again without --plan", "green"),
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
        for each in found.partitions[:SHOWN_SCOPES]
    )
    return make_lines(
        style_text(f"{found.stream}: back to batch {found.to_batch}{at}{back}, after batch {found.last_batch}"),
        style_text(
            f"{found.batches} batches and {found.rows} rows go, {found.quarantined} messages leave quarantine and late "
            f"table, {found.read_again} offsets are read again; generation {found.generation} begins"
        ),
        make_grid(columns, rows) if found.partitions else None,
        _more(len(found.partitions) - SHOWN_SCOPES),
        *(style_text(f"accepted since, to be accepted again: {each}") for each in found.decisions[:SHOWN_MAX]),
        _more(len(found.decisions) - SHOWN_MAX),
        *(style_text(f"taken up since, kept from its first position: {each}") for each in found.topics[:SHOWN_MAX]),
        _derived_note(found.derived),
        *(style_text(f"refused: {each.problem}; next: {each.next_step}", "red") for each in found.obstacles),
        None if found.obstacles else style_text("nothing refuses it; say it again without --plan", "green"),
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
        _derived_note(plan.derived),
    )


def _derived_note(names: Sequence[str]) -> RenderableType | None:
    """The derived tables that follow."""
    shown = f"derived tables, each rebuilt by its next run: {', '.join(names)}; at once: lockstep derive"
    return style_text(shown) if names else None


def _erase_plan(found: ErasePlan) -> RenderableType:
    columns = ("topic", "partition", "rows", "state entries", "quarantined", "late", "unread offsets")
    rows = (
        (each.topic, each.partition, each.rows, each.state_entries, each.quarantined, each.late, each.unread)
        for each in found.partitions[:SHOWN_SCOPES]
    )
    return make_lines(
        style_text(
            f"{found.stream}: batch {found.last_batch + 1} erases {found.rows} rows of the session with digest "
            f"{found.digest}; {found.files} files of {len(found.hours)} hours are written again, {found.bytes} bytes"
        ),
        style_text(f"no rewind goes below batch {found.last_batch + 1} afterwards"),
        make_grid(columns, rows) if found.partitions else None,
        _more(len(found.partitions) - SHOWN_SCOPES),
        *(style_text(f"note: {each}") for each in found.notes),
        _derived_note(found.derived),
        *(style_text(f"refused: {each.problem}; next: {each.next_step}", "red") for each in found.refusals),
        None if found.refusals else style_text("nothing refuses it; say it again without --plan", "green"),
    )


def _erased(found: SessionErased) -> RenderableType:
    plan = found.plan
    return make_lines(
        style_text(
            f"{plan.stream}: batch {found.batch} erased {plan.rows} rows and {found.messages} quarantined or late "
            f"messages of the session with digest {plan.digest}"
        ),
        *(style_text(f"note: {each}") for each in plan.notes),
        _derived_note(plan.derived),
        style_text(f"next: lockstep housekeeping {plan.stream} deletes the old files; lockstep verify {plan.stream}"),
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
        else style_text(f"in another table root: lockstep import-savepoint {found.stream} {found.target} --plan"),
    )


def _import_plan(found: ImportPlan) -> RenderableType:
    columns = ("topic", "partition", "exported at", "goes on at", "Kafka has from", "to", "expired")
    rows = (
        (each.topic, each.partition, each.exported, each.position, each.log_start, each.log_end, each.expired)
        for each in found.partitions[:SHOWN_SCOPES]
    )
    return make_lines(
        style_text(
            f"{found.stream}: savepoint {found.savepoint} (batch {found.batch}, exported "
            f"{found.exported_at:%Y-%m-%d %H:%M} UTC) into {found.target}: {found.state_bytes / 1e6:.1f} MB, then "
            f"{found.to_read} offsets to read"
        ),
        make_grid(columns, rows) if found.partitions else None,
        _more(len(found.partitions) - SHOWN_SCOPES),
        *(style_text(f"left out: {each} is retired, and not in this cluster") for each in found.left_out[:SHOWN_MAX]),
        *(style_text(f"migrated: {each}") for each in found.migrated[:SHOWN_MAX]),
        *(style_text(f"refused: {each.problem}; next: {each.next_step}", "red") for each in found.obstacles),
        None if found.obstacles else style_text("nothing refuses it; say it again without --plan", "green"),
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
        stream: Name of the stream.
        begins_anew: Its next run makes a new table, and reads every topic from its first offset.
    """

    stream: str
    begins_anew: bool


class Closed(msgspec.Struct, frozen=True):
    """A closed hour.

    Attributes:
        stream: Name of the stream.
        hour: The newest closed hour (UTC).
    """

    stream: str
    hour: str


@register_command("close order_books", Panel.OPERATE)
def close(stream: StreamName, as_json: AsJson = False) -> None:  # noqa: FBT002  # a flag
    """Close the open hour of a stream, so that it can be compacted."""
    from lockstep.operations.lifecycle import close_hour

    print_answer(Closed(stream, close_hour(find_folders(stream))), _closed, as_json=as_json)


StreamOrPath = Annotated[
    str,
    typer.Argument(metavar="STREAM|PATH", help="A stream; with a slash in it, the folder of a plain Parquet dataset."),
]


@register_command("compact order_books --plan", Panel.OPERATE)
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
        raise typer.BadParameter("is for a PATH; replaced files of a stream are deleted by: lockstep housekeeping")
    from lockstep.operations.compact import compact as do_compact
    from lockstep.operations.compact import plan_compaction

    folders, size = find_folders(stream), load_settings_or_exit().target_file_bytes
    if plan:
        print_answer(plan_compaction(folders, target_bytes=size), _compaction_plan, as_json=as_json)
    else:
        print_answer(do_compact(folders, target_bytes=size), _compacted, as_json=as_json)


def _compact_dataset(dataset: Path, *, plan: bool, remove_old: bool, as_json: bool) -> None:
    from lockstep.compaction.dataset import compact_dataset, plan_dataset

    size = load_settings_or_exit().target_file_bytes
    if plan:
        print_answer(plan_dataset(dataset, target_bytes=size), _dataset_plan, as_json=as_json)
    else:
        done = compact_dataset(dataset, target_bytes=size, remove_old=remove_old)
        print_answer(done, _dataset_compacted, as_json=as_json)


@register_command("derive book_activity --plan", Panel.OPERATE)
def derive(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Name of a derived table; all by default.")] = None,
    *,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Compute all rows again, whatever is there.")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Show what is unread, and what would be rebuilt.")] = False,
    as_json: AsJson = False,
) -> None:
    """Bring derived tables up to the tables of their streams. Dagster does so by the schedule of each.

    A table whose source was rewound, promoted or erased from, or whose checkpoint is lost, is rebuilt: readers see the
    old rows until the new ones replace them, all at once.
    """
    from lockstep.declare.discovery import find_derived
    from lockstep.operations.derive import choose_derived, plan_derived, run_derived, start_session

    chosen, settings = choose_derived(name, find_derived(Path.cwd())), load_settings_or_exit()
    if plan:
        print_answer([plan_derived(each, settings.table_root) for each in chosen], _derived_plans, as_json=as_json)
        return
    root = settings.table_root
    done = [run_derived(each, root, partial(start_session, each, settings), rebuild=rebuild) for each in chosen]
    print_answer(done, _derived_runs, as_json=as_json)


def _derived_plans(found: list[DerivedPlan]) -> RenderableType:
    columns = ("derived table", "source", "version", "read from", "watermark (UTC)", "the next run")
    rows = (
        (each.name, source.stream, source.version, source.next_version, each.watermark, _next_run(each))
        for each in found
        for source in each.sources
    )
    return make_grid(columns, rows)


def _next_run(found: DerivedPlan) -> str:
    if found.rebuild is not None:
        return f"rebuilds it: {found.rebuild.value}"
    return "goes on" if found.is_due else "has nothing to do"


def _derived_runs(found: list[DerivedRun]) -> RenderableType:
    columns = ("derived table", "rows", "before", "version", "watermark (UTC)", "rebuilt because")
    rows = (
        (each.name, each.rows, each.rows_before, each.version, each.watermark, "; ".join(c.value for c in each.rebuilt))
        for each in found
    )
    return make_grid(columns, rows)


@register_command("housekeeping order_books --plan", Panel.OPERATE)
def housekeeping(
    stream: StreamName,
    plan: Annotated[bool, typer.Option("--plan", help="Show what would be deleted.")] = False,  # noqa: FBT002  # a flag
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """Delete files that nothing can need any more: old log entries, replaced files, unreachable state.

    Dagster does so every hour. The setting `retention_hours` determines how far back a rewind can go. Rows past the
    stream's declared retention are dropped first.
    """
    from lockstep.operations.housekeeping import run_housekeeping

    done = run_housekeeping(
        find_folders(stream),
        retention_seconds=load_settings_or_exit().retention_hours * 3600,
        stream=find_stream_or_exit(stream),
        plan_only=plan,
    )
    print_answer(done, _housekeeping, as_json=as_json)


@register_command("export betting_markets --plan", Panel.OPERATE)
def export(
    stream: StreamName,
    plan: Annotated[bool, typer.Option("--plan", help="Show what would be written.")] = False,  # noqa: FBT002  # a flag
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """Write the hours that no rewind can go back to as plain Parquet, each once. For streams that declare an `Export`.

    Dagster does so every hour.
    """
    from lockstep.operations.export import export_stream, plan_export

    declared, folders = find_stream_or_exit(stream), find_folders(stream)
    size = load_settings_or_exit().target_file_bytes
    if plan:
        print_answer(plan_export(declared, folders, target_bytes=size), _export_plan, as_json=as_json)
    else:
        print_answer(export_stream(declared, folders, target_bytes=size), _exported, as_json=as_json)


@register_command("retain order_books --days 90 --plan", Panel.OPERATE)
def retain(
    stream: StreamName,
    days: Annotated[int, typer.Option(help="Days of rows that stay, counted from the newest batch.", min=1)],
    why: Annotated[str, typer.Option(help="Reason, stored with the stream and shown.")] = "by hand",
    plan: Annotated[bool, typer.Option("--plan", help="Show what would be dropped.")] = False,  # noqa: FBT002  # a flag
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """Drop the rows of whole closed hours that are older; the stream goes on. `Stream(retention=...)` does so hourly.

    Housekeeping deletes the files once no rewind can go back to them (`retention_hours`).
    """
    from lockstep.operations.retain import drop_old_rows, plan_retention

    folders, keep = find_folders(stream), timedelta(days=days)
    if plan:
        print_answer(plan_retention(folders, keep), lambda found: _retention(found, "would be"), as_json=as_json)
        return
    done = drop_old_rows(folders, keep, cause=f"{why}, by {getpass.getuser()}")
    print_answer(done, lambda found: _retention(found.plan, "were"), as_json=as_json)


@register_command('erase order_books --session eth --why "request 4711" --plan', Panel.OPERATE)
def erase(  # noqa: PLR0913  # an option a decision
    stream: StreamName,
    session: Annotated[str, typer.Option(help="The session, as the column _session has it.")],
    why: Annotated[str, typer.Option(help="Reason, stored and shown: it must not name the session.")] = "by hand",
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
    from lockstep.operations.erase import EraseRequest, erase_session, plan_erasure, read_context

    wanted = EraseRequest(session=session, topic=topic, drop_state=drop_state, drop_savepoints=drop_savepoints)
    handle = open_handle(stream)
    folders, context = handle.folders, read_context(handle)
    if plan:
        print_answer(plan_erasure(folders, wanted, context), _erase_plan, as_json=as_json)
        return
    done = erase_session(folders, wanted, context, who=getpass.getuser(), why=why)
    print_answer(done, _erased, as_json=as_json)


@register_command("reset order_books --new", Panel.OPERATE)
def reset(
    stream: StreamName,
    new: Annotated[bool, typer.Option("--new", help="Read everything into a new table; there must be none.")],
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """Allow a stream whose table was deleted to restart from the earliest offsets; without it a start refuses.

    Deletes the positions that were published to Kafka, nothing else.
    """
    from lockstep.operations.lifecycle import reset_new

    if not new:
        raise typer.BadParameter("say --new")
    name = find_stream_or_exit(stream).name
    reset_new(name, load_settings_or_exit())
    print_answer(Reset(name, begins_anew=True), _reset, as_json=as_json)


@register_command("repair order_books --apply", Panel.OPERATE)
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


@register_command("rebuild order_books --plan", Panel.OPERATE)
def rebuild(
    stream: StreamName,
    plan: Annotated[bool, typer.Option("--plan", help="Show what would be read again.")] = False,  # noqa: FBT002  # a flag
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """Rebuild lost or damaged state files from an older state and Kafka's messages, byte by byte.

    Each batch since that state is folded again, and must give the state that the ledger describes. Refused where Kafka
    no longer has the messages, or where the code folds otherwise than then; nothing is changed then.
    """
    from lockstep.operations.rebuild import rebuild_state

    print_answer(rebuild_state(open_handle(stream), plan_only=plan), _rebuilt, as_json=as_json)


def _rebuilt(found: RebuildPlan) -> RenderableType:
    if not found.partitions:
        return style_text(f"{found.stream}: all state is whole, nothing to rebuild", "green")
    columns = ("topic", "partition", "from batch", "to batch", "read again from", "until", "batches")
    rows = (
        (each.topic, each.partition, each.from_batch, each.to_batch, each.start, each.until, each.batches)
        for each in found.partitions[:SHOWN_SCOPES]
    )
    done = f"{len(found.files)} state files rebuilt as they were; next: lockstep verify {found.stream}"
    return make_lines(
        style_text(f"{found.stream}: state of {len(found.partitions)} partitions cannot be read"),
        make_grid(columns, rows),
        _more(len(found.partitions) - SHOWN_SCOPES),
        *(
            style_text(f"refused: {each.topic}/{each.partition}: {each.refused}", "red")
            for each in found.partitions
            if each.refused
        ),
        style_text(done, "green") if found.files else None,
    )


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
        _more(len(table.bins) - SHOWN_HOURS),
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
        _more(len(found.hours) - SHOWN_HOURS),
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


def _housekeeping(found: HousekeepingResult) -> RenderableType:
    verb = "would be deleted" if found.planned_only else "deleted"
    rows = ((step.step, step.files, step.bytes) for step in found.steps)
    floor = style_text(f"{found.stream}: a rewind can go back to batch {found.rewind_floor}; {verb}:")
    return Group(floor, make_grid(("step", "files", "bytes"), rows))


def _reset(found: Reset) -> RenderableType:
    return style_text(f"{found.stream}: its next run reads every topic from its first offset, into a new table")


def _checks(found: Repair) -> RenderableType:
    rows = ((c.check, c.condition, c.found, c.next_step) for c in found.checks)
    return make_grid(("check", "condition", "found", "next"), rows)


@register_command("check order_books --full", Panel.OPERATE)
def check(
    stream: StreamName,
    full: Annotated[bool, typer.Option("--full", help="The whole table, not what was added.")] = False,  # noqa: FBT002  # a flag
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """Check what was added to a table since its last check, by the built-in rules and its own. Dagster does every hour.

    Exit code 1 when a critical rule failed or a check crashed.
    """
    from lockstep.operations.check import check as do_check

    found = do_check(find_stream_or_exit(stream), load_settings_or_exit(), find_folders(stream), full=full)
    print_answer(found, _checked, as_json=as_json)
    raise typer.Exit(0 if found.holds else FAILED)


def _checked(found: Checked) -> RenderableType:
    rows = ((r.rule, r.outcome.value, r.severity.value, r.observed, r.reason or r.sentence) for r in found.results)
    places = {result.rule: result.sample or result.worst for result in found.results}
    return make_lines(
        style_text(f"{found.stream}: {found.rows} rows up to table version {found.versions.table}"),
        style_text(f"read: {found.coverage.describe()}"),
        make_grid(("rule", "outcome", "severity", "observed", "promise"), rows),
        *(_places(rule, shown) for rule, shown in places.items() if shown),
    )


def _places(rule: str, shown: Sequence[Mapping[str, object]]) -> RenderableType:
    return make_lines(style_text(f"{rule}:"), make_grid(list(shown[0]), [list(place.values()) for place in shown]))


PROVEN, VIOLATED, NOT_PROVEN = 0, 1, 2
SHOWN_VIOLATIONS, SHOWN_HOURS = 20, 48
SHOWN_SCOPES = 50


@register_command("verify order_books", Panel.LOOK)
def verify(stream: StreamName, as_json: AsJson = False) -> None:  # noqa: FBT002  # a flag of a command line
    """Prove from Kafka that the table matches the log: every offset, every row, every state.

    Reads Kafka again, as far as it still has the messages. Exit code 0 proven, 1 violated, 2 not proven or unreadable.
    """
    try:
        found = _proof(stream)
    except LockstepError as error:
        show_error(error)
        raise typer.Exit(NOT_PROVEN) from None
    except Exception:  # noqa: BLE001  # the outermost edge: a proof that dies shows no violation, which 1 would mean
        traceback.print_exc()
        raise typer.Exit(NOT_PROVEN) from None
    print_answer(found, _shown, as_json=as_json)
    raise typer.Exit({"proven": PROVEN, "violated": VIOLATED}.get(found.status.value, NOT_PROVEN))


def _proof(name: str) -> VerifyReport:
    from lockstep.engine.driver.run import require_registry
    from lockstep.table.layout import StreamFolders
    from lockstep.verify.verify import verify_stream as prove

    stream, found = find_stream_or_exit(name), load_settings_or_exit()
    folders = StreamFolders(stream.name, found.table_root)
    return prove(stream, folders, found.kafka, require_registry(stream, found.registry))


def _shown(found: VerifyReport) -> RenderableType:
    head = f"{found.stream}: {found.status.value} up to batch {found.batch} (version {found.version})"
    invariants = ((i.invariant.value, i.meaning, i.status.value, i.checked, i.violations) for i in found.invariants)
    limited = [scope for scope in found.scopes if scope.note]
    return make_lines(
        style_text(head, _STYLES[found.status.value]),
        make_grid(("", "what", "status", "compared", "violations"), invariants),
        _limits(found, limited) if limited else None,
        _violations(found) if found.violations else None,
        *(style_text(f"not proven: {note}", "yellow") for note in found.notes),
        style_text(f"next: {found.next_step}"),
    )


def _limits(found: VerifyReport, limited: list[ProvenRange]) -> RenderableType:
    rows = ((s.topic, s.partition, s.proven_from, s.until, s.note) for s in limited[:SHOWN_SCOPES])
    whole = len(found.scopes) - len(limited)
    return make_lines(
        style_text(f"{whole} partitions from their first offset on; {len(limited)} with limits:"),
        make_grid(("topic", "partition", "proven from", "until", "limit"), rows),
        _more(len(limited) - SHOWN_SCOPES),
    )


def _violations(found: VerifyReport) -> RenderableType:
    rows = (
        (v.kind.value, f"{v.topic}/{v.partition}" if v.topic else None, v.offset, v.expected, v.found)
        for v in found.violations[:SHOWN_VIOLATIONS]
    )
    return make_lines(
        make_grid(("violation", "partition", "offset", "expected", "found"), rows),
        _more(found.violation_count - SHOWN_VIOLATIONS),
    )


def _more(left_out: int) -> RenderableType | None:
    return style_text(f"and {left_out} more") if left_out > 0 else None


_STYLES = {"proven": "green", "violated": "red", "not proven": "yellow"}
