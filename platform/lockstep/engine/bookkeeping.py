"""From facts to ledger rows and from ledger rows to positions. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from lockstep.engine.facts import RangeFacts, event_time
from lockstep.engine.plan import Position
from lockstep.integrity.finding import Hole
from lockstep.integrity.time import EPOCH, microseconds
from lockstep.kafka.audit import Key
from lockstep.kafka.discovery import ClusterView, Ends, Topic
from lockstep.state.address import SectionRef
from lockstep.table.ledger import Accepted, LedgerRow

_NOTHING_READ: Final[dict[str, Any]] = dict.fromkeys(
    (
        *("messages", "rows", "with_rows", "accepted_without_row", "skipped", "repeats", "gaps"),
        *("dropped", "quarantined", "state_bytes"),
    ),
    0,
)
NO_ENDS = Ends(start=-1, stable_end=-1, high_watermark=-1)


class BatchIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What all ledger rows of a batch share."""

    generation: int
    batch: int
    epoch: int
    committed_at: datetime
    batch_seconds: float
    restart_cause: str | None
    planned_at_us: int | None = None


def ledger_row(identity: BatchIdentity, facts: RangeFacts, ends: Ends | None) -> LedgerRow:
    """The row of a partition that was worked on."""
    quiet = quiet_row(identity, msgspec.structs.replace(facts.range.position, state=facts.state), ends)
    counts = facts.counts
    return msgspec.structs.replace(
        quiet,
        until=facts.until,
        messages=counts.messages,
        rows=facts.rows,
        accepted_without_row=counts.without_rows,
        skipped=counts.skipped,
        repeats=counts.repeats,
        gaps=counts.gaps,
        dropped=counts.dropped,
        quarantined=counts.quarantined,
        with_rows=counts.with_rows,
        buffered=counts.buffered,
        released=counts.released,
        late=counts.late,
        timer_rows=counts.timer_rows,
        watermark=event_time(facts.watermark_us),
        rows_emitted=facts.rows_emitted,
        accepted=_accepted(facts),
        suspended_from=facts.suspended_from,
        suspended_sessions=list(facts.suspended_sessions),
        catching_up=quiet.catching_up and facts.until == quiet.start,
        holes=list(facts.holes),
        leader_epoch=facts.leader_epoch if facts.leader_epoch is not None else quiet.leader_epoch,
        first_event_time=event_time(facts.first_event_time_us),
        last_event_time=event_time(facts.last_event_time_us),
        newest_timestamp=event_time(facts.newest_timestamp_ms * 1000 if facts.newest_timestamp_ms else None),
        cpu_seconds=facts.cpu_seconds,
        state_bytes=facts.state_bytes,
    )


def ledger_rows(
    identity: BatchIdentity, facts: Iterable[RangeFacts], quiet: Iterable[Position], ends: Mapping[Key, Ends]
) -> list[LedgerRow]:
    """The rows of the partitions that were worked on, and of those that stay where they are."""
    worked = [ledger_row(identity, item, ends.get(item.range.position.key)) for item in facts]
    return worked + [quiet_row(identity, position, ends.get(position.key)) for position in quiet]


def carried(identity: BatchIdentity, row: LedgerRow) -> LedgerRow:
    """The row that carries the position of a partition that is not subscribed any more."""
    quiet = quiet_row(identity, position_of(row), None)
    return msgspec.structs.replace(quiet, retired=row.retired)


def with_lost(row: LedgerRow, lost: Hole | None) -> LedgerRow:
    """The row with offsets in front of it that were gone before they were read."""
    return row if lost is None else msgspec.structs.replace(row, start=lost.start, holes=[lost, *row.holes])


