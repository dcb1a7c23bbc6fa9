"""Streams as they are: list, status, metrics, topics, history, plan, a trial of the first messages, report."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import chain
from math import inf
from types import FrameType
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from msgspec.structs import asdict
from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.live import Live
from rich.text import Text

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
    open_handle,
    register_command,
)
from lockstep.cli.output import (
    SHOWN_SCOPES,
    make_console,
    make_facts,
    make_first_rows,
    make_grid,
    make_lines,
    make_more,
    make_records,
    order_for_first_rows,
    print_answer,
    print_note,
    style_text,
)
from lockstep.errors import format_some
from lockstep.operations.durations import format_count, format_duration

if TYPE_CHECKING:
    from lockstep.control.live_report import LiveRates
    from lockstep.model.finding import Finding
    from lockstep.operations.alarms import Alarm, AlarmKind
    from lockstep.operations.followers import FollowerStatus
    from lockstep.operations.inspect.history import History
    from lockstep.operations.inspect.lookups import LookupStatus
    from lockstep.operations.inspect.plan import BatchPreview, RestartPreview
    from lockstep.operations.inspect.status import PartitionStatus, Status, StreamOverview
    from lockstep.operations.inspect.streams import DeclaredStream
    from lockstep.operations.inspect.topics import TopicsOfStream, TopicStatus
    from lockstep.operations.inspect.trial import Trial
    from lockstep.table.losses import LostStates


T = TypeVar("T")

WATCH_SECONDS = 2.0
ALARM_STYLES = {"error": "red", "warning": "yellow"}


@register_command("streams", Panel.INSPECT)
def streams(as_json: AsJson = False) -> None:  # noqa: FBT002  # a flag of a command line
    """List the declared streams, with topics, table and desired state."""
    from lockstep.operations.inspect.streams import list_declared_streams
    from lockstep.operations.inspect.undeclared import find_undeclared_tables

    declared = list_all_streams()
    root = load_settings_or_exit().table_root
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
    """Show alarms, lag, freshness and positions of a stream, or of all.

    One stream: alarms, then writer, batch, lag, freshness, headroom and positions. All streams: one line each.

    Lookups follow: the version that the newest batch read, and the newest one. Then followers, such as derived tables
    and exports: commits or hours that are not read yet, age of the newest one read, last run.

    Exit code 1 while one of them is halted, or has a table that cannot be read. With --watch and --json: one
    document a line, every two seconds.
    """
    from lockstep.operations.inspect.status import read_overview, read_status

    tables = tuple(list_all_derived().values())
    if stream is None:
        settings = load_settings_or_exit()
        declared = tuple(list_all_streams().values())
        shown = _shown(lambda: read_overview(declared, settings, tables), _overview, watch=watch, as_json=as_json)
        halted = any(overview.needs_operator for overview in shown)
    else:
        look = _shown(lambda: read_status(open_handle(stream), tables), describe_status, watch=watch, as_json=as_json)
        halted = bool(look.next_step)
    if halted and not watch:
        raise typer.Exit(FAILED)


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
    """Fold the first messages of a stream, and write nothing.

    Shows verdicts, rows and cost, under each integrity class.
    Exit code 1 if the declared class would halt the stream.
    """
    from lockstep.operations.inspect.trial import try_stream

    trial = try_stream(find_stream_or_exit(stream), load_settings_or_exit(), messages_max=messages, topic=topic)
    print_answer(trial, _trial, as_json=as_json)
    if any(partition.finding is not None for partition in trial.partitions):
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

    Exit code 1 if a run would be refused.
    """
    from lockstep.operations.inspect.plan import plan_next_batch, plan_restart

    declared = find_stream_or_exit(stream)
    settings = load_settings_or_exit()
    found: BatchPreview | RestartPreview
    if restart:
        found = plan_restart(declared, settings)
        print_answer(found, _restart, as_json=as_json)
    else:
        found = plan_next_batch(declared, settings)
        print_answer(found, _batch, as_json=as_json)
    if found.refused:
        raise typer.Exit(FAILED)


def _shown(look: Callable[[], T], show: Callable[[T], RenderableType], *, watch: bool, as_json: bool) -> T:
    """Show results, once or until Ctrl-C; returns the last."""
    if watch:
        return _watch(look, show, as_json=as_json)
    found = look()
    print_answer(found, show, as_json=as_json)
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
        live = None
        if not as_json and make_console().is_terminal:
            live = screen.enter_context(Live(console=make_console(), auto_refresh=False))
        while True:
            answer = look()
            if live is None:
                print_answer(answer, show, as_json=as_json)
                sys.stdout.flush()
            else:
                live.update(show(answer), refresh=True)
            # An event, not a sleep: Ctrl-C ends the wait immediately.
            if over.wait(WATCH_SECONDS):
                return answer


