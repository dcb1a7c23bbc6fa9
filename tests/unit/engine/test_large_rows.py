"""Rows of any size and number: bounded in memory, split into record batches and batches, and never a verdict."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as some
from typing_extensions import override

from lockstep import Envelope, InitialState, Kind, Record, Stream, Strict, Suspend, Topics, Transform
from lockstep import Sequence as Numbers
from lockstep.engine.executor import row_buffer
from lockstep.engine.executor.compiled_stream import compile_stream
from lockstep.engine.executor.limits import EngineLimit
from lockstep.model.tuning import DEFAULT_TUNING, Tuning
from lockstep.rules import InRange, OnViolation
from lockstep.table import row_encoder
from lockstep.table.row_encoder import PartitionRun, Provenance, RowRejected, RowsBuilder
from lockstep.testing.script import InLog
from tests.support.limited_machine import MACHINE, BatchesInMemory, LogsInMemory
from tests.support.tiers import first_usual

if TYPE_CHECKING:
    from pathlib import Path

    from lockstep.declare.stream import AnyStream

BOTH_WAYS = pytest.mark.parametrize("native", [False, True])


class Inner(msgspec.Struct):
    """A part of a row."""

    text: str
    number: int


class Wide(msgspec.Struct):
    """A row with every kind of column that holds text."""

    text: str
    content: bytes
    number: int
    maybe: str | None
    listed: list[str]
    named: dict[str, str]
    inner: Inner
    deep: list[Inner]


TEXTS = some.text(some.sampled_from("aé€"), max_size=60)
WIDE = some.builds(
    Wide,
    text=TEXTS,
    content=some.binary(max_size=60),
    number=some.integers(0, 9),
    maybe=some.none() | TEXTS,
    listed=some.lists(TEXTS, max_size=3),
    named=some.dictionaries(some.text("ab", max_size=3), TEXTS, max_size=3),
    inner=some.builds(Inner, text=TEXTS, number=some.just(1)),
    deep=some.lists(some.builds(Inner, text=TEXTS, number=some.just(1)), max_size=3),
)


def make_proof(rows: int, session: str = "s") -> Provenance:
    """Return the provenance of rows of two partitions."""
    first = rows // 3
    runs = [PartitionRun("t", "id", 0, first), PartitionRun("u", "id-u", 1, rows - first)]
    offsets = list(range(100, 100 + rows))
    return Provenance(runs, offsets, [0] * rows, [session] * rows, offsets, offsets, offsets)


@BOTH_WAYS
@given(
    rows=some.lists(WIDE, min_size=1, max_size=30),
    bytes_max=some.integers(1, 400),
    rows_max=some.integers(1, 40),
    session=some.text("ab", max_size=50),
)
def test_rows_are_the_same_in_record_batches_of_any_size(
    rows: list[Wide], bytes_max: int, rows_max: int, session: str, *, native: bool
) -> None:
    builder = RowsBuilder(Wide, native=native)
    proof = make_proof(len(rows), session)
    whole = builder.build(rows, proof)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_encoder, "BATCH_BYTES_MAX", bytes_max)
        patch.setattr(row_encoder, "BATCH_ROWS_MAX", rows_max)
        batches = list(builder.encode(rows, proof))
    assert pa.Table.from_batches(batches).to_pylist() == pa.Table.from_batches([whole]).to_pylist()
    for batch in batches:
        assert batch.num_rows <= rows_max
        assert batch.num_rows == 1 or max(map(find_text_bytes, batch.columns)) <= bytes_max


def find_text_bytes(column: pa.Array[Any]) -> int:
    """Return the bytes of plain text in a column, which the bound limits; nested text is measured earlier."""
    if column.type not in {pa.string(), pa.binary()} or (content := column.buffers()[-1]) is None:
        return 0
    return content.size


@BOTH_WAYS
@pytest.mark.parametrize("column", ["listed", "named", "inner", "deep"])
def test_a_value_that_no_column_holds_is_named_with_the_limit(
    monkeypatch: pytest.MonkeyPatch, column: str, *, native: bool
) -> None:
    """Arrow and Parquet hold at most 2 GiB, and Arrow would end the process for more inside a list or a map."""
    monkeypatch.setattr(row_encoder, "BATCH_BYTES_MAX", 500)
    monkeypatch.setattr(row_encoder, "VALUE_BYTES_MAX", 1_000)
    small = Wide("a", b"", 1, None, [], {}, Inner("", 1), [])
    large = {
        "listed": ["x" * 400] * 3,
        "named": {"a": "x" * 600, "b": "x" * 600},
        "inner": Inner("x" * 2_000, 1),
        "deep": [Inner("é" * 300, 1)] * 2,
    }
    rows = [small, small, msgspec.structs.replace(small, **{column: large[column]}), small]
    with pytest.raises(
        RowRejected, match=rf"u/1@102 row 0: column {column} = .* bytes of text, more than the 1000"
    ) as it:
        list(RowsBuilder(Wide, native=native).encode(rows, make_proof(4)))
    assert it.value.origin.position == 2
    assert len(str(it.value)) < 1_000


class Emitting(msgspec.Struct):
    """A message: the number and size of the rows that it emits, and how."""

    seq: int
    rows: int
    size: int
    way: str = "yield"


class Counter(msgspec.Struct):
    """A state with the number of rows."""

    rows: int = 0


class Emitted(msgspec.Struct, weakref=True):
    """A row that counts its instances."""

    number: int
    text: str
    alive: ClassVar[int] = 0
    most: ClassVar[int] = 0


def make_row(number: int, size: int) -> Emitted:
    """Return a row that is counted while it is in memory."""
    row = Emitted(number, "x" * size)
    Emitted.alive += 1
    Emitted.most = max(Emitted.most, Emitted.alive)
    weakref.finalize(row, forget_row)
    return row


def forget_row() -> None:
    """Decrease the count of rows."""
    Emitted.alive -= 1


FAILS_AT = 13
"""The number of rows of a message that fails at its end."""


class Emitter(Transform[Emitting, Counter, Emitted]):
    """A transform that emits the rows that a message requests, for each kind of message."""

    @override
    def envelope(self, message: Emitting, record: Record) -> Envelope:
        kind = Kind.SNAPSHOT if message.seq == 1 else Kind.END if message.way == "end" else Kind.UPDATE
        return Envelope(record.key_text, kind, sequence=message.seq)

    @override
    def on_snapshot(
        self, message: Emitting, record: Record, previous: Counter | None
    ) -> InitialState[Counter, Emitted]:
        state = Counter()
        return InitialState(state, self._rows(state, message))

    @override
    def on_update(self, state: Counter, message: Emitting, record: Record) -> Iterable[Emitted]:
        rows = self._rows(state, message)
        return {"list": list, "tuple": tuple}.get(message.way[:5].rstrip("x"), iter)(rows)

    @override
    def on_end(self, state: Counter) -> Iterator[Emitted]:
        for number in range(state.rows):
            yield make_row(-number, 10)

    def _rows(self, state: Counter, message: Emitting) -> Iterator[Emitted]:
        for _ in range(message.rows):
            state.rows += 1
            yield make_row(state.rows, message.size)
        if message.rows == FAILS_AT:
            raise ZeroDivisionError("at the end")


def emitting(*rules: InRange) -> AnyStream:
    """Return a stream with these rules."""
    stream = Stream(
        name="emitting",
        topics=Topics(pattern="t"),
        transform=Emitter(),
        integrity=Strict(evidence=Numbers(), on_violation=Suspend()),
        rules=rules,
    )
    return cast("AnyStream", stream)


STREAMS = {
    "plain": emitting(),
    "rules": emitting(InRange("number", at_most=10**9, on_violation=OnViolation.QUARANTINE)),
}
MESSAGES = some.lists(
    some.tuples(some.integers(0, 20), some.integers(0, 50), some.sampled_from(["yield", "list", "tuple"])), max_size=15
)


def make_log(messages: Iterable[tuple[int, int, str]]) -> list[InLog]:
    """Return the messages of one session."""
    sent = [Emitting(number, *message) for number, message in enumerate(messages, 1)]
    return [InLog(at, b"s", msgspec.json.encode(message)) for at, message in enumerate(sent)]


def run_tuned(
    stream: AnyStream, logs: dict[str, list[InLog]], root: Path, run_messages: int, tuning: Tuning = DEFAULT_TUNING
) -> BatchesInMemory:
    batches = BatchesInMemory(compile_stream(stream), LogsInMemory(logs, run_messages), root, tuning=tuning)
    batches.run_to_end()
    return batches


@contextmanager
def small_chunks(chunk_rows: int, bytes_max: int) -> Iterator[None]:
    """Limit chunks and record batches to a few rows and bytes."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("row_buffer", "fold", "task"):
            patch.setattr(f"lockstep.engine.executor.{module}.CHUNK_ROWS", chunk_rows)
        patch.setattr(row_encoder, "BATCH_ROWS_MAX", chunk_rows)
        patch.setattr(row_encoder, "BATCH_BYTES_MAX", bytes_max)
        yield


