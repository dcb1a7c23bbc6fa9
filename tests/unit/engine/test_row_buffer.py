"""Rows of many ranges are encoded together, with the same result as for each range alone."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.engine.executor.row_buffer import CHUNK_ROWS, FEW_ROWS, MessageOrigin, RowBuffer, encode_few
from lockstep.integrity.base import PartitionTime
from lockstep.model.message_counts import MessageCounts
from lockstep.model.position import Position
from lockstep.table.row_encoder import RowRejected, RowsBuilder
from tests.support.native import needs_extension


class Reading(msgspec.Struct):
    """A row."""

    value: int
    name: str | None = None


BUILDER = RowsBuilder(Reading)
MESSAGES = st.lists(
    st.tuples(
        st.integers(0, 3), st.sampled_from("ab"), st.none() | st.integers(1, 9), st.none() | st.integers(0, 10**9)
    ),
    max_size=30,
)
Messages = Sequence[tuple[int, str, int | None, int | None]]
"""The number of rows, the session, the sequence and the event time of each message."""


def make_buffers(
    ranges: Sequence[Messages], *, behind: int = 0, builder: RowsBuilder = BUILDER, emitted: int = 2
) -> list[RowBuffer]:
    """Return ranges of one partition each; rows are from `behind` offsets before the processed message."""
    buffers = []
    for partition, messages in enumerate(ranges):
        position = Position(topic="readings", topic_id="id", partition=partition, next_offset=100, rows_emitted=emitted)
        buffer = RowBuffer(builder, position, MessageCounts(), PartitionTime(latest_us=10**15))
        for at, (rows, session, sequence, time) in enumerate(messages):
            origin: MessageOrigin = (100 + at, rows, session, sequence, time, 100 + at + behind * (partition % 2))
            buffer.proofs.append(origin)
            buffer.rows += [Reading(1_000 * partition + at, session) for _ in range(rows)]
        buffers.append(buffer)
    return buffers


def describe(buffer: RowBuffer) -> tuple[object, ...]:
    """Return the full result of a range."""
    rows = pa.Table.from_batches(buffer.batches, BUILDER.schema).to_pylist() if buffer.batches else []
    counts = msgspec.to_builtins(buffer._counts)  # noqa: SLF001
    return rows, counts, buffer.rows_written, buffer.event_time_us, buffer.emitted_at(99 + len(rows)), buffer.rows


@given(ranges=st.lists(MESSAGES, max_size=6), behind=st.integers(0, 2))
def test_together_they_are_what_each_would_be_alone(ranges: list[Messages], behind: int) -> None:
    together = make_buffers(ranges, behind=behind)
    alone = make_buffers(ranges, behind=behind)
    encode_few(together)
    for buffer in (*together, *alone):
        buffer.flush()
    assert list(map(describe, together)) == list(map(describe, alone))


ODD: st.SearchStrategy[Messages] = st.lists(
    st.tuples(
        st.sampled_from([1, 1, 1, 1, 0, 2]),
        st.sampled_from(["a", "b", "", "\N{SNOWMAN}", "\ud800"]),
        st.sampled_from([None, 1, 2, 2**63 - 1, 2**63, -(2**63), True]),
        st.sampled_from([None, 0, 5, 10**9, 10**15 + 1, 2**63]),
    ),
    max_size=6,
)


@needs_extension
@given(messages=MESSAGES | ODD, behind=st.integers(0, 1), emitted=st.sampled_from([0, 0, 2]))
def test_the_extension_encodes_what_python_encodes(messages: Messages, behind: int, emitted: int) -> None:
    with_a_row_each = [(1, *each[1:]) for each in messages]
    found = []
    for builder in (BUILDER, RowsBuilder(Reading, native=False)):
        buffers = make_buffers([with_a_row_each, messages], behind=behind, builder=builder, emitted=emitted)
        found.append([_flush(buffer) for buffer in buffers])
    assert found[0] == found[1]


def _flush(buffer: RowBuffer) -> tuple[object, ...]:
    try:
        buffer.flush()
    except Exception as error:  # noqa: BLE001  # compared
        return type(error), str(error)
    return describe(buffer)


def test_many_ranges_with_a_few_rows_are_few_batches() -> None:
    buffers = make_buffers([[(2, "a", 1, 5)]] * CHUNK_ROWS)
    encode_few(buffers)
    assert all(buffer.batches[0].num_rows == 2 and not buffer.rows for buffer in buffers)
    values = [buffer.batches[0].column("value").buffers()[1] for buffer in buffers]
    assert len({value.address for value in values if value is not None}) == 2


def test_a_range_with_many_rows_keeps_them_for_its_own_batch() -> None:
    many, few = make_buffers([[(FEW_ROWS + 1, "a", 1, 5)], [(1, "a", 1, 5)]])
    encode_few([many, few])
    assert (len(many.rows), len(few.rows)) == (FEW_ROWS + 1, 0)


@pytest.mark.parametrize("wrong", [2**63, 1.5, None])
def test_a_value_that_fits_no_column_is_found_in_its_own_range(wrong: object) -> None:
    buffers = make_buffers([[(1, "a", 1, 5)]] * 3)
    buffers[1].rows[0] = Reading(wrong)  # type: ignore[arg-type]  # the fault
    encode_few(buffers)
    with pytest.raises(RowRejected, match=r"readings/1@100 row 2: column value"):
        buffers[1].flush()
    assert buffers[1].rows_written == 0
    for buffer in (buffers[0], buffers[2]):
        buffer.flush()
        assert buffer.rows_written == 1
