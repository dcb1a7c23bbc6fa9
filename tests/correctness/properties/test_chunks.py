"""The same messages, folded in chunks and one by one, have the same rows, verdicts and states."""

from __future__ import annotations

import math
import tempfile
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec
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
from lockstep.model.position import Position
from lockstep.state.changelog import make_state_version
from lockstep.state.local_store_pool import LocalStorePool
from lockstep.state.store import PartitionState
from lockstep.testing.script import InLog
from tests.support.gauge_log import ANY, FAULTS, Source, make_log, process
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
    from collections.abc import Callable, Sequence

    from lockstep_native import ColumnTable


def compile_any(stream: AnyStream) -> CompiledStream:
    return compile_stream(stream)


def find_columns(compiled: CompiledStream, *, native: bool, **limits: int) -> ColumnProgram:
    """Return the column program of a stream, with or without the extension."""
    columns = compiled.columns
    assert columns is not None
    assert columns.make_table is not None or not native
    return replace(columns, **limits) if native else replace(columns, make_table=None, **limits)


def compile_both(name: str, *, native: bool) -> tuple[CompiledStream, CompiledStream]:
    """Return the stream in chunks of any size, and by message."""
    compiled = compile_any(GAUGES[name])
    columns = find_columns(compiled, native=native, messages_min=1, pause_max=0)
    return replace(compiled, columns=columns), replace(compiled, columns=None)


EXAMPLES = max(12, settings().max_examples // 8)
EXAMPLES_DEEP = max(200, settings().max_examples)


def both_come_to_the_same(
    name: str,
    native: bool,  # noqa: FBT001  # passed on
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
    """Producers send them as heartbeats."""
    log = make_log([("a", [])] * 9 + PLAIN, [])
    source, (chunks, singles) = Source(log, [3, 9]), compile_both("changes", native=native)
    came = process(chunks, source, tmp_path / "chunks", [])
    assert came == process(singles, source, tmp_path / "singles", [])


class Panicking:
    """A table of the extension that panics at a call, instead of running it."""

    def __init__(self, table: ColumnTable, method: str, at: int) -> None:
        self._table = table
        self._method = method
        self._left = at

    def __getattr__(self, name: str) -> object:
        """Return the attribute of the table, or panic."""
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
    state = folded._state  # noqa: SLF001  # the store reads these entries
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
    """An emitted row that checks its values."""

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
    """A change without a level is a change to NaN."""

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
    """An emitted row in whose column a text has the wrong type."""

    name: str
    text: Word | None


class Words(ColumnFold[GaugeMessage, str, Gauge, WordChange]):
    fields = Gauges.fields


@pytest.mark.parametrize("transform", [ChangesThatCheck(), Unequal(), Near(), OrNan(), Words()])
def test_types_that_are_more_than_their_fields_have_no_chunks(transform: Any) -> None:
    assert compile_any(make_gauges(transform)).columns is None
