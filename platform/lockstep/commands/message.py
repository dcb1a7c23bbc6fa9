"""The command that shows one message and takes it out as a file, for a unit test."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

from lockstep.commands.app import AsJson, Panel, StreamName, command, folders_of, settings
from lockstep.commands.output import answer, facts, lines, styled, tell
from lockstep.commands.quarantine import contents, shown_time

if TYPE_CHECKING:
    from lockstep.operations.message import StoredMessage


@command("message order_books order_books.eth/0@120 --out tests/halted.jsonl", Panel.LOOK)
def message(
    stream: StreamName,
    place: Annotated[
        str | None,
        typer.Argument(metavar="[TOPIC/PARTITION@OFFSET]", help="Where it stands in Kafka; that of the halt without."),
    ] = None,
    *,
    out: Annotated[
        Path | None, typer.Option(help="Also write it to this new file, for a unit test.", dir_okay=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show one message as it came, first of all the one that halted the stream, and write it out for a unit test.

    From Kafka, or from the quarantine where Kafka has it no longer. `lockstep.testing.read_messages` reads the file.
    """
    from lockstep.operations.message import export_message
    from lockstep.operations.message import message as read
    from lockstep.operations.quarantine import Place

    try:
        where = None if place is None else Place.parse(place)
    except ValueError as wrong:
        raise typer.BadParameter(f"{place!r} is not {wrong}") from None
    found = read(folders_of(stream), settings().kafka, where)
    if out is not None:
        export_message(found, out)
    answer(found, _shown, as_json=as_json)
    if out is not None:
        tell(f"written to {out}: lockstep.testing.read_messages reads it")


def _shown(found: StoredMessage) -> RenderableType:
    head = facts(
        (
            ("place", f"{found.topic}/{found.partition}@{found.offset} (in {found.found_in})"),
            ("time", shown_time(found.timestamp)),
        )
    )
    finding = found.finding
    why = None if finding is None else styled(str(finding), "red")
    where = None if finding is None or not finding.traceback else styled(finding.traceback)
    return lines(head, why, where, *contents(found))