def quiet_row(identity: BatchIdentity, position: Position, ends: Ends | None) -> LedgerRow:
    """The row of a partition that stays where it is: part of a full set of positions."""
    seen = ends or NO_ENDS
    return LedgerRow(
        generation=identity.generation,
        batch=identity.batch,
        epoch=identity.epoch,
        committed_at=identity.committed_at,
        topic_id=position.topic_id,
        topic=position.topic,
        partition=position.partition,
        start=position.next_offset,
        until=position.next_offset,
        stable_end=seen.stable_end,
        high_watermark=seen.high_watermark,
        **_NOTHING_READ,
        suspended_from=position.suspended_from,
        watermark=event_time(position.watermark_us),
        rows_emitted=position.rows_emitted,
        planned_at=event_time(identity.planned_at_us),
        suspended_sessions=list(position.suspended_sessions),
        catching_up=position.catching_up,
        holes=[],
        leader_epoch=position.leader_epoch,
        first_event_time=None,
        last_event_time=None,
        newest_timestamp=None,
        batch_seconds=identity.batch_seconds,
        cpu_seconds=0.0,
        restart_cause=identity.restart_cause,
        state_file=position.state.file if position.state else None,
        state_start=position.state.start if position.state else None,
        state_length=position.state.length if position.state else None,
    )


def advanced(position: Position, facts: RangeFacts) -> Position:
    """The position after a batch."""
    return msgspec.structs.replace(
        position,
        next_offset=facts.until,
        state=facts.state,
        leader_epoch=facts.leader_epoch if facts.leader_epoch is not None else position.leader_epoch,
        suspended_from=facts.suspended_from,
        watermark_us=facts.watermark_us,
        rows_emitted=facts.rows_emitted,
        suspended_sessions=facts.suspended_sessions,
        catching_up=position.catching_up and facts.until == position.next_offset,
    )


def position_of(row: LedgerRow) -> Position:
    """The position that a ledger row leaves."""
    section = None
    if row.state_file is not None and row.state_start is not None and row.state_length is not None:
        section = SectionRef(file=row.state_file, start=row.state_start, length=row.state_length)
    return Position(
        topic=row.topic,
        topic_id=row.topic_id,
        partition=row.partition,
        next_offset=row.until,
        leader_epoch=row.leader_epoch,
        state=section,
        suspended_from=row.suspended_from,
        watermark_us=None if row.watermark is None else microseconds(row.watermark - EPOCH),
        rows_emitted=row.rows_emitted,
        suspended_sessions=tuple(row.suspended_sessions),
        catching_up=row.catching_up,
    )


def subscribed(known: Mapping[Key, LedgerRow], view: ClusterView) -> dict[Key, Position]:
    """Positions of all partitions of the view's topics: from the ledger, new ones from their first offset.

    A new topic is taken whole or, while one of its partitions has no leader and so no first
    offset, by a later run: taken in part, it would look grown as soon as the leader is back. A
    topic that did grow is not taken further here: the audit finds it, and the class decides.
    """
    found: dict[Key, Position] = {}
    begun = {topic_id for topic_id, _ in known}
    for topic in view.topics.values():
        keys = [(topic.topic_id, partition) for partition in range(topic.partitions)]
        whole = topic.topic_id not in begun and all(key in view.ends for key in keys)
        for key in keys:
            if key in known:
                position = position_of(known[key])
                found[key] = msgspec.structs.replace(position, is_only=topic.partitions == 1)
            elif whole:
                found[key] = first_position(topic, key, view.ends[key])
    return found


def first_position(topic: Topic, key: Key, ends: Ends) -> Position:
    """Where a partition is read from that was never read: its first offset."""
    topic_id, partition = key
    return Position(
        topic=topic.name,
        topic_id=topic_id,
        partition=partition,
        next_offset=ends.start,
        is_only=topic.partitions == 1,
    )


def _accepted(facts: RangeFacts) -> list[Accepted]:
    """The losses that the declaration accepts, as the ledger tells them."""
    who, why = "the declaration", "Suspend(accept_loss=True)"
    return [
        Accepted(
            kind="accept-loss",
            cause="suspended",
            start=each.start,
            until=each.until,
            session=each.session,
            who=who,
            why=why,
        )
        for each in facts.accepted
    ]


def lag_messages(positions: Iterable[Position], ends: Mapping[Key, Ends]) -> int:
    """Offsets between the positions and the high watermarks."""
    return sum(max(0, ends[p.key].high_watermark - p.next_offset) for p in positions if p.key in ends)
