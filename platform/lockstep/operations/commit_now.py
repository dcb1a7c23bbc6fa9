"""Commits the messages of a stream with `FileSize` that wait for a full file, by its live writer."""

from __future__ import annotations

import time
from collections.abc import Mapping
from enum import StrEnum

import msgspec

from lockstep.control.handover import CommitRequest, forget_commit_request, request_commit
from lockstep.control.heartbeat import is_writer_alive
from lockstep.declare.options import FileSize, find_longest_batch
from lockstep.engine.driver.startup import check_not_halted
from lockstep.model.position import TopicIdPartition
from lockstep.operations.plan_frame import Description, Labelled, Obstacle, Refused
from lockstep.operations.stream_handle import StreamHandle
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
        messages: Offsets that waited at the moment of the request, and are committed.
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
    4. Wait until the positions have reached these ends.

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
    wanted = _find_waiting(handle)  # 2
    batch = head.batch
    if wanted:
        batch = _ask_writer(handle, head.epoch, CommitRequest(who), wanted)  # 3, 4
    positions = handle.positions
    messages = sum(until - positions[key].until for key, until in wanted.items())
    return CommittedNow(stream=head.stream, messages=messages, batch=batch)


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


def _find_waiting(handle: StreamHandle) -> dict[TopicIdPartition, int]:
    """The ends of the partitions with waiting messages; those of halted topics are not read."""
    halted = {each.topic for each in handle.require_head().halted_topics}
    ends = handle.view.ends
    keys = ((row.key, row.until) for row in handle.subscribed if row.topic not in halted)
    return {key: ends[key].stable_end for key, until in keys if key in ends and ends[key].stable_end > until}


def _ask_writer(
    handle: StreamHandle, epoch: int, request: CommitRequest, wanted: Mapping[TopicIdPartition, int]
) -> int:
    """Ask, and wait; returns the last batch by then. Each batch of the writer starts the timeout again."""
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
            if not any(key in now.positions and now.positions[key].until < until for key, until in wanted.items()):
                return batch
            check_not_halted(head)
            if not lives or head.epoch != epoch:
                problem = "the writer has ended, or sends no heartbeats: the next run reads the messages from Kafka"
            elif time.monotonic() > deadline:
                problem = describe_silence("the writer", seconds_max, verb="commit them")
    finally:
        forget_commit_request(control, epoch, request)
    step = f"lockstep status {stream.name}; then the same command"
    raise _refuse(stream.name, CommitReason.NO_ANSWER, problem, step)
