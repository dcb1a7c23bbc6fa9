"""The bare loop: the same messages to the same rows in one process, without any guarantee.

It is a loop written by hand in an afternoon by a good engineer and then tuned for a week: confluent-kafka,
msgspec, a Python fold, pyarrow. No state is saved, no gap is detected, nothing is recovered, and two of
the provenance columns are constants (`_topic_id`, which it does not have, and `_row`). Its CPU time is
the cost of the work itself; a system's ratio to it is the cost of the guarantees.

Variants tried, in CPU microseconds a message (decode, fold, Arrow, Parquet in memory), best and
median of 12 samples in one race, on 2 cores that others used too. The first wins by its best only;
the medians leave the order of the first three undecided.

    one flat list of values, sliced by column, numbers by struct.pack    5.4 / 7.5  this one
    the same in chunks of 1,000 instead of 500 messages                  5.9 / 7.0
    the same, texts as codes of a dictionary of the file                 6.0 / 7.1
    a tuple a row, all of them into one struct array by pa.array         6.1 / 8.7
    one flat list, every column by pa.array                              6.3 / 7.8

Without Parquet: rows as dictionaries or Structs cost more (`benchmarks.messages`); lists of messages,
new and previous tuples +0.8 (more objects alive, fewer in the cache); numpy arrays +1.4; decoding
joined values by `decode_lines` +0.3. Of the whole loop: consuming 1,000 messages a call instead of
10,000 saved about 1; a fetch queue of 8 MB with 2,000 messages a call was no better than the default.
"""

from __future__ import annotations

import gc
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka import Message as Record
from msgspec import UNSET
from msgspec.structs import astuple

from benchmarks.messages import Change, Message, Snapshot
from benchmarks.systems import Task, parse_task, wait_for_turn

Values = tuple[str, str, float, float, float, float, int, bool]
State = dict[str, dict[int, Values]]

# A chunk's objects should stay in the processor's second-level cache from decoding to Arrow.
CHUNK_MESSAGES = 500
CONSUME_MESSAGES = 1_000
STALL_SECONDS_MAX = 60.0

CONSUMER = {
    "group.id": "bare",  # required by the client, never joined
    "enable.auto.commit": False,
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    "check.crcs": True,  # as the product reads
    "fetch.wait.max.ms": 10,
}
_TIMESTAMP = pa.timestamp("us", tz="UTC")
_ARROW: dict[type, pa.DataType] = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}


@dataclass(frozen=True)
class _Column:
    """A column of the output.

    Attributes:
        name: Its name.
        arrow: Its type.
        code: The letter by which `struct.pack` writes its buffer; None where Arrow must convert.
    """

    name: str
    arrow: pa.DataType
    code: str | None

    def array(self, values: Sequence[Any]) -> pa.Array[Any]:
        """The values as Arrow; none is None."""
        if self.code is None:
            return pa.array(values, self.arrow)
        packed = pa.py_buffer(struct.pack(f"{len(values)}{self.code}", *values))
        return pa.Array.from_buffers(self.arrow, len(values), [None, packed])


_TOPIC = _Column("_topic", pa.string(), None)
_TOPIC_ID = _Column("_topic_id", pa.string(), None)
_PARTITION = _Column("_partition", pa.int32(), "i")
_OFFSET = _Column("_offset", pa.int64(), "q")
_EMIT_OFFSET = _Column("_emit_offset", pa.int64(), "q")
_ROW = _Column("_row", pa.int32(), "i")
_SESSION = _Column("_session", pa.string(), None)
_SEQUENCE = _Column("_sequence", pa.int64(), "q")
_EVENT_TIME = _Column("_event_time", _TIMESTAMP, "q")
_CHANGE = tuple(
    _Column(field.name, _ARROW[field.type], {int: "q", float: "d"}.get(field.type))
    for field in msgspec.structs.fields(Change)
)
# What `fold` appends for a row, in its order; the other columns follow from these.
_FOLDED = (_TOPIC, _PARTITION, _OFFSET, _SESSION, _SEQUENCE, _EVENT_TIME, *_CHANGE)
_WRITTEN = (
    *_CHANGE,
    *(_TOPIC, _TOPIC_ID, _PARTITION, _OFFSET, _EMIT_OFFSET, _ROW, _SESSION, _SEQUENCE, _EVENT_TIME),
)
SCHEMA = pa.schema([(column.name, column.arrow) for column in _WRITTEN])
_STRINGS = [column.name for column in _WRITTEN if column.arrow == pa.string()]

# A record without a value is refused by msgspec itself: no message of the workload lacks one.
_decode_value: Callable[[bytes | None], Message] = msgspec.json.Decoder(Message).decode  # type: ignore[assignment]


