"""Messages that were not applied, and any one message."""

from __future__ import annotations

import codecs
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import asdict
from rich.console import RenderableType

from lockstep.cli.app import (
    AsJson,
    Panel,
    StreamName,
    find_folders,
    load_settings_or_exit,
    make_group,
    register_command,
)
from lockstep.cli.output import escape_text, make_facts, make_grid, make_lines, print_answer, print_note, style_text
from lockstep.model.fault import Fault

if TYPE_CHECKING:
    from lockstep.operations.inspect.message import StoredMessage
    from lockstep.operations.quarantine import Exported, QuarantineFilter, QuarantineList
    from lockstep.table.quarantine import QuarantineRow


GROUPS_SHOWN = 100
"""Groups shown on a terminal without a limit; scripts get all."""
PREVIEW_BYTES = 512
LINE_BYTES = 16

quarantine = make_group("quarantine", Panel.MAINTAIN, "List, show and export messages that were not applied.")

Cause = Annotated[str | None, typer.Option(help="Only of this cause.")]
Topic = Annotated[str | None, typer.Option(help="Only of this topic.")]
Session = Annotated[str | None, typer.Option(help="Only of this session.")]
Since = Annotated[int | None, typer.Option(metavar="BATCH", min=0, help="Only of this batch and later batches.")]


@register_command("quarantine list order_books --cause undecodable", Panel.MAINTAIN, name="list", within=quarantine)
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
    """List the messages in quarantine: by topic, partition, cause and session, the largest group first."""
    from lockstep.operations.quarantine import list_quarantine

    most = limit if limit is not None or as_json else GROUPS_SHOWN
    wanted = _wanted(cause, topic, session, since)
    listed = list_quarantine(find_folders(stream), wanted, limit=most)
    print_answer(listed, lambda shown: _listed(shown, wanted), as_json=as_json)
    if listed.more:
        print_note(f"the largest {len(listed.groups)} groups; {listed.more} more with --limit")


@register_command("quarantine show order_books order_books.eth/0@120", Panel.MAINTAIN, name="show", within=quarantine)
def show(
    stream: StreamName,
    place: Annotated[str, typer.Argument(metavar="TOPIC/PARTITION@OFFSET", help="Offset of the message in Kafka.")],
    *,
    as_json: AsJson = False,
) -> None:
    """Show one unchanged message: cause, key, headers, value as bytes and as text. In JSON bytes are base64."""
    from lockstep.operations.quarantine import Place, read_quarantined

    try:
        where = Place.parse(place)
    except ValueError as wrong:
        raise typer.BadParameter(f"{place!r} is not {wrong}") from None
    print_answer(read_quarantined(find_folders(stream), where), _messages, as_json=as_json)


@register_command(
    "quarantine export order_books refused.jsonl --since 7", Panel.MAINTAIN, name="export", within=quarantine
)
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
    from lockstep.operations.quarantine import export_quarantined as do_export

    if file.suffix not in {".jsonl", ".parquet"}:
        raise typer.BadParameter(f"{str(file)!r} ends neither in .jsonl nor in .parquet")
    print_answer(
        do_export(find_folders(stream), _wanted(cause, topic, session, since), file), _exported, as_json=as_json
    )


def _wanted(cause: str | None, topic: str | None, session: str | None, since: int | None) -> QuarantineFilter:
    from lockstep.operations.quarantine import QuarantineFilter

    return QuarantineFilter(cause=cause, topic=topic, session=session, since=since)


def _listed(found: QuarantineList, wanted: QuarantineFilter) -> RenderableType:
    rows = (
        (
            g.topic,
            g.partition,
            g.cause,
            _format_session(g.cause, g.session),
            g.messages,
            g.first_offset,
            g.last_offset,
            g.last_batch,
        )
        for g in found.groups
    )
    columns = ("topic", "partition", "cause", "session", "messages", "first offset", "last offset", "last batch")
    dropped = None
    if found.dropped:
        dropped = style_text(f"retention has dropped the {found.dropped}")
    selected = style_text(f"{found.stream}: {_count_selected(found, wanted)}")
    return make_lines(selected, dropped, make_grid(columns, rows))


def _count_selected(found: QuarantineList, wanted: QuarantineFilter) -> str:
    """Count the listed messages; if a selection leaves none, name the causes to select."""
    options = asdict(wanted)
    parts = [f"of {name} {value!r}" for name, value in options.items() if value is not None and name != "since"]
    if wanted.since is not None:
        parts.append(f"since batch {wanted.since}")
    if not parts:
        return f"{found.messages} messages in quarantine"
    selected = f"{found.messages} of {found.messages_total} messages in quarantine are {', '.join(parts)}"
    if found.messages:
        return selected
    return f"{selected}; causes: {', '.join(found.causes) or 'none'}"


def _messages(found: tuple[QuarantineRow, ...]) -> RenderableType:
    parts = list[RenderableType]()
    for row in found:
        parts += [_reason(row), *make_contents(row)]
    return make_lines(*parts)


