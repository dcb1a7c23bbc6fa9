"""Retires a topic of a stream: it is not read or audited until a message arrives; its deletion is not a fault."""

from __future__ import annotations

import time
from enum import StrEnum

import msgspec

from lockstep.control.handover import RetireRequest, forget_retire_request, request_retirement
from lockstep.control.heartbeat import is_writer_alive
from lockstep.declare.options import Every
from lockstep.engine.driver.startup import check_not_halted
from lockstep.errors import Fenced, Overtaken
from lockstep.kafka.progress import compute_lag_messages
from lockstep.operations.commit_positions import commit_positions
from lockstep.operations.plan_frame import Obstacle, Refused
from lockstep.operations.stream_handle import StreamHandle
from lockstep.operations.stream_table import open_table
from lockstep.table import ledger, side_tables
from lockstep.table.commit import commit_batch, commit_claim
from lockstep.table.head import Head
from lockstep.table.ledger import LedgerRow
from lockstep.table.positions import RETIRED, LedgerStamp, make_kept_row, make_retirement_note, read_position
from lockstep.time_limit import SLOW, describe_silence

POLL_SECONDS = 0.5
ANSWER_SECONDS = 30.0
"""Time for the next batch of a live writer, in addition to the interval of its trigger."""


class RetirementReason(StrEnum):
    """Why a retirement is refused."""

    NOT_READ = "the topic is not read"
    NO_END = "the end of a partition is not known"
    UNREAD = "messages are not read"
    NO_ANSWER = "the writer did not retire it"


def _refuse(stream: str, topic: str, *obstacles: Obstacle) -> Refused:
    return Refused(stream, f"the retirement of {topic}", obstacles)


class RetiredTopic(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a retirement.

    Attributes:
        stream: Name of the stream.
        topic: Name of the topic.
        partitions: Number of its partitions.
        position: Offsets read, summed over its partitions.
        retired_by: "the writer" with its next batch, or "a claim" without a writer.
    """

    stream: str
    topic: str
    partitions: int
    position: int
    retired_by: str


def retire_topic(handle: StreamHandle, topic: str, *, who: str, why: str) -> RetiredTopic:
    """Retire a topic whose messages are all read.

    1. Refuse a topic that is not read, or that has messages which are not.
    2. Ask a live writer, which does it with its next batch.
    3. Without one, commit it by a claim, as a batch without messages.

    Args:
        handle: The stream.
        topic: Name of the topic.
        who: The operator.
        why: The reason.

    Raises:
        NoTable: The stream has never run.
        StreamHalted: It is halted: run `lockstep resume` first.
        Refused: The topic is not read, has unread messages, or the writer did not answer or ended.
        KafkaError: Kafka does not answer.
        Overtaken: A run or another command claimed the table at the same moment.
    """
    head = handle.require_head()
    check_not_halted(head)
    rows = _check_drained(handle, topic)  # 1
    lives = is_writer_alive(handle.folders.control, head.epoch)
    if lives:
        _ask_writer(handle, head.epoch, RetireRequest((topic,), who, why))  # 2
    else:
        try:
            _commit(handle, head, topic, who, why)  # 3
        except Fenced as fenced:
            raise Overtaken(head.stream, f"retirement of {topic}", fenced) from fenced
    return RetiredTopic(
        stream=head.stream,
        topic=topic,
        partitions=len(rows),
        position=sum(row.until for row in rows),
        retired_by="the writer" if lives else "a claim",
    )


def _check_drained(handle: StreamHandle, topic: str) -> list[LedgerRow]:
    rows = [row for row in handle.subscribed if row.topic == topic]
    if not rows:
        listed = f"lockstep topics {handle.stream.name} lists the topics that are read"
        raise _refuse(handle.stream.name, topic, Obstacle(RetirementReason.NOT_READ, "it is not read", listed))
    ends = [(row, handle.view.ends.get(row.key)) for row in rows]
    obstacles = list[Obstacle]()
    if unknown := [row.partition for row, end in ends if end is None]:
        problem = f"it has partitions whose end Kafka does not show now: {unknown}"
        obstacles.append(Obstacle(RetirementReason.NO_END, problem, "try again when they have a leader"))
    if lag := sum(compute_lag_messages(row.until, end) for row, end in ends if end is not None):
        step = "wait until they are read; nothing was changed"
        obstacles.append(Obstacle(RetirementReason.UNREAD, f"it has {lag} unread messages", step))
    if obstacles:
        raise _refuse(handle.stream.name, topic, *obstacles)
    return rows


def _ask_writer(handle: StreamHandle, epoch: int, request: RetireRequest) -> None:
    trigger = handle.stream.trigger
    control = handle.folders.control
    seconds_max = ANSWER_SECONDS
    if isinstance(trigger, Every):  # the writer answers before its next batch
        seconds_max += trigger.seconds
    deadline = time.monotonic() + seconds_max
    step = "try again; nothing was changed"
    is_asked = False
    has_successor = False
    try:
        while time.monotonic() < deadline and not has_successor:
            # Repeated until it is taken: the request of another topic may be in its place.
            is_asked = is_asked or request_retirement(control, epoch, request)
            time.sleep(POLL_SECONDS)
            now = StreamHandle(handle.stream, handle.settings)
            if not any(row.topic in request.topics for row in now.subscribed):
                return
            has_successor = now.require_head().epoch != epoch
    finally:
        unanswered = forget_retire_request(control, epoch, request)
    if has_successor or not is_writer_alive(control, epoch):
        why = "the writer has ended, or sends no heartbeats"
    elif not is_asked:
        why = "the retirement of another topic waits for the writer"
    elif unanswered:
        why = describe_silence("the writer", seconds_max)
    else:
        why = describe_silence("the writer", seconds_max, verb="commit it")
        step = f"{SLOW}, or unread messages have arrived: lockstep topics {handle.stream.name} shows the state"
    obstacle = Obstacle(RetirementReason.NO_ANSWER, f"it was not retired: {why}", step)
    raise _refuse(handle.stream.name, request.topics[0], obstacle)


def _commit(handle: StreamHandle, head: Head, topic: str, who: str, why: str) -> None:
    """A batch without messages, by a claim: a full set of positions, in which the topic is retired."""
    folders = handle.folders
    output = open_table(handle.folders)
    claimed = output.commit(commit_claim(head.epoch, output.table_id, check_not_halted, cause=f"retire {topic}")).head
    side_tables.SideLogs(folders).catch_up(claimed)
    stamp = LedgerStamp(
        generation=claimed.generation,
        batch=claimed.batch + 1,
        epoch=claimed.epoch,
        committed_at=ledger.read_clock(),
        batch_seconds=0.0,
        restart_cause=f"retire {topic}: {why} ({who})",
    )
    rows = [_make_row(stamp, row, topic, who, why) for row in ledger.read_positions(folders, claimed).values()]
    commit_positions(output, folders, claimed, rows, commit_batch)


def _make_row(stamp: LedgerStamp, row: LedgerRow, topic: str, who: str, why: str) -> LedgerRow:
    position = read_position(row)
    retires = row.topic == topic and not row.retired
    unread = make_kept_row(stamp, position, retired=row.retired or retires)
    if not retires:
        return unread
    note = make_retirement_note(position.next_offset, who, why)
    return msgspec.structs.replace(unread, lifecycle=RETIRED, accepted=[note])
