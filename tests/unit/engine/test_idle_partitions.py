"""Partitions without messages, whose watermarks follow the clock."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from lockstep import EventTime
from lockstep.engine.driver.clocks import IdlePartitions
from lockstep.kafka.admin import PartitionOffsets
from lockstep.model.position import Position

SECOND = 1_000_000
NOW_US = 1_700_000_000 * SECOND
READ = Position(topic="t", topic_id="id", partition=0, next_offset=5, watermark_us=4 * SECOND)
ENDS = {READ.key: PartitionOffsets(start=0, stable_end=5, high_watermark=5)}


def advance(idle: IdlePartitions, position: Position, clock: float) -> Position:
    """What a batch makes of a position at a time of both clocks."""
    ends = {READ.key: msgspec.structs.replace(ENDS[READ.key], high_watermark=position.next_offset)}
    moved = idle.advance_watermarks({READ.key: position}, ends, NOW_US + int(clock) * SECOND, clock)
    return msgspec.structs.replace(position, watermark_us=moved.get(READ.key, position.watermark_us))


def test_a_partition_is_behind_until_the_watermark_of_its_last_message_has_followed_the_clock() -> None:
    idle = IdlePartitions(EventTime(idle_advance=timedelta(seconds=10)))
    assert advance(idle, READ, 0.0) == READ
    assert idle.is_behind(READ)
    moved = advance(idle, READ, 10.0)
    assert moved.watermark_us == NOW_US
    assert (idle.is_behind(READ), idle.is_behind(moved)) == (True, False)
    newer = msgspec.structs.replace(moved, next_offset=6)
    assert advance(idle, newer, 11.0) == newer
    assert idle.is_behind(newer)
    assert not idle.is_behind(advance(idle, newer, 21.0))


def test_nothing_is_behind_without_a_watermark_or_where_none_follows_the_clock() -> None:
    idle = IdlePartitions(EventTime(idle_advance=timedelta(seconds=10)))
    assert not idle.is_behind(msgspec.structs.replace(READ, watermark_us=None))
    assert not IdlePartitions(EventTime()).is_behind(READ)


def test_a_partition_that_is_retired_leaves_nothing_behind() -> None:
    """Read again, its time begins anew; until then it is no part of a long run."""
    idle = IdlePartitions(EventTime(idle_advance=timedelta(seconds=10)))
    advance(idle, READ, 0.0)
    moved = advance(idle, READ, 10.0)
    assert not idle.is_behind(moved)
    assert idle.advance_watermarks({}, {}, NOW_US, 20.0) == {}
    assert idle.is_behind(moved)
    assert advance(idle, moved, 30.0) == moved
    assert not idle.is_behind(advance(idle, moved, 40.0))