def _streams(found: tuple[DeclaredStream, ...]) -> RenderableType:
    grid = make_grid(
        ("stream", "topics", "integrity", "trigger", "desired", "batch", "table"),
        ((s.name, s.topics, s.integrity, s.trigger, s.desired, s.batch, s.table) for s in found),
    )
    return make_lines(grid, *chain.from_iterable(map(_neighbours, found)))


def _neighbours(stream: DeclaredStream) -> Iterator[RenderableType]:
    """The lookups that a stream reads, and the followers that read it."""
    yield from (style_text(f"{stream.name} reads {lookup}") for lookup in stream.lookups)
    yield from (style_text(f"{stream.name} is read by {follower}") for follower in stream.followers)


def describe_status(found: Status) -> Group:
    """The status of a stream for people: its halt first, then its alarms."""
    head = make_facts(_list_facts(found))
    rows = list[tuple[object, ...]]()
    for place in order_for_first_rows(found.partitions, _rank_by_lag):
        headroom = format_duration(place.headroom_seconds)
        rows.append((place.topic, place.partition, place.position, place.lag_messages, headroom))
    table = make_first_rows(("topic", "partition", "next offset", "lag", "headroom"), rows)
    others = [alarm for alarm in found.alarms if alarm.kind != "halted"]  # the answer starts with those
    others_read = (*_lookups(found.lookups), *_followers(found.followers))
    shown = (head, table, *_suspensions(found), *_ended(found), *others_read, *_growth(found))
    return make_lines(*_halt(found), *_alarms(others, found.unknown), *shown)


def _format_lost(lost: LostStates) -> str:
    """Sessions that lost their states, and their messages; how much of it is accepted."""
    total = f"{format_count(lost.total.sessions, 'session')}, {format_count(lost.total.messages, 'message')}"
    if not lost.open:
        return f"{total}, accepted"
    return f"{total}; not accepted: {lost.open.sessions} and {lost.open.messages}"


SUSPENSIONS_SHOWN = 20
"""Suspended partitions that `status` lists; `--json` has all."""
ENDED_SHOWN = 5
"""Deleted topics that `status` lists, those with unread messages first; `--json` and `lockstep topics` have all."""


def _suspensions(found: Status) -> Iterator[RenderableType]:
    for each in found.suspensions[:SUSPENSIONS_SHOWN]:
        yield style_text(str(each), "yellow")
    if (more := make_more(len(found.suspensions) - SUSPENSIONS_SHOWN)) is not None:
        yield more


def _list_facts(found: Status) -> Iterator[tuple[str, object]]:
    """The figures of a stream; those of rare events only if there were any."""
    yield ("stream", found.stream)
    yield ("desired", found.desired)
    if not found.next_step:
        yield ("because", found.reason)
    yield ("writer", found.writer.value)
    if found.code is not None:
        yield ("code", str(found.code))
    yield ("batch", f"{found.batch} (generation {found.generation}, epoch {found.epoch}, hour {found.hour or '-'})")
    yield ("lag (messages)", found.lag_messages)
    yield ("freshness", _format_freshness(found))
    if found.rates is not None:
        yield ("rate", _format_rates(found.rates))
    if found.absurd_timestamps:
        yield ("timestamps", _format_absurd(found.absurd_timestamps))
    yield from _list_rare_facts(found)


def _list_rare_facts(found: Status) -> Iterator[tuple[str, object]]:
    if found.absent_removals:
        yield ("removals", _format_removals(found.absent_removals))
    yield ("headroom", _headroom(found))
    yield ("last resume", found.last_resume or "never")
    for dropped in (found.dropped, found.dropped_messages):
        if dropped:
            yield ("dropped", dropped)
    if found.lost.total:
        yield ("lost states", _format_lost(found.lost))


def _rank_by_lag(partition: PartitionStatus) -> float:
    """The greatest lag first, before that an unknown lag."""
    return -inf if partition.lag_messages is None else -partition.lag_messages


def _ended(found: Status) -> Iterator[RenderableType]:
    lossy_first = sorted(found.ended, key=lambda each: each.unread == 0)
    for each in lossy_first[:ENDED_SHOWN]:
        yield style_text(str(each), "yellow" if each.unread != 0 else "")
    if (more := make_more(len(found.ended) - ENDED_SHOWN)) is not None:
        yield more


def _lookups(found: Iterable[LookupStatus]) -> Iterator[RenderableType]:
    rows = [(each.name, each.table, each.read_version, each.newest_version) for each in found]
    if rows:
        yield make_grid(("lookup", "table", "version read", "newest version"), rows)
    yield from (style_text(each.problem, "red") for each in found if each.problem)