class Sizes(msgspec.Struct):
    """Bounds of a run."""

    run_messages: int
    chunk_rows: int
    bytes_max: int
    rows_bytes: int


@given(
    made=some.dictionaries(some.sampled_from("abc"), MESSAGES, min_size=1),
    rules=some.sampled_from(sorted(STREAMS)),
    sizes=some.builds(
        Sizes, some.integers(1, 20), some.integers(1, 30), some.integers(100, 5_000), some.integers(20_000, 60_000)
    ),
    ends=some.booleans(),
)
def test_ranges_that_end_by_bytes_have_the_rows_of_whole_ones(
    tmp_path_factory: pytest.TempPathFactory,
    made: dict[str, list[tuple[int, int, str]]],
    rules: str,
    sizes: Sizes,
    *,
    ends: bool,
) -> None:
    end = [(0, 0, "end")] if ends else []
    logs = {topic: make_log([*messages, *end] if messages else []) for topic, messages in made.items()}
    root = tmp_path_factory.mktemp("large")
    whole = run_tuned(STREAMS[rules], logs, root / "whole", 1_000)
    tuning = Tuning(spill_bytes=sizes.bytes_max, rows_bytes=sizes.rows_bytes)
    with small_chunks(sizes.chunk_rows, sizes.bytes_max):
        cut = run_tuned(STREAMS[rules], logs, root / "cut", sizes.run_messages, tuning)
    assert cut.rows == whole.rows
    assert cut.totals() == whole.totals()
    assert len(whole.results) <= 1


