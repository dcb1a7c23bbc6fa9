"""Partitions of a run; converts results to ledger rows and ledger rows to positions."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from lockstep.engine.driver.planner import BatchPlan
from lockstep.engine.protocol import LearnedRates, RangeResult, TaskResult, to_event_time
from lockstep.integrity.base import EPOCH, to_microseconds
from lockstep.kafka.admin import ClusterView, PartitionOffsets, Topic
from lockstep.kafka.audit import EXPIRED, GONE, GREW, RECREATED, TRUNCATED
from lockstep.kafka.progress import compute_headroom_seconds, compute_lag_messages
from lockstep.model.finding import Finding, Hole
from lockstep.model.position import Key, Position, SegmentRef
from lockstep.table.ledger import Accepted, LedgerRow

_NOTHING_READ: Final[dict[str, Any]] = dict.fromkeys(
    (
        *("messages", "rows", "with_rows", "accepted_without_row", "skipped", "repeats", "gaps"),
        *("dropped", "quarantined", "state_bytes"),
    ),
    0,
)
NO_ENDS = PartitionOffsets(start=-1, stable_end=-1, high_watermark=-1)


class LedgerStamp(msgspec.Struct, frozen=True, kw_only=True):
    """Fields that all ledger rows of a batch share."""

    generation: int
    batch: int
    epoch: int
    committed_at: datetime
    batch_seconds: float
    restart_cause: str | None
    planned_at_us: int | None = None


def make_ledger_row(stamp: LedgerStamp, facts: RangeResult, ends: PartitionOffsets | None) -> LedgerRow:
    """The row of a partition that was processed."""
    counts = facts.counts
    return msgspec.structs.replace(
        make_unchanged_row(stamp, facts.reached, ends),
        start=facts.range.position.next_offset,
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
        accepted=_accepted(facts),
        holes=list(facts.holes),
        first_event_time=to_event_time(facts.first_event_time_us),
        last_event_time=to_event_time(facts.last_event_time_us),
        newest_timestamp=to_event_time(facts.newest_timestamp_ms * 1000 if facts.newest_timestamp_ms else None),
        cpu_seconds=facts.cpu_seconds,
        state_bytes=facts.state_bytes,
    )


def make_ledger_rows(
    stamp: LedgerStamp,
    facts: Iterable[RangeResult],
    quiet: Iterable[Position],
    ends: Mapping[Key, PartitionOffsets],
) -> list[LedgerRow]:
    """The rows of all partitions, processed or unchanged."""
    worked = [make_ledger_row(stamp, item, ends.get(item.range.position.key)) for item in facts]
    return worked + [make_unchanged_row(stamp, position, ends.get(position.key)) for position in quiet]


def make_retired_row(stamp: LedgerStamp, row: LedgerRow) -> LedgerRow:
    """The row that carries the position of a partition that is no longer subscribed."""
    quiet = make_unchanged_row(stamp, read_position(row), None)
    return msgspec.structs.replace(quiet, retired=row.retired)


def with_expired_range(row: LedgerRow, lost: Hole | None) -> LedgerRow:
    """The row of offsets that expired before they were read."""
    return row if lost is None else msgspec.structs.replace(row, start=lost.start, holes=[lost, *row.holes])


def with_newest_timestamp(row: LedgerRow, before_ms: int | None) -> LedgerRow:
    """The row with the timestamp of an earlier batch, where its own range has none: freshness outlives quiet times."""
    if row.newest_timestamp is not None or before_ms is None:
        return row
    return msgspec.structs.replace(row, newest_timestamp=to_event_time(before_ms * 1000))


def make_unchanged_row(stamp: LedgerStamp, position: Position, ends: PartitionOffsets | None) -> LedgerRow:
    """The row of an unchanged partition: part of a full set of positions."""
    seen = ends or NO_ENDS
    return LedgerRow(
        generation=stamp.generation,
        batch=stamp.batch,
        epoch=stamp.epoch,
        committed_at=stamp.committed_at,
        topic_id=position.topic_id,
        topic=position.topic,
        partition=position.partition,
        start=position.next_offset,
        until=position.next_offset,
        stable_end=seen.stable_end,
        high_watermark=seen.high_watermark,
        **_NOTHING_READ,
        suspended_from=position.suspended_from,
        watermark=to_event_time(position.watermark_us),
        rows_emitted=position.rows_emitted,
        planned_at=to_event_time(stamp.planned_at_us),
        suspended_sessions=list(position.suspended_sessions),
        catching_up=position.catching_up,
        holes=[],
        leader_epoch=position.leader_epoch,
        first_event_time=None,
        last_event_time=None,
        newest_timestamp=None,
        batch_seconds=stamp.batch_seconds,
        cpu_seconds=0.0,
        restart_cause=stamp.restart_cause,
        state_file=position.state.file if position.state else None,
        state_start=position.state.start if position.state else None,
        state_length=position.state.length if position.state else None,
    )


def read_position(row: LedgerRow) -> Position:
    """The position that a ledger row records."""
    section = None
    if row.state_file is not None and row.state_start is not None and row.state_length is not None:
        section = SegmentRef(file=row.state_file, start=row.state_start, length=row.state_length)
    return Position(
        topic=row.topic,
        topic_id=row.topic_id,
        partition=row.partition,
        next_offset=row.until,
        leader_epoch=row.leader_epoch,
        state=section,
        suspended_from=row.suspended_from,
        watermark_us=None if row.watermark is None else to_microseconds(row.watermark - EPOCH),
        rows_emitted=row.rows_emitted,
        suspended_sessions=tuple(row.suspended_sessions),
        catching_up=row.catching_up,
    )


def find_initial_positions(known: Mapping[Key, LedgerRow], view: ClusterView) -> dict[Key, Position]:
    """Positions of all partitions of the view's topics: from the ledger, new ones from their first offset.

    A new topic is taken whole or, while one of its partitions has no leader and so no first
    offset, by a later run: taken in part, it would look grown as soon as the leader is back. A
    grown topic is not extended here: the audit finds it, and the class decides.
    """
    found: dict[Key, Position] = {}
    begun = {topic_id for topic_id, _ in known}
    for topic in view.topics.values():
        keys = [(topic.topic_id, partition) for partition in range(topic.partitions)]
        whole = topic.topic_id not in begun and all(key in view.ends for key in keys)
        for key in keys:
            if key in known:
                position = read_position(known[key])
                found[key] = msgspec.structs.replace(position, is_only=topic.partitions == 1)
            elif whole:
                found[key] = find_first_position(topic, key, view.ends[key])
    return found


def find_first_position(topic: Topic, key: Key, ends: PartitionOffsets) -> Position:
    """Start of a partition that was never read: its first offset."""
    topic_id, partition = key
    return Position(
        topic=topic.name,
        topic_id=topic_id,
        partition=partition,
        next_offset=ends.start,
        is_only=topic.partitions == 1,
    )


def _accepted(facts: RangeResult) -> list[Accepted]:
    """The losses that the declaration accepts, as ledger entries."""
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


LOG = logging.getLogger("lockstep")

FORGET_RATIO = 0.3
"""Weight of the newest batch in the moving averages: the third batch after a change of load decides."""

BEGUN_ELSEWHERE = -1
"""Suspends a partition from before offset 0: no session of its own, only sessions that began in another one."""

TELLING_MESSAGES, TELLING_BYTES = 1_000, 32_000
"""Below these sizes, cost and bytes per message are mostly the fixed costs of a task and of a file."""


class Subscription:
    """The partitions that a run reads, and those whose position it only carries in the ledger.

    Attributes:
        positions: Position of each partition that is read.
        is_new: Some partitions are not in the ledger yet.
        is_unsaved: An accepted change concerns partitions that the next batch may not read: commit all rows.
    """

    def __init__(self, known: Mapping[Key, LedgerRow], view: ClusterView, selected: frozenset[str]) -> None:
        """Start from the ledger.

        Args:
            known: Newest ledger row of every partition ever read.
            view: Kafka's topics of the stream now.
            selected: Names of topics in the ledger that the stream's pattern still selects.
        """
        self.positions = find_initial_positions(known, view)
        self.is_unsaved = False
        self.is_new = not self.positions.keys() <= known.keys()
        self._others = {key: row for key, row in known.items() if key not in self.positions}
        self._gone = {
            key: read_position(row) for key, row in self._others.items() if row.topic in selected and not row.retired
        }
        self._bins: dict[Key, int] = {}
        self._seconds: dict[Key, float] = {}
        self._bytes: dict[Key, float] = {}
        self._lost: dict[Key, Hole] = {}
        self._told: set[Key] = set()
        self._newest_ms = {
            key: int(row.newest_timestamp.timestamp() * 1000)
            for key, row in known.items()
            if row.newest_timestamp is not None
        }

    @property
    def known(self) -> dict[Key, Position]:
        """Partitions that an audit compares with Kafka: those that are read, and those that are gone."""
        return self._gone | self.positions

    @property
    def learned(self) -> LearnedRates:
        """Measurements of each partition by the batches of this run."""
        return LearnedRates(seconds_a_message=self._seconds, bytes_a_message=self._bytes, bins_before=self._bins)

    def has_reached(self, ends: Mapping[Key, int]) -> bool:
        """Whether all partitions have reached these offsets."""
        return all(p.next_offset >= ends.get(key, p.next_offset) for key, p in self.positions.items())

    def lag_messages(self, ends: Mapping[Key, PartitionOffsets]) -> int:
        """Offsets between the positions and the high watermarks."""
        return sum(compute_lag_messages(p.next_offset, ends[key]) for key, p in self.positions.items() if key in ends)

    def headroom_seconds(self, view: ClusterView, now_ms: int) -> float | None:
        """Lower bound of the time until retention deletes an unread message; the smallest of all partitions."""
        retentions = {topic.topic_id: topic.retention_ms for topic in view.topics.values()}
        left = (
            compute_headroom_seconds(
                retentions.get(key[0]),
                compute_lag_messages(position.next_offset, view.ends[key]),
                self._newest_retained_ms(key, view.ends[key]),
                now_ms,
            )
            for key, position in self.positions.items()
            if key in view.ends
        )
        return min((seconds for seconds in left if seconds is not None), default=None)

    def _newest_retained_ms(self, key: Key, ends: PartitionOffsets) -> int | None:
        """Timestamp of the newest committed message while Kafka holds it: one that it has deleted bounds no other."""
        return self._newest_ms.get(key) if ends.start < self.positions[key].next_offset else None

    def remember(self, plan: BatchPlan) -> None:
        """Record the bins of a plan, so that the next one keeps partitions near their local stores."""
        self._bins |= {item.position.key: n for n, group in enumerate(plan.bins) for item in group}

    def take_up(self, view: ClusterView) -> None:
        """Read new topics from their first offsets; each once all its partitions have a leader."""
        known = {position.topic for position in self.positions.values()} | {row.topic for row in self._others.values()}
        for topic in (topic for name, topic in sorted(view.topics.items()) if name not in known):
            keys = [(topic.topic_id, partition) for partition in range(topic.partitions)]
            if all(key in view.ends for key in keys):
                LOG.info("new topic %s: read from its first offset", topic.name)
                self.positions |= {key: find_first_position(topic, key, view.ends[key]) for key in keys}
                self.is_unsaved = True

    def accept(self, finding: Finding, view: ClusterView, *, suspend: bool) -> None:
        """Continue after a tolerated fault: skip expired offsets, add re-created topics and new partitions.

        Args:
            finding: Finding of the audit.
            view: Kafka's topics of the stream now.
            suspend: The affected sessions are suspended until their next snapshot.
        """
        key = (finding.topic_id, finding.partition)
        if finding.cause == EXPIRED and key in self.positions:
            self._lost[key] = Hole(start=finding.offset, until=finding.until, cause="expired")
            self._move(key, finding.until, suspend=suspend)
        elif finding.cause == TRUNCATED and key in self.positions:
            self._continue_after_truncation(key, finding.offset, suspend=suspend)
        elif finding.cause == GREW and key in view.ends:
            self.positions[key] = find_first_position(view.topics[finding.topic], key, view.ends[key])
            for sibling in [other for other in self.positions if suspend and other[0] == key[0]]:
                self._move(sibling, self.positions[sibling].next_offset, suspend=True)
        elif finding.cause == RECREATED and self._on_recreated(finding, view):
            self._gone.pop(key, None)
            self.positions.pop(key, None)
        elif key in self._told:
            return
        self._told.add(key)
        LOG.warning("%s", finding)

    def is_news(self, finding: Finding, *, suspend: bool) -> bool:
        """Whether `accept` would change or report anything.

        Records appended to a truncated log at offsets already read are skipped, until the log has caught up.
        """
        key = (finding.topic_id, finding.partition)
        if finding.cause == TRUNCATED and key in self.positions:
            before = self.positions[key]
            return before.leader_epoch is not None or (suspend and before.suspended_from != finding.offset)
        return finding.cause != GONE or key not in self._told

    def _continue_after_truncation(self, key: Key, offset: int, *, suspend: bool) -> None:
        """Continue in a log with other records than those that were read."""
        before = self.positions[key]
        self.positions[key] = msgspec.structs.replace(before, leader_epoch=None)
        if suspend and before.suspended_from != offset:
            self._move(key, offset, suspend=True)

    def _move(self, key: Key, offset: int, *, suspend: bool) -> None:
        position = self.positions[key]
        epoch = (
            position.leader_epoch if offset == position.next_offset else None
        )  # nothing is known of the skipped records
        position = msgspec.structs.replace(position, next_offset=offset, leader_epoch=epoch)
        suspended_from = (offset or BEGUN_ELSEWHERE) if suspend else position.suspended_from
        self.positions[key] = msgspec.structs.replace(position, suspended_from=suspended_from)
        self.is_unsaved = True

    def _on_recreated(self, finding: Finding, view: ClusterView) -> bool:
        """Read a re-created topic from its first offsets, once all its partitions have a leader."""
        topic = view.topics[finding.topic]
        keys = [(topic.topic_id, partition) for partition in range(topic.partitions)]
        if not all(key in view.ends for key in keys):
            return False
        for key in keys:
            if key not in self.positions:
                self.positions[key] = find_first_position(topic, key, view.ends[key])
        return True

    def ledger_rows(
        self, stamp: LedgerStamp, facts: Sequence[RangeResult], ends: Mapping[Key, PartitionOffsets], *, full: bool
    ) -> list[LedgerRow]:
        """The ledger rows of a batch; rows of all partitions ever read, when a full set is due."""
        worked = {item.range.position.key for item in facts}
        quiet = [position for key, position in self.positions.items() if full and key not in worked]
        rows = make_ledger_rows(stamp, facts, quiet, ends)
        rows += [make_retired_row(stamp, row) for row in self._others.values() if full]
        rows = [with_newest_timestamp(row, self._newest_ms.get((row.topic_id, row.partition))) for row in rows]
        return [with_expired_range(row, self._lost.get((row.topic_id, row.partition))) for row in rows]

    def advance(self, bins: Iterable[TaskResult]) -> None:
        """Advance the positions to the ends of a committed batch, and update the measurements."""
        if self.is_unsaved:
            self._lost.clear()  # such a batch has a row of every partition
        self.is_unsaved = False
        for group in bins:
            for item in group.ranges:
                self._advance(item)
            self._learn(group)

    def _advance(self, facts: RangeResult) -> None:
        key = facts.range.position.key
        self._lost.pop(key, None)
        self.positions[key] = facts.reached
        if facts.newest_timestamp_ms:
            self._newest_ms[key] = facts.newest_timestamp_ms
        if facts.trouble is not None:
            LOG.warning("%s/%s: %s", facts.range.position.topic, facts.range.position.partition, facts.trouble)

    def _learn(self, group: TaskResult) -> None:
        """Measurements of a bin per partition; a small bin shows little more than its fixed costs."""
        size, rows = sum(file.size for file in group.files), sum(file.rows for file in group.files)
        large = sum(item.counts.messages for item in group.ranges) >= TELLING_MESSAGES
        for item in group.ranges:
            key, messages = item.range.position.key, item.counts.messages
            if messages and large:
                _learn(self._seconds, key, item.cpu_seconds / messages)
            if messages and size >= TELLING_BYTES:
                _learn(self._bytes, key, item.rows * size / rows / messages)


def _learn(learned: dict[Key, float], key: Key, newest: float) -> None:
    learned[key] = (1 - FORGET_RATIO) * learned.get(key, newest) + FORGET_RATIO * newest
