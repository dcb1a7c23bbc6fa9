"""Commands that read the quarantine. What is in it comes from strangers: nothing of it reaches the terminal raw."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

from lockstep.commands.app import AsJson, Panel, StreamName, command, folders_of, group
from lockstep.commands.output import answer, escaped, facts, grid, lines, styled, tell

if TYPE_CHECKING:
    from lockstep.operations.message import StoredMessage
    from lockstep.operations.quarantine import Exported, QuarantineList, Wanted
    from lockstep.table.quarantine import QuarantineRow

GROUPS_SHOWN = 100
"""Groups that people are shown when they name no limit; scripts get all."""
PREVIEW_BYTES, LINE_BYTES = 512, 16

quarantine = group("quarantine", Panel.OPERATE, "Look at messages that were not applied, and take them out as a file.")

Cause = Annotated[str | None, typer.Option(help="Only of this cause.")]
Topic = Annotated[str | None, typer.Option(help="Only of this topic.")]
Session = Annotated[str | None, typer.Option(help="Only of this session.")]
Since = Annotated[int | None, typer.Option(metavar="BATCH", min=0, help="Only of this batch and later ones.")]


@command("quarantine list order_books --cause undecodable", Panel.OPERATE, name="list", within=quarantine)
def list_quarantine(
    stream: StreamName,
    *,
    cause: Cause = None,
    topic: Topic = None,
    session: Session = None,
    since: Since = None,
    limit: Annotated[int | None, typer.Option(min=1, help=f"Most groups; {GROUPS_SHOWN} for the table.")] = None,
    as_json: AsJson = False,
) -> None:
    """List what is in quarantine: by topic, partition, cause and session, the largest group first."""
    from lockstep.operations.quarantine import quarantine_list

    most = limit if limit is not None or as_json else GROUPS_SHOWN
    found = quarantine_list(folders_of(stream), _wanted(cause, topic, session, since), limit=most)
    answer(found, _listed, as_json=as_json)
    if found.more:
        tell(f"the largest {len(found.groups)} groups; {found.more} more with --limit")


@command("quarantine show order_books order_books.eth/0@120", Panel.OPERATE, name="show", within=quarantine)
def show(
    stream: StreamName,
    place: Annotated[str, typer.Argument(metavar="TOPIC/PARTITION@OFFSET", help="Where the message stands in Kafka.")],
    *,
    as_json: AsJson = False,
) -> None:
    """Show one message as it came: reason, key, headers, value as bytes and as text. In JSON bytes are base64."""
    from lockstep.operations.quarantine import Place, quarantined

    try:
        where = Place.parse(place)
    except ValueError as wrong:
        raise typer.BadParameter(f"{place!r} is not {wrong}") from None
    answer(quarantined(folders_of(stream), where), _messages, as_json=as_json)


@command("quarantine export order_books refused.jsonl --since 7", Panel.OPERATE, name="export", within=quarantine)
def export(
    stream: StreamName,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A new file, .jsonl or .parquet.", dir_okay=False)],
    *,
    cause: Cause = None,
    topic: Topic = None,
    session: Session = None,
    since: Since = None,
    as_json: AsJson = False,
) -> None:
    """Write messages to a new file, with all their bytes: JSON lines (bytes as base64) or Parquet."""
    from lockstep.operations.quarantine import export as do_export

    if file.suffix not in {".jsonl", ".parquet"}:
        raise typer.BadParameter(f"{str(file)!r} ends neither in .jsonl nor in .parquet")
    answer(do_export(folders_of(stream), _wanted(cause, topic, session, since), file), _exported, as_json=as_json)


def _wanted(cause: str | None, topic: str | None, session: str | None, since: int | None) -> Wanted:
    from lockstep.operations.quarantine import Wanted

    return Wanted(cause=cause, topic=topic, session=session, since=since)


def _listed(found: QuarantineList) -> RenderableType:
    rows = (
        (g.topic, g.partition, g.cause, _shown(g.session), g.messages, g.first_offset, g.last_offset, g.last_batch)
        for g in found.groups
    )
    columns = ("topic", "partition", "cause", "session", "messages", "first offset", "last offset", "last batch")
    return lines(styled(f"{found.stream}: {found.messages} messages in quarantine"), grid(columns, rows))


def _messages(found: tuple[QuarantineRow, ...]) -> RenderableType:
    return lines(*(part for row in found for part in (_reason(row), *contents(row))))


def _reason(row: QuarantineRow) -> RenderableType:
    return facts(
        (
            ("place", f"{row.topic}/{row.partition}@{row.offset} (topic id {row.topic_id})"),
            ("batch", f"{row.batch} of generation {row.generation}"),
            ("time", shown_time(row.timestamp)),
            ("cause", _shown(row.cause)),
            ("expected", _shown(row.expected)),
            ("found", _shown(row.found)),
            ("session", _shown(row.session)),
        )
    )


def contents(row: QuarantineRow | StoredMessage) -> tuple[RenderableType, ...]:
    """Key, headers and value of a message, without anything that a terminal obeys."""
    headers = [styled(f"header {escaped(header.name)}: {_bytes(header.value)}") for header in row.headers]
    cut = "" if row.value is None or len(row.value) == row.value_bytes else f", the first {len(row.value)} kept"
    size = "null" if row.value is None else f"{row.value_bytes} bytes{cut}"
    return (styled(f"key: {_bytes(row.key)}"), *headers, styled(f"value: {size}"), *_dump(row.value or b""))


def _dump(value: bytes) -> list[RenderableType]:
    """Offset, bytes and text, as hexdump shows them; the beginning of what is long."""
    shown = value[:PREVIEW_BYTES]
    pieces = [(at, shown[at : at + LINE_BYTES]) for at in range(0, len(shown), LINE_BYTES)]
    dumped: list[RenderableType] = [
        styled(f"{at:08x}  {piece.hex(' '):<{3 * LINE_BYTES}} |{_text(piece)}|") for at, piece in pieces
    ]
    left = len(value) - len(shown)
    return [*dumped, styled(f"... {left} bytes more: as a file, or --json")] if left else dumped


def _text(piece: bytes) -> str:
    return "".join(chr(byte) if 32 <= byte < 127 else "." for byte in piece)  # noqa: PLR2004  # printable ASCII


def _bytes(value: bytes | None) -> str:
    if value is None:
        return "null"
    more = f" ... {len(value)} bytes" if len(value) > PREVIEW_BYTES else ""
    return escaped(value[:PREVIEW_BYTES].decode(errors="backslashreplace")) + more


def _shown(text: str | None) -> str | None:
    return None if text is None else escaped(text)


def shown_time(timestamp: datetime | None) -> str | None:
    """A time as all commands print it."""
    return None if timestamp is None else f"{timestamp:%Y-%m-%d %H:%M:%S.%f} UTC"


def _exported(found: Exported) -> RenderableType:
    return styled(f"{found.file}: {found.messages} messages")
