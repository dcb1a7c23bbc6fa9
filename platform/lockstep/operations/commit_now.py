"""Commits the messages of a stream with `FileSize` that wait for a full file, by its live writer."""

from __future__ import annotations

import time
from collections.abc import Mapping
from enum import StrEnum

import msgspec

from lockstep.control.handover import CommitRequest, forget_commit_request, request_commit
from lockstep.control.heartbeat import is_writer_alive
from lockstep.declare.options import FileSize, find_longest_batch
from lockstep.engine.driver.commit_order import narrow_to_ends
from lockstep.engine.driver.startup import check_not_halted
from lockstep.model.position import TopicIdPartition
from lockstep.operations.plan_frame import Description, Labelled, Obstacle, Refused
from lockstep.operations.stream_handle import StreamHandle
from lockstep.table.head import Head
from lockstep.table.ledger import LedgerRow
from lockstep.time_limit import describe_silence

ANSWER_SECONDS = 30.0
"""Time for the next poll of a live writer, in addition to the longest batch."""


class CommitReason(StrEnum):
    """Why waiting messages are not committed now."""

    TRIGGER = "no file is waited for"
    NO_WRITER = "no writer is alive"
    NO_ANSWER = "the writer did not commit them"


class CommittedNow(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a commit that an operator asked for.

    Attributes:
        stream: Name of the stream.
        messages: Offsets that waited at the moment of the request, and are committed: none of topics that were retired
            or halted since.
        batch: The last batch afterwards.
    """

    stream: str
    messages: int
    batch: int

    def describe(self) -> Description:
        """Return its description."""
        facts = (Labelled("offsets that waited", self.messages), Labelled("last batch", self.batch))
        return Description(title=f"{self.stream}: committed", facts=facts)


def commit_now(handle: StreamHandle, *, who: str) -> CommittedNow:
    """Let the writer of a stream commit the messages that wait for a full file, and wait for it.

    1. Refuse a stream whose batches do not wait for a file, or that has no writer.
    2. Note the ends of the partitions that are read and have a leader; without waiting messages that is all.
    3. Ask the writer. The request is to this writer alone: no later run repeats it.
    4. Wait until the positions have reached these ends, except of topics that are retired or halted since.

    Args:
        handle: The stream.
        who: The operator.

    Raises:
        NoTable: The stream has never run.
        StreamHalted: It is halted: run `lockstep resume` first.
        Refused: Its trigger is not `FileSize`, no writer is alive, or the writer did not answer or ended.
        KafkaError: Kafka does not answer.
    """
    head = handle.require_head()
    check_not_halted(head)
    _check(handle, head.epoch)  # 1
    positions = handle.positions
    view = handle.view
    wanted = find_awaited({key: ends.stable_end for key, ends in view.ends.items()}, positions, head)  # 2
    # The writer does not read topics that the pattern selects no more.
    wanted = {key: until for key, until in wanted.items() if positions[key].topic in handle.selected}
    now = handle
    if wanted:
        now = _ask_writer(handle, head.epoch, CommitRequest(who), wanted)  # 3, 4
    after = now.positions
    messages = 0
    for key, until in wanted.items():
        position = positions[key]
        reached = after.get(key, position).until
        # Messages that arrived after the request may be in the batch: they are not counted.
        messages += max(0, min(until, reached) - position.until)
    return CommittedNow(stream=head.stream, messages=messages, batch=now.require_head().batch)


def find_awaited(
    ends: Mapping[TopicIdPartition, int], positions: Mapping[TopicIdPartition, LedgerRow], head: Head
) -> dict[TopicIdPartition, int]:
    """Those of some ends that the positions have not reached, of topics that are read: not retired, not halted. Pure.

    Args:
        ends: Offset after the last message, by partition.
        positions: The newest ledger row of every partition.
        head: The head of the table.
    """
    halted = {each.topic_id for each in head.halted_topics}
    read = {key for key, row in positions.items() if not row.retired and key.topic_id not in halted}
    return {key: until for key, until in ends.items() if key in read and positions[key].until < until}


def _refuse(stream: str, kind: CommitReason, problem: str, step: str) -> Refused:
    return Refused(stream, "the commit of waiting messages", [Obstacle(kind, problem, step)])


def _check(handle: StreamHandle, epoch: int) -> None:
    stream = handle.stream
    if not isinstance(stream.trigger, FileSize):
        problem = f"its trigger is {stream.trigger!r}: its batches do not wait for a full file"
        raise _refuse(stream.name, CommitReason.TRIGGER, problem, f"lockstep status {stream.name} shows its lag")
    if not is_writer_alive(handle.folders.control, epoch):
        step = f"lockstep run {stream.name} --available-now reads and commits all messages"
        raise _refuse(stream.name, CommitReason.NO_WRITER, "no writer is alive", step)


def _ask_writer(
    handle: StreamHandle, epoch: int, request: CommitRequest, wanted: Mapping[TopicIdPartition, int]
) -> StreamHandle:
    """Ask, and wait; returns the stream by then. Each batch of the writer starts the timeout again."""
    control = handle.folders.control
    stream = handle.stream
    seconds_max = ANSWER_SECONDS + find_longest_batch(stream.trigger, stream.limits).total_seconds()
    deadline = time.monotonic() + seconds_max
    is_asked = False
    batch = handle.require_head().batch
    problem = ""
    try:
        while not problem:
            is_asked = is_asked or request_commit(control, epoch, request)
            lives = is_writer_alive(control, epoch)
            now = StreamHandle(stream, handle.settings)
            head = now.require_head()
            if head.batch > batch:
                batch = head.batch
                deadline = time.monotonic() + seconds_max
                wanted = narrow_to_ends(wanted, now.view.ends)
            if not find_awaited(wanted, now.positions, head):
                return now
            check_not_halted(head)
            if not lives or head.epoch != epoch:
                problem = "the writer has ended, or sends no heartbeats: the next run reads the messages from Kafka"
            elif time.monotonic() > deadline:
                problem = describe_silence("the writer", seconds_max, verb="commit them")
    finally:
        forget_commit_request(control, epoch, request)
    step = f"lockstep status {stream.name}; then the same command"
    raise _refuse(stream.name, CommitReason.NO_ANSWER, problem, step)
