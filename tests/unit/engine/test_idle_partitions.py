"""Partitions without messages, whose watermarks follow the clock."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from lockstep import EventTime
from lockstep.engine.driver.idle_partitions import IdlePartitions
from lockstep.kafka.admin import PartitionOffsets
from lockstep.model.position import Position

SECOND = 1_000_000
NOW_US = 1_700_000_000 * SECOND
READ = Position(topic="t", topic_id="id", partition=0, next_offset=5, watermark_us=4 * SECOND)
ENDS = {READ.key: PartitionOffsets(start=0, stable_end=5, high_watermark=5)}


def advance(idle: IdlePartitions, position: Position, clock: float) -> Position:
    """Return the position after a batch at a time of both clocks."""
    ends = {READ.key: msgspec.structs.replace(ENDS[READ.key], high_watermark=position.next_offset)}
    moved = idle.advance_watermarks({READ.key: position}, ends, NOW_US + int(clock) * SECOND, clock)
    return msgspec.structs.replace(position, watermark_us=moved.get(READ.key, position.watermark_us))


def test_the_watermark_of_a_partition_without_messages_follows_the_clock() -> None:
    idle = IdlePartitions(EventTime(idle_advance=timedelta(seconds=10)))
    assert advance(idle, READ, 0.0) == READ
    moved = advance(idle, READ, 10.0)
    assert moved.watermark_us == NOW_US
    newer = msgspec.structs.replace(moved, next_offset=6)
    assert advance(idle, newer, 11.0) == newer
    assert advance(idle, newer, 21.0).watermark_us == NOW_US + 11 * SECOND


def test_a_partition_that_is_retired_leaves_nothing_behind() -> None:
    """It uses no memory in a long run, and its time restarts when it is read again."""
    idle = IdlePartitions(EventTime(idle_advance=timedelta(seconds=10)))
    advance(idle, READ, 0.0)
    assert idle.advance_watermarks({}, {}, NOW_US, 9.0) == {}
    assert advance(idle, READ, 10.0) == READ
    assert advance(idle, READ, 20.0).watermark_us == NOW_US + 10 * SECOND
