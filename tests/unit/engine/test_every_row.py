"""Ledger rows of a batch are copies of a blank row: each has exactly the columns of its partition."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.engine.driver.subscription import make_ledger_rows
from lockstep.engine.protocol import PlannedRange, RangeResult
from lockstep.kafka.admin import PartitionOffsets
from lockstep.model.finding import Hole
from lockstep.model.message_counts import MessageCounts
from lockstep.model.position import Ending, Position, SegmentRef, SuspendedSession, TopicIdPartition
from lockstep.model.readable_times import to_event_time
from lockstep.table.ledger import REPEATED_ROWS_MIN, LedgerRow, read_ledger_file, write_ledger
from lockstep.table.positions import LedgerStamp, read_position

STAMP = LedgerStamp(
    generation=1, batch=3, epoch=2, committed_at=datetime(2026, 1, 1, tzinfo=UTC), batch_seconds=0.5, restart_cause=None
)
COUNTS = st.integers(0, 3)
NUMBERS = st.tuples(*[COUNTS] * len(MessageCounts.__struct_fields__))
TIMES_US = st.none() | st.sampled_from([-(10**18), 0, 1, 1_767_225_600_000_001, 10**18])
SEGMENTS = st.builds(SegmentRef, st.sampled_from(["a.state", "b.state"]), COUNTS, COUNTS)
ENDINGS = st.builds(Ending, st.sampled_from(["deleted", "re-created"]), st.none() | COUNTS, st.none() | st.just(0.5))
SESSIONS = st.lists(st.builds(SuspendedSession, st.sampled_from(["x", "y"]), COUNTS), max_size=2).map(tuple)


@st.composite
def positions(draw: st.DrawFn, number: int) -> Position:
    """Draw a position with any of the rare columns."""
    return Position(
        topic=f"t{number}",
        topic_id=f"id-{number}",
        partition=draw(COUNTS),
        next_offset=draw(COUNTS),
        leader_epoch=draw(st.none() | COUNTS),
        state=draw(st.none() | SEGMENTS),
        suspended_from=draw(COUNTS),
        watermark_us=draw(st.none() | st.integers(0, 10)),
        rows_emitted=draw(COUNTS),
        suspended_sessions=draw(SESSIONS),
        catching_up=draw(st.booleans()),
        joined_at=draw(COUNTS),
        gone_since_us=draw(st.none() | st.integers(0, 10)),
        ending=draw(st.none() | ENDINGS),
        discarded_by=draw(st.sampled_from(["", "recreated"])),
        uncounted_skips=draw(st.sampled_from([(), ("x",), ("x", "y")])),
        lost_before=draw(COUNTS),
    )


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[RangeResult], list[Position], dict[TopicIdPartition, PartitionOffsets]]:
    """Draw results, quiet positions, and the ends of some partitions."""
    worked = [draw(positions(number)) for number in range(draw(st.integers(0, 4)))]
    quiet = [draw(positions(number)) for number in range(10, 10 + draw(st.integers(0, 3)))]
    results = []
    for reached in worked:
        before = msgspec.structs.replace(reached, next_offset=0)
        holes = draw(st.lists(st.just(Hole(start=0, until=1, cause="compacted")), max_size=1))
        result = RangeResult(
            range=PlannedRange(before, reached.next_offset),
            reached=reached,
            counts=MessageCounts(*draw(NUMBERS)),
            rows=draw(COUNTS),
            holes=tuple(holes),
            first_event_time_us=draw(TIMES_US),
            last_event_time_us=draw(TIMES_US),
            newest_timestamp_ms=draw(st.none() | COUNTS),
            state_bytes=draw(COUNTS),
            cpu_seconds=draw(st.sampled_from([0.0, 0.25])),
            state_checksum=draw(st.none() | COUNTS),
        )
        results.append(result)
    known = [each.key for each in (*worked, *quiet)]
    ends = {key: PartitionOffsets(0, draw(COUNTS), draw(COUNTS), 0) for key in known if draw(st.booleans())}
    return results, quiet, ends


def read_counts(row: LedgerRow) -> MessageCounts:
    names = [name for name in MessageCounts.__struct_fields__ if name != "refused"]
    return MessageCounts(**{name: getattr(row, name) for name in names})


@given(batches())
def test_each_row_has_the_columns_of_its_partition(
    batch: tuple[list[RangeResult], list[Position], dict[TopicIdPartition, PartitionOffsets]],
) -> None:
    results, quiet, ends = batch
    rows = make_ledger_rows(STAMP, results, quiet, ends)
    expected = [result.reached for result in results] + quiet
    assert [read_position(row) for row in rows] == expected
    for row in rows:
        seen = ends.get(row.key)
        assert (row.stable_end, row.high_watermark) == (
            (-1, -1) if seen is None else (seen.stable_end, seen.high_watermark)
        )
        assert {name: getattr(row, name) for name in STAMP.__struct_fields__} == msgspec.structs.asdict(STAMP)
    for row, result in zip(rows, results, strict=False):
        assert read_counts(row) == msgspec.structs.replace(result.counts, refused=0)
        assert (row.rows, row.holes, row.start) == (result.rows, list(result.holes), 0)
        assert (row.state_bytes, row.state_checksum) == (result.state_bytes, result.state_checksum)
        assert row.first_event_time == to_event_time(result.first_event_time_us)
        assert row.last_event_time == to_event_time(result.last_event_time_us)
        newest_ms = result.newest_timestamp_ms
        assert row.newest_timestamp == (to_event_time(newest_ms * 1000) if newest_ms else None)
    for row in rows[len(results) :]:
        assert (read_counts(row), row.rows, row.start) == (MessageCounts(), 0, row.until)


@settings(deadline=None, max_examples=30)
@given(batches())
def test_a_file_of_many_rows_holds_the_values_of_each(
    batch: tuple[list[RangeResult], list[Position], dict[TopicIdPartition, PartitionOffsets]],
) -> None:
    rows = make_ledger_rows(STAMP, batch[0], batch[1], batch[2])
    with TemporaryDirectory() as folder:
        for written in (rows, rows * (REPEATED_ROWS_MIN + 1)):
            path = write_ledger(Path(folder), written).path
            assert read_ledger_file(Path(folder), path) == sorted(written, key=lambda row: row.topic)
