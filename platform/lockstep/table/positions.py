"""Positions in the ledger: the row that records a position, and the position that a row records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import msgspec

from lockstep.errors import TableError
from lockstep.integrity.base import EPOCH, to_microseconds
from lockstep.kafka.admin import PartitionOffsets
from lockstep.model.lookup_version import LookupVersion
from lockstep.model.message_counts import MessageCounts
from lockstep.model.position import Position, SegmentRef, TopicIdPartition
from lockstep.model.readable_times import to_event_time
from lockstep.table.ledger import FORGOTTEN, Accepted, LedgerRow

ADDED = "added"
GROWN = "grown"
RETIRED = "retired"
READDED = "re-added"
DELETED = "deleted"
RECREATED_TOPIC = "re-created"
IMPORTED = "imported"
"""Changes of a topic, in the ledger's column `lifecycle`."""
BEGUN_ELSEWHERE = -1
"""Suspends a partition from before offset 0: only sessions that another partition may hold, none of its messages."""
NO_ENDS = PartitionOffsets(start=-1, stable_end=-1, high_watermark=-1)
"""The ends of a partition of which Kafka was not asked."""


class LedgerStamp(msgspec.Struct, frozen=True, kw_only=True):
    """The columns that all ledger rows of a batch share, by their names."""

    generation: int
    batch: int
    epoch: int
    committed_at: datetime
    batch_seconds: float
    restart_cause: str | None
    planned_at: datetime | None = None
    lookups: list[LookupVersion] | None = None


def make_blank_row(stamp: LedgerStamp) -> LedgerRow:
    """Return the row of a new partition that has no name yet: the rows of a batch differ from it by a few columns."""
    return LedgerRow(
        **msgspec.structs.asdict(stamp),
        **MessageCounts().make_columns(),
        topic_id="",
        topic="",
        partition=0,
        start=0,
        until=0,
        stable_end=NO_ENDS.stable_end,
        high_watermark=NO_ENDS.high_watermark,
        rows=0,
        suspended_from=0,
        holes=[],
        leader_epoch=None,
        first_event_time=None,
        last_event_time=None,
        newest_timestamp=None,
        cpu_seconds=0.0,
        state_file=None,
        state_start=None,
        state_length=None,
        state_bytes=0,
    )


def make_position_columns(position: Position) -> dict[str, Any]:
    """Return the columns from which `read_position` reads the position, without those of `make_blank_row`."""
    columns: dict[str, Any] = {
        "topic_id": position.topic_id,
        "topic": position.topic,
        "partition": position.partition,
        "until": position.next_offset,
        "leader_epoch": position.leader_epoch,
        "watermark": to_event_time(position.watermark_us),
        "archived_until": position.archived_until,
    }
    state = position.state
    if state is not None:
        columns["state_file"] = state.file
        columns["state_start"] = state.start
        columns["state_length"] = state.length
    if (
        position.suspended_from
        or position.rows_emitted
        or position.joined_at
        or position.lost_before
        or position.catching_up
        or position.discarded_by
        or position.suspended_sessions
        or position.uncounted_skips
        or position.ending is not None
        or position.gone_since_us is not None
    ):
        # Few positions have any of these columns: the others cost no second dict.
        columns |= _make_rare_columns(position)
    return columns


def _make_rare_columns(position: Position) -> dict[str, Any]:
    ending = position.ending
    return {
        "rows_emitted": position.rows_emitted,
        "suspended_from": position.suspended_from,
        "suspended_sessions": list(position.suspended_sessions),
        "catching_up": position.catching_up,
        "joined_at": position.joined_at,
        "gone_since": to_event_time(position.gone_since_us),
        "ending": ending.how if ending else None,
        "last_end": ending.offset if ending else None,
        "last_end_age_seconds": ending.age_seconds if ending else None,
        "discarded_by": position.discarded_by,
        "uncounted_skips": list(position.uncounted_skips),
        "lost_before": position.lost_before,
    }


def make_unchanged_row(stamp: LedgerStamp, position: Position, ends: PartitionOffsets | None = None) -> LedgerRow:
    """Return the row of a partition of which the batch read nothing: part of a full set of positions."""
    return make_unchanged_row_from(make_blank_row(stamp), position, ends)


