"""Load tests on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import RenderableType

from lockstep.cli.app import (
    FAILED,
    AsJson,
    Panel,
    StreamName,
    list_all_streams,
    open_handle,
    refuse_unwritable_page,
    register_command,
)
from lockstep.cli.output import (
    make_facts,
    make_grid,
    make_lines,
    print_answer,
    print_note,
    style_text,
)

if TYPE_CHECKING:
    from lockstep.features.rehearsal.load_test import LoadPlan, LoadTestResult


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
    plan: Annotated[bool, typer.Option("--plan", help="Show the plan; create nothing.")] = False,
    clean: Annotated[bool, typer.Option("--clean", help="Delete the rest of a killed load test.")] = False,
    report: Annotated[Path | None, typer.Option("--report", help="Write an HTML page with the figures.")] = None,
    as_json: AsJson = False,
) -> None:
    """Load a copy of a stream with copies of its messages: the highest sustainable rate, and what limits it.

    The stream's table, topics and consumer group are not touched; everything created is deleted at the end, also after
    Ctrl-C. Exit code 1 if a rate was not sustained.
    """
    from lockstep.features.rehearsal.load_report import write_load_report
    from lockstep.features.rehearsal.load_test import delete_leftovers, hold_test_lock, prepare_load_test

    refuse_unwritable_page(report, "--report")
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
    result = prepared.run(print_note)
    print_answer(result, _load_result, as_json=as_json)
    if report is not None:
        write_load_report(result, report)
        print_note(f"report: {report}")
    if result.failure or not all(stage.load.is_sustained for stage in result.stages):
        raise typer.Exit(FAILED)


def _cleaned(found: CleanedUp) -> RenderableType:
    return style_text(f"{found.stream}: deleted {len(found.topics)} topics: {', '.join(found.topics) or 'none'}")


def _load_plan(found: LoadPlan) -> RenderableType:
    from lockstep.features.rehearsal.load_report import list_plan_facts

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
    from lockstep.features.rehearsal.load_report import STAGE_COLUMNS, list_stage_rows

    return make_lines(
        make_grid(STAGE_COLUMNS, list_stage_rows(found)),
        *(style_text(f"{each.label}: {each.failure}", "red") for each in found.stages if each.failure),
        style_text(found.failure, "red") if found.failure else None,
        style_text(found.sustainable.sentence, "bold"),
    )
