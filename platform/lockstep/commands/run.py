"""Commands that begin and end runs: run, start, stop."""

from __future__ import annotations

import getpass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import RenderableType

from lockstep.commands.app import AsJson, Panel, StreamName, command, settings, stream_of
from lockstep.commands.output import answer, lines, styled, tell

if TYPE_CHECKING:
    from lockstep.operations.desire import Stopped
    from lockstep.orchestration.launch import Launched


class RunEnded(msgspec.Struct, frozen=True):
    """The end of a run.

    Attributes:
        stream: Name of the stream.
        outcome: How it ended.
    """

    stream: str
    outcome: str


@command("run order_books --available-now", Panel.RUN)
def run(
    stream: StreamName,
    available_now: Annotated[  # noqa: FBT002  # a flag of a command line
        bool, typer.Option("--available-now", help="Read up to the ends seen now, then end.")
    ] = False,
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """Run a stream here, in this process. Ctrl-C ends it at the next batch boundary; nothing is lost either way."""
    from lockstep.operations.run import run_attended  # loads the engine

    outcome = run_attended(stream_of(stream), settings(), available_now=available_now, say=tell)
    answer(RunEnded(stream, outcome.value), lambda ended: styled(f"{ended.stream}: {ended.outcome}"), as_json=as_json)


@command("start order_books", Panel.RUN)
def start(stream: StreamName, as_json: AsJson = False) -> None:  # noqa: FBT002  # a flag
    """Start a stream in Dagster, set its desired state to running, and wait until it writes.

    Needs DAGSTER_HOME, workspace.yaml in this folder, and Dagster's daemon. Exit code 1, with the reason, when its run
    fails or does not begin.
    """
    from lockstep.orchestration.launch import start_stream

    launched = start_stream(stream_of(stream), settings(), Path.cwd(), who=getpass.getuser(), say=tell)
    answer(launched, _launched, as_json=as_json)


@command('stop order_books --why "maintenance of the disk"', Panel.RUN)
def stop(
    stream: StreamName,
    why: Annotated[str, typer.Option(help="Kept with the stream, and shown.")] = "stopped by hand",
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """Stop a stream, wherever it runs, until somebody starts it again.

    A living writer ends at its batch boundary, or is fenced when that takes longer than the stream's stop_timeout.
    """
    answer(_set_desired(stream, why, hold=False), _stopped, as_json=as_json)


@command('hold order_books --why "the disk is replaced until noon"', Panel.RUN)
def hold(
    stream: StreamName,
    why: Annotated[str, typer.Option(help="Kept with the stream, and shown.")] = "held by hand",
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """Hold a stream: stop it, and refuse every run of it, until `lockstep start` or `lockstep stop` releases it."""
    answer(_set_desired(stream, why, hold=True), _stopped, as_json=as_json)


def _set_desired(stream: str, why: str, *, hold: bool) -> Stopped:
    from lockstep.engine.wishes import StopRequest
    from lockstep.operations.desire import stop as do_stop
    from lockstep.table.head import Desired
    from lockstep.table.layout import StreamFolders

    declared = stream_of(stream)
    request = StopRequest(why, getpass.getuser(), Desired.HELD if hold else Desired.STOPPED)
    folders = StreamFolders(declared.name, settings().table_root)
    return do_stop(folders, request, patience_seconds=declared.limits.stop_timeout_seconds)


def _launched(found: Launched) -> RenderableType:
    if not found.run_id:
        return styled(f"{found.stream}: epoch {found.epoch} is writing already; nothing was started")
    return lines(
        styled(f"{found.stream}: run {found.run_id} of job {found.job} writes under epoch {found.epoch}"),
        styled(f"see it: /runs/{found.run_id} of the web UI, or lockstep status {found.stream} --watch"),
    )


def _stopped(found: Stopped) -> RenderableType:
    how = {
        "the writer": "the writer ended at its batch boundary",
        "a fence": "its writer did not end in time and is fenced: nothing of its last batch is visible",
        "a claim": "no writer was left to ask",
        "nobody": "it did not run",
    }[found.ended_by]
    return styled(f"{found.stream}: {found.desired} after batch {found.batch}; {how} ({found.reason})")
