"""Random histories of topics and rewinds: the next run reports the growth that a plain table predicts.

It reads each offset that Kafka has lost from the archive, and archives no offset twice. Runs use the engine
without Kafka and tasks: archive, subscription, audit, ledger rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from lockstep.declare.options import FirstSnapshot, Topics
from lockstep.engine.driver import archived_log
from lockstep.engine.driver.archived_log import ArchivedBlocks, ArchivedLog
from lockstep.engine.driver.join_offsets import read_join_offsets
from lockstep.engine.driver.planner import BatchPlan
from lockstep.engine.driver.subscription import Subscription
from lockstep.engine.protocol import BatchIdentity, PlannedRange
from lockstep.features.history.rewind import make_rewound_rows, make_unplaced_rows
from lockstep.kafka.admin import ClusterAdmin, ClusterView, PartitionOffsets
from lockstep.kafka.audit import audit_positions
from lockstep.model.fault import Fault
from lockstep.model.position import Position, TopicIdPartition
from lockstep.table.archive import ArchivedEnd, merge_ranges
from lockstep.table.head import Head
from lockstep.table.layout import StreamFolders
from lockstep.table.ledger import LedgerRow
from lockstep.table.positions import LedgerStamp, make_kept_row, read_position
from tests.support.cluster_views import topic, view

if TYPE_CHECKING:
    from collections.abc import Mapping

NAMES = ("a", "b")
EVENTS = st.sampled_from(["create", "grow", "send", "expire", "delete", "re-create", "rewind"])
STEPS = st.lists(st.tuples(EVENTS, st.sampled_from(NAMES), st.integers(0, 30)), min_size=2, max_size=14)
"""An event, its topic and its number: partitions, messages, an offset, or the target of a rewind."""
Rows = dict[TopicIdPartition, LedgerRow]


@dataclass
class Cluster:
    """Topics by name: their ids and the end of each partition."""

    ids: dict[str, str] = field(default_factory=dict)
    ends: dict[str, list[int]] = field(default_factory=dict)
    starts: dict[TopicIdPartition, int] = field(default_factory=dict)
    lives: int = 0

    def apply(self, step: str, name: str, number: int) -> None:
        if step == "re-create" and name in self.ids:
            del self.ids[name]
        if step in {"create", "re-create"} and name not in self.ids:
            self.lives += 1
            self.ids[name] = f"{name}-{self.lives}"
            self.ends[name] = [0] * (1 + number % 3)
        elif step == "grow" and name in self.ids:
            self.ends[name].append(0)
        elif step == "delete" and name in self.ids:
            del self.ids[name], self.ends[name]
        elif step == "send" and name in self.ids:
            self.ends[name][number % len(self.ends[name])] += 1 + number
        elif step == "expire" and name in self.ids:
            for partition, end in enumerate(self.ends[name]):
                key = TopicIdPartition(self.ids[name], partition)
                self.starts[key] = max(self.starts.get(key, 0), min(number, end))

    def look(self) -> ClusterView:
        ends = dict[TopicIdPartition, tuple[int, int, int]]()
        for name, topic_id in self.ids.items():
            for partition, end in enumerate(self.ends[name]):
                key = TopicIdPartition(topic_id, partition)
                ends[key] = (self.starts.get(key, 0), end, end)
        return view(*(topic(name, self.ids[name], len(self.ends[name])) for name in self.ids), ends=ends)


@dataclass
class Model:
    """A stream whose batches read and archive all messages, with the batches that count."""

    cluster: Cluster = field(default_factory=Cluster)
    batch: int = 0
    generation: int = 1
    counted: dict[int, Rows] = field(default_factory=dict)
    """The rows of each batch that counts, for all partitions."""
    archived: dict[TopicIdPartition, list[tuple[int, int, int]]] = field(default_factory=dict)
    """Batch, start and end of all archived ranges."""

    def commit(self, rows: list[LedgerRow]) -> None:
        self.counted[self.batch] = {row.key: row for row in rows}

    def stamp(self) -> LedgerStamp:
        self.batch += 1
        return LedgerStamp(
            generation=self.generation,
            batch=self.batch,
            epoch=1,
            committed_at=datetime(2026, 1, 1, tzinfo=UTC),
            batch_seconds=0.0,
            restart_cause=None,
        )

    def known_at(self, batch: int) -> Rows:
        return next((rows for number, rows in sorted(self.counted.items(), reverse=True) if number <= batch), {})

    def read_ends(self) -> dict[TopicIdPartition, ArchivedEnd]:
        return {key: ArchivedEnd(ranges[-1][2], is_gone=False) for key, ranges in self.archived.items()}

    def read_blocks(self, wanted: Mapping[TopicIdPartition, int]) -> ArchivedBlocks:
        return {key: merge_ranges(ranges) for key, ranges in self.archived.items() if key in wanted}

    def run(self) -> set[tuple[str, TopicIdPartition]]:
        """Read all messages. Return the findings, which are accepted."""
        in_kafka = self.cluster.look()
        known = self.known_at(self.batch)
        head = Head(stream="s", cluster_id="cluster", generation=self.generation, batch=self.batch)
        log = ArchivedLog(StreamFolders("s", Path("tables")), head, known)
        seen = log.extend(in_kafka)
        subscription = Subscription(known, seen, frozenset(NAMES), self.join(seen, known))
        found = set[tuple[str, TopicIdPartition]]()
        for finding in audit_positions(subscription.known, seen):
            found.add((finding.cause, TopicIdPartition(finding.topic_id, finding.partition)))
            subscription.accept(finding, seen, suspend=False)
        subscription.read_again(seen)
        subscription.take_up(seen, self.join(seen, known))
        stamp = self.stamp()
        assert audit_positions(subscription.known, seen) == ()  # no new partition starts later than its log
        for key, position in subscription.positions.items():
            assert position.next_offset == (known[key].until if key in known else 0)
            self.read(log, seen, in_kafka.ends[key], position)
        rows = subscription.ledger_rows(stamp, (), seen.ends, full=True)
        self.commit([self.with_end(row, seen) for row in rows])
        return found

    def join(self, seen: ClusterView, known: Rows) -> dict[TopicIdPartition, int]:
        """Return the first positions of new topics for a stream that reads from the first available offset."""
        begun = {key.topic_id for key in known}
        new = [each for each in seen.topics.values() if each.topic_id not in begun]
        declared = Topics(pattern="[ab]", start=FirstSnapshot())
        asks_nobody = cast("ClusterAdmin", None)
        return read_join_offsets(declared, new, seen, asks_nobody, lambda *_: {}, is_first_run=not known)

    def read(self, log: ArchivedLog, seen: ClusterView, in_kafka: PartitionOffsets, position: Position) -> None:
        """Read a partition to its end, from the archive up to the log start."""
        is_lost = position.next_offset < in_kafka.start
        until = in_kafka.start if is_lost else in_kafka.high_watermark
        if position.next_offset == until:
            return
        identity = BatchIdentity(
            generation=self.generation, epoch=1, number=self.batch, commit_hour="2026-01-01T00", archives=True
        )
        given = BatchPlan(batch=identity, bins=((PlannedRange(position, until),),), unavailable=(), backlog=0)
        ((item,),) = log.locate(seen, given).bins
        assert (item.archived is not None) is is_lost
        claims = self.archived.setdefault(position.key, [])
        reached = claims[-1][2] if claims else 0
        start = max(position.next_offset, item.position.archived_until or 0)
        assert start == min(reached, in_kafka.high_watermark)  # neither a gap nor a repetition
        if start < in_kafka.high_watermark:
            claims.append((self.batch, start, in_kafka.high_watermark))

    def with_end(self, row: LedgerRow, seen: ClusterView) -> LedgerRow:
        if row.key not in seen.ends:
            return row
        end = seen.ends[row.key].high_watermark
        return replace(row, until=end, archived_until=end or row.archived_until)

    def rewind(self, target: int) -> None:
        held = self.known_at(target)
        since = Rows()
        for number in sorted(self.counted):
            if number > target:
                since = {**self.counted[number], **since}
        now = self.known_at(self.batch)
        unplaced = {row.key for row in make_unplaced_rows(held, now, since)}
        assert not any(now[key].is_gone for key in unplaced)
        rows = list(make_rewound_rows(held, now, since, self.read_ends()))
        assert len(rows) == len({row.key for row in rows})
        for row in rows:
            if now[row.key].is_gone:
                assert row.with_retirement_of(now[row.key]) == row
        assert {row.key for row in rows} | unplaced == self.known_at(self.batch).keys() | held.keys()
        assert not {row.key for row in rows} & unplaced
        self.counted = {number: known for number, known in self.counted.items() if number <= target}
        self.generation += 1
        stamp = self.stamp()
        self.commit([make_kept_row(stamp, read_position(row), retired=row.retired) for row in rows])


GROWN = [("create", "a", 0), ("grow", "a", 0), ("send", "a", 9), ("send", "a", 8)]


@given(STEPS)
@example([("create", "a", 0), ("grow", "a", 0), ("rewind", "a", 0)])
@example([("create", "a", 0), ("re-create", "a", 0), ("grow", "a", 0), ("rewind", "a", 1)])
@example([*GROWN, ("expire", "a", 5), ("rewind", "a", 1)])
@example([*GROWN, ("rewind", "a", 1)])
@example([*GROWN, ("rewind", "a", 1), ("rewind", "a", 0), ("rewind", "a", 2)])
@example([("create", "a", 0), ("re-create", "a", 0), ("send", "a", 9), ("expire", "a", 5), ("rewind", "a", 1)])
@example([("create", "a", 0), ("send", "a", 0), ("delete", "a", 0), ("create", "a", 0), ("rewind", "a", 0)])
@example([("create", "a", 0), ("grow", "a", 0), ("delete", "a", 0), ("create", "a", 0), ("rewind", "a", 0)])
def test_growth_is_judged_after_any_rewind_as_it_was_at_first_and_an_end_is_not_judged_again(
    steps: list[tuple[str, str, int]],
) -> None:
    """Logs that Kafka has shortened are read from the archive, from their first offset on.

    Compared with a plain table: the partition count of each topic at the first read of the stream and at each batch.
    """
    model = Model()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(archived_log, "read_archived_ends", lambda *_: model.read_ends())
        patch.setattr(archived_log, "read_blocks", lambda _, __, wanted: model.read_blocks(wanted))
        check_history(model, steps)


def check_history(model: Model, steps: list[tuple[str, str, int]]) -> None:
    first = dict[str, int]()
    judged: dict[int, dict[str, int]] = {0: {}}
    for step, name, number in steps:
        gone = set[str]()
        if step == "rewind":
            target = [0, *model.counted][number % (len(model.counted) + 1)]
            judged = {at: counts for at, counts in judged.items() if at <= target}
            model.rewind(target)
            judged[model.batch] = judged[max(judged)]
        else:
            before_step = dict(model.cluster.ids)
            model.cluster.apply(step, name, number)
            gone = set(before_step.values()) - set(model.cluster.ids.values())
        before = judged[model.batch]
        ids = model.cluster.ids
        now = {ids[each]: len(ends) for each, ends in model.cluster.ends.items()}
        first = {**now, **first}
        expected = set[tuple[str, TopicIdPartition]]()
        for grown, count in now.items():
            new = range(before.get(grown, first[grown]), count)
            expected |= {(Fault.PARTITIONS_ADDED, TopicIdPartition(grown, each)) for each in new}
        cause = Fault.RECREATED if name in ids else Fault.TOPIC_DELETED
        for ended in gone:
            read = range(before.get(ended, first[ended]))
            expected |= {(cause, TopicIdPartition(ended, each)) for each in read}
        assert model.run() == expected
        judged[model.batch] = now
