"""The subscription of a run: the partitions that it reads, their positions, and the ledger rows of its batches."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from lockstep.control.live_report import LiveTopic
from lockstep.engine.driver.planner import BatchPlan
from lockstep.engine.protocol import LearnedRates, RangeResult, TaskResult
from lockstep.integrity.base import IntegrityClass
from lockstep.kafka.admin import ClusterView, PartitionOffsets, Topic
from lockstep.kafka.progress import compute_headroom_seconds, compute_lag_messages
from lockstep.kafka.topic_end import TopicEnd
from lockstep.model.fault import Fault
from lockstep.model.finding import Finding, Hole
from lockstep.model.position import Ending, Position, TopicIdPartition
from lockstep.model.readable_times import to_event_time
from lockstep.model.state_loss import FORGOTTEN as TOPIC_FORGOTTEN
from lockstep.model.state_loss import LIFE_ENDS
from lockstep.table.ledger import CAUSES_OF_ENDS, FORGOTTEN, Accepted, LedgerRow
from lockstep.table.positions import (
    ADDED,
    BEGUN_ELSEWHERE,
    DELETED,
    GROWN,
    READDED,
    RECREATED_TOPIC,
    LedgerStamp,
    make_blank_row,
    make_kept_row_from,
    make_position_columns,
    make_retirement_note,
    make_unchanged_row_from,
    read_position,
)

LOG = logging.getLogger("lockstep")

FORGET_RATIO = 0.3
"""Weight of the newest batch in the moving averages: the third batch after a change of load decides."""
TELLING_MESSAGES = 1_000
TELLING_BYTES = 32_000
"""Below these sizes, cost and bytes per message are mostly the fixed costs of a task and of a file."""


def make_ledger_row(stamp: LedgerStamp, result: RangeResult, ends: PartitionOffsets | None) -> LedgerRow:
    """The row of a partition that was processed."""
    return _fill_worked_row(make_blank_row(stamp), result, ends)


def _fill_worked_row(blank: LedgerRow, result: RangeResult, ends: PartitionOffsets | None) -> LedgerRow:
    """The row of a partition that was processed. A batch makes one of each: only columns that differ are set."""
    columns = make_position_columns(result.reached)
    columns |= result.counts.make_counted_columns()
    columns["start"] = result.range.position.next_offset
    if ends is not None:
        columns["stable_end"] = ends.stable_end
        columns["high_watermark"] = ends.high_watermark
    columns["rows"] = result.rows
    columns["cpu_seconds"] = result.cpu_seconds
    columns["state_bytes"] = result.state_bytes
    columns["state_checksum"] = result.state_checksum
    columns["first_event_time"] = to_event_time(result.first_event_time_us)
    columns["last_event_time"] = to_event_time(result.last_event_time_us)
    newest_ms = result.newest_timestamp_ms
    if newest_ms:
        columns["newest_timestamp"] = to_event_time(newest_ms * 1000)
    if result.archived is not None:
        columns["archived_from"] = result.archived.start
        columns["archived_digest"] = result.archived.digest
    if result.holes or result.losses or result.accepted:
        columns["holes"] = list(result.holes)
        columns["losses"] = list(result.losses)
        columns["accepted"] = _accepted(result)
    return msgspec.structs.replace(blank, **columns)


def make_ledger_rows(
    stamp: LedgerStamp,
    results: Iterable[RangeResult],
    quiet: Iterable[Position],
    ends: Mapping[TopicIdPartition, PartitionOffsets],
) -> list[LedgerRow]:
    """The rows of all partitions, processed or unchanged."""
    blank = make_blank_row(stamp)
    worked = [_fill_worked_row(blank, item, ends.get(item.range.position.key)) for item in results]
    return worked + [make_unchanged_row_from(blank, position, ends.get(position.key)) for position in quiet]


def with_expired_range(row: LedgerRow, lost: Hole | None) -> LedgerRow:
    """The row of offsets that expired before they were read."""
    if lost is None:
        return row
    return msgspec.structs.replace(row, start=lost.start, holes=[lost, *row.holes])


def with_newest_timestamp(row: LedgerRow, before_ms: int | None) -> LedgerRow:
    """The row with the timestamp of an earlier batch, if its own range has none: freshness outlives quiet times."""
    if row.newest_timestamp is not None or before_ms is None:
        return row
    return msgspec.structs.replace(row, newest_timestamp=to_event_time(before_ms * 1000))


def with_ending(position: Position, how: str, end: TopicEnd | None) -> Position:
    """The position of a topic that was deleted or re-created, with its last observed end."""
    if end is None:
        return msgspec.structs.replace(position, ending=Ending(how))
    ending = end.make_ending(how, position.partition)
    return msgspec.structs.replace(position, ending=ending, gone_since_us=end.noticed_us)


def find_initial_positions(
    known: Mapping[TopicIdPartition, LedgerRow],
    view: ClusterView,
    joined: Mapping[TopicIdPartition, int] = MappingProxyType({}),
) -> dict[TopicIdPartition, Position]:
    """Positions of all partitions of the view's topics: from the ledger, new partitions from their first offset.

    Partitions in `joined` start at that offset instead, in the middle of their log.

    A new topic is taken whole or, while one of its partitions has no leader and so no first
    offset, by a later run: taken in part, it would seem grown as soon as the leader is back. A
    grown topic is not extended here: the audit finds it, and the class decides.
    """
    positions: dict[TopicIdPartition, Position] = {}
    read_ids = {topic_id for topic_id, _ in known}
    for topic in view.topics.values():
        keys = _list_keys(topic)
        is_addable = topic.topic_id not in read_ids and all(key in view.ends for key in keys)
        for key in keys:
            if key in known:
                position = read_position(known[key])
                positions[key] = msgspec.structs.replace(position, is_only=topic.partitions == 1)
            elif is_addable:
                positions[key] = find_first_position(topic, key, view.ends[key], joined.get(key))
    return positions


def _list_keys(topic: Topic) -> list[TopicIdPartition]:
    return [TopicIdPartition(topic.topic_id, partition) for partition in range(topic.partitions)]


def find_first_position(
    topic: Topic, key: TopicIdPartition, ends: PartitionOffsets, joined_at: int | None = None
) -> Position:
    """Start of a partition that was never read: its first offset, or the offset at which the stream joins its log."""
    topic_id, partition = key
    return Position(
        topic=topic.name,
        topic_id=topic_id,
        partition=partition,
        next_offset=ends.start if joined_at is None else joined_at,
        is_only=topic.partitions == 1,
        joined_at=joined_at or 0,
    )


def _accepted(result: RangeResult) -> list[Accepted]:
    """The losses that the declaration accepts, as ledger entries."""
    accepted = list[Accepted]()
    for loss in result.accepted:
        entry = Accepted(
            kind="accept-loss",
            cause="suspended",
            start=loss.start,
            until=loss.until,
            session=None,  # no erasure rewrites the ledger
            who="the declaration",
            why="Suspend(accept_loss=True)",
        )
        accepted.append(entry)
    return accepted


class Subscription:
    """The partitions that a run reads, and those whose position it only carries in the ledger.

    Attributes:
        positions: Position of each partition that is read.
        is_new: Some partitions are not in the ledger yet.
        is_unsaved: An accepted change concerns partitions that the next batch may not read: commit all rows.
    """

    def __init__(
        self,
        known: Mapping[TopicIdPartition, LedgerRow],
        view: ClusterView,
        selected: frozenset[str],
        joined: Mapping[TopicIdPartition, int] = MappingProxyType({}),
    ) -> None:
        """Start from the ledger.

        Args:
            known: Newest ledger row of every partition ever read.
            view: Kafka's topics of the stream now.
            selected: Names of topics in the ledger that the stream's pattern still selects.
            joined: Offset of each new partition whose log is not read from its beginning: see `read_join_offsets`.
        """
        self.positions = find_initial_positions(known, view, joined)
        self.is_unsaved = False
        self.is_new = not self.positions.keys() <= known.keys()
        self._others: dict[TopicIdPartition, Position] = {}
        self._retired: set[TopicIdPartition] = set()
        self._left_out: set[TopicIdPartition] = set()
        self._gone: dict[TopicIdPartition, Position] = {}
        self._add_others(known, selected)
        self._lifecycle = dict.fromkeys(self.positions.keys() - known.keys(), ADDED)
        self._reported_lifecycle: tuple[TopicIdPartition, ...] = ()
        self._notes: dict[TopicIdPartition, Accepted] = {}
        self._bins: dict[TopicIdPartition, int] = {}
        self._seconds: dict[TopicIdPartition, float] = {}
        self._bytes: dict[TopicIdPartition, float] = {}
        self._lost: dict[TopicIdPartition, Hole] = {}
        self._leaderless: set[TopicIdPartition] = set()
        self._newest_ms = dict[TopicIdPartition, int]()
        for key, row in known.items():
            if row.newest_timestamp is not None:
                self._newest_ms[key] = int(row.newest_timestamp.timestamp() * 1000)

    def _add_others(self, known: Mapping[TopicIdPartition, LedgerRow], selected: frozenset[str]) -> None:
        """Carry the partitions that are not read: they are retired, left out by the pattern, or gone."""
        for key, row in known.items():
            if key in self.positions:
                continue
            self._others[key] = read_position(row)
            if row.retired:
                self._retired.add(key)
                if row.topic not in selected:
                    self._left_out.add(key)
            elif row.topic in selected:
                self._gone[key] = self._others[key]

    @property
    def known(self) -> dict[TopicIdPartition, Position]:
        """Partitions that an audit compares with Kafka: those that are read, and those that are gone."""
        return self._gone | self.positions

    @property
    def learned(self) -> LearnedRates:
        """Measurements of each partition by the batches of this run."""
        return LearnedRates(seconds_a_message=self._seconds, bytes_a_message=self._bytes, bins_before=self._bins)

    def lag_messages(self, ends: Mapping[TopicIdPartition, PartitionOffsets]) -> int:
        """Offsets between the positions and the high watermarks."""
        return sum(compute_lag_messages(p.next_offset, ends[key]) for key, p in self.positions.items() if key in ends)

    def list_topics(self, ends: Mapping[TopicIdPartition, PartitionOffsets]) -> tuple[LiveTopic, ...]:
        """Lag and newest message of each partition, by topic."""
        by_topic: dict[str, list[tuple[int, int, int]]] = {}
        for key, position in self.positions.items():
            if key in ends:
                lag = compute_lag_messages(position.next_offset, ends[key])
                newest_ms = self._newest_ms.get(key) or 0
                by_topic.setdefault(position.topic, []).append((key.partition, lag, newest_ms))
        return tuple(LiveTopic(topic, *zip(*by_topic[topic], strict=True)) for topic in sorted(by_topic))

    def headroom_seconds(self, view: ClusterView, now_ms: int) -> float | None:
        """Lower bound of the time until retention deletes an unread message; the smallest of all partitions."""
        retentions = {topic.topic_id: topic.retention_ms for topic in view.topics.values()}
        seconds = set[float]()
        for key, position in self.positions.items():
            retention_ms = retentions.get(key.topic_id)
            ends = view.ends.get(key)
            if retention_ms is None or ends is None:
                continue
            lag = compute_lag_messages(position.next_offset, ends)
            newest_ms = self._newest_retained_ms(key, ends) if lag else None
            headroom = compute_headroom_seconds(retention_ms, lag, newest_ms, now_ms)
            if headroom is not None:
                seconds.add(headroom)
        return min(seconds, default=None)

    def _newest_retained_ms(self, key: TopicIdPartition, ends: PartitionOffsets) -> int | None:
        """Timestamp of the newest committed message while Kafka holds it: one that it has deleted bounds no other."""
        if ends.start >= self.positions[key].next_offset:
            return None
        return self._newest_ms.get(key)

    def find_uncounted(self, integrity: IntegrityClass, *, has_pending: bool) -> tuple[Position, ...]:
        """Partitions whose discarded states a batch must count, those of topics that are read no more included.

        Args:
            integrity: The class, which decides whether a discarded state is lost.
            has_pending: The transform counts the messages of a state.
        """
        uncounted = list[Position]()
        for position in (*self.positions.values(), *self._others.values()):
            if position.is_uncounted and _is_counted(position, integrity, has_pending=has_pending):
                uncounted.append(position)
        return tuple(uncounted)

    def remember(self, plan: BatchPlan) -> None:
        """Record the bins of a plan, so that the next one keeps partitions near their local stores."""
        for number, ranges in enumerate(plan.bins):
            for item in ranges:
                self._bins[item.position.key] = number

    def find_new_topics(self, view: ClusterView) -> list[Topic]:
        """Topics that are neither read nor in the ledger, once all their partitions have a leader."""
        unread = view.topics.keys() - {position.topic for position in self.positions.values()}
        if not unread:
            return []  # mostly; the partitions that are carried may be thousands
        carried = {position.topic for key, position in self._others.items() if key not in self._retired}
        new = [view.topics[name] for name in sorted(unread - carried)]
        return [topic for topic in new if _has_leaders(topic, view)]

    def take_up(self, view: ClusterView, joined: Mapping[TopicIdPartition, int]) -> None:
        """Read the new topics, from their first offsets or from the offsets at which the stream joins their logs."""
        recreated = {p.topic for key, p in self._others.items() if self._lifecycle.get(key) == RECREATED_TOPIC}
        for topic in self.find_new_topics(view):
            LOG.info("new topic %s is read", topic.name)
            for key in _list_keys(topic):
                self.positions[key] = find_first_position(topic, key, view.ends[key], joined.get(key))
                self._lifecycle[key] = RECREATED_TOPIC if topic.name in recreated else ADDED
            self.is_unsaved = True

    def retire(self, topics: Collection[str], change: str, *, who: str, why: str) -> None:
        """Read these topics no more; their positions stay in the ledger.

        Args:
            topics: Names of the topics.
            change: What happened to them, for the ledger.
            who: Who decided it.
            why: The reason.
        """
        for key, position in self.known.items():  # a copy: setting aside changes the positions
            if position.topic not in topics:
                continue
            self._set_aside(key, position, change)
            self._notes[key] = make_retirement_note(position.next_offset, who, why)
            LOG.info("topic %s partition %d: %s at offset %d", position.topic, key[1], change, position.next_offset)

    def find_revived(self, view: ClusterView) -> frozenset[str]:
        """Retired topics that have other ends than their positions, or another topic id than any that was read."""
        ids = {topic_id for topic_id, _ in self._retired}
        revived = set[str]()
        for name, topic in view.topics.items():
            if topic.topic_id not in ids or self._has_moved(topic, view):
                revived.add(name)
        return frozenset(revived)

    def _has_moved(self, topic: Topic, view: ClusterView) -> bool:
        """Whether a partition of a retired topic has another end than its position; a new partition, than 0."""
        for key in _list_keys(topic):
            read_until = self._others[key].next_offset if key in self._retired else 0
            if key in view.ends and view.ends[key].high_watermark != read_until:
                return True
        return False

    def read_again(self, view: ClusterView) -> None:
        """Read the retired topics of a view again, from where they stopped; partitions without a leader wait."""
        ids = {topic.topic_id for topic in view.topics.values()}
        for key in [key for key in self._retired if key[0] in ids]:
            self._retired.discard(key)
            position = msgspec.structs.replace(self._others.pop(key), gone_since_us=None, ending=None, discarded_by="")
            self.positions[key] = position
            self._lifecycle[key] = READDED
            self.is_unsaved = True
            LOG.info("topic %s partition %d: read again from offset %d", position.topic, key[1], position.next_offset)

    def note_gone(self, topic_ids: Collection[str], now_us: int) -> None:
        """Note since when Kafka has not had each retired topic; not of those that the pattern leaves out now.

        Args:
            topic_ids: Ids of the topics that Kafka has.
            now_us: The time now.
        """
        for key in self._retired - self._left_out:
            is_there = key[0] in topic_ids
            was_gone = self._others[key].gone_since_us is not None
            if is_there is was_gone:
                self._note_gone(key, None if is_there else now_us)

    def _note_gone(self, key: TopicIdPartition, since_us: int | None) -> None:
        self._others[key] = msgspec.structs.replace(self._others[key], gone_since_us=since_us)
        self.is_unsaved = True

    def find_long_gone(self, before_us: int) -> dict[TopicIdPartition, str]:
        """Partitions of retired topics that Kafka has not had since before a time, with the topics' names."""
        long_gone = dict[TopicIdPartition, str]()
        for key in self._retired:
            position = self._others[key]
            if position.gone_since_us is not None and position.gone_since_us <= before_us:
                long_gone[key] = position.topic
        return long_gone

    def forget(self, keys: Iterable[TopicIdPartition]) -> None:
        """Carry these partitions in the ledger for the last time, without their states, which may be losses."""
        for key in keys:
            position = self._others[key]
            if position.lost_before < position.next_offset:
                self._others[key] = msgspec.structs.replace(position, discarded_by=TOPIC_FORGOTTEN)
            self._lifecycle[key] = FORGOTTEN
            self.is_unsaved = True
            LOG.info("topic %s partition %d: forgotten at offset %d", position.topic, key[1], position.next_offset)

    def find_idle_topics(self, ends: Mapping[TopicIdPartition, PartitionOffsets]) -> frozenset[str]:
        """Topics without lag."""
        topics = set[str]()
        busy = set[str]()
        for key, position in self.positions.items():
            topics.add(position.topic)
            if key not in ends or ends[key].high_watermark != position.next_offset:
                busy.add(position.topic)
        return frozenset(topics - busy)

    def _set_aside(self, key: TopicIdPartition, position: Position, change: str) -> None:
        self.positions.pop(key, None)
        self._gone.pop(key, None)
        self._leaderless.discard(key)
        for learned in (self._bins, self._seconds, self._bytes):
            learned.pop(key, None)
        cause = CAUSES_OF_ENDS.get(change)
        if cause is not None:
            position = msgspec.structs.replace(position, discarded_by=cause)
        self._others[key] = position
        self._retired.add(key)
        self._lifecycle[key] = change
        self.is_unsaved = True

    def accept(self, finding: Finding, view: ClusterView, *, suspend: bool, end: TopicEnd | None = None) -> None:
        """Continue after a tolerated fault or an event: skip expired offsets, add new partitions.

        A re-created topic is left where it ended; `take_up` reads the new topic as if found after the first batch.

        Args:
            finding: Finding of the audit.
            view: Kafka's topics of the stream now.
            suspend: The affected sessions are suspended until their next snapshot.
            end: Of a topic that was deleted or re-created: its end.
        """
        key = TopicIdPartition(finding.topic_id, finding.partition)
        if finding.cause == Fault.EXPIRED and key in self.positions:
            uncommitted = self._lost.get(key)  # if the batch that was to record it was never committed
            start = finding.offset if uncommitted is None else uncommitted.start
            self._lost[key] = Hole(start=start, until=finding.until, cause="expired")
            self._move(key, finding.until, suspended_by=finding.cause if suspend else None)
        elif finding.cause == Fault.TRUNCATED and key in self.positions:
            self._continue_after_truncation(key, finding.offset, suspend=suspend)
        elif finding.cause == Fault.PARTITIONS_ADDED and key in view.ends:
            self._on_grown(key, view.topics[finding.topic], view.ends[key], suspend=suspend)
        elif finding.cause == Fault.RECREATED and key in self.known and _has_leaders(view.topics[finding.topic], view):
            self._set_aside(key, with_ending(self.known[key], RECREATED_TOPIC, end), RECREATED_TOPIC)
        elif finding.cause == Fault.TOPIC_DELETED and key in self.known:
            self._set_aside(key, with_ending(self.known[key], DELETED, end), DELETED)
        elif key in self._leaderless:
            return
        else:  # it is found again until its partitions have leaders
            self._leaderless.add(key)
        if end is not None and end.is_event:
            LOG.info(
                "%s; every message was read: offset %d was its end %.0f s before",
                finding,
                finding.offset,
                end.age_seconds,
            )
        else:
            LOG.warning("%s", finding)

    def is_news(self, finding: Finding, *, suspend: bool) -> bool:
        """Whether `accept` is to see a finding, unless nothing has changed since it saw it.

        Records appended to a truncated log at offsets already read are skipped, until the log has caught up.
        """
        key = TopicIdPartition(finding.topic_id, finding.partition)
        if finding.cause == Fault.TRUNCATED and key in self.positions:
            position = self.positions[key]
            return position.leader_epoch is not None or (suspend and position.suspended_from != finding.offset)
        return True

    def _continue_after_truncation(self, key: TopicIdPartition, offset: int, *, suspend: bool) -> None:
        """Continue in a log with other records than those that were read."""
        position = self.positions[key]
        moves = suspend and position.suspended_from != offset
        suspended_from = 0 if moves else position.suspended_from  # an offset of the log that is gone
        self.positions[key] = msgspec.structs.replace(position, leader_epoch=None, suspended_from=suspended_from)
        if moves:
            self._move(key, offset, suspended_by=Fault.TRUNCATED)

    def _move(self, key: TopicIdPartition, offset: int, *, suspended_by: str | None) -> None:
        """Continue at an offset; messages after it that an operator has given up stay given up.

        Args:
            key: The partition.
            offset: The offset.
            suspended_by: Why all sessions are suspended; None if none is.
        """
        position = self.positions[key]
        # The epochs of skipped records are unknown.
        epoch = position.leader_epoch if offset == position.next_offset else None
        position = msgspec.structs.replace(position, next_offset=offset, leader_epoch=epoch)
        if suspended_by is not None:
            suspended_from = max(offset, position.suspended_from) or BEGUN_ELSEWHERE
            position = msgspec.structs.replace(position, suspended_from=suspended_from, discarded_by=suspended_by)
        self.positions[key] = position
        self.is_unsaved = True

    def _on_grown(self, key: TopicIdPartition, topic: Topic, ends: PartitionOffsets, *, suspend: bool) -> None:
        """Read a new partition of a topic.

        Its log started at offset 0: the next audit finds the messages that expired since, as of any partition.
        """
        self.positions[key] = find_first_position(topic, key, ends, joined_at=0)
        self._lifecycle[key] = GROWN
        self._leaderless.discard(key)
        siblings = [other for other in self.positions if other.topic_id == key.topic_id]
        for sibling in siblings:
            self.positions[sibling] = msgspec.structs.replace(self.positions[sibling], is_only=False)
            if suspend:
                self._move(sibling, self.positions[sibling].next_offset, suspended_by=Fault.PARTITIONS_ADDED)

    def ledger_rows(
        self,
        stamp: LedgerStamp,
        results: Sequence[RangeResult],
        ends: Mapping[TopicIdPartition, PartitionOffsets],
        *,
        full: bool,
    ) -> list[LedgerRow]:
        """The ledger rows of a batch; rows of all partitions ever read, when a full set is due."""
        worked = {item.range.position.key for item in results}
        quiet = [position for key, position in self.positions.items() if full and key not in worked]
        rows = make_ledger_rows(stamp, results, quiet, ends)
        if full:
            blank = make_blank_row(stamp)
            for key, position in self._others.items():
                if key not in worked:
                    rows.append(make_kept_row_from(blank, position, retired=key in self._retired))
        self._reported_lifecycle = tuple(row.key for row in rows)
        return [self._with_events(row, key) for row, key in zip(rows, self._reported_lifecycle, strict=True)]

    def _with_events(self, row: LedgerRow, key: TopicIdPartition) -> LedgerRow:
        is_plain = key not in self._lost and key not in self._retired and key not in self._lifecycle
        if is_plain and row.newest_timestamp is not None:
            return row  # mostly: a batch has thousands of rows
        row = with_newest_timestamp(with_expired_range(row, self._lost.get(key)), self._newest_ms.get(key))
        if key in self._retired and not row.retired:  # its states were counted
            row = msgspec.structs.replace(row, retired=True)
        note = self._notes.get(key)
        if key not in self._lifecycle:
            return row
        accepted = row.accepted if note is None else [*row.accepted, note]
        row = msgspec.structs.replace(row, lifecycle=self._lifecycle[key], accepted=accepted)
        if row.lifecycle == FORGOTTEN:
            return _without_state(row)
        return row

    def advance(self, bins: Iterable[TaskResult]) -> None:
        """Advance the positions to the ends of a committed batch, and update the measurements."""
        if self.is_unsaved:
            self._lost.clear()  # such a batch has a row of every partition
        self.is_unsaved = False
        for key in self._reported_lifecycle:
            if self._lifecycle.pop(key, None) == FORGOTTEN:
                self._drop(key)
            self._notes.pop(key, None)
        for group in bins:
            self._advance(group)

    def _drop(self, key: TopicIdPartition) -> None:
        del self._others[key]
        self._retired.discard(key)
        self._newest_ms.pop(key, None)

    def _advance(self, group: TaskResult) -> None:
        """Advance the positions of a bin, and measure it per partition; a small bin shows little but fixed costs."""
        size = sum(file.size for file in group.files)
        rows = sum(file.rows for file in group.files)
        is_large = sum(item.counts.messages for item in group.ranges) >= TELLING_MESSAGES
        for item in group.ranges:
            key = item.range.position.key
            messages = item.counts.messages
            if self._lost:
                self._lost.pop(key, None)
            # A range of an uncounted state may be of a partition that is not read.
            if key in self.positions:
                self.positions[key] = item.reached
            elif key in self._others:
                self._others[key] = item.reached
            if item.newest_timestamp_ms:
                self._newest_ms[key] = item.newest_timestamp_ms
            if messages and is_large:
                _learn(self._seconds, key, item.cpu_seconds / messages)
            if messages and size >= TELLING_BYTES:
                _learn(self._bytes, key, item.rows * size / rows / messages)


def _is_counted(position: Position, integrity: IntegrityClass, *, has_pending: bool) -> bool:
    if position.discarded_by in LIFE_ENDS and (has_pending or integrity.replaces_states or integrity.buffer):
        return True
    return integrity.opens_at_first and position.discarded_by not in LIFE_ENDS


def _without_state(row: LedgerRow) -> LedgerRow:
    """The last row of a partition."""
    return msgspec.structs.replace(
        row, state_file=None, state_start=None, state_length=None, state_bytes=0, state_checksum=None
    )


def _has_leaders(topic: Topic, view: ClusterView) -> bool:
    """Whether the offsets of all partitions of a topic are known: taken in part, it would seem grown later."""
    return all(key in view.ends for key in _list_keys(topic))


def _learn(learned: dict[TopicIdPartition, float], key: TopicIdPartition, newest: float) -> None:
    learned[key] = (1 - FORGET_RATIO) * learned.get(key, newest) + FORGET_RATIO * newest
