"""The host on the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

from lockstep.cli.app import (
    AsJson,
    Panel,
    list_all_streams,
    load_settings_or_exit,
    pin_working_folder,
    register_command,
)
from lockstep.cli.output import make_lines, print_answer, print_note, style_text

if TYPE_CHECKING:
    from lockstep.features.host.host import HostEnded


@register_command("host --group default", Panel.RUN)
def host(
    group: Annotated[str, typer.Option(help="Run the streams that declare this host_group.")] = "default",
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """Run all continuous streams of a group in this process, with one Spark, without Dagster.

    A stream that halts, fails or is stopped leaves the others running. Stopped, held and halted streams wait; they
    start here when `lockstep start` or `lockstep resume` sets them to running. Ctrl-C and SIGTERM end each stream at
    its next batch boundary.
    """
    from lockstep.engine.driver.metrics import BatchReport
    from lockstep.features.host.host import Host, choose_streams
    from lockstep.features.host.keeper import HostReports
    from lockstep.operations.foreground import format_report

    class PrintedReports(HostReports):
        def note_batch(self, stream: str, report: BatchReport) -> None:
            print_note(f"{stream}: {format_report(report)}")

    chosen = choose_streams(list_all_streams(pin_working_folder()).values(), group)
    hosted = Host(group, chosen, load_settings_or_exit(), reports=PrintedReports())
    print_note(f"host {group}: {', '.join(stream.name for stream in chosen)}")
    print_answer(hosted.run(), _ended, as_json=as_json)


def _ended(found: HostEnded) -> RenderableType:
    abandoned = f"; abandoned: {', '.join(found.abandoned)}" if found.abandoned else ""
    return make_lines(style_text(f"host {found.host}: ended ({found.reason}), {len(found.streams)} streams{abandoned}"))