class StalledError(Exception):
    """Kafka returned nothing for STALL_SECONDS_MAX although messages are left.

    Attributes:
        left: Number of remaining messages.
    """

    def __init__(self, left: int) -> None:
        super().__init__(f"{left:,} messages are left and none comes\n  next: read the broker's log")
        self.left = left


def run(task: Task) -> None:
    """Run the task: one file for each `task.batch_messages` messages."""
    consumer = Consumer({**CONSUMER, "bootstrap.servers": task.bootstrap_servers})
    left = assign_all(consumer, re.compile(task.topics))
    task.output.mkdir(parents=True)
    state: State = {}
    # Nothing here is part of a cycle: collecting would only walk over the growing state.
    gc.disable()
    for number in count():
        if not left:
            break
        messages = min(left, task.batch_messages)
        write(_fold_batch(consumer, messages, state), task.output / f"{number:06d}.parquet")
        left -= messages
        if task.turns:
            wait_for_turn(messages)
    consumer.close()


def assign_all(consumer: Consumer, topics: re.Pattern[str]) -> int:
    """Assign all matching partitions at once; returns their number of messages."""
    found = consumer.list_topics(timeout=STALL_SECONDS_MAX).topics
    partitions = [
        TopicPartition(name, partition, 0)
        for name, topic in found.items()
        if topics.fullmatch(name)
        for partition in topic.partitions
    ]
    consumer.assign(partitions)
    return sum(consumer.get_watermark_offsets(each, timeout=STALL_SECONDS_MAX)[1] for each in partitions)


def _fold_batch(consumer: Consumer, messages: int, state: State) -> list[pa.RecordBatch]:
    """Consume and fold so many messages."""
    batches: list[pa.RecordBatch] = []
    while messages:
        records = consumer.consume(min(CONSUME_MESSAGES, messages), STALL_SECONDS_MAX)
        if not records:
            raise StalledError(messages)
        for error in filter(None, map(Record.error, records)):
            raise KafkaException(error)
        messages -= len(records)
        for first in range(0, len(records), CHUNK_MESSAGES):
            rows = fold(records[first : first + CHUNK_MESSAGES], state)
            batches.append(make_record_batch(rows))
    return batches


def fold(records: Sequence[Record], state: State) -> list[object]:
    """Fold records in order; returns the values of `_FOLDED` of each row, one row after the other."""
    rows: list[object] = []
    places = map(Record.topic, records), map(Record.partition, records), map(Record.offset, records)
    for topic, partition, offset, message in zip(*places, map(_decode_value, map(Record.value, records)), strict=True):
        if type(message) is Snapshot:
            state[message.session] = {row.id: astuple(row)[1:] for row in message.rows}
            continue
        session = message.session
        table = state[session]
        for change in message.rows:
            key, status, name, v0, v1, v2, v3, q, flag = astuple(change)
            previous = table[key]
            old_status, old_name, old_v0, old_v1, old_v2, old_v3, old_q, old_flag = previous
            table[key] = new = (
                old_status if status is UNSET else status,
                old_name if name is UNSET else name,
                old_v0 if v0 is UNSET else v0,
                old_v1 if v1 is UNSET else v1,
                old_v2 if v2 is UNSET else v2,
                old_v3 if v3 is UNSET else v3,
                old_q if q is UNSET else q,
                old_flag if flag is UNSET else flag,
            )
            rows += (topic, partition, offset, session, message.seq, message.ts, key, *new, *previous)
    return rows


def make_record_batch(rows: list[object]) -> pa.RecordBatch:
    """Rows as Arrow: unknown columns are constant, equal ones are shared."""
    width = len(_FOLDED)
    arrays = {column.name: column.array(rows[n::width]) for n, column in enumerate(_FOLDED)}
    arrays[_TOPIC_ID.name] = arrays[_TOPIC.name]
    arrays[_EMIT_OFFSET.name] = arrays[_OFFSET.name]
    arrays[_ROW.name] = _ROW.array([0] * (len(rows) // width))
    return pa.RecordBatch.from_arrays([arrays[name] for name in SCHEMA.names], schema=SCHEMA)


def write(batches: list[pa.RecordBatch], path: Path) -> None:
    """One Parquet file."""
    pq.write_table(
        pa.Table.from_batches(batches, schema=SCHEMA),
        path,
        compression="zstd",
        compression_level=1,
        use_dictionary=_STRINGS,  # type: ignore[arg-type]  # the stubs forget lists
        row_group_size=1_000_000,
        store_schema=False,
    )


if __name__ == "__main__":
    run(parse_task())