def _followers(found: Iterable[FollowerStatus]) -> Iterator[RenderableType]:
    rows = list(map(_make_follower_row, found))
    if rows:
        yield make_grid(("follower", "name", "of", "behind", "freshness", "last run (UTC)", "next run"), rows)


def _make_follower_row(follower: FollowerStatus) -> tuple[object, ...]:
    behind = None
    if follower.behind is not None:
        behind = f"{follower.behind} {follower.reads}"
    freshness = format_duration(follower.freshness_seconds)
    sources = ", ".join(follower.sources)
    last_run = _format_second(follower.last_run)
    return (follower.kind, follower.name, sources, behind, freshness, last_run, follower.problem or follower.next_run)


def _format_second(moment: datetime | None) -> str | None:
    return None if moment is None else f"{moment:%Y-%m-%d %H:%M:%S}"


def _growth(found: Status) -> Iterator[RenderableType]:
    """Files and bytes by kind as of the newest housekeeping, and what waits for compaction now."""
    debt = found.debt
    growth = found.growth
    if debt.files:
        yield style_text(f"{debt.files:,} small files of {format_count(debt.hours, 'closed hour')} wait for compaction")
    if growth is None:
        return
    rows = [
        (k.kind.value, k.files, decimal(k.bytes), _decimal(k.bytes_a_day), _decimal(k.bytes_in_30_days))
        for k in growth.kinds
    ]
    total = ("all", growth.files, decimal(growth.bytes), None, _decimal(growth.bytes_in_30_days))
    age = format_duration(max(0.0, (datetime.now(UTC) - growth.measured_at).total_seconds()))
    yield make_grid((f"on disk {age} ago", "files", "size", "a day", "in 30 days"), [*rows, total])


def _decimal(size: float | None) -> str | None:
    if size is None:
        return None
    sign = "-" if size < 0 else ""
    return f"{sign}{decimal(abs(round(size)))}"


def _alarms(alarms: Iterable[Alarm], unknown: Iterable[AlarmKind], stream: str = "") -> Iterator[RenderableType]:
    """Alarms before anything else, each with its next step; of which nothing is known, too."""
    prefix = f"{stream}: " if stream else ""
    for alarm in alarms:
        yield style_text(f"{prefix}{alarm.severity.value}: {alarm.problem}", ALARM_STYLES[alarm.severity.value])
        yield style_text(f"next: {alarm.next_step}")
    if kinds := [kind.value for kind in unknown]:
        yield style_text(f"{prefix}unknown: {', '.join(kinds)}", "yellow")


def _format_rates(rates: LiveRates) -> str:
    """Messages and rows a second, and the time of a batch by phase."""
    work = f"{rates.messages:,.1f} messages/s, {rates.rows:,.1f} rows/s, {rates.cpu_cores:.2f} cores for tasks"
    phases = [f"{phase} {seconds:.2f} s" for phase, seconds in rates.phase_seconds.items()]
    if phases:
        return f"{work}; a batch: {', '.join(phases)}"
    return work


def _format_freshness(found: Status) -> str | None:
    if not found.ahead_seconds:
        return format_duration(found.freshness_seconds)
    return f"unknown: the newest timestamp is {format_duration(found.ahead_seconds)} in the future"


def _format_absurd(messages: int) -> str:
    count = format_count(messages, "message")
    return f"{count} or more of the newest batches with a time that no clock shows; freshness leaves them out"


def _format_removals(removals: int) -> str:
    return f"{format_count(removals, 'removal')} in the newest batches of keys that were not there"


def _headroom(found: Status) -> str:
    if found.kafka:
        return "unknown: Kafka did not answer"
    return format_duration(found.headroom_seconds) or "no retention by age limits it"


def _halt(found: Status) -> Iterator[RenderableType]:
    if not found.next_step:
        return
    if found.halted_topics:
        halted = f"{found.stream}: halted topics: {format_some(found.halted_topics)}; all others are read"
    else:
        time = "at an unknown time"
        if found.halted_at is not None:
            time = f"{found.halted_at:%Y-%m-%d %H:%M:%S} UTC"
        halted = f"{found.stream} halted {time}"
    yield style_text(halted, "red")
    for finding in found.findings:
        yield style_text(str(finding), "red")
        if finding.traceback:
            yield style_text(finding.traceback)
    yield style_text(f"next: {found.next_step}")


