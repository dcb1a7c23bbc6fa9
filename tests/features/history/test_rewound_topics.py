"""Random histories of a set of topics, and rewinds: the next run judges the growth that a plain table names.

Runs are those of the engine without Kafka and tasks: subscription, audit, ledger rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from lockstep.engine.driver.subscription import Subscription
from lockstep.features.history.rewind import make_rewound_rows, make_unplaced_rows
from lockstep.kafka.admin import ClusterView
from lockstep.kafka.audit import audit_positions
from lockstep.model.fault import Fault
from lockstep.model.position import TopicIdPartition
from lockstep.table.ledger import LedgerRow
from lockstep.table.positions import LedgerStamp, make_kept_row, read_position
from tests.support.cluster_views import topic, view

NAMES = ("a", "b")
EVENTS = st.sampled_from(["create", "grow", "send", "delete", "re-create", "rewind"])
STEPS = st.lists(st.tuples(EVENTS, st.sampled_from(NAMES), st.integers(0, 30)), min_size=2, max_size=14)
"""An event, its topic, and a number: partitions, or the distance of a rewind."""
Rows = dict[TopicIdPartition, LedgerRow]


@dataclass
class Cluster:
    """Topics by name: their ids, and the end of each partition."""

    ids: dict[str, str] = field(default_factory=dict)
    ends: dict[str, list[int]] = field(default_factory=dict)
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

    def look(self) -> ClusterView:
        ends = dict[TopicIdPartition, tuple[int, int, int]]()
        for name, topic_id in self.ids.items():
            ends |= {TopicIdPartition(topic_id, number): (0, end, end) for number, end in enumerate(self.ends[name])}
        return view(*(topic(name, self.ids[name], len(self.ends[name])) for name in self.ids), ends=ends)


@dataclass
class Model:
    """A stream whose every batch reads all there is, with the batches that count."""

    cluster: Cluster = field(default_factory=Cluster)
    batch: int = 0
    counted: dict[int, Rows] = field(default_factory=dict)
    """The rows of each batch that counts; each has all partitions."""

    def commit(self, rows: list[LedgerRow]) -> None:
        self.counted[self.batch] = {row.key: row for row in rows}

    def stamp(self) -> LedgerStamp:
        self.batch += 1
        return LedgerStamp(
            generation=1,
            batch=self.batch,
            epoch=1,
            committed_at=datetime(2026, 1, 1, tzinfo=UTC),
            batch_seconds=0.0,
            restart_cause=None,
        )

    def known_at(self, batch: int) -> Rows:
        return next((rows for number, rows in sorted(self.counted.items(), reverse=True) if number <= batch), {})

    def run(self) -> set[tuple[str, TopicIdPartition]]:
        """Read all; returns the findings, which were accepted."""
        seen = self.cluster.look()
        known = self.known_at(self.batch)
        subscription = Subscription(known, seen, frozenset(NAMES))
        found = set[tuple[str, TopicIdPartition]]()
        for finding in audit_positions(subscription.known, seen):
            found.add((finding.cause, TopicIdPartition(finding.topic_id, finding.partition)))
            subscription.accept(finding, seen, suspend=False)
        subscription.read_again(seen)
        subscription.take_up(seen, {})
        rows = subscription.ledger_rows(self.stamp(), (), seen.ends, full=True)
        self.commit([replace(row, until=self.find_end(row, seen)) for row in rows])
        return found

    def find_end(self, row: LedgerRow, seen: ClusterView) -> int:
        return seen.ends[row.key].high_watermark if row.key in seen.ends else row.until

    def rewind(self, target: int) -> None:
        held = self.known_at(target)
        since = Rows()
        for number in sorted(self.counted):
            if number > target:
                since = {**self.counted[number], **since}
        now = self.known_at(self.batch)
        unplaced = {row.key for row in make_unplaced_rows(held, now, since)}
        assert not any(now[key].is_gone for key in unplaced)
        rows = list(make_rewound_rows(held, now, since))
        assert len(rows) == len({row.key for row in rows})
        for row in rows:
            if now[row.key].is_gone:
                assert row.with_retirement_of(now[row.key]) == row
        assert {row.key for row in rows} | unplaced == self.known_at(self.batch).keys() | held.keys()
        assert not {row.key for row in rows} & unplaced
        self.counted = {number: known for number, known in self.counted.items() if number <= target}
        stamp = self.stamp()
        self.commit([make_kept_row(stamp, read_position(row), retired=row.retired) for row in rows])


@given(STEPS)
@example([("create", "a", 0), ("grow", "a", 0), ("rewind", "a", 0)])
@example([("create", "a", 0), ("send", "a", 0), ("delete", "a", 0), ("create", "a", 0), ("rewind", "a", 0)])
@example([("create", "a", 0), ("grow", "a", 0), ("delete", "a", 0), ("create", "a", 0), ("rewind", "a", 0)])
def test_growth_is_judged_after_any_rewind_as_it_was_at_first_and_an_end_is_not_judged_again(
    steps: list[tuple[str, str, int]],
) -> None:
    """The plain table: how many partitions each topic had when the stream first read it, and each batch."""
    model = Model()
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
