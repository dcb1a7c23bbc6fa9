"""A stream on a machine whose capacity limits the messages of each read, and its batches in memory."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pyarrow.parquet as pq
from typing_extensions import override

from lockstep import Envelope, Kind, Record, Stream, Strict, Topics, Transform
from lockstep import Sequence as Numbers
from lockstep.decoders import Function
from lockstep.engine.executor.compiled_stream import CompiledStream, compile_stream
from lockstep.engine.executor.task import run_bin
from lockstep.engine.protocol import BatchIdentity, JobSpec, PlannedRange, TaskResult, TaskSpec
from lockstep.integrity.base import IntegrityClass
from lockstep.kafka.reader import MessageRun, Range
from lockstep.model.message_counts import MessageCounts
from lockstep.model.position import Position
from lockstep.model.tuning import DEFAULT_TUNING, Tuning
from lockstep.native import extension
from lockstep.testing.batches import LogInMemory
from lockstep.testing.script import InLog

if TYPE_CHECKING:
    from confluent_kafka import Message

    from lockstep.declare.stream import AnyStream


class Declared(msgspec.Struct):
    """The declaration of a table without columns, as the extension reads it."""

    message: list[object] = []
    tag_field: str = ""
    tag: str = ""
    session: str | None = None
    sequence: str = ""
    time: str | None = None
    rows: str = ""
    row: tuple[tuple[str, str, bool], ...] = (("k", "int", True),)
    key: str = "k"
    columns: list[str] = []
    message_forbids_unknown: bool = True
    row_forbids_unknown: bool = True
    message_bytes_max: int = 9
    emits_unchanged: bool = True


def make_panic() -> BaseException:
    """Make a panic of pyo3 with our extension, or an imitation if the extension is not installed."""
    if extension is None:
        return cast("BaseException", type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})("boom"))
    table = extension.ColumnTable(Declared())
    try:
        table.change((1,), 9)
    except BaseException as error:  # noqa: BLE001  # it is not an Exception
        return error
    raise AssertionError("a table without columns is changed")


HOOKS = ("decode", "envelope", "on_snapshot", "on_update", "on_end")
BATCHES_MAX = 500


@dataclass
class Machine:
    """A machine with limited resources for the stream's hooks; each read starts with full capacity.

    Attributes:
        capacity: Number of uses before an error is raised.
        hook: The hook whose calls count as uses.
        error: Makes the error of a use beyond the capacity.
        used: Uses so far.
        reads: Number of reads so far.
        act: Called at each use.
        on_renewal: Called at the start of a read.
    """

    capacity: int = 10**9
    hook: str = "on_update"
    error: Callable[[], BaseException] = MemoryError
    used: int = 0
    reads: int = 0
    act: Callable[[], None] | None = None
    on_renewal: Callable[[], None] | None = None

    def call(self, hook: str) -> None:
        """Count a use if this is the counted hook."""
        if hook != self.hook:
            return
        self.used += 1
        if self.used > self.capacity:
            raise self.error()
        if self.act is not None:
            self.act()

    def renew(self) -> None:
        """Start a read."""
        self.used = 0
        self.reads += 1
        if self.on_renewal is not None:
            self.on_renewal()


MACHINE = Machine()
"""The machine of this process: a transform is pickled to executors, and cannot hold it."""


class Reading(msgspec.Struct):
    """A message: the first of a session is its snapshot, a message without a value its end."""

    seq: int
    value: int | None


class Meter(msgspec.Struct):
    """The state of a session."""

    total: int


class Total(msgspec.Struct):
    """A row."""

    seq: int
    total: int


def decode_reading(value: bytes) -> Reading:
    """Decode a message."""
    MACHINE.call("decode")
    return msgspec.json.decode(value, type=Reading)


class Metering(Transform[Reading, Meter, Total]):
    """Sums the values; emits a row for each update, and a row at the end."""

    @override
    def envelope(self, message: Reading, record: Record) -> Envelope:
        MACHINE.call("envelope")
        kind = Kind.SNAPSHOT if message.seq == 1 else Kind.END if message.value is None else Kind.UPDATE
        return Envelope(record.key_text, kind, sequence=message.seq)

    @override
    def on_snapshot(self, message: Reading, record: Record, previous: Meter | None) -> Meter:
        MACHINE.call("on_snapshot")
        return Meter(message.value or 0)

    @override
    def on_update(self, state: Meter, message: Reading, record: Record) -> list[Total]:
        MACHINE.call("on_update")
        state.total += message.value or 0
        return [Total(message.seq, state.total)]

    @override
    def on_end(self, state: Meter) -> list[Total]:
        MACHINE.call("on_end")
        return [Total(-1, state.total)]


def metering(integrity: IntegrityClass | None = None) -> AnyStream:
    """Return the stream; the default class is Strict by Sequence."""
    stream = Stream(
        name="metering",
        topics=Topics(pattern="t"),
        decoder=Function(decode_reading),
        transform=Metering(),
        integrity=integrity or Strict(evidence=Numbers()),
    )
    return cast("AnyStream", stream)


def make_log(values: Sequence[int | None]) -> list[InLog]:
    """Make the messages of a partition: one session; a last message without a value is its end."""
    return [
        InLog(at, b"s", msgspec.json.encode(Reading(at + 1, value if at else value or 0)))
        for at, value in enumerate(values)
    ]


@dataclass
class LogsInMemory(LogInMemory):
    """The log of each topic, read in runs of some messages."""

    logs: Mapping[str, Sequence[InLog]]
    run_messages: int = 1_000
    machine: Machine = field(default_factory=lambda: MACHINE)

    def read(self, ranges: Sequence[Range]) -> Iterator[MessageRun]:
        """Read all ranges in turns."""
        self.machine.renew()
        at = [wanted.start for wanted in ranges]
        while any(start < wanted.until for start, wanted in zip(at, ranges, strict=True)):
            for index, wanted in enumerate(ranges):
                until = min(wanted.until, at[index] + self.run_messages)
                if at[index] < until:
                    messages = cast("list[Message]", self.logs[wanted.topic][at[index] : until])
                    at[index] = until
                    yield MessageRun(index, messages, [], until)


@dataclass
class BatchesInMemory:
    """The batches of a stream over logs in memory.

    Attributes:
        results: Result of each batch so far.
        rows: Committed rows of each topic so far.
        positions: Position of each topic.
        tuning: Sizes of a task.
        reads_rows: Whether `rows` is filled.
        files: Files of rows so far.
    """

    compiled: CompiledStream
    log: LogsInMemory
    root: Path
    results: list[TaskResult] = field(default_factory=list[TaskResult])
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict[str, list[dict[str, Any]]])
    positions: dict[str, Position] = field(default_factory=dict[str, Position])
    tuning: Tuning = DEFAULT_TUNING
    reads_rows: bool = True
    files: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        """Start each log at offset 0."""
        for topic in sorted(self.log.logs):
            self.positions[topic] = Position(topic=topic, topic_id=f"id-{topic}", partition=0, next_offset=0)
            self.rows[topic] = []

    @property
    def job(self) -> JobSpec:
        """The common specification of all tasks."""
        return JobSpec(
            stream=b"",
            kafka={},
            table=self.root / "table",
            quarantine=self.root / "quarantine",
            late=self.root / "late",
            archive=self.root / "archive",
            state=self.root / "state",
            local_root=self.root / "hot",
            tuning=self.tuning,
        )

    def totals(self) -> dict[str, int]:
        """Count messages by outcome, over all batches."""
        counts = [msgspec.structs.asdict(item.counts) for result in self.results for item in result.ranges]
        return {name: sum(each[name] for each in counts) for name in MessageCounts.__struct_fields__}

    def run_to_end(self, messages_max: int = 10**9) -> None:
        """Run batches until all is read or a batch has a finding."""
        while waiting := [item for item in self.positions.values() if item.next_offset < self._end(item)]:
            ranges = tuple(
                PlannedRange(item, min(self._end(item), item.next_offset + messages_max)) for item in waiting
            )
            result = self.run_batch(ranges)
            if any(item.finding for item in result.ranges):
                return
            assert any(item.reached.next_offset > item.range.position.next_offset for item in result.ranges)
            assert len(self.results) < BATCHES_MAX

    def run_batch(self, ranges: tuple[PlannedRange, ...]) -> TaskResult:
        """Run one batch and commit it."""
        number = len(self.results) + 1
        batch = BatchIdentity(
            generation=1, epoch=1, number=number, commit_hour="2026-01-01T00", planned_at_us=2 * 10**15
        )
        result = run_bin(self.job, TaskSpec(batch, ranges), self.compiled, self.log)
        self.log.machine.renew()
        self.results.append(result)
        self.files += [file.path for file in result.files]
        for file in result.files if self.reads_rows else ():
            for row in pq.read_table(self.root / "table" / file.path, use_threads=False).to_pylist():
                self.rows[row["_topic"]].append(row)
        for item in result.ranges:
            self.positions[item.reached.topic] = item.reached
        return result

    def _end(self, position: Position) -> int:
        return len(self.log.logs[position.topic])


def run_batches(
    stream: AnyStream, logs: Mapping[str, Sequence[InLog]], *, run_messages: int = 1_000, messages_max: int = 10**9
) -> BatchesInMemory:
    """Run all batches of a stream over logs."""
    with tempfile.TemporaryDirectory(prefix="lockstep-limits-") as root:
        batches = BatchesInMemory(compile_stream(stream), LogsInMemory(logs, run_messages), Path(root))
        batches.run_to_end(messages_max)
        return batches