def _overview(found: tuple[StreamOverview, ...]) -> RenderableType:
    rows = (
        (
            each.stream,
            each.desired,
            each.writer.value,
            each.lag_messages,
            format_duration(each.freshness_seconds),
            format_duration(each.headroom_seconds),
        )
        for each in found
    )
    table = make_grid(("stream", "desired", "writer", "lag", "freshness", "headroom"), rows)
    alarms = list[RenderableType]()
    undeclared = list[RenderableType]()
    followers: dict[tuple[str, str], FollowerStatus] = {}  # a follower of several streams is shown once
    for overview in found:
        alarms += _alarms(overview.alarms, overview.unknown, overview.stream)
        for follower in overview.followers:
            followers[follower.kind, follower.name] = follower
        if not overview.is_declared:
            undeclared += _undeclared(overview)
    return make_lines(table, *_followers(followers.values()), *alarms, *undeclared)


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
    classes = list[tuple[object, ...]]()
    for tried in (found.declared, *found.others):
        remarks = ", ".join(f"{count} {name}" for name, count in tried.remarks.items())
        classes.append((tried.declaration, tried.broken, remarks or None))
    rows = None
    if found.sample:
        rows = make_records(list(found.sample[0]), [list(row.values()) for row in found.sample])
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
    rows = map(_make_topic_row, found.topics)
    times = ("retention", "oldest (UTC)", "newest (UTC)")
    heading = ("topic", "state", "partitions", "messages", "lag", "freshness", *times)
    evidence = (style_text(f"{t.topic}: {t.ending}") for t in found.topics if t.ending)
    return make_lines(style_text(head), make_grid(heading, rows), *evidence)


def _make_topic_row(topic: TopicStatus) -> tuple[object, ...]:
    retention = None
    if topic.lag_messages is not None:  # the topic is in Kafka
        retention = format_duration(topic.retention_seconds) or "unlimited"
    return (
        topic.topic,
        topic.state.value,
        topic.partitions,
        topic.messages,
        topic.lag_messages,
        format_duration(topic.freshness_seconds),
        retention,
        _format_second(topic.first_message),
        _format_second(topic.last_message),
    )


def _history(found: History) -> RenderableType:
    rows = (
        (
            _format_second(event.at),
            event.event if event.count == 1 else f"{event.count} {event.event}",
            event.epoch,
            event.batch,
            event.version,
            event.detail,
        )
        for event in found.events
    )
    extent = "older events were left out"
    if found.is_complete:
        extent = f"the log starts at version {found.first_version}"
    return make_lines(
        style_text(f"{found.stream}: {extent}"),
        make_grid(("time (UTC)", "event", "epoch", "batch", "version", "detail"), rows),
    )


def _findings(found: Sequence[Finding]) -> tuple[RenderableType | None, ...]:
    shown = (style_text(str(each), "red") for each in found[:SHOWN_SCOPES])
    return (*shown, make_more(len(found) - SHOWN_SCOPES))


def _batch(found: BatchPreview) -> RenderableType:
    head = (
        f"{found.stream}: batch {found.batch} would read {found.messages} offsets into hour {found.commit_hour}, "
        f"{found.backlog} wait for later batches"
    )
    rows = ((r.bin, r.topic, r.partition, r.start, r.until, r.until - r.start) for r in found.ranges)
    waiting = None
    if found.unavailable:
        waiting = style_text(f"without a leader: {', '.join(found.unavailable)}", "yellow")
    refused = None
    if found.refused:
        refused = style_text(f"a run would be refused: {found.refused}", "red")
    return make_lines(
        style_text(head),
        make_first_rows(("bin", "topic", "partition", "from", "until", "offsets"), rows),
        waiting,
        refused,
        *_findings(found.findings),
        _next_step(found.next_step),
    )


def _next_step(step: str) -> RenderableType | None:
    if not step:
        return None
    return style_text(f"next: {step}")


def _restart(found: RestartPreview) -> RenderableType:
    partitions = order_for_first_rows(found.partitions, lambda p: p.action in {"go on", "keep aside"})
    rows = ((p.topic, p.partition, p.action, p.start, p.why) for p in partitions)
    refused = None
    if found.refused:
        refused = style_text(f"it would be refused: {found.refused}", "red")
    return make_lines(
        style_text(f"{found.stream}: a new run takes over from {found.takes_over}"),
        refused,
        *(style_text(change, "yellow") for change in found.changes),
        *(style_text(f"it reads {lookup}") for lookup in found.lookups),
        style_text(f"topics added: {format_some(found.added, SHOWN_SCOPES) or 'none'}"),
        style_text(f"topics not read, positions kept: {format_some(found.kept_aside, SHOWN_SCOPES) or 'none'}"),
        make_first_rows(("topic", "partition", "action", "start", "why"), rows),
        *_findings(found.findings),
        _next_step(found.next_step),
    )
