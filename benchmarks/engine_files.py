"""Small files as the engine leaves them: messages in memory, folded by its own task; neither Kafka nor Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from confluent_kafka import Message

from benchmarks.workload import FIRST_TS_US, Size, blocks
from lockstep.declare.stream import AnyStream
from lockstep.engine.executor.compiled_stream import compile_stream
from lockstep.engine.executor.task import run_bin
from lockstep.engine.protocol import BatchIdentity, JobSpec, PlannedRange, TaskFailure, TaskSpec
from lockstep.features.localdev.recordings import Recorded, read_recorded_books, read_recorded_days, to_sent
from lockstep.kafka.reader import MessageRun, Range
from lockstep.model.position import Position
from lockstep.table.layout import StreamFolders
from lockstep.table.parquet import DataFile
from lockstep.testing.batches import PLANNED_AT_US, LogInMemory
from lockstep.testing.script import InLog

ORDER_BOOKS = Path(__file__).resolve().parents[1] / "tests" / "recordings" / "binance_l2"
NANOSECONDS = 1_000_000_000

Batch = Mapping[str, Sequence[InLog]]
"""The messages of one batch by topic, none without a message; offsets go on from batch to batch."""


@dataclass(frozen=True)
class MessagesInMemory(LogInMemory):
    """The messages of one batch, an element a range."""

    logs: Sequence[Sequence[InLog]]

    def read(self, ranges: Sequence[Range]) -> Iterator[MessageRun]:
        """All of them."""
        for index, wanted in enumerate(ranges):
            yield MessageRun(index, cast("list[Message]", list(self.logs[index])), [], wanted.until)


def fold_batches(stream: AnyStream, batches: Iterable[Batch], root: Path, *, hour: str) -> Iterator[DataFile]:
    """Fold batches by the engine's task, state saved after each; gives the files that it wrote.

    Raises:
        ValueError: A batch was not folded to its end.
    """
    made, folders = compile_stream(stream), StreamFolders(stream.name, root)
    aside = root / "aside"
    job = JobSpec(
        stream=b"",
        kafka={},
        table=folders.table,
        quarantine=aside / "quarantine",
        late=aside / "late",
        state=aside / "state",
        local_root=aside / "hot",
    )
    reached: dict[str, Position] = {}
    for number, batch in enumerate(batches, 1):
        begin = [reached.get(topic) or _begin(topic) for topic in batch]
        ranges = tuple(
            PlannedRange(position, log[-1].at + 1) for position, log in zip(begin, batch.values(), strict=True)
        )
        identity = BatchIdentity(generation=1, epoch=1, number=number, commit_hour=hour, planned_at_us=PLANNED_AT_US)
        result = run_bin(job, TaskSpec(identity, ranges), made, MessagesInMemory(list(batch.values())))
        if isinstance(result, TaskFailure) or any(each.finding or each.trouble for each in result.ranges):
            raise ValueError(f"batch {number} of {stream.name} was not folded: {result}")
        reached |= {each.reached.topic: each.reached for each in result.ranges}
        yield from result.files


def _begin(topic: str) -> Position:
    return Position(topic=topic, topic_id=f"id-of-{topic}", partition=0, next_offset=0)


def make_sensor_batches(batches: int, messages: int) -> Iterator[Batch]:
    """The workload of the main benchmark (`benchmarks.workload`) in batches of about so many messages."""
    size = Size("compaction", batches * messages)
    ends = dict.fromkeys(size.topic_names(), 0)
    each, waiting = messages // size.topics, {topic: list[InLog]() for topic in ends}
    for block in blocks(size):
        log = waiting[block.topic]
        log += [InLog(at, *pair, FIRST_TS_US // 1000) for at, pair in enumerate(block.messages, ends[block.topic])]
        ends[block.topic] += len(block.messages)
        while all(len(log) >= each for log in waiting.values()):
            yield {topic: log[:each] for topic, log in waiting.items()}
            waiting = {topic: log[each:] for topic, log in waiting.items()}


def make_order_book_batches(seconds: float) -> Iterator[Batch]:
    """The recorded order books as they came, in batches of so many seconds; without end, each lap as new sessions."""
    books = read_recorded_books(ORDER_BOOKS)
    recorded = {f"order_books.{book}": to_sent(read_recorded_days(ORDER_BOOKS, book)).messages for book in books}
    began = min(messages[0].received_ns for messages in recorded.values())
    lap_ns = max(messages[-1].received_ns for messages in recorded.values()) - began + NANOSECONDS
    replays = {topic: _replay(messages, began, lap_ns) for topic, messages in recorded.items()}
    held = {topic: next(replay) for topic, replay in replays.items()}
    until_ns = 0.0
    while True:
        until_ns += seconds * NANOSECONDS
        batch: dict[str, list[InLog]] = {}
        for topic, replay in replays.items():
            while held[topic][0] < until_ns:
                batch.setdefault(topic, []).append(held[topic][1])
                held[topic] = next(replay)
        if batch:
            yield batch


def _replay(messages: Sequence[Recorded], began_ns: int, lap_ns: int) -> Iterator[tuple[int, InLog]]:
    """A recording again and again: when a message comes, and the message."""
    at = 0
    while True:
        lap, index = divmod(at, len(messages))
        message, later_ns = messages[index], lap * lap_ns
        timestamp_ms = message.timestamp_ms + later_ns // 1_000_000
        yield (
            message.received_ns - began_ns + later_ns,
            InLog(at, b"%s-%d" % (message.key, lap), message.value, timestamp_ms),
        )
        at += 1