def test_a_range_ends_by_bytes_at_a_whole_message_without_a_second_fold(tmp_path: Path) -> None:
    logs = {topic: make_log([(10, 100, "yield")] * 30) for topic in "ab"}
    MACHINE.reads = 0
    with small_chunks(10, 10**6):
        cut = run_tuned(emitting(), logs, tmp_path, 7, Tuning(rows_bytes=20_000))
    first, *others = cut.results
    assert len(others) > 1
    assert [result.is_cut for result in cut.results] == [True] * len(others) + [False]
    assert all(item.reached.next_offset > 1 for item in first.ranges)
    assert {item.trouble for item in first.ranges} == {row_buffer.ROWS_FULL}
    assert 2 * len(cut.results) == MACHINE.reads  # one read for each batch, and one read after it
    assert [row["number"] for row in cut.rows["a"]] == list(range(1, 301))


def test_a_range_with_little_is_not_held_up_by_one_with_much(tmp_path: Path) -> None:
    """Each range has its share, even if another range has used more than all shares before it was read."""
    logs = {"a": make_log([(100, 100, "yield")] * 30), "b": make_log([(1, 1, "yield")] * 30)}
    with small_chunks(10, 10**6):
        batches = BatchesInMemory(
            compile_stream(emitting()), LogsInMemory(logs), tmp_path, tuning=Tuning(rows_bytes=40_000)
        )
        batches.run_to_end()
    assert batches.results[0].ranges[1].reached.next_offset == 30


