"""Check and verify."""

from __future__ import annotations

import getpass
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

from lockstep.cli.app import (
    DONE,
    INTEGRITY_LOST,
    NOT_PROVEN,
    AsJson,
    Panel,
    StreamName,
    find_folders,
    find_stream_or_exit,
    load_settings_or_exit,
    register_command,
    require_reason,
)
from lockstep.cli.output import (
    make_first_rows,
    make_grid,
    make_lines,
    make_more,
    print_answer,
    style_text,
)

if TYPE_CHECKING:
    from lockstep.operations.losses import LossList, LossShown
    from lockstep.verify.report import LostInBatch, ProvenRange, VerifyReport


SHOWN_VIOLATIONS = 20


@register_command("verify order_books", Panel.INSPECT)
def verify(stream: StreamName, as_json: AsJson = False) -> None:  # noqa: FBT002  # a flag of a command line
    """Prove from Kafka that the table matches the log.

    Every offset, every row and every state is compared.
    Reads Kafka again, as far as it or the archive has the messages. Exit code 0 proven, 3 violated, 4 not proven, or
    proven with unaccepted lost states.
    """
    report = _proof(stream)
    print_answer(report, _shown, as_json=as_json)
    raise typer.Exit({"proven": DONE, "violated": INTEGRITY_LOST}.get(report.status.value, NOT_PROVEN))


def _proof(name: str) -> VerifyReport:
    from lockstep.engine.driver.run import require_registry
    from lockstep.operations.last_proof import keep_proof
    from lockstep.table.layout import StreamFolders
    from lockstep.verify.verify import verify_stream as prove

    stream = find_stream_or_exit(name)
    settings = load_settings_or_exit()
    folders = StreamFolders(stream.name, settings.table_root)
    report = prove(stream, folders, settings.kafka, require_registry(stream, settings.registry))
    keep_proof(folders, report)
    return report


def _shown(found: VerifyReport) -> RenderableType:
    head = f"{found.stream}: {found.status.value} up to batch {found.batch} (version {found.version})"
    invariants = ((i.invariant.value, i.meaning, i.status.value, i.checked, i.violations) for i in found.invariants)
    limits = None
    if limited := [scope for scope in found.scopes if scope.note or scope.replay]:
        limits = _limits(found, limited)
    violations = None
    if found.violations:
        violations = _violations(found)
    return make_lines(
        style_text(head, _STYLES[found.status.value]),
        make_grid(("", "what", "status", "compared", "violations"), invariants),
        limits,
        violations,
        *_losses(found),
        *_followers(found),
        *(style_text(f"not proven: {note}", "yellow") for note in found.notes),
        style_text(f"next: {found.next_step}"),
    )


def _limits(found: VerifyReport, limited: list[ProvenRange]) -> RenderableType:
    rows = list[tuple[object, ...]]()
    for scope in limited:
        limit = "; ".join(text for text in (scope.note, scope.replay) if text)
        rows.append((scope.topic, scope.partition, scope.proven_from, scope.until, limit))
    unlimited = len(found.scopes) - len(limited)
    return make_lines(
        style_text(f"{unlimited} partitions from their first offset on; {len(limited)} with limits:"),
        make_first_rows(("topic", "partition", "proven from", "until", "limit"), rows),
    )


def _violations(found: VerifyReport) -> RenderableType:
    rows = list[tuple[object, ...]]()
    for violation in found.violations[:SHOWN_VIOLATIONS]:
        place = f"{violation.topic}/{violation.partition}" if violation.topic else None
        rows.append((violation.kind.value, place, violation.offset, violation.expected, violation.found))
    return make_lines(
        make_grid(("violation", "partition", "offset", "expected", "found"), rows),
        make_more(found.violation_count - SHOWN_VIOLATIONS),
    )


def _losses(found: VerifyReport) -> Iterator[RenderableType]:
    """The lost states: in total, and the unaccepted part."""
    losses = found.losses
    if not losses.sessions:
        return
    total = f"lost: the states of {losses.sessions} sessions, with {losses.messages} messages"
    if not losses.open_sessions:
        yield style_text(f"{total}; accepted")
        return
    yield style_text(f"{total}; not accepted: {losses.open_sessions} sessions, {losses.open_messages} messages", "red")
    if (grid := make_loss_grid(losses.listed)) is not None:
        yield grid


def _followers(found: VerifyReport) -> Iterator[RenderableType]:
    rows = ((each.kind, each.name, each.status.value, each.claim, each.reason) for each in found.followers)
    if (grid := make_first_rows(("follower", "name", "status", "claim", "reason"), rows)) is not None:
        yield grid
    for each in found.followers:
        if each.next_step:
            yield style_text(f"next for {each.kind} {each.name}: {each.next_step}", "yellow")


def make_loss_grid(losses: Sequence[LostInBatch] | Sequence[LossShown]) -> RenderableType | None:
    """Losses, a line each; None without any."""
    rows = (
        (
            each.batch,
            f"{each.topic}/{each.partition}",
            each.offset,
            each.cause,
            each.sessions,
            each.messages,
            each.detail,
        )
        for each in losses
    )
    return make_first_rows(("batch", "partition", "offset", "cause", "sessions", "messages", "detail"), rows)


_STYLES = {"proven": "green", "violated": "red", "not proven": "yellow", "states lost": "red"}


@register_command("losses order_books", Panel.INSPECT)
def losses(
    stream: StreamName,
    *,
    accept: Annotated[
        int | None, typer.Option(metavar="BATCH", help="Accept all losses up to that of this batch, the newest one.")
    ] = None,
    why: Annotated[
        str | None, typer.Option(callback=require_reason, help="Reason, stored with the acceptance.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the lost states that are not accepted yet; accept them.

    A state is lost when it is discarded and neither a snapshot replaces it nor a row emits it: its messages were
    accepted, and no row has them. `lockstep verify` ends with 4 until the loss is accepted. Works while the stream
    runs.
    """
    from lockstep.operations.losses import accept_losses, list_losses

    folders = find_folders(stream)
    if accept is None:
        print_answer(list_losses(folders), _loss_list, as_json=as_json)
        return
    if why is None:
        raise typer.BadParameter("name the reason; it is kept with the acceptance", param_hint="--why")
    print_answer(accept_losses(folders, accept, who=getpass.getuser(), why=why), _loss_list, as_json=as_json)


def _loss_list(found: LossList) -> RenderableType:
    total = f"{found.stream}: {found.total.sessions} sessions lost their states, with {found.total.messages} messages"
    accepted = f"accepted up to batch {found.accepted_up_to}: {found.cause}" if found.accepted_up_to else None
    if not found.open:
        return make_lines(style_text(total), accepted, style_text("nothing is open", "green"))
    step = f"to accept them: lockstep losses {found.stream} --accept {found.newest} --why '...'"
    return make_lines(style_text(total), accepted, make_loss_grid(found.losses), style_text(step))
