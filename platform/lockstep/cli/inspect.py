"""Streams, status, topics, plan, query, state, positions, quarantine, settings, doctor."""

from __future__ import annotations

import csv
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from rich.console import RenderableType
from rich.live import Live

from lockstep.cli.app import (
    FAILED,
    AsJson,
    Panel,
    StreamName,
    all_streams,
    command,
    folders_of,
    group,
    settings_in_force,
    stream_of,
)
from lockstep.cli.output import answer, escaped, facts, grid, lines, out, records, styled, tell
from lockstep.operations.durations import duration

if TYPE_CHECKING:
    from lockstep.operations.doctor.doctor import Report
    from lockstep.operations.inspect.message import StoredMessage
    from lockstep.operations.inspect.plan import BatchPreview, RestartPreview
    from lockstep.operations.inspect.state import SessionStates
    from lockstep.operations.inspect.status import Status, StreamOverview
    from lockstep.operations.inspect.streams import DeclaredStream, Positions
    from lockstep.operations.inspect.topics import TopicsOfStream
    from lockstep.operations.quarantine import Exported, QuarantineList, Wanted
    from lockstep.operations.query import QueryResult
    from lockstep.operations.show_settings import AllOptions
    from lockstep.table.quarantine import QuarantineRow


T = TypeVar("T")

WATCH_SECONDS = 2.0


@command("streams", Panel.LOOK)
def streams(as_json: AsJson = False) -> None:  # noqa: FBT002  # a flag of a command line
    """List the declared streams: topics, integrity class, trigger, table, and what is wanted of each."""
    from lockstep.operations.inspect.streams import declared_streams

    answer(declared_streams(all_streams(), settings_in_force().table_root), _streams, as_json=as_json)


