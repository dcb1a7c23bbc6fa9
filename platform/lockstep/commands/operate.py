"""Commands for operators: close, compact, housekeeping, reset, repair."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Group, RenderableType

from lockstep.commands.app import FAILED, AsJson, Panel, StreamName, command, folders_of, settings, stream_of
from lockstep.commands.output import answer, grid, styled

if TYPE_CHECKING:
    from lockstep.compaction.ledger_files import LedgerCompaction
    from lockstep.compaction.run import CompactionResult
    from lockstep.operations.housekeeping import HousekeepingResult
    from lockstep.operations.repair import Repair


class Reset(msgspec.Struct, frozen=True):
    """A stream that begins anew.

    Attributes:
        stream: Name of the stream.
        begins_anew: Its next run makes a new table, and reads every topic from its first offset.
    """

    stream: str
    begins_anew: bool


class Closed(msgspec.Struct, frozen=True):
    """A closed hour.

    Attributes:
        stream: Name of the stream.
        hour: The hour (UTC) into which nothing can be committed any more, nor into any before it.
    """

    stream: str
    hour: str


@command("close order_books", Panel.OPERATE)
def close(stream: StreamName, as_json: AsJson = False) -> None:  # noqa: FBT002  # a flag
    """Close the open hour of a stream, so that it can be compacted."""
    from lockstep.operations.close import close_hour

    answer(Closed(stream, close_hour(folders_of(stream))), _closed, as_json=as_json)


class Compacted(msgspec.Struct, frozen=True):
    """What a compaction did to the table and to the ledger."""

    stream: str
    table: CompactionResult
    ledger: LedgerCompaction


@command("compact order_books", Panel.OPERATE)
def compact(stream: StreamName, as_json: AsJson = False) -> None:  # noqa: FBT002  # a flag
    """Rewrite the small files of closed hours as large ones, in order; the ledger's too. Dagster does it each hour."""
    from lockstep.compaction.ledger_files import compact_ledger
    from lockstep.compaction.run import compact_stream
    from lockstep.operations.opened import opened

    folders = folders_of(stream)
    ledger = compact_ledger(folders, opened(folders).base().head)
    answer(Compacted(folders.stream, compact_stream(folders), ledger), _compacted, as_json=as_json)


@command("housekeeping order_books --plan", Panel.OPERATE)
def housekeeping(
    stream: StreamName,
    plan: Annotated[bool, typer.Option("--plan", help="Show what would be deleted.")] = False,  # noqa: FBT002  # a flag
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """Delete what nothing can need any more: old log entries, replaced files, unreachable state.

    Dagster does it each hour. How far back a rewind can still go: setting `retention_hours`.
    """
    from lockstep.operations.housekeeping import run_housekeeping

    kept_seconds = settings().retention_hours * 3600
    done = run_housekeeping(folders_of(stream), retention_seconds=kept_seconds, plan_only=plan)
    answer(done, _housekeeping, as_json=as_json)


@command("reset order_books --new", Panel.OPERATE)
def reset(
    stream: StreamName,
    new: Annotated[bool, typer.Option("--new", help="Read everything into a new table; there must be none.")],
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """Let a stream whose table is gone for good begin anew; a start refuses that until then.

    Forgets the positions that were published to Kafka, nothing else.
    """
    from lockstep.operations.reset import reset_new

    if not new:
        raise typer.BadParameter("say --new")
    name = stream_of(stream).name
    reset_new(name, settings())
    answer(Reset(name, begins_anew=True), _reset, as_json=as_json)


@command("repair order_books --apply", Panel.OPERATE)
def repair(
    stream: StreamName,
    apply: Annotated[bool, typer.Option("--apply", help="Mend what is mendable.")] = False,  # noqa: FBT002  # a flag
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """Look for all that a start would refuse with, and mend what is safe to mend.

    Mendable: a cut newest log entry, commits of other tools, a ledger behind the table. Exit code 1 while
    anything is left to do.
    """
    from lockstep.operations.repair import repair as do_repair

    found = do_repair(folders_of(stream), apply=apply)
    answer(found, _checks, as_json=as_json)
    if not found.whole:
        raise typer.Exit(FAILED)


def _closed(found: Closed) -> RenderableType:
    return styled(f"{found.stream}: hour {found.hour} is closed; new rows go to the hour after it")


def _compacted(found: Compacted) -> RenderableType:
    rows = (
        ("table", len(found.table.hours), found.table.files_before, found.table.files_after, found.table.rows),
        ("ledger", found.ledger.hours, found.ledger.files_before, found.ledger.files_after, found.ledger.rows),
    )
    return grid(("table", "hours", "files before", "files after", "rows"), rows)


def _housekeeping(found: HousekeepingResult) -> RenderableType:
    verb = "would be deleted" if found.planned_only else "deleted"
    rows = ((step.step, step.files, step.bytes) for step in found.steps)
    floor = styled(f"{found.stream}: a rewind can go back to batch {found.rewind_floor}; {verb}:")
    return Group(floor, grid(("step", "files", "bytes"), rows))


def _reset(found: Reset) -> RenderableType:
    return styled(f"{found.stream}: its next run reads every topic from its first offset, into a new table")


def _checks(found: Repair) -> RenderableType:
    rows = ((c.check, c.condition, c.found, c.next_step) for c in found.checks)
    return grid(("check", "condition", "found", "next"), rows)
