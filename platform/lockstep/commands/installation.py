"""Commands about this installation: settings, doctor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

from lockstep.commands.app import FAILED, AsJson, Panel, all_streams, command
from lockstep.commands.app import settings as settings_in_force
from lockstep.commands.output import answer, grid, lines, styled

if TYPE_CHECKING:
    from lockstep.operations.doctor import Report
    from lockstep.operations.settings import AllOptions


@command("settings", Panel.INSTALLATION)
def settings(as_json: AsJson = False) -> None:  # noqa: FBT002  # a flag
    """Print every setting and every option of the declared streams: value, default, origin. Secrets are not shown."""
    from lockstep.operations.settings import all_options

    answer(all_options(all_streams()), _options, as_json=as_json)


@command("doctor --brokers 127.0.0.1:9092", Panel.INSTALLATION)
def doctor(
    brokers: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Ask these instead of the settings'.")
    ] = None,
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """Look at Java, jars, ports, folders, Kafka, and how it keeps the streams' topics. Exit code 1 on errors."""
    from lockstep.operations.doctor import asked, examine

    report = examine(asked(settings_in_force(), brokers), all_streams)
    answer(report, _report, as_json=as_json)
    if not report.well:
        raise typer.Exit(FAILED)


def _options(found: AllOptions) -> RenderableType:
    there = "" if found.file_exists else " (not there)"
    rows = ((o.name, o.value, o.default, o.origin, o.set_by) for o in found.options)
    return lines(styled(f"file: {found.file}{there}"), grid(("setting", "value", "default", "origin", "set by"), rows))


def _report(found: Report) -> RenderableType:
    rows = ((f.level.value, f.check, f.found, f.next_step) for f in found.findings)
    return lines(styled(f"Kafka: {found.brokers}"), grid(("level", "check", "found", "next"), rows))