@command("status order_books --watch", Panel.LOOK)
def status(
    stream: Annotated[str | None, typer.Argument(metavar="[STREAM]", help="Name of a stream; all without one.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Look again every two seconds, until Ctrl-C.")] = False,  # noqa: FBT002  # a flag
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """Show where a stream stands: writer, batch, lag, freshness, headroom, positions, halt; or all, a line each.

    Exit code 1 while one that is shown is halted, or has a table that cannot be read. With --watch and --json: one
    document a line, every two seconds.
    """
    from lockstep.operations.inspect.status import overview
    from lockstep.operations.inspect.status import status as read_status

    found = settings_in_force()
    if stream is None:
        names = tuple(all_streams())
        shown = _shown(lambda: overview(names, found), _overview, watch=watch, as_json=as_json)
        halted = any(each.needs_operator for each in shown)
    else:
        name = stream_of(stream).name
        halted = bool(_shown(lambda: read_status(name, found), _status, watch=watch, as_json=as_json).next_step)
    if halted and not watch:
        raise typer.Exit(FAILED)


@command("topics order_books", Panel.LOOK)
def topics(stream: StreamName, as_json: AsJson = False) -> None:  # noqa: FBT002  # a flag
    """Show the topics of a stream, wanted and subscribed: state, partitions, lag, retention, oldest and newest message.

    States: new, active, idle, drained, unwanted, deleted, re-created.
    """
    from lockstep.operations.inspect.topics import topics_of

    answer(topics_of(stream_of(stream), settings_in_force()), _topics, as_json=as_json)


@command("plan order_books --restart", Panel.LOOK)
def plan(
    stream: StreamName,
    restart: Annotated[bool, typer.Option("--restart", help="What a new run would change.")] = False,  # noqa: FBT002  # a flag
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """Show what the next batch would read, in bins; or what a restart would add, keep and refuse, and why."""
    from lockstep.operations.inspect import plan as preview

    declared, found = stream_of(stream), settings_in_force()
    if restart:
        answer(preview.restart(declared, found), _restart, as_json=as_json)
    else:
        answer(preview.next_batch(declared, found), _batch, as_json=as_json)


def _shown(look: Callable[[], T], show: Callable[[T], RenderableType], *, watch: bool, as_json: bool) -> T:
    """Show what is found, once or until Ctrl-C; gives what was found last."""
    if watch:
        return _watch(look, show, as_json=as_json)
    answer(found := look(), show, as_json=as_json)
    return found


def _watch(look: Callable[[], T], show: Callable[[T], RenderableType], *, as_json: bool) -> T:
    """Until Ctrl-C: in place on a terminal, one after the other in a pipe. A second Ctrl-C does not wait for a look."""
    over = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        del number, frame
        over.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, end)
    with ExitStack() as screen:
        live = (
            None if as_json or not out().is_terminal else screen.enter_context(Live(console=out(), auto_refresh=False))
        )
        while True:
            found = look()
            if live is None:
                answer(found, show, as_json=as_json)
                sys.stdout.flush()
            else:
                live.update(show(found), refresh=True)
            if over.wait(WATCH_SECONDS):
                return found


def _streams(found: tuple[DeclaredStream, ...]) -> RenderableType:
    return grid(
        ("stream", "topics", "integrity", "trigger", "desired", "batch", "table"),
        ((s.name, s.topics, s.integrity, s.trigger, s.desired, s.batch, s.table) for s in found),
    )


def _status(found: Status) -> RenderableType:
    head = facts(
        (
            ("stream", found.stream),
            ("desired", found.desired),
            ("because", found.reason),
            ("writer", found.writer),
            ("batch", f"{found.batch} (generation {found.generation}, epoch {found.epoch}, hour {found.hour or '-'})"),
            ("lag (messages)", found.lag_messages),
            ("freshness", duration(found.freshness_seconds)),
            ("headroom", _headroom(found)),
            ("last resume", found.last_resume or "never"),
        )
    )
    table = grid(
        ("topic", "partition", "next offset", "lag", "headroom"),
        ((p.topic, p.partition, p.position, p.lag_messages, duration(p.headroom_seconds)) for p in found.partitions),
    )
    problem = styled(f"Kafka: {found.kafka}", "yellow") if found.kafka else None
    return lines(head, table, problem, *_halt(found))


def _headroom(found: Status) -> str:
    if found.kafka:
        return "unknown: Kafka did not answer"
    return duration(found.headroom_seconds) or "nothing unread expires"


def _halt(found: Status) -> Iterator[RenderableType]:
    if not found.next_step:
        return
    for finding in found.findings:
        yield styled(str(finding), "red")
        if finding.traceback:
            yield styled(finding.traceback)
    at = "at an unknown time" if found.halted_at is None else f"{found.halted_at:%Y-%m-%d %H:%M:%S} UTC"
    yield styled(f"halted {at}", "red")
    yield styled(f"next: {found.next_step}")


def _overview(found: tuple[StreamOverview, ...]) -> RenderableType:
    rows = (
        (
            each.stream,
            each.desired,
            each.writer,
            each.lag_messages,
            duration(each.freshness_seconds),
            duration(each.headroom_seconds),
        )
        for each in found
    )
    table = grid(("stream", "desired", "writer", "lag", "freshness", "headroom"), rows)
    silent = sorted({each.kafka for each in found if each.kafka})
    wrong = [(each.stream, each.reason, each.next_step) for each in found if each.needs_operator]
    return lines(
        table,
        *(styled(f"Kafka: {problem}", "yellow") for problem in silent),
        *(part for name, why, step in wrong for part in (styled(f"{name}: {why}", "red"), styled(f"next: {step}"))),
    )


def _topics(found: TopicsOfStream) -> RenderableType:
    head = f"{found.stream}: {found.wanted} topics wanted by {found.pattern}, {found.subscribed} subscribed"
    rows = (
        (
            t.topic,
            t.state.value,
            t.partitions,
            t.messages,
            t.lag_messages,
            None if t.lag_messages is None else duration(t.retention_seconds) or "for ever",
            None if t.first_message is None else f"{t.first_message:%Y-%m-%d %H:%M:%S}",
            None if t.last_message is None else f"{t.last_message:%Y-%m-%d %H:%M:%S}",
        )
        for t in found.topics
    )
    heading = ("topic", "state", "partitions", "messages", "lag", "retention", "oldest (UTC)", "newest (UTC)")
    return lines(styled(head), grid(heading, rows))


def _batch(found: BatchPreview) -> RenderableType:
    head = (
        f"{found.stream}: batch {found.batch} would read {found.messages} offsets into hour {found.commit_hour}, "
        f"{found.backlog} wait for later batches"
    )
    rows = ((r.bin, r.topic, r.partition, r.start, r.until, r.until - r.start) for r in found.ranges)
    waiting = f"without a leader: {', '.join(found.unavailable)}" if found.unavailable else None
    return lines(
        styled(head),
        grid(("bin", "topic", "partition", "from", "until", "offsets"), rows),
        styled(waiting, "yellow") if waiting else None,
        styled(f"a run would be refused: {found.refused}", "red") if found.refused else None,
        *(styled(str(finding), "red") for finding in found.findings),
        styled(f"next: {found.next_step}") if found.next_step else None,
    )


def _restart(found: RestartPreview) -> RenderableType:
    rows = ((p.topic, p.partition, p.action, p.start, p.why) for p in found.partitions)
    return lines(
        styled(f"{found.stream}: a new run takes over from {found.takes_over}"),
        styled(f"it would be refused: {found.refused}", "red") if found.refused else None,
        *(styled(change, "yellow") for change in found.changes),
        styled(f"topics added: {', '.join(found.added) or 'none'}"),
        styled(f"topics kept aside: {', '.join(found.kept_aside) or 'none'}"),
        grid(("topic", "partition", "action", "start", "why"), rows),
        *(styled(str(finding), "red") for finding in found.findings),
        styled(f"next: {found.next_step}") if found.next_step else None,
    )


TABLE_ROWS = 100
"""Rows that people are shown when they name no limit; scripts get all."""


class Form(Enum):
    """How positions are printed."""

    TABLE = "table"
    JSON = "json"
    SPARK = "spark"


@command('query "SELECT side, count(*) FROM order_books GROUP BY side"', Panel.LOOK)
def query(
    what: Annotated[
        str, typer.Argument(metavar="STREAM|SQL", help="A stream, or SQL over <stream>, <stream>_ledger, _quarantine.")
    ],
    version: Annotated[int | None, typer.Option(min=0, help="A version of the table; with STREAM.")] = None,
    at: Annotated[
        datetime | None,
        typer.Option(help="The rows as of a time (UTC).", formats=["%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S"]),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help=f"Most rows; {TABLE_ROWS} for the table, else all.")] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Comma-separated values with a header.")] = False,  # noqa: FBT002  # a flag
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """Query rows, of now, of a version or of a time. Needs no Spark: the engine is DataFusion."""
    most = limit if limit is not None or as_csv or as_json else TABLE_ROWS
    found = _asked(what, version, at, most)
    if as_csv:
        _csv(found)
    else:
        answer(found, _rows, as_json=as_json)
    if found.more:
        tell(f"the first {len(found.rows)} rows; more with --limit")


@command("state order_books --topic order_books.spot_btcusdt --session BTCUSDT", Panel.LOOK)
def state(
    stream: StreamName,
    topic: Annotated[str | None, typer.Option(help="Only sessions of this topic.")] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="Only sessions of this partition.")] = None,
    session: Annotated[str | None, typer.Option(help="This session, decoded.")] = None,
    at: Annotated[int | None, typer.Option("--at", metavar="BATCH", min=0, help="As of this committed batch.")] = None,
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """List the sessions that have a state; with --session show it, as JSON, at the committed position or at a batch.

    Reads durable files only. The struct of a state is the stream's own.
    """
    from lockstep.operations.inspect.state import Wanted, read_states

    found = read_states(stream_of(stream), settings_in_force().table_root, Wanted(topic, partition, session), at)
    answer(found, _sessions, as_json=as_json or session is not None)


