"""Run, start, stop, hold, commit, retire, resume, close, forget."""

from __future__ import annotations

import getpass
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from msgspec.structs import astuple
from rich.console import RenderableType

from lockstep.cli.app import (
    AsJson,
    Panel,
    StreamName,
    find_folders,
    find_stream_or_exit,
    list_all_streams,
    load_settings_or_exit,
    open_handle,
    pin_working_folder,
    register_command,
    require_reason,
)
from lockstep.cli.output import (
    make_grid,
    make_lines,
    print_answer,
    print_described,
    print_note,
    style_text,
)
from lockstep.feature import load_parts
from lockstep.integrity.resume_options import SHOWN_MAX

if TYPE_CHECKING:
    from lockstep.declare.stream import AnyStream
    from lockstep.integrity.resume_options import Acceptance
    from lockstep.operations.lifecycle import Started, Stopped
    from lockstep.operations.resume import ResumePreview
    from lockstep.operations.resume_cost import OptionCost
    from lockstep.operations.retire import RetiredTopic
    from lockstep.orchestration.launch import Launched
    from lockstep.settings import Settings
    from lockstep.table.follower_positions import FollowerName


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
    """Run a stream in this process, without Dagster.

    Ctrl-C ends it at the next batch boundary; nothing is lost either way.
    """
    from lockstep.operations.foreground import format_report, run_in_foreground  # loads the engine

    outcome = run_in_foreground(
        find_stream_or_exit(stream, pin_working_folder()),
        load_settings_or_exit(),
        available_now=available_now,
        report=lambda batch: print_note(format_report(batch)),
    )
    print_answer(RunEnded(stream, outcome.value), _run_ended, as_json=as_json)


def _run_ended(ended: RunEnded) -> RenderableType:
    from lockstep.engine.driver.loop import RunOutcome  # the run has loaded it

    outcome = ended.outcome
    if ended.outcome == RunOutcome.STOPPED.value:
        outcome = "ended by a signal; its desired state is as before"
    return style_text(f"{ended.stream}: {outcome}")


