"""Checks and their report on the command line."""

from __future__ import annotations

import webbrowser
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

from lockstep.addresses import make_absolute, to_url
from lockstep.cli.app import (
    FAILED,
    AsJson,
    Panel,
    StreamName,
    find_folders,
    find_stream_or_exit,
    load_settings_or_exit,
    register_command,
)
from lockstep.cli.output import make_grid, make_lines, print_answer, style_text

if TYPE_CHECKING:
    from lockstep.features.quality.check import Checked
    from lockstep.features.quality.report import QualityReport


@register_command("check order_books --full", Panel.MAINTAIN)
def check(
    stream: StreamName,
    full: Annotated[bool, typer.Option("--full", help="The whole table, not only the additions.")] = False,  # noqa: FBT002  # a flag
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """Check the additions to a table since its last check, by built-in and declared rules. Dagster does so every hour.

    Exit code 1 when a critical rule failed or a check crashed.
    """
    from lockstep.features.quality.run import check as do_check

    checked = do_check(find_stream_or_exit(stream), load_settings_or_exit(), find_folders(stream), full=full)
    print_answer(checked, _checked, as_json=as_json)
    raise typer.Exit(0 if checked.holds else FAILED)


def _checked(found: Checked) -> RenderableType:
    rows = ((r.rule, r.outcome.value, r.severity.value, r.observed, r.reason or r.sentence) for r in found.results)
    violated = [result for result in found.results if result.sample or result.worst]
    # The rows that violate a rule show more than the partitions that hold them.
    places = [_places(result.rule, result.sample or result.worst) for result in violated]
    return make_lines(
        style_text(f"{found.stream}: {found.rows} rows up to table version {found.versions.table}"),
        style_text(f"read: {found.coverage.describe()}"),
        make_grid(("rule", "outcome", "severity", "observed", "promise"), rows),
        *places,
    )


def _places(rule: str, shown: Sequence[Mapping[str, object]]) -> RenderableType:
    return make_lines(style_text(f"{rule}:"), make_grid(list(shown[0]), [list(place.values()) for place in shown]))


@register_command("report order_books --open", Panel.INSPECT)
def report(
    stream: StreamName,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,  # noqa: FBT002  # a flag
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """Write the quality report of a stream as one HTML page: rules, completeness, quarantine, lag, growth.

    It shows the last check; `lockstep check` and the hourly check of Dagster write it too.
    """
    from lockstep.features.quality.report import write_report

    written = write_report(find_folders(stream), target_bytes=load_settings_or_exit().target_file_bytes)
    print_answer(written, _quality_report, as_json=as_json)
    if open_page:
        webbrowser.open(to_url(make_absolute(written.file)))


def _quality_report(found: QualityReport) -> RenderableType:
    color = "green" if found.holds else "red"
    return make_lines(style_text(found.verdict, color), style_text(str(found.file)))
