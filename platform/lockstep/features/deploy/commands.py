"""Releases on the command line."""

from __future__ import annotations

import getpass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import RenderableType

from lockstep.cli.app import FAILED, AsJson, Panel, load_settings_or_exit, register_command
from lockstep.cli.output import make_grid, make_lines, print_answer, print_note, style_text

if TYPE_CHECKING:
    from lockstep.features.deploy.deploy import DeployPlan, DeployResult
    from lockstep.features.deploy.releases import Release


class Releases(msgspec.Struct, frozen=True):
    """The releases of a code root.

    Attributes:
        current: Name of the current release; empty if runs import the working folder.
        releases: All releases, oldest first.
    """

    current: str
    releases: tuple[Release, ...]


@register_command("deploy 2026-11-30", Panel.INSTALLATION)
def deploy(  # an option a kind
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="Name of the release; by default the time.")] = "",
    *,
    back: Annotated[
        bool, typer.Option("--back", help="Return to the release NAME, by default to the one before the current.")
    ] = False,
    working_folder: Annotated[
        bool, typer.Option("--working-folder", help="Let runs import the working folder again.")
    ] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Only show the plan of each stream.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="List the releases.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make the code of the working folder a release, and let all runs use it.

    Copies the code, plans each stream with it, makes the release current, and replaces the runs that Dagster runs, at
    a batch boundary. Later runs import the current release, also after edits of the working folder. Exit code 1 if a
    run with the new code would be refused, and nothing changes then; or if a run was not handed over: repeat the
    command.
    """
    if list_:
        print_answer(_read_releases(), _list, as_json=as_json)
        return
    from lockstep.features.deploy.deploy import prepare_release, prepare_return, refuse_name, run_deployment

    if back and working_folder:
        raise typer.BadParameter("name either --back or --working-folder")
    settings = load_settings_or_exit()
    name = "" if working_folder else _choose_name(name, back=back)
    if name:
        refuse_name(name)
    prepare = prepare_return if back else prepare_release
    deployment = prepare(Path.cwd(), settings, name)
    if plan or deployment.plan.is_refused:
        print_answer(deployment.plan, _plan, as_json=as_json)
        if deployment.plan.is_refused:
            raise typer.Exit(FAILED)
        return
    result = run_deployment(deployment, settings, Path.cwd(), getpass.getuser(), print_note)
    print_answer(result, _deployed, as_json=as_json)
    if not result.is_whole:
        raise typer.Exit(FAILED)


def _choose_name(name: str, *, back: bool) -> str:
    from lockstep.features.deploy.deploy import make_name

    if name:
        return name
    # Without a name, --back means the release before.
    return "" if back else make_name()


def _read_releases() -> Releases:
    from lockstep.features.deploy.releases import list_releases, read_current

    root = load_settings_or_exit().find_code_root()
    return Releases(read_current(root).release, list_releases(root))


def _list(found: Releases) -> RenderableType:
    columns = ("release", "code", "commit", "made (UTC)", "by", "")
    rows: list[tuple[str, ...]] = []
    for release in found.releases:
        commit = release.commit[:10]
        if release.is_modified:
            commit += ", modified"
        current = "current" if release.name == found.current else ""
        made_at = f"{release.made_at:%Y-%m-%d %H:%M}"
        rows.append((release.name, release.digest[:12], commit, made_at, release.made_by, current))
    note = None if found.current else style_text("runs import the working folder")
    return make_lines(make_grid(columns, rows) if rows else None, note)


def _plan(plan: DeployPlan) -> RenderableType:
    from lockstep.features.deploy.releases import describe_choice

    lines = [style_text(f"{describe_choice(plan.before)} -> {plan.code}")]
    for stream in plan.streams:
        if stream.refused:
            lines.append(style_text(f"{stream.stream}: refused: {stream.refused}; next: {stream.next_step}", "red"))
        else:
            lines.append(style_text(f"{stream.stream}: {'; '.join(stream.changes) or 'no change of table and state'}"))
    return make_lines(*lines)


def _deployed(found: DeployResult) -> RenderableType:
    rows = [(takeover.stream, takeover.takeover.value, takeover.detail) for takeover in found.streams]
    grid = make_grid(("stream", "run", ""), rows) if rows else None
    return make_lines(
        style_text(f"current: {found.plan.code}"),
        grid,
        style_text("if it adds or removes streams, schedules or checks: reload or restart the code location"),
    )
