"""Small files as the engine leaves them: messages in memory, folded by its own task; neither Kafka nor Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, repeat
from pathlib import Path
from typing import cast

from confluent_kafka import Message

from benchmarks.workload import FIRST_TS_US, Size, messages_of_topic
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


class StreamInMemory:
    """A stream whose tasks run in this process, batch after batch."""

    def __init__(self, stream: AnyStream, root: Path, *, hour: str) -> None:
        """Compile the stream.

        Args:
            stream: The declaration.
            root: Its folder.
            hour: Commit hour of all batches.
        """
        self._name = stream.name
        self._hour = hour
        self._compiled = compile_stream(stream)
        self._batches = 0
        self._reached: dict[str, Position] = {}
        aside = root / "aside"
        self.job = JobSpec(
            stream=b"",
            kafka={},
            table=StreamFolders(stream.name, root).table,
            quarantine=aside / "quarantine",
            late=aside / "late",
            archive=aside / "archive",
            state=aside / "state",
            local_root=aside / "hot",
        )

    def fold(self, batch: Batch) -> Sequence[DataFile]:
        """Fold a batch by the engine's task and save the state; returns its files.

        Raises:
            ValueError: The batch was not folded to its end.
        """
        self._batches += 1
        begin = [self._reached.get(topic) or _begin(topic) for topic in batch]
        ranges = tuple(
            PlannedRange(position, log[-1].at + 1) for position, log in zip(begin, batch.values(), strict=True)
        )
        identity = BatchIdentity(
            generation=1, epoch=1, number=self._batches, commit_hour=self._hour, planned_at_us=PLANNED_AT_US
        )
        log = MessagesInMemory(list(batch.values()))
        result = run_bin(self.job, TaskSpec(identity, ranges), self._compiled, log)
        if isinstance(result, TaskFailure) or any(each.finding or each.trouble for each in result.ranges):
            raise ValueError(f"batch {self._batches} of {self._name} was not folded: {result}")
        self._reached |= {each.reached.topic: each.reached for each in result.ranges}
        return result.files


def fold_batches(stream: AnyStream, batches: Iterable[Batch], root: Path, *, hour: str) -> Iterator[DataFile]:
    """Fold batches by the engine's task, state saved after each; gives the files that it wrote."""
    in_memory = StreamInMemory(stream, root, hour=hour)
    for batch in batches:
        yield from in_memory.fold(batch)


def _begin(topic: str) -> Position:
    return Position(topic=topic, topic_id=f"id-of-{topic}", partition=0, next_offset=0)


def make_sensor_batches(batches: int, messages: int) -> Iterator[Batch]:
    """The workload of the main benchmark (`benchmarks.workload`) in batches of about so many messages."""
    return make_batches(Size("compaction", batches * messages), repeat(messages, batches))


def make_batches(size: Size, messages: Iterable[int]) -> Iterator[Batch]:
    """The workload in batches, each of about so many messages, spread evenly over the topics; none without any."""
    logs = {topic: _make_log(size, number) for number, topic in enumerate(size.topic_names())}
    for wanted in messages:
        batch = {topic: list(islice(log, wanted // size.topics)) for topic, log in logs.items()}
        if not all(batch.values()):
            return
        yield batch


def _make_log(size: Size, number: int) -> Iterator[InLog]:
    for at, pair in enumerate(messages_of_topic(size, number)):
        yield InLog(at, *pair, FIRST_TS_US // 1000)


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
