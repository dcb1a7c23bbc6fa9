"""Whatever comes: messages folded in chunks, and the same ones by one, give the same rows, verdicts and states."""

from __future__ import annotations

import math
import tempfile
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UnsetType
from msgspec.structs import replace

from lockstep import ColumnFold
from lockstep.declare.stream import AnyStream
from lockstep.engine.executor.column_program import ColumnProgram
from lockstep.engine.executor.compiled_stream import CompiledStream, compile_stream
from lockstep.engine.executor.fold import RangeFold
from lockstep.engine.executor.task import run_bin
from lockstep.engine.protocol import BatchIdentity, JobSpec, PlannedRange, TaskResult, TaskSpec
from lockstep.kafka.reader import MessageRun, Range
from lockstep.model.position import Position
from lockstep.state.changelog import make_state_version
from lockstep.state.local_store_pool import LocalStorePool
from lockstep.state.store import PartitionState
from lockstep.testing.script import InLog
from tests.support.gauges import (
    GAUGES,
    End,
    Gauge,
    GaugeChange,
    Gauges,
    OwnEnvelope,
    Part,
    Snapshot,
    make_gauges,
)
from tests.support.gauges import (
    Message as GaugeMessage,
)
from tests.support.limited_machine import make_panic
from tests.support.native import BOTH_WAYS, needs_extension

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from confluent_kafka import Message
    from lockstep_native import ColumnTable

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
    """The messages of three sessions, each begun by a snapshot."""

    log: list[InLog] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)

    def begin(self, session: str) -> None:
        row = {"text": "a", "level": 1.5, "count": 0, "is_open": True}
        self.send(session, {"type": "snapshot", "rows": [{"name": name, **row} for name in "xyz"]})

    def send(self, session: str, message: dict[str, object], step: int = 1) -> None:
        number = self.numbers[session] = self.numbers.get(session, 0) + step
        self.append(session, msgspec.json.encode({"number": number, "at": 1_000 * len(self.log), **message}))

    def append(self, session: str, value: bytes | None) -> None:
        self.log.append(InLog(len(self.log), session.encode(), value))

    def update(self, session: str, rows: Sequence[dict[str, object]], step: int = 1) -> None:
        self.send(session, {"type": "update", "rows": rows}, step)

    def disturb(self, session: str, fault: str) -> None:  # noqa: C901, PLR0912  # one branch a fault
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
        return b'{"type":"update","number":%d,"at":5,%b}' % (number, rows)


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
            at, sizes = wanted.start, list(self.sizes)
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
    """All that a task leaves, batch by batch: its result, rows, rejected messages and states."""
    position, came = Position(topic="gauges.a", topic_id="id", partition=0, next_offset=0), list[object]()
    job = JobSpec(
        stream=b"",
        kafka={},
        table=folder,
        quarantine=folder,
        late=folder,
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
    # The state file names a random id, so its bytes vary.
    return replace(of_range, range=before, reached=reached, cpu_seconds=0.0, state_bytes=0, state_checksum=None)


def _read(folder: Path, result: TaskResult) -> Iterator[object]:
    for path in (*(file.path for file in result.files), *(file.path for file in result.quarantine)):
        table: pa.Table = pq.read_table(folder / path)
        times = [n for n, column in enumerate(table.schema) if pa.types.is_timestamp(column.type)]
        for n in times:  # as numbers: some are beyond any date
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


def compile_any(stream: AnyStream) -> CompiledStream:
    return compile_stream(stream)


def find_columns(compiled: CompiledStream, *, native: bool, **limits: int) -> ColumnProgram:
    """The program of a stream, with the extension or without it."""
    columns = compiled.columns
    assert columns is not None
    assert columns.make_table is not None or not native
    return replace(columns, **limits) if native else replace(columns, make_table=None, **limits)


def compile_both(name: str, *, native: bool) -> tuple[CompiledStream, CompiledStream]:
    """The stream in chunks, however small, and by message."""
    compiled = compile_any(GAUGES[name])
    columns = find_columns(compiled, native=native, messages_min=1, pause_max=0)
    return replace(compiled, columns=columns), replace(compiled, columns=None)


EXAMPLES, EXAMPLES_DEEP = max(12, settings().max_examples // 8), max(200, settings().max_examples)


ANY = {
    "steps": STEPS,
    "faults": DISTURBED,
    "sizes": st.lists(st.integers(1, 20), max_size=8),
    "splits": st.lists(st.integers(1, 40), max_size=2).map(sorted),
}


def both_come_to_the_same(
    name: str,
    native: bool,  # noqa: FBT001  # handed on
    steps: list[tuple[str, list[dict[str, object]]]],
    faults: list[tuple[int, str]],
    sizes: list[int],
    splits: list[int],
) -> None:
    source, (chunks, singles) = Source(make_log(steps, faults), sizes), compile_both(name, native=native)
    with tempfile.TemporaryDirectory(prefix="lockstep-chunks-") as root:
        came = process(chunks, source, Path(root) / "chunks", splits)
        assert process(singles, source, Path(root) / "singles", splits) == came


@pytest.mark.parametrize("native", BOTH_WAYS)
@pytest.mark.parametrize("name", GAUGES)
@settings(max_examples=EXAMPLES)
@given(made=st.fixed_dictionaries(ANY))
def test_chunks_and_messages_one_by_one_come_to_the_same(name: str, *, native: bool, made: dict[str, Any]) -> None:
    both_come_to_the_same(name, native, **made)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("native", BOTH_WAYS)
@pytest.mark.parametrize("name", GAUGES)
@settings(max_examples=EXAMPLES_DEEP)
@given(made=st.fixed_dictionaries(ANY))
def test_many_more_chunks_and_messages_one_by_one_come_to_the_same(
    name: str, *, native: bool, made: dict[str, Any]
) -> None:
    both_come_to_the_same(name, native, **made)


PLAIN: list[tuple[str, list[dict[str, object]]]] = [
    (session, [{"name": name, "level": level}]) for level in (2.5, 3.5, 4.5) for session in "abc" for name in "xyz"
]


@pytest.mark.parametrize("native", BOTH_WAYS)
@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_in_the_middle_of_a_chunk_comes_to_the_same(fault: str, *, native: bool, tmp_path: Path) -> None:
    source, (chunks, singles) = Source(make_log(PLAIN, [(13, fault)]), [3]), compile_both("changes", native=native)
    assert process(singles, source, tmp_path / "a", []) == process(chunks, source, tmp_path / "b", [])


@pytest.mark.parametrize("native", BOTH_WAYS)
def test_a_chunk_of_updates_without_rows_comes_to_the_same(*, native: bool, tmp_path: Path) -> None:
    """Producers send them to show that they live."""
    log = make_log([("a", [])] * 9 + PLAIN, [])
    source, (chunks, singles) = Source(log, [3, 9]), compile_both("changes", native=native)
    came = process(chunks, source, tmp_path / "chunks", [])
    assert came == process(singles, source, tmp_path / "singles", [])


class Panicking:
    """A table of the extension that panics at a call, and leaves what it was about to do undone."""

    def __init__(self, table: ColumnTable, method: str, at: int) -> None:
        self._table, self._method, self._left = table, method, at

    def __getattr__(self, name: str) -> object:
        """The table's own method, or a panic."""
        if name == self._method:
            self._left -= 1
            if self._left == 0:
                raise make_panic()
        return getattr(self._table, name)


@needs_extension
@settings(max_examples=EXAMPLES)
@given(
    made=st.fixed_dictionaries(ANY),
    name=st.sampled_from(sorted(GAUGES)),
    method=st.sampled_from(["read", "follow", "missing", "add", "change", "sequences", "take_changed"]),
    at=st.integers(1, 4),
)
def test_a_panic_of_the_extension_changes_no_row_and_ends_no_range(
    name: str, method: str, at: int, made: dict[str, Any]
) -> None:
    source = Source(make_log(made["steps"], made["faults"]), made["sizes"])
    chunks, singles = compile_both(name, native=True)
    columns = chunks.columns
    assert columns is not None
    make_table = columns.make_table
    assert make_table is not None
    panicking: Callable[[], ColumnTable] = lambda: cast("ColumnTable", Panicking(make_table(), method, at))  # noqa: E731  # typed
    broken = replace(chunks, columns=replace(columns, make_table=panicking))
    with tempfile.TemporaryDirectory(prefix="lockstep-chunks-") as root:
        came = process(broken, source, Path(root) / "broken", made["splits"])
        assert process(singles, source, Path(root) / "singles", made["splits"]) == came


def fold(compiled: CompiledStream, log: list[InLog], tmp_path: Path, sizes: Sequence[int]) -> RangeFold:
    position = Position(topic="gauges.a", topic_id="id", partition=0, next_offset=0)
    state: PartitionState[object] = PartitionState.open(
        make_state_version(1, position),
        durable=tmp_path / "state",
        local_stores=LocalStorePool(tmp_path / "hot", tmp_path / "state"),
        schema=compiled.state,
    )
    folded = RangeFold(compiled, position, state)
    at = 0
    for size in sizes:
        folded.fold(log[at : at + size])
        at += size
    return folded


@pytest.mark.parametrize("native", BOTH_WAYS)
def test_plain_chunks_are_folded_at_once_and_others_are_tried_less_often(*, native: bool, tmp_path: Path) -> None:
    compiled = compile_any(GAUGES["changes"])
    chunks = replace(compiled, columns=find_columns(compiled, native=native, messages_min=1, pause_max=4))
    log = make_log(PLAIN * 3, [])
    folded = fold(chunks, log, tmp_path / "plain", [3, *[9] * 9])
    assert folded.chunks is not None
    assert folded.chunks.folded == 9
    begun = make_log([("a", [{"name": "x", "level": 0.5}])] * 30, [(at, "snapshot") for at in range(30)])
    disturbed = fold(chunks, begun, tmp_path / "others", [3, *[2] * 30])
    assert disturbed.chunks is not None
    assert disturbed.chunks.folded < 9


@pytest.mark.parametrize("native", BOTH_WAYS)
def test_rows_that_were_changed_at_once_are_in_the_states_before_anybody_reads_them(
    *, native: bool, tmp_path: Path
) -> None:
    chunks, _ = compile_both("changes", native=native)
    folded = fold(chunks, make_log(PLAIN, []), tmp_path, [3, 27])
    state = folded._state  # noqa: SLF001  # the entries are what the store reads
    assert folded.chunks is not None
    assert folded.chunks.folded == 1
    before = cast("dict[str, Gauge]", state.entries["a"].state)["x"].level
    state.spill()
    entry = state.load("a")
    assert entry is not None
    assert (before, cast("dict[str, Gauge]", entry.state)["x"].level) == (1.5, 4.5)


def test_a_stream_that_suspends_or_overrides_a_hook_has_no_chunks(tmp_path: Path) -> None:
    compiled = compile_any(make_gauges(Gauges(), suspends=True))
    columns = replace(cast("ColumnProgram", compiled.columns), messages_min=1)
    folded = fold(replace(compiled, columns=columns), make_log(PLAIN, []), tmp_path, [3, 27])
    assert folded.chunks is not None
    assert folded.chunks.folded == 0
    assert compile_any(make_gauges(OwnEnvelope())).columns is None


class CheckedChange(GaugeChange, frozen=True):
    """An emitted row that looks at its values."""

    def __post_init__(self) -> None:
        if self.level is not None and self.level < 0:
            raise ValueError(f"level is {self.level}")


class UnequalGauge(Gauge, frozen=True, eq=False):
    """Equal to itself only."""


class NearGauge(Gauge, frozen=True):
    """Equal to its neighbours."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NearGauge) and abs(other.level - self.level) < 1

    __hash__ = None  # type: ignore[assignment]  # not needed


class PartOrNan(Part):
    """A change without a level is one to NaN."""

    level: float | UnsetType = math.nan


class UpdateOrNan(msgspec.Struct, tag="update"):
    """Changes rows."""

    number: int
    at: int
    rows: list[PartOrNan]


class ChangesThatCheck(ColumnFold[GaugeMessage, str, Gauge, CheckedChange]):
    fields = Gauges.fields


class Unequal(ColumnFold[GaugeMessage, str, UnequalGauge, GaugeChange]):
    fields = Gauges.fields


class Near(ColumnFold[GaugeMessage, str, NearGauge, GaugeChange]):
    fields = Gauges.fields


class OrNan(ColumnFold[Snapshot | UpdateOrNan | End, str, Gauge, GaugeChange]):
    fields = Gauges.fields


class Word(Enum):
    """The texts of an emitted row."""

    A = "a"
    B = "b"


class WordChange(msgspec.Struct, frozen=True):
    """An emitted row, for whose column a text is of the wrong type."""

    name: str
    text: Word | None


class Words(ColumnFold[GaugeMessage, str, Gauge, WordChange]):
    fields = Gauges.fields


@pytest.mark.parametrize("transform", [ChangesThatCheck(), Unequal(), Near(), OrNan(), Words()])
def test_types_that_are_more_than_their_fields_have_no_chunks(transform: Any) -> None:
    assert compile_any(make_gauges(transform)).columns is None