@register_command("start order_books", Panel.RUN)
def start(
    stream: Annotated[
        str, typer.Argument(metavar="[STREAM]", help="Name of a stream; `lockstep streams` lists them.")
    ] = "",
    group: Annotated[
        str, typer.Option(help="Instead of a stream: those that ended when the run of this group was terminated.")
    ] = "",
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """Start a stream, and wait until it writes.

    Sets its desired state to running. The host of its group starts it; without a host the stream's job is launched,
    which needs DAGSTER_HOME, workspace.yaml in this folder, and Dagster's daemon. Exit code 1, with the reason, when
    the run fails or does not start.
    """
    settings = load_settings_or_exit()
    who = getpass.getuser()
    if bool(stream) is bool(group):
        raise typer.BadParameter("name either a stream or a --group")
    if group:
        print_answer(_start_group(group, settings, who), _list_started, as_json=as_json)
        return
    declared = find_stream_or_exit(stream)
    if (started := _start_in_process(declared, settings, who)) is not None:
        print_answer(started, _started, as_json=as_json)
        return
    from lockstep.orchestration.launch import start_stream  # loads Dagster

    launched = start_stream(declared, settings, Path.cwd(), who=who, say=print_note)
    print_answer(launched, describe_launch, as_json=as_json)


def _start_in_process(stream: AnyStream, settings: Settings, who: str) -> Started | None:
    """Start the stream in a process of several streams that runs; None without one."""
    results = (start(stream, settings, who) for start in load_parts("starters"))
    return next((result for result in results if result is not None), None)


def _start_group(group: str, settings: Settings, who: str) -> tuple[Started, ...]:
    """Start the streams that were stopped with the process of their group."""
    streams = tuple(list_all_streams().values())
    return tuple(chain.from_iterable(start(group, streams, settings, who) for start in load_parts("group_starters")))


def _list_started(found: tuple[Started, ...]) -> RenderableType:
    return make_lines(*map(_started, found))


def _started(found: Started) -> RenderableType:
    if found.was_running:
        return style_text(f"{found.stream}: epoch {found.epoch} is writing already; nothing was started")
    return make_lines(
        style_text(f"{found.stream}: {found.by} writes it under epoch {found.epoch}"),
        style_text(f"see it: lockstep status {found.stream} --watch"),
    )


@register_command('stop order_books --why "maintenance of the disk"', Panel.RUN)
def stop(
    stream: StreamName,
    why: Annotated[
        str, typer.Option(callback=require_reason, help="Reason, stored with the stream and shown.")
    ] = "stopped by hand",
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """Stop a stream, wherever it runs, until an operator starts it.

    A live writer ends at its batch boundary, or is fenced when that takes longer than the stream's stop_timeout.
    """
    print_answer(_set_desired(stream, why, hold=False), _stopped, as_json=as_json)


@register_command('hold order_books --why "the disk is replaced until noon"', Panel.RUN)
def hold(
    stream: StreamName,
    why: Annotated[
        str, typer.Option(callback=require_reason, help="Reason, stored with the stream and shown.")
    ] = "held by hand",
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """Hold a stream: stop it, and refuse every run of it until `lockstep start` or `lockstep stop` releases it."""
    print_answer(_set_desired(stream, why, hold=True), _stopped, as_json=as_json)


@register_command("commit order_books", Panel.RUN)
def commit(stream: StreamName, as_json: AsJson = False) -> None:  # noqa: FBT002  # a flag
    """Commit the messages of a stream with `FileSize` that wait for a full file, and wait for that.

    Its live writer does so. A stream with another trigger is refused.
    """
    from lockstep.operations.commit_now import commit_now

    print_described(commit_now(open_handle(stream), who=getpass.getuser()), as_json=as_json)


@register_command('retire order_books order_books.delisted --why "no longer traded"', Panel.RUN)
def retire(
    stream: StreamName,
    topic: Annotated[str, typer.Argument(help="Name of the topic.")],
    why: Annotated[
        str, typer.Option(callback=require_reason, help="Reason, stored in the ledger.")
    ] = "retired by hand",
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
    """Stop or hold; that needs the table only, so it works on after the declaration is gone, too."""
    from lockstep.control.handover import StopRequest
    from lockstep.declare.options import Limits
    from lockstep.operations.inspect.undeclared import find_undeclared_table
    from lockstep.operations.lifecycle import stop_stream as do_stop
    from lockstep.table.head import Desired
    from lockstep.table.layout import StreamFolders

    root = load_settings_or_exit().table_root
    declared = list_all_streams().get(stream)
    if declared is None and find_undeclared_table(stream, root) is None:
        declared = find_stream_or_exit(stream)
    limits = Limits() if declared is None else declared.limits
    desired = Desired.HELD if hold else Desired.STOPPED
    request = StopRequest(why, getpass.getuser(), desired)
    return do_stop(StreamFolders(stream, root), request, patience_seconds=limits.stop_timeout_seconds)


def describe_launch(found: Launched) -> RenderableType:
    """The result of a start for people."""
    if not found.run_id:
        return make_lines(
            style_text(f"{found.stream}: epoch {found.epoch} is writing already; nothing was started"),
            style_text(
                f"to run new code: launch the job {found.job} in Dagster, whose run takes over, or lockstep stop "
                f"{found.stream}, then lockstep start {found.stream}"
            ),
        )
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


@register_command('resume order_books --why "producer lost it" --skip-session order_books.eth/0/eth', Panel.RECOVER)
def resume(  # noqa: PLR0913  # an option a kind
    stream: StreamName,
    *,
    why: Annotated[str | None, typer.Option(callback=require_reason, help="Cause; not needed for --plan.")] = None,
    fixed: Annotated[bool, typer.Option("--fixed", help="Resume at the same offset: the cause is fixed.")] = False,
    accept_loss: Annotated[Several, typer.Option(help="Skip TOPIC/PARTITION@OFFSET, or @FROM-UNTIL.")] = None,
    skip_session: Annotated[
        Several, typer.Option(help="TOPIC/PARTITION/SESSION: quarantine it until its next snapshot.")
    ] = None,
    from_snapshot: Annotated[
        Several, typer.Option(help="TOPIC/PARTITION[@FROM-UNTIL]: quarantine each session until its next snapshot.")
    ] = None,
    accept_truncated: Annotated[Several, typer.Option(help="TOPIC/PARTITION: its sessions wait for snapshots.")] = None,
    accept_recreated: Annotated[Several, typer.Option(help="TOPIC: read the re-created topic from its start.")] = None,
    accept_deleted: Annotated[Several, typer.Option(help="TOPIC: deleted; drop it from the subscription.")] = None,
    accept_growth: Annotated[Several, typer.Option(help="TOPIC: read its new partitions from their start.")] = None,
    accept_quarantine: Annotated[
        bool, typer.Option("--accept-quarantine", help="Let one burst go to quarantine, until it is over.")
    ] = False,  # a flag
    suggested: Annotated[
        bool, typer.Option("--suggested", help="For every other finding, the option that `lockstep status` proposes.")
    ] = False,
    topic: Annotated[Several, typer.Option(help="TOPIC: resume only this halted topic; by default all.")] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Show effect and cost of each option; resume nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Resume a halted stream or topic, once the cause is found.

    Each finding of the halt needs an option that covers it; all options except the flags may be repeated.
    """
    from lockstep.integrity import resume_options as kinds

    accepted: list[Acceptance] = [
        *_parsed(kinds.AcceptLoss.parse, accept_loss),
        *_parsed(kinds.SkipSession.parse, skip_session),
        *_parsed(kinds.FromSnapshot.parse, from_snapshot),
        *_parsed(kinds.Truncated.parse, accept_truncated),
        *_parsed(kinds.Recreated.parse, accept_recreated),
        *_parsed(kinds.AcceptDeleted.parse, accept_deleted),
        *_parsed(kinds.AcceptGrowth.parse, accept_growth),
        *_list_flagged(accept_quarantine=accept_quarantine, fixed=fixed),
    ]
    _plan_or_resume(stream, why, accepted, topic or (), suggested=suggested, plan=plan, as_json=as_json)


def _list_flagged(*, accept_quarantine: bool, fixed: bool) -> Iterator[Acceptance]:
    """The resume options without a value."""
    from lockstep.integrity import resume_options as kinds

    if accept_quarantine:
        yield kinds.Quarantined()
    if fixed:
        yield kinds.Fixed()


def _plan_or_resume(  # the options of the command
    stream: str,
    why: str | None,
    accepted: list[Acceptance],
    topics: Collection[str],
    *,
    suggested: bool,
    plan: bool,
    as_json: bool,
) -> None:
    from lockstep.errors import KafkaError
    from lockstep.operations.resume import plan_resume, resume_stream
    from lockstep.operations.resume_cost import ResumeCosts

    folders = find_folders(stream)
    if plan:
        declared = list_all_streams().get(stream)
        costs = None
        if declared is not None:
            costs = ResumeCosts(declared, load_settings_or_exit())
        try:
            preview = plan_resume(folders, accepted, suggested=suggested, topics=topics, costs=costs)
        except KafkaError as error:
            print_note(f"the cost of the options is unknown: {error.problem}")
            preview = plan_resume(folders, accepted, suggested=suggested, topics=topics)
        print_answer(preview, _resume_preview, as_json=as_json)
        return
    if why is None:
        raise typer.BadParameter("name the cause of the halt; the ledger keeps it", param_hint="--why")
    who = getpass.getuser()
    head = resume_stream(folders, why=why, who=who, accepted=accepted, suggested=suggested, topics=topics)
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
    unanswered = [style_text(f"without an option: {finding}") for finding in found.unanswered[:SHOWN_MAX]]
    costs = [
        (each.place, each.cause, each.option, _cost(each.sessions), _cost_of_messages(each)) for each in found.costs
    ]
    cost_table = None
    if costs:
        cost_table = make_grid(("finding", "cause", "option", "sessions lost", "messages lost"), costs)
    return make_lines(
        make_grid(columns, rows),
        cost_table,
        style_text(f"lockstep resume {found.stream} {found.command or '--suggested'} --why '...'"),
        *unanswered,
    )


def _cost(number: int | None) -> str:
    if number is None:
        return "unknown"
    return str(number)


def _cost_of_messages(cost: OptionCost) -> str:
    if cost.at_least:
        return f"at least {_cost(cost.messages)}"
    return _cost(cost.messages)


def _resumed(found: Resumed) -> RenderableType:
    name = found.stream
    resumed = f"{name}: resumed with batch {found.batch}; its desired state is {found.desired} again"
    if found.desired == "running":
        how = f"the supervisor starts it within a minute where Dagster's daemon runs, else lockstep run {name}"
        return style_text(f"{resumed}: {how}")
    if found.desired == "held":
        return style_text(f"{resumed}: lockstep start {name} releases and starts it, lockstep stop {name} releases it")
    how = f"lockstep start {name}, or lockstep run {name}"
    if found.desired == "bounded":
        how = f"lockstep run {name} --available-now"
    return style_text(f"{resumed}; start it: {how}")


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


def _closed(found: Closed) -> RenderableType:
    return style_text(f"{found.stream}: hour {found.hour} is closed; new rows go to the hour after it")


@register_command("forget derived book_activity", Panel.MAINTAIN)
def forget(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="Kind of follower: current, delivery, derived, export.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name; of a current table or export, the stream's.")],
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """Forget a follower whose declaration was removed: it raises no alarm then. Its tables and files stay.

    `lockstep status` lists followers that are not declared. The next run of a follower makes it known again.
    """
    from lockstep.operations.followers import forget_follower
    from lockstep.table.follower_positions import FollowerName

    root = load_settings_or_exit().table_root
    print_answer(forget_follower(root, FollowerName(kind, name)), _forgotten, as_json=as_json)


def _forgotten(found: FollowerName) -> RenderableType:
    return style_text(f"{found}: forgotten; its tables and files stay")
