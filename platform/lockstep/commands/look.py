"""Commands that look: streams, status, topics, plan."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType
from rich.live import Live

from lockstep.commands.app import AsJson, Panel, StreamName, all_streams, command, settings, stream_of
from lockstep.commands.output import answer, duration, facts, grid, lines, out, styled

if TYPE_CHECKING:
    from lockstep.operations.preview import BatchPreview, RestartPreview
    from lockstep.operations.status import Status
    from lockstep.operations.streams import DeclaredStream
    from lockstep.operations.topics import TopicsOfStream

WATCH_SECONDS = 2.0


@command("streams", Panel.LOOK)
def streams(as_json: AsJson = False) -> None:  # noqa: FBT002  # a flag of a command line
    """List the declared streams: topics, integrity class, trigger, table, and what is wanted of each."""
    from lockstep.operations.streams import declared_streams

    answer(declared_streams(all_streams(), settings().table_root), _streams, as_json=as_json)


@command("status order_books --watch", Panel.LOOK)
def status(
    stream: StreamName,
    watch: Annotated[bool, typer.Option("--watch", help="Look again every two seconds, until Ctrl-C.")] = False,  # noqa: FBT002  # a flag
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """Show where a stream stands: writer, batch, lag, freshness, headroom, positions, halt.

    With --watch and --json: one document a line, every two seconds.
    """
    from lockstep.operations.status import status as read_status

    name, found = stream_of(stream).name, settings()
    if not watch:
        answer(read_status(name, found), _status, as_json=as_json)
        return
    _watch(lambda: read_status(name, found), as_json=as_json)


@command("topics order_books", Panel.LOOK)
def topics(stream: StreamName, as_json: AsJson = False) -> None:  # noqa: FBT002  # a flag
    """Show the topics of a stream, wanted and subscribed: state, partitions, lag, retention, last message.

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


def _watch(look: Callable[[], Status], *, as_json: bool) -> None:
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
        while not over.is_set():
            if live is None:
                answer(look(), _status, as_json=as_json)
                sys.stdout.flush()
            else:
                live.update(_status(look()), refresh=True)
            over.wait(WATCH_SECONDS)


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
            ("headroom", duration(found.headroom_seconds) or "nothing unread expires"),
            ("last resume", found.last_resume or "never"),
        )
    )
    table = grid(
        ("topic", "partition", "next offset", "lag", "headroom"),
        ((p.topic, p.partition, p.position, p.lag_messages, duration(p.headroom_seconds)) for p in found.partitions),
    )
    problem = styled(f"Kafka: {found.kafka}", "yellow") if found.kafka else None
    halts = [styled(str(finding), "red") for finding in found.findings]
    return lines(head, table, problem, *halts)


def _topics(found: TopicsOfStream) -> RenderableType:
    head = f"{found.stream}: {found.wanted} topics wanted by {found.pattern}, {found.subscribed} subscribed"
    rows = (
        (
            t.topic,
            t.state,
            t.partitions,
            t.lag_messages,
            None if t.lag_messages is None else duration(t.retention_seconds) or "for ever",
            None if t.last_message is None else f"{t.last_message:%Y-%m-%d %H:%M:%S}",
        )
        for t in found.topics
    )
    return lines(styled(head), grid(("topic", "state", "partitions", "lag", "retention", "last message (UTC)"), rows))


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
    )
