"""Streams, status, topics, history, plan, query, state, positions, quarantine, settings, doctor."""

from __future__ import annotations

import codecs
import csv
import shlex
import signal
import sys
import threading
import webbrowser
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from datetime import datetime
from enum import Enum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec
import typer
from msgspec.structs import asdict
from rich.console import RenderableType
from rich.filesize import decimal
from rich.live import Live
from rich.text import Text

from lockstep.addresses import make_absolute, to_url
from lockstep.cli.app import (
    FAILED,
    AsJson,
    Panel,
    StreamName,
    find_folders,
    find_stream_or_exit,
    list_all_derived,
    list_all_streams,
    load_settings_or_exit,
    make_group,
    open_handle,
    parse_time,
    refuse_unwritable_page,
    register_command,
)
from lockstep.cli.output import (
    escape_text,
    make_facts,
    make_grid,
    make_lines,
    make_more,
    make_records,
    print_answer,
    print_note,
    print_result,
    style_text,
)
from lockstep.integrity.resume_options import UNDECODABLE
from lockstep.operations.durations import format_count, format_duration

if TYPE_CHECKING:
    from lockstep.operations.diff import StreamDiff
    from lockstep.operations.doctor.doctor import Report
    from lockstep.operations.health import Alarm, AlarmKind
    from lockstep.operations.inspect.derived import DerivedStatus
    from lockstep.operations.inspect.history import History
    from lockstep.operations.inspect.lookups import LookupStatus
    from lockstep.operations.inspect.message import StoredMessage
    from lockstep.operations.inspect.plan import BatchPreview, RestartPreview
    from lockstep.operations.inspect.state import SessionStates
    from lockstep.operations.inspect.status import Status, StreamOverview
    from lockstep.operations.inspect.streams import DeclaredStream, Positions
    from lockstep.operations.inspect.topics import TopicsOfStream
    from lockstep.operations.inspect.trial import Trial
    from lockstep.operations.project import CreatedProject
    from lockstep.operations.quarantine import Exported, QuarantineFilter, QuarantineList
    from lockstep.operations.query import QueryResult
    from lockstep.operations.report import QualityReport
    from lockstep.operations.show_settings import AllOptions
    from lockstep.table.quarantine import QuarantineRow


T = TypeVar("T")

WATCH_SECONDS = 2.0
PLAN_COLUMNS = ["plan_type", "plan"]
"""Of the answer to EXPLAIN, whose text has lines of its own."""
ALARM_STYLES = {"error": "red", "warning": "yellow"}


@register_command("streams", Panel.INSPECT)
def streams(as_json: AsJson = False) -> None:  # noqa: FBT002  # a flag of a command line
    """List the declared streams: topics, integrity class, trigger, table and desired state."""
    from lockstep.operations.inspect.streams import list_declared_streams
    from lockstep.operations.inspect.undeclared import find_undeclared_tables

    declared, root = list_all_streams(), load_settings_or_exit().table_root
    print_answer(list_declared_streams(declared, root), _streams, as_json=as_json)
    for each in find_undeclared_tables(declared, root):
        print_note(f"{each.name}: {each.problem}", style="yellow")
        print_note(f"next: {each.next_step}")


