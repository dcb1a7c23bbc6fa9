"""The command that proves a stream's table: verify."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

import typer
from rich.console import RenderableType

from lockstep.commands.app import AsJson, Panel, StreamName, command, settings, show_error, stream_of
from lockstep.commands.output import answer, grid, lines, styled
from lockstep.errors import LockstepError

if TYPE_CHECKING:
    from lockstep.operations.verify.proof import Proof, Scope

PROVEN, VIOLATED, NOT_PROVEN = 0, 1, 2
SHOWN_VIOLATIONS = 20
SHOWN_SCOPES = 50


@command("verify order_books", Panel.LOOK)
def verify(stream: StreamName, as_json: AsJson = False) -> None:  # noqa: FBT002  # a flag of a command line
    """Prove, from Kafka, that the table is what the log says: every offset, every row, every state.

    Reads Kafka again, as far as it still has the messages. Exit code 0 proven, 1 violated, 2 not proven or unreadable.
    """
    try:
        found = _proof(stream)
    except LockstepError as error:
        show_error(error)
        raise typer.Exit(NOT_PROVEN) from None
    except Exception:  # noqa: BLE001  # the outermost edge: a proof that dies shows no violation, which 1 would mean
        traceback.print_exc()
        raise typer.Exit(NOT_PROVEN) from None
    answer(found, _shown, as_json=as_json)
    raise typer.Exit({"proven": PROVEN, "violated": VIOLATED}.get(found.status.value, NOT_PROVEN))


def _proof(name: str) -> Proof:
    from lockstep.engine.schemas import registry_for
    from lockstep.operations.verify.verify import verify as prove
    from lockstep.table.layout import StreamFolders

    stream, found = stream_of(name), settings()
    folders = StreamFolders(stream.name, found.table_root)
    return prove(stream, folders, found.kafka, registry_for(stream, found.registry))


def _shown(found: Proof) -> RenderableType:
    head = f"{found.stream}: {found.status.value} up to batch {found.batch} (version {found.version})"
    invariants = ((i.invariant.value, i.meaning, i.status.value, i.checked, i.violations) for i in found.invariants)
    limited = [scope for scope in found.scopes if scope.note]
    return lines(
        styled(head, _STYLES[found.status.value]),
        grid(("", "what", "status", "compared", "violations"), invariants),
        _limits(found, limited) if limited else None,
        _violations(found) if found.violations else None,
        *(styled(f"not proven: {note}", "yellow") for note in found.notes),
        styled(f"next: {found.next_step}"),
    )


def _limits(found: Proof, limited: list[Scope]) -> RenderableType:
    rows = ((s.topic, s.partition, s.proven_from, s.until, s.note) for s in limited[:SHOWN_SCOPES])
    whole = len(found.scopes) - len(limited)
    return lines(
        styled(f"{whole} partitions from their first offset on; {len(limited)} with limits:"),
        grid(("topic", "partition", "proven from", "until", "limit"), rows),
        _more(len(limited) - SHOWN_SCOPES),
    )


def _violations(found: Proof) -> RenderableType:
    rows = (
        (v.kind.value, f"{v.topic}/{v.partition}" if v.topic else None, v.offset, v.expected, v.found)
        for v in found.violations[:SHOWN_VIOLATIONS]
    )
    return lines(
        grid(("violation", "partition", "offset", "expected", "found"), rows),
        _more(found.violation_count - SHOWN_VIOLATIONS),
    )


def _more(left_out: int) -> RenderableType | None:
    return styled(f"and {left_out} more") if left_out > 0 else None


_STYLES = {"proven": "green", "violated": "red", "not proven": "yellow"}
