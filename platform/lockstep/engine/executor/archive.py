"""The archive in a task: the destination of its messages, and the source of those that Kafka no longer has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import methodcaller
from typing import Any, NamedTuple, cast

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lockstep.engine.executor.column_range import find_offsets
from lockstep.engine.executor.compiled_stream import CompiledStream
from lockstep.engine.executor.fold import find_session
from lockstep.engine.executor.message_source import MessageSource
from lockstep.engine.executor.rejects import Message
from lockstep.engine.executor.row_buffer import RowSpace
from lockstep.engine.protocol import PlannedRange
from lockstep.errors import EnvironmentProblem
from lockstep.kafka.reader import MessageRun, Range, UnreadableRange
from lockstep.kafka.timestamps import NO_TIMESTAMP_MS
from lockstep.model.finding import Hole
from lockstep.model.position import Position, TopicNamePartition
from lockstep.model.record import Record, read_headers
from lockstep.table.archive import (
    SCHEMA,
    ArchivedRange,
    WantedMessages,
    digest_rows,
    list_messages,
    read_messages,
)

MESSAGE_COLUMNS = ["offset", "timestamp_type", "timestamp_ms", "leader_epoch", "key", "value", "headers"]
"""Columns that differ from message to message."""
MESSAGE_SCHEMA = pa.schema([SCHEMA.field(name) for name in MESSAGE_COLUMNS])
CORRUPT = "corrupt"
"""Cause of offsets whose record batches were corrupt on the broker."""

_ask_headers: Callable[[Message], list[tuple[str, bytes | None]] | None] = methodcaller("headers")


class ArchiveBuffer:
    """The messages of one range that are to be archived, as Arrow: in memory, or in pages of the local disk."""

    def __init__(self, start: int, space: RowSpace) -> None:
        """Start empty.

        Args:
            start: Earlier messages are archived already.
            space: The messages of the task.
        """
        self.start = start
        self._space = space
        self._bytes = 0
        self._batches: list[pa.RecordBatch] = []

    def add(self, messages: Sequence[Message]) -> None:
        """Add the next messages, in order of offsets."""
        if messages and cast("int", messages[0].offset()) < self.start:
            messages = [message for message in messages if cast("int", message.offset()) >= self.start]
        if not messages:
            return
        batch = encode_messages(messages)
        size = batch.get_total_buffer_size()
        self._batches.append(batch)
        self._bytes += size
        self._space.note(self._batches, size)

    def release(self) -> None:
        """Discard all messages: the range is folded again."""
        self._space.release(self._batches, self._bytes)
        self._bytes = 0

    def finish(self, until: int) -> pa.Table:
        """The messages before an offset, by which the range ends."""
        messages = pa.Table.from_batches(self._batches, MESSAGE_SCHEMA)
        if messages.num_rows and messages["offset"][-1].as_py() >= until:  # seldom: a filter copies all of them
            return messages.filter(pc.field("offset") < until)
        return messages


def encode_messages(messages: Sequence[Message]) -> pa.RecordBatch:
    """Encode messages of a client library as Arrow; methods are mapped over them."""
    of = cast("Any", type(messages[0]))
    stamps = np.fromiter(chain.from_iterable(map(of.timestamp, messages)), np.int64, 2 * len(messages))
    times_ms = stamps[1::2]
    arrays = [
        pa.array(find_offsets(messages)),
        pa.array(stamps[::2]),
        pa.array(times_ms, mask=times_ms == NO_TIMESTAMP_MS),
        _make_numbers(list(map(of.leader_epoch, messages))),
        pa.array(list(map(of.key, messages)), pa.binary()),
        pa.array(list(map(of.value, messages)), pa.binary()),
        _make_headers(messages),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=MESSAGE_SCHEMA)


def _make_numbers(numbers: Sequence[int | None]) -> pa.Array[Any]:
    """A column that mostly has one number, which is cheaper to repeat than to convert."""
    first = numbers[0]
    count = len(numbers)
    if numbers.count(first) == count:
        return cast("pa.Array[Any]", pa.repeat(pa.scalar(first, pa.int64()), count))
    return pa.array(numbers, pa.int64())


def _make_headers(messages: Sequence[Message]) -> pa.Array[Any]:
    kind = cast("pa.ListType[Any]", MESSAGE_SCHEMA.field("headers").type)
    try:
        headers = list(map(_ask_headers, messages))
    except (SystemError, UnicodeDecodeError):  # of one of them the client library reads no header
        headers = [list(read_headers(message)) for message in messages]
    if not any(headers):  # nearly always: made from buffers, without an empty list a message
        offsets: Any = pa.array(np.zeros(len(messages) + 1, np.int32))
        empty: Any = pa.ListArray
        return cast("pa.Array[Any]", empty.from_arrays(offsets, pa.array([], kind.value_type), type=kind))
    return pa.array([list(map(_to_mapping, of_message or ())) for of_message in headers], kind)


def _to_mapping(header: tuple[str, bytes | None]) -> dict[str, object]:
    name, value = header
    return {"name": name, "value": value}


def make_rows(
    position: Position, messages: pa.Table, holes: Sequence[Hole], sessions: pa.Array[Any], batch: int
) -> pa.Table:
    """Make the rows of a range of its messages and its offsets without one, in order of offsets.

    Args:
        position: The partition.
        messages: Its messages, as `MESSAGE_SCHEMA`.
        holes: Offsets without a message, in order.
        sessions: The session of each message; null if that is the key, or unknown.
        batch: The batch.
    """
    count = messages.num_rows
    columns: dict[str, Any] = {name: messages[name].combine_chunks() for name in MESSAGE_COLUMNS}
    columns["until"] = pc.add(columns["offset"], 1)
    columns["cause"] = pa.nulls(count, pa.string())
    columns["session"] = sessions
    columns |= _repeat_place(position, batch, count)
    rows = pa.table([columns[name] for name in SCHEMA.names], schema=SCHEMA)
    if not holes:
        return rows
    empty: dict[str, object] = {"timestamp_ms": None, "timestamp_type": 0, "headers": []}
    hole_rows = [empty | {"offset": hole.start, "until": hole.until, "cause": hole.cause} for hole in holes]
    gaps = pa.Table.from_pylist(hole_rows, schema=SCHEMA)
    for name, values in _repeat_place(position, batch, len(holes)).items():
        gaps = gaps.set_column(SCHEMA.get_field_index(name), SCHEMA.field(name), values)
    return pa.concat_tables([rows, gaps]).sort_by("offset")


def _repeat_place(position: Position, batch: int, count: int) -> dict[str, Any]:
    return {
        "topic_id": pa.repeat(pa.scalar(position.topic_id), count),
        "topic": pa.repeat(pa.scalar(position.topic), count),
        "partition": pa.repeat(pa.scalar(position.partition, pa.int64()), count),
        "batch": pa.repeat(pa.scalar(batch, pa.int64()), count),
    }


def take_holes(holes: Sequence[Hole], start: int, until: int) -> list[Hole]:
    """The holes within offsets [start, until), in order. Pure."""
    inside = list[Hole]()
    for hole in holes:
        if hole.start < until and hole.until > start:
            inside.append(msgspec.structs.replace(hole, start=max(hole.start, start), until=min(hole.until, until)))
    return inside


def find_sessions(
    messages: pa.Table, rows: Sequence[pa.RecordBatch], position: Position, compiled: CompiledStream
) -> pa.Array[Any]:
    """The session of each message; null if it is the key, or unknown.

    Most sessions are those of the rows that the messages emitted; other messages are decoded once more.

    Args:
        messages: As `MESSAGE_SCHEMA`.
        rows: The rows of their range.
        position: The partition.
        compiled: The stream.
    """
    if compiled.has_key_sessions:
        return pa.nulls(messages.num_rows, pa.string())
    sessions = _take_sessions(messages["offset"].to_numpy(), rows)
    if sessions.null_count:
        names: list[str | None] = sessions.to_pylist()
        for place, message in enumerate(list_messages(messages)):
            if names[place] is None:
                record = Record(position.topic, position.topic_id, position.partition, message.offset(), message)
                names[place] = find_session(compiled, record)
        sessions = pa.array(names, pa.string())
    # Without a key the comparison is null: not the key.
    is_key = pc.coalesce(pc.equal(sessions.cast(pa.binary()), messages["key"].combine_chunks()), pa.scalar(value=False))
    return cast("pa.Array[Any]", pc.if_else(is_key, pa.scalar(None, pa.string()), sessions))


def _take_sessions(offsets: npt.NDArray[np.int64], rows: Sequence[pa.RecordBatch]) -> Any:
    """The session of each message by the first of its rows; null for a message without rows."""
    if not rows:
        return pa.nulls(len(offsets), pa.string())
    emitted, first = np.unique(np.concatenate([batch["_offset"].to_numpy() for batch in rows]), return_index=True)
    sessions: Any = pa.chunked_array([batch["_session"] for batch in rows], pa.string()).combine_chunks()
    # An offset after the last emitted one would be a place past the end.
    places = np.minimum(np.searchsorted(emitted, offsets), len(emitted) - 1)
    return sessions.take(pa.array(first[places], mask=emitted[places] != offsets))


class RangeToArchive(NamedTuple):
    """A range that was read.

    Attributes:
        position: Its start.
        buffer: Its messages.
        holes: Its offsets without a message, in order.
        reached: First offset that was not read.
        rows: Its rows.
    """

    position: Position
    buffer: ArchiveBuffer
    holes: Sequence[Hole]
    reached: int
    rows: Sequence[pa.RecordBatch]


def collect_archived(
    read: RangeToArchive, compiled: CompiledStream, batch: int
) -> tuple[pa.Table, ArchivedRange] | None:
    """The rows of a range that are to be archived, and their claim for the ledger; None without any.

    Raises:
        EnvironmentProblem: Messages and holes do not cover the range, by a fault of this machine.
    """
    position = read.position
    reached = read.reached
    start = max(read.buffer.start, position.next_offset)
    if start >= reached:
        return None
    messages = read.buffer.finish(reached)
    gaps = take_holes(read.holes, start, reached)
    covered = messages.num_rows + sum(gap.until - gap.start for gap in gaps)
    if covered != reached - start:
        raise EnvironmentProblem(
            f"{position.topic}/{position.partition}: {covered} of the offsets {start} to {reached - 1} can be archived",
            next_step="nothing: the batch was not committed, and is tried again",
        )
    sessions = find_sessions(messages, read.rows, position, compiled)
    rows = make_rows(position, messages, gaps, sessions, batch)
    return rows, ArchivedRange(start, reached, digest_rows(rows))


@dataclass(frozen=True)
class ArchiveSource:
    """The archive for the ranges that Kafka no longer has, Kafka for all others.

    Attributes:
        kafka: The source of all others.
        planned: The ranges of the task, by topic and partition.
    """

    kafka: MessageSource
    planned: Mapping[TopicNamePartition, PlannedRange]
    _holes: dict[TopicNamePartition, list[Hole]] = field(default_factory=dict)

    def read(self, ranges: Sequence[Range]) -> Iterator[MessageRun | UnreadableRange]:
        """See `MessageSource.read`."""
        others = list[int]()
        for index, item in enumerate(ranges):
            if self._find(item) is None:
                others.append(index)
            else:
                yield from self._read_archived(index, item)
        if not others:
            return
        for run in self.kafka.read([ranges[index] for index in others]):
            yield _with_index(run, others[run.index])

    def ahead(self, beyond: Range) -> Iterator[MessageRun | UnreadableRange]:
        """See `MessageSource.ahead`."""
        return self.read([beyond])

    def readable_again(self, corrupt: Range) -> int | None:
        """See `MessageSource.readable_again`."""
        if self._find(corrupt) is None:
            return self.kafka.readable_again(corrupt)
        for hole in self._holes.get(TopicNamePartition(corrupt.topic, corrupt.partition), []):
            if hole.start == corrupt.start:
                return hole.until
        return None

    def explain(self, planned: PlannedRange, gaps: Sequence[tuple[int, int]]) -> list[Hole] | UnreadableRange:
        """See `MessageSource.explain`."""
        if planned.archived is None:
            return self.kafka.explain(planned, gaps)
        holes = self._holes.get(TopicNamePartition(planned.position.topic, planned.position.partition), [])
        explained = list[Hole]()
        for start, until in gaps:
            explained += take_holes(holes, start, until)
        return explained

    def _find(self, item: Range) -> WantedMessages | None:
        return self.planned[TopicNamePartition(item.topic, item.partition)].archived

    def _read_archived(self, index: int, item: Range) -> Iterator[MessageRun | UnreadableRange]:
        """A range as the archive has it: record batches that were corrupt in Kafka are judged again as such."""
        wanted = msgspec.structs.replace(cast("WantedMessages", self._find(item)), start=item.start, until=item.until)
        holes = list[Hole]()
        self._holes[TopicNamePartition(item.topic, item.partition)] = holes
        if item.start >= item.until:
            return
        for run in read_messages(wanted):
            holes += run.holes
            corrupt = next((hole for hole in run.holes if hole.cause == CORRUPT), None)
            until = run.until if corrupt is None else corrupt.start
            messages = [message for message in run.messages if message.offset() < until]
            gaps = [(hole.start, hole.until) for hole in run.holes if hole.start < until]
            if messages or gaps:
                yield MessageRun(index, cast("list[Any]", messages), gaps, until)
            if corrupt is not None:
                yield UnreadableRange(index, "its record batches were corrupt in Kafka", is_corrupt=True)
                return


def _with_index(run: MessageRun | UnreadableRange, index: int) -> MessageRun | UnreadableRange:
    if isinstance(run, UnreadableRange):
        return msgspec.structs.replace(run, index=index)
    return MessageRun(index, run.messages, run.gaps, run.reached)
