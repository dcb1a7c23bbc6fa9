"""The installation: a new project, settings, diagnosis."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

from lockstep.cli.app import FAILED, AsJson, Panel, list_all_streams, load_settings_or_exit, register_command
from lockstep.cli.output import make_grid, make_lines, print_answer, style_text

if TYPE_CHECKING:
    from lockstep.operations.doctor.doctor import Report
    from lockstep.operations.project import CreatedProject, RenewedProject
    from lockstep.operations.show_settings import AllOptions


@register_command("init ../plants --brokers 127.0.0.1:9092", Panel.INSTALLATION)
def init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of the project; made if it is missing.")],
    brokers: Annotated[str, typer.Option(metavar="HOST:PORT", help="Kafka's bootstrap servers.")] = "127.0.0.1:9092",
    update: Annotated[  # noqa: FBT002  # a flag
        bool, typer.Option("--update", help="Bring jobs/ and sensors/ of a project to this release of lockstep.")
    ] = False,
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """Write a new project: an example stream with its test, Dagster's definitions, jobs and sensors, and settings."""
    from lockstep.operations.doctor.doctor import with_brokers
    from lockstep.operations.project import create_project, renew_project

    if update:
        print_answer(renew_project(folder), _renewed_project, as_json=as_json)
        return
    servers = with_brokers(load_settings_or_exit(), brokers).kafka.bootstrap_servers
    print_answer(create_project(folder, servers), _project, as_json=as_json)


def _project(found: CreatedProject) -> RenderableType:
    kept = [f"{name} is yours and stays; see `lockstep init NEW-FOLDER` for its missing lines" for name in found.kept]
    return make_lines(
        make_grid(("file",), ((name,) for name in found.files)),
        *map(style_text, kept),
        style_text(
            f"next: in {found.folder}, with a Kafka (`lockstep kafka` starts a local one):\n"
            "  python send_readings.py\n"
            "  lockstep try readings\n"
            "  lockstep run readings --available-now\n"
            "  lockstep query readings\n"
            "and for Dagster, its types and tests:\n"
            '  pip install -e ".[dev]" && mypy && pytest\n'
            f"  export DAGSTER_HOME={shlex.quote(found.dagster_home)}\n"
            "  dagster dev -w workspace.yaml"
        ),
    )


def _renewed_project(found: RenewedProject) -> RenderableType:
    rows = [(name, "added") for name in found.added]
    pairs = zip(found.replaced, found.saved, strict=True)
    rows += [(name, f"replaced; its content before is in {saved}") for name, saved in pairs]
    rows += [(name, "yours, kept; a new project has other lines") for name in found.kept]
    if not rows:
        return style_text(f"{found.folder}: all files are those of this release")
    step = "next: compare the kept files with those of `lockstep init NEW-FOLDER`, then dagster definitions validate"
    return make_lines(make_grid(("file", "action"), rows), style_text(step))


@register_command("settings", Panel.INSTALLATION)
def settings(as_json: AsJson = False) -> None:  # noqa: FBT002  # a flag
    """Print every setting and every option of the declared streams: value, default, origin. Secrets are not shown."""
    from lockstep.operations.show_settings import list_options

    print_answer(list_options(list_all_streams()), _options, as_json=as_json)


@register_command("doctor --brokers 127.0.0.1:9092", Panel.INSTALLATION)
def doctor(
    brokers: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Use these brokers instead of the settings'.")
    ] = None,
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """Check Java, disks, Dagster's definitions, Kafka and its topics.

    Exit code 1 on errors.
    """
    from lockstep.operations.doctor.doctor import run_diagnoses, with_brokers

    report = run_diagnoses(with_brokers(load_settings_or_exit(), brokers), list_all_streams, Path.cwd())
    print_answer(report, _report, as_json=as_json)
    if not report.is_healthy:
        raise typer.Exit(FAILED)


def _options(found: AllOptions) -> RenderableType:
    there = "" if found.file_exists else " (not there)"
    rows = ((o.name, o.value, o.default, o.origin, o.set_by) for o in found.options)
    return make_lines(
        style_text(f"file: {found.file}{there}"), make_grid(("setting", "value", "default", "origin", "set by"), rows)
    )


def _report(found: Report) -> RenderableType:
    rows = ((f.level.value, f.check, f.found, f.next_step) for f in found.findings)
    return make_lines(style_text(f"Kafka: {found.brokers}"), make_grid(("level", "check", "found", "next"), rows))
