"""The ledger rows of a resumption: each partition continues at its position, and an added partition starts empty."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from lockstep.engine.driver.resumption import ResumeDecision, make_accepted_rows
from lockstep.integrity.resume_options import AcceptGrowth
from lockstep.model.fault import Fault
from lockstep.model.finding import Finding
from lockstep.model.position import Position, SegmentRef
from lockstep.operations.resume import NotHalted
from lockstep.table.positions import LedgerStamp, make_unchanged_row, read_position

AT = datetime(2026, 1, 1, 12, tzinfo=UTC)
STAMP = LedgerStamp(generation=1, batch=8, epoch=2, committed_at=AT, batch_seconds=0.0, restart_cause=None)
READ = Position(
    topic="a",
    topic_id="id",
    partition=0,
    next_offset=500,
    leader_epoch=4,
    state=SegmentRef("file", 1, 2),
    suspended_from=3,
    watermark_us=1_700_000_000_000_000,
    rows_emitted=3,
    joined_at=77,
)


def test_a_partition_that_was_added_takes_nothing_over_from_the_others() -> None:
    before = replace(make_unchanged_row(STAMP, READ, None), newest_timestamp=AT)
    added = replace(READ, partition=1, next_offset=0)
    found = Finding.at(added, Fault.PARTITIONS_ADDED)
    decision = ResumeDecision(stream="x", findings=(found,), accepted=(AcceptGrowth("a"),), who="me", why="wanted")
    rows = make_accepted_rows(STAMP, {READ.key: before}, decision)
    assert [read_position(row) for row in rows] == [
        READ,
        Position(topic="a", topic_id="id", partition=1, next_offset=0),
    ]
    assert [row.newest_timestamp for row in rows] == [AT, None]
    assert [row.lifecycle for row in rows] == [None, "grown"]


@pytest.mark.parametrize(
    ("desired", "step"),
    [
        ("running", "nothing is to be resumed: lockstep status books"),
        ("bounded", "lockstep start books"),
        ("stopped", "lockstep start books"),
        ("held", "lockstep start books"),
    ],
)
def test_what_is_not_halted_is_started_or_looked_at(desired: str, step: str) -> None:
    assert NotHalted("books", desired).next_step == step
