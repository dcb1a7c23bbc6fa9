"""Kafka timestamps that no clock can have shown: counted, left out of freshness, and read like others."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.engine.driver.subscription import make_ledger_row
from lockstep.engine.executor.compiled_stream import compile_stream
from lockstep.engine.executor.task import TIMESTAMPS_STEP, run_bin
from lockstep.engine.protocol import BatchIdentity, JobSpec, PlannedRange, TaskSpec
from lockstep.kafka.reader import MessageRun, Range
from lockstep.kafka.timestamps import FIRST_TIMESTAMP_MS, NO_TIMESTAMP_MS
from lockstep.model.position import Position
from lockstep.operations.inspect.partition_figures import find_age_seconds
from lockstep.table.positions import NO_ENDS, LedgerStamp
from lockstep.testing.batches import LogInMemory
from lockstep.testing.script import InLog
from tests.support.adding_stream import adding

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from confluent_kafka import Message

    from lockstep import Stream
    from lockstep.engine.protocol import RangeResult
    from lockstep.table.ledger import LedgerRow

PLANNED = datetime(2026, 1, 1, 12, tzinfo=UTC)
PLANNED_MS = int(PLANNED.timestamp() * 1000)
LATEST_MS = PLANNED_MS + 3_600_000
"""An hour later: the default of `EventTime.max_skew`."""
STAMP = LedgerStamp(
    generation=1, batch=1, epoch=1, committed_at=PLANNED, batch_seconds=0.0, restart_cause=None, planned_at=PLANNED
)
COMPILED = compile_stream(cast("Stream[object, object, msgspec.Struct]", adding("a")))
SECONDS = PLANNED_MS // 1000
"""Seconds instead of milliseconds."""
NANOSECONDS = PLANNED_MS * 1_000_000

TIMESTAMPS = st.one_of(
    st.integers(FIRST_TIMESTAMP_MS, LATEST_MS),
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([NO_TIMESTAMP_MS, 0, 1, SECONDS, NANOSECONDS, 2**63 - 1, -(2**63), LATEST_MS, LATEST_MS + 1]),
    st.sampled_from([FIRST_TIMESTAMP_MS, FIRST_TIMESTAMP_MS - 1]),
)


class InReads(LogInMemory):
    """A log that is read in pieces."""

    def __init__(self, times_ms: Sequence[int], cuts: Sequence[int]) -> None:
        self._log = [InLog(at, b"s", value_at(at), time_ms) for at, time_ms in enumerate(times_ms)]
        self._cuts = sorted({0, len(times_ms), *(cut for cut in cuts if cut < len(times_ms))})

    def read(self, ranges: Sequence[Range]) -> Iterator[MessageRun]:
        """Yield the messages, in one read for each piece."""
        del ranges
        for first, until in zip(self._cuts, self._cuts[1:], strict=False):
            yield MessageRun(0, cast("list[Message]", self._log[first:until]), [], until)


def value_at(at: int) -> bytes:
    body = {"type": "update" if at else "snapshot", "seq": at, "values": {"a": 1}}
    return msgspec.json.encode(body)


def read(times_ms: Sequence[int], cuts: Sequence[int] = ()) -> RangeResult:
    batch = BatchIdentity(generation=1, epoch=1, number=1, commit_hour="2026-01-01T12", planned_at_us=PLANNED_MS * 1000)
    position = Position(topic="a", topic_id="id-a", partition=0, next_offset=0)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        job = JobSpec(
            stream=b"",
            kafka={},
            table=root / "table",
            quarantine=root / "quarantine",
            late=root / "late",
            archive=root / "archive",
            state=root / "state",
            local_root=root / "hot",
        )
        task = TaskSpec(batch, (PlannedRange(position, len(times_ms)),))
        return run_bin(job, task, COMPILED, InReads(times_ms, cuts)).ranges[0]


def row_of(times_ms: Sequence[int], cuts: Sequence[int] = ()) -> LedgerRow:
    return make_ledger_row(STAMP, read(times_ms, cuts), NO_ENDS)


def is_plausible(time_ms: int) -> bool:
    return FIRST_TIMESTAMP_MS <= time_ms <= LATEST_MS


def is_absurd(time_ms: int) -> bool:
    return time_ms != NO_TIMESTAMP_MS and not is_plausible(time_ms)


@given(times_ms=st.lists(TIMESTAMPS, min_size=1, max_size=20), cuts=st.lists(st.integers(1, 19), max_size=3))
def test_the_newest_timestamp_is_that_of_the_last_message_with_a_plausible_one(
    times_ms: list[int], cuts: list[int]
) -> None:
    row = row_of(times_ms, cuts)
    newest_ms = next((each for each in reversed(times_ms) if is_plausible(each)), None)
    expected = None if newest_ms is None else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=newest_ms)
    assert row.newest_timestamp == expected
    assert 0 <= row.absurd_timestamps <= sum(map(is_absurd, times_ms))
    if is_absurd(times_ms[-1]):
        last_read = times_ms[max([0, *(cut for cut in cuts if cut < len(times_ms))]) :]
        assert row.absurd_timestamps >= sum(map(is_absurd, last_read))


@pytest.mark.parametrize("absurd", [0, SECONDS, NANOSECONDS, -(2**63)])
def test_every_message_of_a_producer_with_a_wrong_clock_is_counted(absurd: int) -> None:
    times_ms = [absurd if at % 2 else PLANNED_MS + at for at in range(4 * TIMESTAMPS_STEP)]
    row = row_of(times_ms, range(0, len(times_ms), TIMESTAMPS_STEP))
    assert (row.absurd_timestamps, row.messages) == (len(times_ms) // 2, len(times_ms))
    assert row.newest_timestamp == PLANNED + timedelta(milliseconds=times_ms[-2] - PLANNED_MS)


def test_messages_without_a_timestamp_are_not_counted() -> None:
    row = row_of([NO_TIMESTAMP_MS] * 3)
    assert (row.absurd_timestamps, row.newest_timestamp) == (0, None)


@given(time_ms=TIMESTAMPS)
def test_the_age_of_an_unread_message_is_unknown_if_its_timestamp_is_absurd(time_ms: int) -> None:
    age = find_age_seconds(time_ms, PLANNED_MS, timedelta(hours=1))
    assert age == (max(0, PLANNED_MS - time_ms) / 1000 if is_plausible(time_ms) else None)
