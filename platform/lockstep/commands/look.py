"""Commands that look: streams, status, topics, plan."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import FrameType
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from rich.console import RenderableType
from rich.live import Live

from lockstep.commands.app import FAILED, AsJson, Panel, StreamName, all_streams, command, settings, stream_of
from lockstep.commands.output import answer, facts, grid, lines, out, styled
from lockstep.operations.durations import duration

if TYPE_CHECKING:
    from lockstep.operations.preview import BatchPreview, RestartPreview
    from lockstep.operations.status import Status, StreamOverview
    from lockstep.operations.streams import DeclaredStream
    from lockstep.operations.topics import TopicsOfStream

T = TypeVar("T")

WATCH_SECONDS = 2.0


@command("streams", Panel.LOOK)
def streams(as_json: AsJson = False) -> None:  # noqa: FBT002  # a flag of a command line
    """List the declared streams: topics, integrity class, trigger, table, and what is wanted of each."""
    from lockstep.operations.streams import declared_streams

    answer(declared_streams(all_streams(), settings().table_root), _streams, as_json=as_json)


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
    from lockstep.operations.status import overview
    from lockstep.operations.status import status as read_status

    found = settings()
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
    from lockstep.operations.topics import topics_of

    answer(topics_of(stream_of(stream), settings()), _topics, as_json=as_json)


@command("plan order_books --restart", Panel.LOOK)
def plan(
    stream: StreamName,
    restart: Annotated[bool, typer.Option("--restart", help="What a new run would change.")] = False,  # noqa: FBT002  # a flag
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """Show what the next batch would read, in bins; or what a restart would add, keep and refuse, and why."""
    from lockstep.operations import preview

    declared, found = stream_of(stream), settings()
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