@command("positions order_books --format spark", Panel.LOOK)
def positions(
    stream: StreamName,
    form: Annotated[Form, typer.Option("--format", help="spark: startingOffsets of its Kafka source.")] = Form.TABLE,
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """Print the committed positions, for another reader of the same topics to start from."""
    from lockstep.operations.inspect.streams import read_positions, spark_offsets

    found = read_positions(folders_of(stream))
    if form is Form.SPARK and not as_json:
        sys.stdout.write(spark_offsets(found) + "\n")
    else:
        answer(found, _positions, as_json=as_json or form is Form.JSON)


def _asked(what: str, version: int | None, at: datetime | None, limit: int | None) -> QueryResult:
    from lockstep.declare.stream import NAME
    from lockstep.operations.query import AsOf, query_sql, query_stream

    as_of = AsOf(version=version, time=None if at is None else at.replace(tzinfo=UTC))
    streams, root = all_streams(), settings_in_force().table_root
    if NAME.fullmatch(what):
        return query_stream(stream_of(what).name, root, as_of, limit=limit)
    return query_sql(what, streams, root, as_of, limit=limit)


def _rows(found: QueryResult) -> RenderableType:
    return records(found.columns, found.rows)


def _csv(found: QueryResult) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(found.columns)
    writer.writerows(found.rows)


def _sessions(found: SessionStates) -> RenderableType:
    rows = ((s.topic, s.partition, s.session, s.position, s.stored_bytes) for s in found.sessions)
    return grid(("topic", "partition", "session", "position", "stored bytes"), rows)


def _positions(found: Positions) -> RenderableType:
    rows = ((p.topic, p.partition, p.next_offset) for p in found.partitions)
    return grid(("topic", "partition", "next offset"), rows)


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
        (
            g.topic,
            g.partition,
            g.cause,
            _escaped_or_none(g.session),
            g.messages,
            g.first_offset,
            g.last_offset,
            g.last_batch,
        )
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
            ("cause", _escaped_or_none(row.cause)),
            ("expected", _escaped_or_none(row.expected)),
            ("found", _escaped_or_none(row.found)),
            ("session", _escaped_or_none(row.session)),
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


def _escaped_or_none(text: str | None) -> str | None:
    return None if text is None else escaped(text)


def shown_time(timestamp: datetime | None) -> str | None:
    """A time as all commands print it."""
    return None if timestamp is None else f"{timestamp:%Y-%m-%d %H:%M:%S.%f} UTC"


def _exported(found: Exported) -> RenderableType:
    return styled(f"{found.file}: {found.messages} messages")


@command("settings", Panel.INSTALLATION)
def settings(as_json: AsJson = False) -> None:  # noqa: FBT002  # a flag
    """Print every setting and every option of the declared streams: value, default, origin. Secrets are not shown."""
    from lockstep.operations.show_settings import all_options

    answer(all_options(all_streams()), _options, as_json=as_json)


@command("doctor --brokers 127.0.0.1:9092", Panel.INSTALLATION)
def doctor(
    brokers: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Ask these instead of the settings'.")
    ] = None,
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """Look at Java, jars, ports, folders, Kafka, and how it keeps the streams' topics. Exit code 1 on errors."""
    from lockstep.operations.doctor.doctor import asked, examine

    report = examine(asked(settings_in_force(), brokers), all_streams)
    answer(report, _report, as_json=as_json)
    if not report.well:
        raise typer.Exit(FAILED)


def _options(found: AllOptions) -> RenderableType:
    there = "" if found.file_exists else " (not there)"
    rows = ((o.name, o.value, o.default, o.origin, o.set_by) for o in found.options)
    return lines(styled(f"file: {found.file}{there}"), grid(("setting", "value", "default", "origin", "set by"), rows))


def _report(found: Report) -> RenderableType:
    rows = ((f.level.value, f.check, f.found, f.next_step) for f in found.findings)
    return lines(styled(f"Kafka: {found.brokers}"), grid(("level", "check", "found", "next"), rows))


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
    from lockstep.operations.inspect.message import export_message
    from lockstep.operations.inspect.message import message as read
    from lockstep.operations.quarantine import Place

    try:
        where = None if place is None else Place.parse(place)
    except ValueError as wrong:
        raise typer.BadParameter(f"{place!r} is not {wrong}") from None
    found = read(folders_of(stream), settings_in_force().kafka, where)
    if out is not None:
        export_message(found, out)
    answer(found, _show_message, as_json=as_json)
    if out is not None:
        tell(f"written to {out}: lockstep.testing.read_messages reads it")


def _show_message(found: StoredMessage) -> RenderableType:
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
