"""Logs of gauges with faults, and all results of a task over a log."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st
from msgspec.structs import replace

from lockstep.engine.executor.compiled_stream import CompiledStream
from lockstep.engine.executor.task import run_bin
from lockstep.engine.protocol import BatchIdentity, JobSpec, PlannedRange, TaskResult, TaskSpec
from lockstep.kafka.reader import MessageRun, Range
from lockstep.model.position import Position
from lockstep.state.changelog import make_state_version
from lockstep.state.local_store_pool import LocalStorePool
from lockstep.state.store import PartitionState
from lockstep.testing.script import InLog

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from confluent_kafka import Message

    from lockstep.model.finding import Hole

LATEST_US = 10**15
VALUES: dict[str, list[object]] = {
    "text": ["a", "b", "a long text \N{SNOWMAN}", ""],
    "level": [0, -0.0, 1.5, 1.5, -2.25, 1e300],
    "count": [0, 1, -7, 2**62],
    "isOpen": [True, False],
}
FAULTS = [
    "gap",
    "repeat",
    "back",
    "garbage",
    "null",
    "wrong type",
    "new row",
    "snapshot",
    "end",
    "unknown",
    "surrogate",
]
FAULTS += [
    "large number",
    "large value",
    "absurd time",
    "no rows",
    "partly new row",
    "unreadable key",
    "no key",
    "no type",
]


@dataclass
class Producer:
    """The messages of three sessions, each opened by a snapshot."""

    log: list[InLog] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)

    def begin(self, session: str) -> None:
        row = {"text": "a", "level": 1.5, "count": 0, "is_open": True}
        self.send(session, {"type": "snapshot", "rows": [{"name": name, **row} for name in "xyz"]})

    def send(self, session: str, message: dict[str, object], step: int = 1) -> None:
        number = self.numbers[session] = self.numbers.get(session, 0) + step
        self.append(
            session, msgspec.json.encode({"session": session, "number": number, "at": 1_000 * len(self.log), **message})
        )

    def append(self, session: str, value: bytes | None) -> None:
        self.log.append(InLog(len(self.log), session.encode(), value))

    def update(self, session: str, rows: Sequence[dict[str, object]], step: int = 1) -> None:
        self.send(session, {"type": "update", "rows": rows}, step)

    def disturb(self, session: str, fault: str) -> None:  # noqa: C901, PLR0912  # one branch for each fault
        row: dict[str, object] = {"name": "x", "level": 3.5}
        match fault:
            case "gap" | "repeat" | "back":
                self.update(session, [row], {"gap": 2, "repeat": 0, "back": -1}[fault])
            case "garbage":
                self.append(session, b"{")
            case "null":
                self.append(session, None)
            case "wrong type":
                self.update(session, [{"name": "x", "level": None}])
            case "new row":
                self.update(session, [row, {"name": "w", "text": "", "level": 0, "count": 1, "isOpen": False}])
            case "partly new row":
                self.update(session, [row, {"name": "v", "text": "new"}])
            case "snapshot":
                self.begin(session)
            case "end":
                self.send(session, {"type": "end"})
                self.numbers[session] = 0
            case "unknown":
                self.update("d", [row])
            case "surrogate":
                self.append(session, self._raw(session, rb'"rows":[{"name":"x","text":"\ud800"}]'))
            case "large number":
                self.update(session, [{"name": "x", "count": 2**63}])
            case "large value":
                self.update(session, [{"name": "x", "text": "x" * 2_000_000}])
            case "absurd time":
                self.send(session, {"type": "update", "rows": [row], "at": 10**18})
            case "no rows":
                self.update(session, [])
            case "unreadable key":
                self.log.append(InLog(len(self.log), b"\xff", self._raw(session, b'"rows":[]')))
            case "no key":
                self.log.append(InLog(len(self.log), None, self._raw(session, b'"rows":[]')))
            case _:
                self.send(session, {"rows": [row]})

    def _raw(self, session: str, rows: bytes) -> bytes:
        number = self.numbers[session] = self.numbers[session] + 1
        return b'{"type":"update","session":"%b","number":%d,"at":5,%b}' % (session.encode(), number, rows)


ROWS = st.fixed_dictionaries(
    {"name": st.sampled_from("xyz")}, optional={name: st.sampled_from(values) for name, values in VALUES.items()}
)
STEPS = st.lists(st.tuples(st.sampled_from("abc"), st.lists(ROWS, max_size=3)), min_size=1, max_size=40)
DISTURBED = st.lists(st.tuples(st.integers(0, 40), st.sampled_from(FAULTS)), max_size=3)


def make_log(steps: list[tuple[str, list[dict[str, object]]]], faults: list[tuple[int, str]]) -> list[InLog]:
    producer = Producer()
    for session in "abc":
        producer.begin(session)
    for number, (session, rows) in enumerate(steps):
        for at, fault in faults:
            if at == number:
                producer.disturb(session, fault)
        producer.update(session, rows)
    return producer.log


@dataclass
class Source:
    """A log in memory, read in pieces."""

    log: list[InLog]
    sizes: list[int]

    def read(self, ranges: Sequence[Range]) -> Iterator[MessageRun]:
        for index, wanted in enumerate(ranges):
            at = wanted.start
            sizes = list(self.sizes)
            while at < wanted.until:
                until = min(wanted.until, at + (sizes.pop(0) if sizes else len(self.log)))
                yield MessageRun(index, cast("list[Message]", self.log[at:until]), [], until)
                at = until

    def ahead(self, beyond: Range) -> Iterator[MessageRun]:
        return self.read([beyond])

    def readable_again(self, corrupt: Range) -> int | None:
        return corrupt.start

    def explain(self, planned: PlannedRange, gaps: Sequence[tuple[int, int]]) -> list[Hole]:
        del planned, gaps
        return []


def process(compiled: CompiledStream, source: Source, folder: Path, splits: list[int]) -> list[object]:
    """Return all results of tasks, batch by batch: task result, rows, rejected messages and states."""
    position = Position(topic="gauges.a", topic_id="id", partition=0, next_offset=0)
    came = list[object]()
    job = JobSpec(
        stream=b"",
        kafka={},
        table=folder,
        quarantine=folder,
        late=folder,
        archive=folder,
        state=folder / "state",
        local_root=folder / "hot",
    )
    for number, split in enumerate([*splits, len(source.log)]):
        until = min(split, len(source.log))
        if until <= position.next_offset:
            continue
        batch = BatchIdentity(
            generation=1, epoch=1, number=number, commit_hour="2026-01-01T00", planned_at_us=LATEST_US
        )
        task = TaskSpec(batch, (PlannedRange(position, until),))
        result = run_bin(job, task, compiled, source)
        position = result.ranges[0].reached
        came += [_comparable(result), *_read(folder, result), _states(compiled, job, position)]
        if result.ranges[0].finding is not None:
            break
    return came


def _comparable(result: TaskResult) -> object:
    (of_range,) = result.ranges
    reached = replace(of_range.reached, state=None)
    before = replace(of_range.range, position=replace(of_range.range.position, state=None))
    # The state file contains a random id, so its bytes vary.
    return replace(of_range, range=before, reached=reached, cpu_seconds=0.0, state_bytes=0, state_checksum=None)


def _read(folder: Path, result: TaskResult) -> Iterator[object]:
    for path in (*(file.path for file in result.files), *(file.path for file in result.quarantine)):
        table: pa.Table = pq.read_table(folder / path)
        times = [n for n, column in enumerate(table.schema) if pa.types.is_timestamp(column.type)]
        for n in times:  # as numbers: some exceed the range of dates
            table = table.set_column(n, table.schema.names[n], table.column(n).cast(pa.int64()))
        yield {name: list(map(repr, column)) for name, column in table.to_pydict().items()}  # -0.0 is not 0.0


def _states(compiled: CompiledStream, job: JobSpec, position: Position) -> dict[str, bytes | None]:
    version = make_state_version(1, position)
    opened = PartitionState.open(
        version, durable=job.state, local_stores=LocalStorePool(job.local_root, job.state), schema=compiled.state
    )
    with opened as state:
        loaded = {session: state.load(session) for session in ("a", "b", "c", "d", "")}
        return {session: None if entry is None else entry.stored for session, entry in loaded.items()}


ANY = {
    "steps": STEPS,
    "faults": DISTURBED,
    "sizes": st.lists(st.integers(1, 20), max_size=8),
    "splits": st.lists(st.integers(1, 40), max_size=2).map(sorted),
}
