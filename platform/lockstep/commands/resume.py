"""The command that lets a halted stream go on: one option a kind of what an operator accepts."""

from __future__ import annotations

import getpass
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import RenderableType

from lockstep.commands.app import AsJson, Panel, StreamName, command, folders_of
from lockstep.commands.output import answer, styled

if TYPE_CHECKING:
    from lockstep.integrity.acceptance import Acceptance

Several = list[str] | None


class Resumed(msgspec.Struct, frozen=True):
    """A resumption.

    Attributes:
        stream: Name of the stream.
        batch: The batch that the resumption is.
        desired: The desired state now: the one before the halt.
    """

    stream: str
    batch: int
    desired: str


@command('resume order_books --why "producer lost it" --skip-session order_books.eth/0/eth', Panel.OPERATE)
def resume(  # noqa: PLR0913  # an option a kind
    stream: StreamName,
    why: Annotated[str, typer.Option(help="The cause that was found; kept in the ledger.")],
    *,
    mended: Annotated[bool, typer.Option("--mended", help="Go on at the very place: the cause was mended.")] = False,
    accept_loss: Annotated[Several, typer.Option(help="TOPIC/PARTITION@FROM-UNTIL: pass over these offsets.")] = None,
    skip_session: Annotated[
        Several, typer.Option(help="TOPIC/PARTITION/SESSION: to quarantine until its next snapshot.")
    ] = None,
    from_snapshot: Annotated[
        Several, typer.Option(help="TOPIC/PARTITION[@FROM-UNTIL]: all its sessions, until the next snapshot of each.")
    ] = None,
    accept_truncated: Annotated[
        Several, typer.Option(help="TOPIC/PARTITION: its log was cut; its sessions wait for snapshots.")
    ] = None,
    accept_recreated: Annotated[Several, typer.Option(help="TOPIC: read its new life, from its start.")] = None,
    accept_gone: Annotated[Several, typer.Option(help="TOPIC: it is gone, and dropped from the subscription.")] = None,
    accept_growth: Annotated[Several, typer.Option(help="TOPIC: read its new partitions, from their start.")] = None,
    accept_quarantine: Annotated[
        bool, typer.Option("--accept-quarantine", help="Let one burst go to quarantine, until it is over.")
    ] = False,  # a flag
    as_json: AsJson = False,
) -> None:
    """Resume a halted stream, after its cause was found.

    Each finding of the halt needs an option that answers it; all but the flags may be given again.
    """
    from lockstep.integrity import acceptance as kinds
    from lockstep.operations.resume import resume as do_resume

    accepted: list[Acceptance] = [
        *_parsed(kinds.Loss.parse, accept_loss),
        *_parsed(kinds.SkipSession.parse, skip_session),
        *_parsed(kinds.FromSnapshot.parse, from_snapshot),
        *_parsed(kinds.Truncated.parse, accept_truncated),
        *_parsed(kinds.Recreated.parse, accept_recreated),
        *_parsed(kinds.Gone.parse, accept_gone),
        *_parsed(kinds.Grown.parse, accept_growth),
        *([kinds.Quarantined()] if accept_quarantine else ()),
        *([kinds.Mended()] if mended else ()),
    ]
    head = do_resume(folders_of(stream), why=why, who=getpass.getuser(), accepted=accepted)
    answer(Resumed(stream, head.batch, head.desired.value), _resumed, as_json=as_json)


def _parsed(parse: Callable[[str], Acceptance], given: Iterable[str] | None) -> Iterator[Acceptance]:
    for text in given or ():
        try:
            yield parse(text)
        except ValueError as wrong:
            raise typer.BadParameter(f"{text!r} is not {wrong}") from None


def _resumed(found: Resumed) -> RenderableType:
    name = found.stream
    told = f"{name}: resumed with batch {found.batch}; its desired state is {found.desired} again"
    if found.desired == "running":
        return styled(f"{told}: the supervisor starts it where Dagster's daemon runs, else lockstep run {name}")
    return styled(f"{told}; start it: lockstep start {name}, or lockstep run {name}")