def make_unchanged_row_from(blank: LedgerRow, position: Position, ends: PartitionOffsets | None) -> LedgerRow:
    """Return the row of a partition of which the batch read nothing, made of the batch's blank row."""
    columns = make_position_columns(position)
    columns["start"] = position.next_offset
    if ends is not None:
        columns["stable_end"] = ends.stable_end
        columns["high_watermark"] = ends.high_watermark
    return msgspec.structs.replace(blank, **columns)


def make_kept_row(stamp: LedgerStamp, position: Position, *, retired: bool) -> LedgerRow:
    """Return the row of a partition that is not read."""
    return make_kept_row_from(make_blank_row(stamp), position, retired=retired)


def make_kept_row_from(blank: LedgerRow, position: Position, *, retired: bool) -> LedgerRow:
    """Return the row of a partition that is not read, made of the batch's blank row."""
    return msgspec.structs.replace(make_unchanged_row_from(blank, position, None), retired=retired)


def read_position(row: LedgerRow) -> Position:
    """The position that a ledger row records."""
    segment = None
    if row.state_file is not None and row.state_start is not None and row.state_length is not None:
        segment = SegmentRef(file=row.state_file, start=row.state_start, length=row.state_length)
    watermark_us = None
    if row.watermark is not None:
        watermark_us = to_microseconds(row.watermark - EPOCH)
    gone_since_us = None
    if row.gone_since is not None:
        gone_since_us = to_microseconds(row.gone_since - EPOCH)
    return Position(
        topic=row.topic,
        topic_id=row.topic_id,
        partition=row.partition,
        next_offset=row.until,
        leader_epoch=row.leader_epoch,
        state=segment,
        suspended_from=row.suspended_from,
        watermark_us=watermark_us,
        rows_emitted=row.rows_emitted,
        suspended_sessions=tuple(row.suspended_sessions),
        catching_up=row.catching_up,
        joined_at=row.joined_at,
        gone_since_us=gone_since_us,
        ending=row.find_ending(),
        discarded_by=row.discarded_by,
        uncounted_skips=tuple(row.uncounted_skips),
        lost_before=row.lost_before,
        archived_until=row.archived_until,
    )


def advance_positions(
    reached: Mapping[TopicIdPartition, int], rows: Iterable[LedgerRow]
) -> dict[TopicIdPartition, int]:
    """The next offsets after a batch. In a generation a position never goes back.

    A rewind starts a generation; a re-created topic, a reset and an import have new keys. An accepted truncation keeps
    the position. A forgotten topic has no position: another topic of its name may follow.

    Args:
        reached: Next offset of each partition before the batch.
        rows: Ledger rows of the batch.

    Raises:
        TableError: A position would go back, or two partitions have one key.
    """
    after: dict[TopicIdPartition, int] = {}
    for row in rows:
        key = row.key
        position = reached.get(key, 0)
        if key in after:
            raise TableError(f"the batch has two positions of {_describe_place(row)}", next_step=_GONE_BACK)
        # Rewinds start a generation, and re-created topics, resets and imports have new keys.
        if not position <= row.start <= row.until:
            moved = f"from {position} to {row.start}, and the batch ends at {row.until}"
            raise TableError(f"the position of {_describe_place(row)} would go {moved}", next_step=_GONE_BACK)
        after[key] = 0 if row.lifecycle == FORGOTTEN else row.until
    return after


def _describe_place(row: LedgerRow) -> str:
    return f"{row.topic}/{row.partition} (topic id {row.topic_id})"


_GONE_BACK = "nothing was committed: prove the table (lockstep verify STREAM), and report this"


def make_retirement_note(next_offset: int, who: str, why: str) -> Accepted:
    """The ledger entry of a retirement."""
    return Accepted(kind="retire", cause="", start=next_offset, until=next_offset, session=None, who=who, why=why)


def find_retired_topics(rows: Iterable[LedgerRow]) -> frozenset[str]:
    """Return the names of topics of which every id that was read is retired."""
    listed = tuple(rows)
    return frozenset(row.topic for row in listed if row.retired) - {row.topic for row in listed if not row.retired}