@register_command("status order_books --watch", Panel.INSPECT)
def status(
    stream: Annotated[str | None, typer.Argument(metavar="[STREAM]", help="Name of a stream; all without one.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh every two seconds, until Ctrl-C.")] = False,  # noqa: FBT002  # a flag
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """Show the alarms of a stream, then writer, batch, lag, freshness, headroom, positions; or all, one line each.

    Lookups follow: the version that the newest batch read, and the newest one. Then derived tables: commits of their
    sources that are not read yet, age of the newest one read, last run.

    Exit code 1 while one of them is halted, or has a table that cannot be read. With --watch and --json: one
    document a line, every two seconds.
    """
    from lockstep.operations.inspect.status import read_overview, read_status

    tables = tuple(list_all_derived().values())
    if stream is None:
        found, declared = load_settings_or_exit(), tuple(list_all_streams().values())
        shown = _shown(lambda: read_overview(declared, found, tables), _overview, watch=watch, as_json=as_json)
        halted = any(each.needs_operator for each in shown)
    else:
        look = _shown(lambda: read_status(open_handle(stream), tables), _status, watch=watch, as_json=as_json)
        halted = bool(look.next_step)
    if halted and not watch:
        raise typer.Exit(FAILED)


class Exporter(msgspec.Struct, frozen=True):
    """A listening exporter of metrics."""

    address: str
    streams: tuple[str, ...]


@register_command("metrics --port 9464", Panel.INSPECT)
def metrics(
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port; 0 for a free one.")] = 9464,
    host: Annotated[str, typer.Option(help="Address to listen on; there is no login.")] = "127.0.0.1",
    as_json: AsJson = False,  # noqa: FBT002  # a flag of a command line
) -> None:
    """Serve the health of all streams as Prometheus metrics, on loopback by default, until Ctrl-C.

    Streams are read when they are scraped. Prints the address once it listens.
    """
    from lockstep.operations.exporter import HealthCollector, start_exporter

    declared = list_all_streams()
    server = start_exporter(HealthCollector(declared.values(), load_settings_or_exit()), host, port)
    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    found = Exporter(f"http://{host}:{server.server_port}/metrics", tuple(sorted(declared)))
    print_answer(found, _exporter, as_json=as_json)
    sys.stdout.flush()
    over.wait()
    server.shutdown()
    server.server_close()


def _exporter(found: Exporter) -> RenderableType:
    return style_text(f"{found.address}: {', '.join(found.streams) or 'no stream is declared'}")


@register_command("topics order_books", Panel.INSPECT)
def topics(stream: StreamName, as_json: AsJson = False) -> None:  # noqa: FBT002  # a flag
    """Show the topics of a stream, selected and subscribed: state, partitions, lag, freshness, retention.

    States: new, active, idle, drained, retired, unwanted, deleted, re-created.
    """
    from lockstep.operations.inspect.topics import read_topics

    print_answer(read_topics(open_handle(stream)), _topics, as_json=as_json)


@register_command("try order_books --messages 10000", Panel.INSPECT, name="try")
def try_(
    stream: StreamName,
    topic: Annotated[str | None, typer.Option("--topic", help="Only this topic.")] = None,
    messages: Annotated[int, typer.Option("--messages", min=1, max=1_000_000, help="Most messages.")] = 10_000,
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """Fold the first messages of a stream without writing anything: verdicts, rows, cost, and each integrity class.

    Exit code 1 where the declared class would halt the stream.
    """
    from lockstep.operations.inspect.trial import try_stream

    found = try_stream(find_stream_or_exit(stream), load_settings_or_exit(), messages_max=messages, topic=topic)
    print_answer(found, _trial, as_json=as_json)
    if any(each.finding is not None for each in found.partitions):
        raise typer.Exit(FAILED)


@register_command("history order_books --last 20", Panel.INSPECT)
def history(
    stream: StreamName,
    last: Annotated[int, typer.Option("--last", min=1, help="Number of events.")] = 50,
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """Show the timeline of a stream: runs and their causes, halts, resumptions, desired states, compactions.

    Reaches back as far as the log of the table: housekeeping deletes older entries.
    """
    from lockstep.operations.inspect.history import read_history

    print_answer(read_history(find_folders(stream), last), _history, as_json=as_json)


@register_command("plan order_books --restart", Panel.INSPECT)
def plan(
    stream: StreamName,
    restart: Annotated[bool, typer.Option("--restart", help="Show the effect of a new run.")] = False,  # noqa: FBT002  # a flag
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """Show the bins of the next batch; or which partitions a restart would add, keep and refuse, and why.

    Exit code 1 where a run would be refused.
    """
    from lockstep.operations.inspect.plan import plan_next_batch, plan_restart

    declared, settings = find_stream_or_exit(stream), load_settings_or_exit()
    found: BatchPreview | RestartPreview
    if restart:
        print_answer(found := plan_restart(declared, settings), _restart, as_json=as_json)
    else:
        print_answer(found := plan_next_batch(declared, settings), _batch, as_json=as_json)
    if found.refused:
        raise typer.Exit(FAILED)


def _shown(look: Callable[[], T], show: Callable[[T], RenderableType], *, watch: bool, as_json: bool) -> T:
    """Show results, once or until Ctrl-C; gives the last one."""
    if watch:
        return _watch(look, show, as_json=as_json)
    print_answer(found := look(), show, as_json=as_json)
    return found


def _watch(look: Callable[[], T], show: Callable[[T], RenderableType], *, as_json: bool) -> T:
    """Until Ctrl-C: in place on a terminal, one after the other in a pipe. A second Ctrl-C does not wait."""
    over = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        del number, frame
        over.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, end)
    with ExitStack() as screen:
        live = (
            None
            if as_json or not print_result().is_terminal
            else screen.enter_context(Live(console=print_result(), auto_refresh=False))
        )
        while True:
            found = look()
            if live is None:
                print_answer(found, show, as_json=as_json)
                sys.stdout.flush()
            else:
                live.update(show(found), refresh=True)
            if over.wait(WATCH_SECONDS):
                return found


def _streams(found: tuple[DeclaredStream, ...]) -> RenderableType:
    grid = make_grid(
        ("stream", "topics", "integrity", "trigger", "desired", "batch", "table"),
        ((s.name, s.topics, s.integrity, s.trigger, s.desired, s.batch, s.table) for s in found),
    )
    return make_lines(grid, *(style_text(f"{s.name} reads {lookup}") for s in found for lookup in s.lookups))


def _status(found: Status) -> RenderableType:
    head = make_facts(
        (
            ("stream", found.stream),
            ("desired", found.desired),
            *((("because", found.reason),) if not found.next_step else ()),
            ("writer", found.writer),
            ("batch", f"{found.batch} (generation {found.generation}, epoch {found.epoch}, hour {found.hour or '-'})"),
            ("lag (messages)", found.lag_messages),
            ("freshness", _format_freshness(found)),
            ("headroom", _headroom(found)),
            ("last resume", found.last_resume or "never"),
            *((("dropped", found.dropped),) if found.dropped else ()),
        )
    )
    table = make_grid(
        ("topic", "partition", "next offset", "lag", "headroom"),
        (
            (p.topic, p.partition, p.position, p.lag_messages, format_duration(p.headroom_seconds))
            for p in found.partitions
        ),
    )
    others = [alarm for alarm in found.alarms if alarm.kind.value != "halted"]  # which is what the answer ends with
    others_read = (*_lookups(found.lookups), *_derived(found.derived))
    shown = (head, table, *_suspensions(found), *others_read, *_growth(found), *_halt(found))
    return make_lines(*_alarms(others, found.unknown), *shown)


SUSPENSIONS_SHOWN = 20
"""Suspended partitions that `status` lists; `--json` has all."""


def _suspensions(found: Status) -> Iterator[RenderableType]:
    for each in found.suspensions[:SUSPENSIONS_SHOWN]:
        yield style_text(str(each), "yellow")
    if (more := make_more(len(found.suspensions) - SUSPENSIONS_SHOWN)) is not None:
        yield more


def _lookups(found: Iterable[LookupStatus]) -> Iterator[RenderableType]:
    rows = [(each.name, each.table, each.read_version, each.newest_version) for each in found]
    if rows:
        yield make_grid(("lookup", "table", "version read", "newest version"), rows)
    yield from (style_text(each.problem, "red") for each in found if each.problem)


def _derived(found: Iterable[DerivedStatus]) -> Iterator[RenderableType]:
    rows = [
        (
            each.name,
            ", ".join(each.sources),
            each.behind_commits,
            format_duration(each.freshness_seconds),
            None if each.last_run is None else f"{each.last_run:%Y-%m-%d %H:%M:%S}",
            each.problem or each.next_run,
        )
        for each in found
    ]
    if rows:
        yield make_grid(("derived table", "of", "behind (commits)", "freshness", "last run (UTC)", "next run"), rows)


def _growth(found: Status) -> Iterator[RenderableType]:
    """Files and bytes by kind as of the newest housekeeping, and what waits for compaction now."""
    debt, growth = found.debt, found.growth
    if debt.files:
        yield style_text(f"{debt.files:,} small files of {format_count(debt.hours, 'closed hour')} wait for compaction")
    if growth is None:
        return
    rows = [
        (k.kind.value, k.files, decimal(k.bytes), _decimal(k.bytes_a_day), _decimal(k.bytes_in_30_days))
        for k in growth.kinds
    ]
    total = ("all", growth.files, decimal(growth.bytes), None, _decimal(growth.bytes_in_30_days))
    yield make_grid(
        (f"on disk at {growth.measured_at:%H:%M} UTC", "files", "size", "a day", "in 30 days"), [*rows, total]
    )


def _decimal(size: float | None) -> str | None:
    return None if size is None else f"{'-' if size < 0 else ''}{decimal(abs(round(size)))}"


def _alarms(alarms: Iterable[Alarm], unknown: Iterable[AlarmKind], stream: str = "") -> Iterator[RenderableType]:
    """Alarms before anything else, each with its next step; of which nothing is known, too."""
    prefix = f"{stream}: " if stream else ""
    for alarm in alarms:
        yield style_text(f"{prefix}{alarm.severity.value}: {alarm.problem}", ALARM_STYLES[alarm.severity.value])
        yield style_text(f"next: {alarm.next_step}")
    if kinds := [kind.value for kind in unknown]:
        yield style_text(f"{prefix}unknown: {', '.join(kinds)}", "yellow")


def _format_freshness(found: Status) -> str | None:
    if not found.ahead_seconds:
        return format_duration(found.freshness_seconds)
    return f"unknown: the newest timestamp is {format_duration(found.ahead_seconds)} in the future"


def _headroom(found: Status) -> str:
    if found.kafka:
        return "unknown: Kafka did not answer"
    return format_duration(found.headroom_seconds) or "no retention by age limits it"


def _halt(found: Status) -> Iterator[RenderableType]:
    if not found.next_step:
        return
    for finding in found.findings:
        yield style_text(str(finding), "red")
        if finding.traceback:
            yield style_text(finding.traceback)
    at = "at an unknown time" if found.halted_at is None else f"{found.halted_at:%Y-%m-%d %H:%M:%S} UTC"
    yield style_text(f"halted {at}", "red")
    yield style_text(f"next: {found.next_step}")


def _overview(found: tuple[StreamOverview, ...]) -> RenderableType:
    rows = (
        (
            each.stream,
            each.desired,
            each.writer,
            each.lag_messages,
            format_duration(each.freshness_seconds),
            format_duration(each.headroom_seconds),
        )
        for each in found
    )
    table = make_grid(("stream", "desired", "writer", "lag", "freshness", "headroom"), rows)
    alarms = (part for each in found for part in _alarms(each.alarms, each.unknown, each.stream))
    derived = {table.name: table for each in found for table in each.derived}
    undeclared = (part for each in found if not each.is_declared for part in _undeclared(each))
    return make_lines(table, *_derived(derived.values()), *alarms, *undeclared)


def _undeclared(found: StreamOverview) -> Iterator[RenderableType]:
    yield style_text(f"{found.stream}: {found.reason}", "yellow")
    yield style_text(f"next: {found.next_step}")


def _trial(found: Trial) -> RenderableType:
    facts = {
        "messages": f"{found.messages} of {found.sessions} sessions, {found.undecodable} undecodable",
        "rows": found.rows,
        "outcomes": ", ".join(f"{count} {name}" for name, count in asdict(found.counts).items() if count),
        "cost": f"{found.microseconds_per_message:.1f} us of CPU time a message",
    }
    places = [
        (f"{each.topic}/{each.partition}", each.start, each.until, each.messages, each.rows, each.finding)
        for each in found.partitions
    ]
    classes = [
        (each.declaration, each.broken, ", ".join(f"{count} {name}" for name, count in each.remarks.items()) or None)
        for each in (found.declared, *found.others)
    ]
    rows = make_records(list(found.sample[0]), [list(row.values()) for row in found.sample]) if found.sample else None
    return make_lines(
        make_facts(facts.items()),
        Text(),
        make_grid(("partition", "from", "until", "messages", "rows", "violation"), places),
        Text(),
        rows,
        Text(),
        make_grid(("integrity class (declared first)", "broken by", "remarks"), classes),
        Text(),
        *(style_text(line) for line in found.advice),
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
            format_duration(t.freshness_seconds),
            None if t.lag_messages is None else format_duration(t.retention_seconds) or "unlimited",
            None if t.first_message is None else f"{t.first_message:%Y-%m-%d %H:%M:%S}",
            None if t.last_message is None else f"{t.last_message:%Y-%m-%d %H:%M:%S}",
        )
        for t in found.topics
    )
    times = ("retention", "oldest (UTC)", "newest (UTC)")
    heading = ("topic", "state", "partitions", "messages", "lag", "freshness", *times)
    return make_lines(style_text(head), make_grid(heading, rows))


def _history(found: History) -> RenderableType:
    rows = (
        (
            None if event.at is None else f"{event.at:%Y-%m-%d %H:%M:%S}",
            event.event if event.count == 1 else f"{event.count} {event.event}",
            event.epoch,
            event.batch,
            event.version,
            event.detail,
        )
        for event in found.events
    )
    begins = f"the log begins at version {found.first_version}" if found.is_complete else "older events were left out"
    return make_lines(
        style_text(f"{found.stream}: {begins}"),
        make_grid(("time (UTC)", "event", "epoch", "batch", "version", "detail"), rows),
    )


def _batch(found: BatchPreview) -> RenderableType:
    head = (
        f"{found.stream}: batch {found.batch} would read {found.messages} offsets into hour {found.commit_hour}, "
        f"{found.backlog} wait for later batches"
    )
    rows = ((r.bin, r.topic, r.partition, r.start, r.until, r.until - r.start) for r in found.ranges)
    waiting = f"without a leader: {', '.join(found.unavailable)}" if found.unavailable else None
    return make_lines(
        style_text(head),
        make_grid(("bin", "topic", "partition", "from", "until", "offsets"), rows),
        style_text(waiting, "yellow") if waiting else None,
        style_text(f"a run would be refused: {found.refused}", "red") if found.refused else None,
        *(style_text(str(finding), "red") for finding in found.findings),
        style_text(f"next: {found.next_step}") if found.next_step else None,
    )


def _restart(found: RestartPreview) -> RenderableType:
    rows = ((p.topic, p.partition, p.action, p.start, p.why) for p in found.partitions)
    return make_lines(
        style_text(f"{found.stream}: a new run takes over from {found.takes_over}"),
        style_text(f"it would be refused: {found.refused}", "red") if found.refused else None,
        *(style_text(change, "yellow") for change in found.changes),
        *(style_text(f"it reads {lookup}") for lookup in found.lookups),
        style_text(f"topics added: {', '.join(found.added) or 'none'}"),
        style_text(f"topics not read, positions kept: {', '.join(found.kept_aside) or 'none'}"),
        make_grid(("topic", "partition", "action", "start", "why"), rows),
        *(style_text(str(finding), "red") for finding in found.findings),
        style_text(f"next: {found.next_step}") if found.next_step else None,
    )


TABLE_ROWS = 100
"""Rows shown on a terminal without a limit; scripts get all."""


class Form(Enum):
    """Output format of positions."""

    TABLE = "table"
    JSON = "json"
    SPARK = "spark"


@register_command('query "SELECT side, count(*) FROM order_books GROUP BY side"', Panel.INSPECT)
def query(
    what: Annotated[
        str,
        typer.Argument(
            metavar="TABLE|SQL", help="A stream, shadow or derived table, or SQL over them and <stream>_ledger, ..."
        ),
    ],
    version: Annotated[int | None, typer.Option(min=0, help="A version of the table; with TABLE.")] = None,
    at: Annotated[
        datetime | None,
        typer.Option(parser=parse_time, metavar="TIME", help="The rows as of a time, UTC where it has no zone."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help=f"Most rows; {TABLE_ROWS} for the table, else all.")] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Comma-separated values with a header.")] = False,  # noqa: FBT002  # a flag
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """Query rows as of now, a version or a time. Needs no Spark: the engine is DataFusion."""
    most = limit if limit is not None or as_csv or as_json else TABLE_ROWS
    found = _asked(what, version, at, most)
    if as_csv:
        _csv(found)
    else:
        print_answer(found, _rows, as_json=as_json)
    for note in found.notes:
        print_note(note)
    if found.more:
        print_note(f"the first {len(found.rows)} rows; more with --limit")


DIFFERENT = 1


@register_command("diff order_books order_books_v2 --topic order_books.eth", Panel.INSPECT)
def diff(
    stream: StreamName,
    other: Annotated[str, typer.Argument(metavar="OTHER", help="The stream to compare it with.")],
    topic: Annotated[str | None, typer.Option(help="Only rows of this topic.")] = None,
    samples: Annotated[int, typer.Option(min=0, help="Most rows that are shown.")] = 20,
    html: Annotated[Path | None, typer.Option(help="Write it to this file as a page, too.")] = None,
    *,
    show: Annotated[bool, typer.Option("--open", help="Open the page; without --html in a temporary file.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare the rows of two streams of the same topics, over the offsets that both have read.

    For another fold, class or option under another name: which rows are missing, added or changed, in which columns.
    Exit code 0 equal, 1 different.
    """
    from lockstep.operations.diff import compare_streams, write_diff_page

    refuse_unwritable_page(html, "--html")
    found = compare_streams(find_folders(stream), find_folders(other), topic=topic, samples=samples)
    if html is not None or show:
        file = write_diff_page(found, html)
        print_note(f"page: {file}")
        if show:
            webbrowser.open(file.as_uri())
    print_answer(found, _show_diff, as_json=as_json)
    if not found.is_equal:
        raise typer.Exit(DIFFERENT)


def _show_diff(found: StreamDiff) -> RenderableType:
    head = (
        f"{found.left} (batch {found.left_batch}) and {found.right} (batch {found.right_batch}), {found.partitions} "
        f"partitions: {found.equal} rows equal, {found.missing} missing, {found.added} added, {found.changed} changed"
    )
    rows = (
        (row.kind, f"{row.topic}/{row.partition}@{row.emit_offset}", row.row, column, str(left), str(right))
        for row in found.samples
        for column, (left, right) in row.values.items()
    )
    columns = ("kind", "message", "row", "column", found.left, found.right)
    return make_lines(
        style_text(head, "green" if found.is_equal else "red"),
        make_grid(("column", "rows"), ((each.column, each.rows) for each in found.columns)) if found.columns else None,
        make_grid(columns, rows) if found.samples else None,
        *(style_text(f"note: {note}", "yellow") for note in found.notes),
        style_text(f"next: {found.next_step}"),
    )


@register_command("state order_books --topic order_books.spot_btcusdt --session BTCUSDT", Panel.INSPECT)
def state(
    stream: StreamName,
    topic: Annotated[str | None, typer.Option(help="Only sessions of this topic.")] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="Only sessions of this partition.")] = None,
    session: Annotated[str | None, typer.Option(help="This session, decoded.")] = None,
    at: Annotated[int | None, typer.Option("--at", metavar="BATCH", min=0, help="As of this committed batch.")] = None,
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """List the sessions that have a state; with --session show it as JSON, at the committed position or at a batch.

    Reads durable files only. The structure of a state is the stream's own.
    """
    from lockstep.operations.inspect.state import StateFilter, read_states

    found = read_states(
        find_stream_or_exit(stream), load_settings_or_exit().table_root, StateFilter(topic, partition, session), at
    )
    print_answer(found, _sessions, as_json=as_json or session is not None)


@register_command("positions order_books --format spark", Panel.INSPECT)
def positions(
    stream: StreamName,
    form: Annotated[Form, typer.Option("--format", help="spark: startingOffsets of its Kafka source.")] = Form.TABLE,
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """Print the committed positions, for another reader of the same topics to start from."""
    from lockstep.operations.inspect.streams import format_spark_offsets, read_positions

    found = read_positions(open_handle(stream))
    if form is Form.SPARK and not as_json:
        sys.stdout.write(format_spark_offsets(found) + "\n")
    else:
        print_answer(found, _positions, as_json=as_json or form is Form.JSON)


def _asked(what: str, version: int | None, at: datetime | None, limit: int | None) -> QueryResult:
    from lockstep.declare.stream import NAME
    from lockstep.operations.query import AsOf, query_derived, query_sql, query_stream

    as_of = AsOf(version=version, time=at)
    streams, derived, root = list_all_streams(), list_all_derived(), load_settings_or_exit().table_root
    if what in derived:
        return query_derived(what, root, as_of, limit=limit)
    if NAME.fullmatch(what):
        return query_stream(find_stream_or_exit(what).name, root, as_of, limit=limit)
    return query_sql(what, streams, root, as_of, limit=limit, derived=derived)


def _rows(found: QueryResult) -> RenderableType:
    if found.columns == PLAN_COLUMNS:
        return make_lines(*(style_text(f"{kind}:\n{plan}") for kind, plan in found.rows))
    return make_records(found.columns, found.rows)


def _csv(found: QueryResult) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(found.columns)
    writer.writerows(found.rows)


def _sessions(found: SessionStates) -> RenderableType:
    rows = ((s.topic, s.partition, s.session, s.position, s.stored_bytes) for s in found.sessions)
    return make_grid(("topic", "partition", "session", "position", "stored bytes"), rows)


def _positions(found: Positions) -> RenderableType:
    rows = ((p.topic, p.partition, p.next_offset) for p in found.partitions)
    return make_grid(("topic", "partition", "next offset"), rows)


GROUPS_SHOWN = 100
"""Groups shown on a terminal without a limit; scripts get all."""
PREVIEW_BYTES, LINE_BYTES = 512, 16

quarantine = make_group("quarantine", Panel.MAINTAIN, "List, show and export messages that were not applied.")

Cause = Annotated[str | None, typer.Option(help="Only of this cause.")]
Topic = Annotated[str | None, typer.Option(help="Only of this topic.")]
Session = Annotated[str | None, typer.Option(help="Only of this session.")]
Since = Annotated[int | None, typer.Option(metavar="BATCH", min=0, help="Only of this batch and later ones.")]


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
    """List what is in quarantine: by topic, partition, cause and session, the largest group first."""
    from lockstep.operations.quarantine import list_quarantine

    most = limit if limit is not None or as_json else GROUPS_SHOWN
    wanted = _wanted(cause, topic, session, since)
    found = list_quarantine(find_folders(stream), wanted, limit=most)
    print_answer(found, lambda shown: _listed(shown, wanted), as_json=as_json)
    if found.more:
        print_note(f"the largest {len(found.groups)} groups; {found.more} more with --limit")


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
    return make_lines(style_text(f"{found.stream}: {_count_selected(found, wanted)}"), make_grid(columns, rows))


def _count_selected(found: QuarantineList, wanted: QuarantineFilter) -> str:
    """How many are listed; and, where a selection leaves none, what there is to select."""
    given = asdict(wanted)
    parts = [f"of {name} {value!r}" for name, value in given.items() if value is not None and name != "since"]
    parts += [f"since batch {wanted.since}"] if wanted.since is not None else []
    if not parts:
        return f"{found.messages} messages in quarantine"
    selected = f"{found.messages} of {found.messages_total} messages in quarantine are {', '.join(parts)}"
    return selected if found.messages else f"{selected}; causes: {', '.join(found.causes) or 'none'}"


def _messages(found: tuple[QuarantineRow, ...]) -> RenderableType:
    return make_lines(*(part for row in found for part in (_reason(row), *make_contents(row))))


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
    known = _escaped_or_none(session)
    return f"unknown, of key {known}" if known is not None and cause == UNDECODABLE else known


def make_contents(row: QuarantineRow | StoredMessage) -> tuple[RenderableType, ...]:
    """Key, headers and value of a message, without terminal escapes."""
    headers = [style_text(f"header {escape_text(header.name)}: {_bytes(header.value)}") for header in row.headers]
    cut = "" if row.value is None or len(row.value) == row.value_bytes else f", the first {len(row.value)} kept"
    size = "null" if row.value is None else f"{row.value_bytes} bytes{cut}"
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
    pieces = [(at, shown[at : at + LINE_BYTES]) for at in range(0, len(shown), LINE_BYTES)]
    dumped: list[RenderableType] = [
        style_text(f"{at:08x}  {piece.hex(' '):<{3 * LINE_BYTES}} |{_text(piece)}|") for at, piece in pieces
    ]
    return [*dumped, *_left(value, shown)]


def _left(value: bytes, shown: bytes) -> list[RenderableType]:
    left = len(value) - len(shown)
    return [style_text(f"... {left} bytes more: as a file, or --json")] if left else []


def _text(piece: bytes) -> str:
    return "".join(chr(byte) if 32 <= byte < 127 else "." for byte in piece)  # noqa: PLR2004  # printable ASCII


def _bytes(value: bytes | None) -> str:
    if value is None:
        return "null"
    more = f" ... {len(value)} bytes" if len(value) > PREVIEW_BYTES else ""
    return escape_text(value[:PREVIEW_BYTES].decode(errors="backslashreplace")) + more


def _escaped_or_none(text: str | None) -> str | None:
    return None if text is None else escape_text(text)


def format_time(timestamp: datetime | None) -> str | None:
    """A time in the format of all commands."""
    return None if timestamp is None else f"{timestamp:%Y-%m-%d %H:%M:%S.%f} UTC"


def _exported(found: Exported) -> RenderableType:
    return style_text(f"{found.file}: {found.messages} messages")


@register_command("report order_books --open", Panel.INSPECT)
def report(
    stream: StreamName,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,  # noqa: FBT002  # a flag
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """Write the quality report of a stream as one HTML page: rules, completeness, quarantine, lag, growth.

    It shows the last check; `lockstep check` and the hourly check of Dagster write it too.
    """
    from lockstep.operations.report import write_report

    found = write_report(find_folders(stream), target_bytes=load_settings_or_exit().target_file_bytes)
    print_answer(found, _quality_report, as_json=as_json)
    if open_page:
        webbrowser.open(to_url(make_absolute(found.file)))


def _quality_report(found: QualityReport) -> RenderableType:
    return make_lines(style_text(found.verdict, "green" if found.holds else "red"), style_text(str(found.file)))


@register_command("init ../plants --brokers 127.0.0.1:9092", Panel.INSTALLATION)
def init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of the project; made if it is missing.")],
    brokers: Annotated[str, typer.Option(metavar="HOST:PORT", help="Kafka's bootstrap servers.")] = "127.0.0.1:9092",
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """Write a new project: Dagster's definitions, jobs, sensors and settings, to which you add streams."""
    from lockstep.operations.doctor.doctor import with_brokers
    from lockstep.operations.project import create_project

    servers = with_brokers(load_settings_or_exit(), brokers).kafka.bootstrap_servers
    print_answer(create_project(folder, servers), _project, as_json=as_json)


def _project(found: CreatedProject) -> RenderableType:
    return make_lines(
        make_grid(("file",), ((name,) for name in found.files)),
        style_text(
            f"next: put a stream into {found.folder}/assets, name it in STREAMS of definitions.py, then there:\n"
            f"  export DAGSTER_HOME={shlex.quote(found.dagster_home)}\n"
            "  lockstep doctor\n"
            "  dagster dev -w workspace.yaml"
        ),
    )


@register_command("settings", Panel.INSTALLATION)
def settings(as_json: AsJson = False) -> None:  # noqa: FBT002  # a flag
    """Print every setting and every option of the declared streams: value, default, origin. Secrets are not shown."""
    from lockstep.operations.show_settings import list_options

    print_answer(list_options(list_all_streams()), _options, as_json=as_json)


@register_command("doctor --brokers 127.0.0.1:9092", Panel.INSTALLATION)
def doctor(
    brokers: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Use these brokers instead of the settings'.")
    ] = None,
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """Check Java, jars, ports, folders, Kafka, and its settings of the streams' topics. Exit code 1 on errors."""
    from lockstep.operations.doctor.doctor import run_diagnoses, with_brokers

    report = run_diagnoses(with_brokers(load_settings_or_exit(), brokers), list_all_streams)
    print_answer(report, _report, as_json=as_json)
    if not report.is_healthy:
        raise typer.Exit(FAILED)


def _options(found: AllOptions) -> RenderableType:
    there = "" if found.file_exists else " (not there)"
    rows = ((o.name, o.value, o.default, o.origin, o.set_by) for o in found.options)
    return make_lines(
        style_text(f"file: {found.file}{there}"), make_grid(("setting", "value", "default", "origin", "set by"), rows)
    )


def _report(found: Report) -> RenderableType:
    rows = ((f.level.value, f.check, f.found, f.next_step) for f in found.findings)
    return make_lines(style_text(f"Kafka: {found.brokers}"), make_grid(("level", "check", "found", "next"), rows))


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

    From Kafka, or from the quarantine if Kafka has deleted it. `lockstep.testing.read_messages` reads the file.
    """
    from lockstep.operations.inspect.message import export_message
    from lockstep.operations.inspect.message import read_message as read
    from lockstep.operations.quarantine import Place

    try:
        where = None if place is None else Place.parse(place)
    except ValueError as wrong:
        raise typer.BadParameter(f"{place!r} is not {wrong}") from None
    found = read(find_folders(stream), load_settings_or_exit().kafka, where)
    if out is not None:
        export_message(found, out)
    print_answer(found, _show_message, as_json=as_json)
    if out is not None:
        print_note(f"written to {out}: lockstep.testing.read_messages reads it")


def _show_message(found: StoredMessage) -> RenderableType:
    head = make_facts(
        (
            ("place", f"{found.topic}/{found.partition}@{found.offset} (in {found.found_in})"),
            ("time", format_time(found.timestamp)),
        )
    )
    finding = found.finding
    why = None if finding is None else style_text(str(finding), "red")
    where = None if finding is None or not finding.traceback else style_text(finding.traceback)
    return make_lines(head, why, where, *make_contents(found))