@pytest.mark.parametrize("way", first_usual(1, ["yield", "tuple"]))
@pytest.mark.parametrize("rules", sorted(STREAMS))
def test_of_the_rows_that_one_message_yields_a_bounded_number_is_in_memory(
    tmp_path: Path, way: str, rules: str
) -> None:
    gc.collect()
    Emitted.alive = Emitted.most = 0
    logs = {"a": make_log([(20_000, 10, way), (20_000, 10, way), (0, 0, "end")])}
    batches = run_tuned(STREAMS[rules], logs, tmp_path, 1_000)
    assert len(batches.rows["a"]) == 80_000
    assert Emitted.most <= (3 * row_buffer.CHUNK_ROWS if way == "yield" else 21_000)
    assert batches.totals()["with_rows"] == 3


def test_rows_without_end_are_an_error_of_the_run_that_names_their_message(tmp_path: Path) -> None:
    logs = {"a": make_log([(1, 1, "yield"), (2_000, 1, "list"), (10_000, 100, "yield"), (1, 1, "yield")])}
    with pytest.raises(
        EngineLimit, match=r"a/0@2: a task of this message alone lacks room for the rows of one message"
    ):
        run_tuned(emitting(), logs, tmp_path, 1_000, Tuning(rows_bytes=100_000))


def test_of_a_list_all_rows_are_in_memory_already_and_it_has_no_bound(tmp_path: Path) -> None:
    logs = {"a": make_log([(1, 1, "list"), (10_000, 100, "list"), (1, 1, "list")])}
    batches = run_tuned(emitting(), logs, tmp_path, 1_000, Tuning(rows_bytes=100_000))
    assert len(batches.rows["a"]) == 10_002
    assert batches.totals()["quarantined"] == 0


def test_rows_that_wait_for_others_are_encoded_when_their_messages_are_large(tmp_path: Path) -> None:
    """Many partitions have a few large messages each, and each partition has less than a chunk."""
    logs = {f"t{n}": make_log([(1, 10_000, "list" + "x" * 10_000)] * 3) for n in range(40)}
    gc.collect()
    Emitted.alive = Emitted.most = 0
    batches = run_tuned(emitting(), logs, tmp_path, 1, Tuning(spill_bytes=100_000))
    assert sum(map(len, batches.rows.values())) == 120
    assert Emitted.most <= 12
    assert {result.is_cut for result in batches.results} == {False}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@BOTH_WAYS
def test_more_than_two_gibibytes_of_rows_are_split_and_a_value_of_more_than_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, native: bool
) -> None:
    """With the real limits: five rows of 500 MB exceed Arrow's arrays, and a nested text of 1 GiB ends the process."""
    if not native:
        monkeypatch.setattr(row_encoder, "extension", None)
    half = 500_000_000
    logs = {"a": make_log([(1, 1, "yield"), (5, half, "list"), (1, 1, "yield"), (1, 2 * half + 2**28, "list")])}
    batches = BatchesInMemory(compile_stream(emitting()), LogsInMemory(logs), tmp_path, reads_rows=False)
    batches.run_to_end()
    lengths = [length for file in batches.files for length in read_lengths(tmp_path / "table" / file)]
    assert lengths == [1, *[half] * 5, 1]
    assert batches.totals()["quarantined"] == 1
    (quarantined,) = [file.path for result in batches.results for file in result.quarantine]
    (row,) = pq.read_table(tmp_path / "quarantine" / quarantined).to_pylist()
    found = str(row["found"])
    assert "column text = " in found
    assert "bytes of text, more than the 1073741824 that a column of one row holds" in found
    assert len(found) < 2_000


def read_lengths(file: Path) -> list[int]:
    """Return the lengths of the texts of a file, row group by row group."""
    stored = pq.ParquetFile(file)
    groups = (stored.read_row_group(group, columns=["text"]) for group in range(stored.num_row_groups))
    return [length for group in groups for length in pc.binary_length(group["text"]).to_pylist()]