def _reason(row: QuarantineRow) -> RenderableType:
    return make_facts(
        (
            ("place", f"{row.topic}/{row.partition}@{row.offset} (topic id {row.topic_id})"),
            ("batch", f"{row.batch} of generation {row.generation}"),
            ("time", format_time(row.timestamp)),
            ("cause", _escaped_or_none(row.cause)),
            ("expected", _escaped_or_none(row.expected)),
            ("found", _escaped_or_none(row.found)),
            ("session", _format_session(row.cause, row.session)),
        )
    )


def _format_session(cause: str, session: str | None) -> str | None:
    """The session; of a message that was not decoded only its key is known, which need not be one."""
    name = _escaped_or_none(session)
    if name is not None and cause == Fault.UNDECODABLE:
        return f"unknown, of key {name}"
    return name


def make_contents(row: QuarantineRow | StoredMessage) -> tuple[RenderableType, ...]:
    """Key, headers and value of a message, without terminal escapes."""
    headers = [style_text(f"header {escape_text(header.name)}: {_bytes(header.value)}") for header in row.headers]
    size = "null"
    if row.value is not None:
        size = f"{row.value_bytes} bytes"
        if len(row.value) != row.value_bytes:
            size = f"{size}, the first {len(row.value)} kept"
    return (
        style_text(f"key: {_bytes(row.key)}"),
        *headers,
        style_text(f"value: {size}"),
        *_value(row.value or b""),
    )


def _value(value: bytes) -> list[RenderableType]:
    """The beginning of a value: printable UTF-8, such as JSON, as text, each line indented; else as in a hexdump."""
    shown = value[:PREVIEW_BYTES]
    try:
        # Of a value that is cut, the last character may be incomplete.
        lines = codecs.getincrementaldecoder("utf-8")().decode(shown, final=shown == value).split("\n")
    except UnicodeDecodeError:
        return _dump(value, shown)
    if not all(map(str.isprintable, lines)):
        return _dump(value, shown)
    return [*(style_text(f"  {line}") for line in lines if shown), *_left(value, shown)]


def _dump(value: bytes, shown: bytes) -> list[RenderableType]:
    """Offset, bytes and text, as in a hexdump."""
    dumped = list[RenderableType]()
    for start in range(0, len(shown), LINE_BYTES):
        piece = shown[start : start + LINE_BYTES]
        dumped.append(style_text(f"{start:08x}  {piece.hex(' '):<{3 * LINE_BYTES}} |{_text(piece)}|"))
    return [*dumped, *_left(value, shown)]


def _left(value: bytes, shown: bytes) -> list[RenderableType]:
    more = len(value) - len(shown)
    if more:
        return [style_text(f"... {more} bytes more: as a file, or --json")]
    return []


def _text(piece: bytes) -> str:
    return "".join(chr(byte) if 32 <= byte < 127 else "." for byte in piece)  # noqa: PLR2004  # printable ASCII


def _bytes(value: bytes | None) -> str:
    if value is None:
        return "null"
    more = f" ... {len(value)} bytes" if len(value) > PREVIEW_BYTES else ""
    return escape_text(value[:PREVIEW_BYTES].decode(errors="backslashreplace")) + more


def _escaped_or_none(text: str | None) -> str | None:
    if text is None:
        return None
    return escape_text(text)


def format_time(timestamp: datetime | None) -> str | None:
    """A time in the format of all commands."""
    return None if timestamp is None else f"{timestamp:%Y-%m-%d %H:%M:%S.%f} UTC"


def _exported(found: Exported) -> RenderableType:
    return style_text(f"{found.file}: {found.messages} messages")


@register_command("message order_books order_books.eth/0@120 --out tests/halted.jsonl", Panel.INSPECT)
def message(
    stream: StreamName,
    place: Annotated[
        str | None,
        typer.Argument(metavar="[TOPIC/PARTITION@OFFSET]", help="Offset in Kafka; by default the one of the halt."),
    ] = None,
    *,
    out: Annotated[
        Path | None, typer.Option(help="Also write it to this new file, for a unit test.", dir_okay=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show one unchanged message, by default the one that halted the stream, and write it out for a unit test.

    From Kafka, or from archive or quarantine if Kafka has deleted it. `lockstep.testing.read_messages` reads the file.
    """
    from lockstep.operations.inspect.message import export_message
    from lockstep.operations.inspect.message import read_message as read
    from lockstep.operations.quarantine import Place

    where = None
    if place is not None:
        try:
            where = Place.parse(place)
        except ValueError as wrong:
            raise typer.BadParameter(f"{place!r} is not {wrong}") from None
    stored = read(find_folders(stream), load_settings_or_exit().kafka, where)
    if out is not None:
        export_message(stored, out)
    print_answer(stored, _show_message, as_json=as_json)
    if out is not None:
        print_note(f"written to {out}: lockstep.testing.read_messages reads it")


def _show_message(found: StoredMessage) -> RenderableType:
    head = make_facts(
        (
            ("place", f"{found.topic}/{found.partition}@{found.offset} (in {found.found_in})"),
            ("time", format_time(found.timestamp)),
        )
    )
    reasons = list[RenderableType]()
    if found.finding is not None:
        reasons.append(style_text(str(found.finding), "red"))
        if found.finding.traceback:
            reasons.append(style_text(found.finding.traceback))
    return make_lines(head, *reasons, *make_contents(found))
