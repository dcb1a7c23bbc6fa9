"""The partitions of a run: where each stands, and what was learned of it. The ledger has the first."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from lockstep.engine import bookkeeping
from lockstep.engine.facts import BinFacts, RangeFacts
from lockstep.engine.headroom import headroom_seconds
from lockstep.engine.plan import BatchPlan, Learned, Position
from lockstep.integrity.finding import Finding, Hole
from lockstep.kafka.audit import EXPIRED, GONE, GREW, RECREATED, TRUNCATED, Key, Known
from lockstep.kafka.discovery import ClusterView, Ends
from lockstep.table.ledger import LedgerRow

LOG = logging.getLogger("lockstep")

FORGET_RATIO = 0.3
"""Weight of the newest batch in what is learned: the third batch after a change of load decides."""

BEGUN_ELSEWHERE = -1
"""Suspends a partition from before offset 0: none of its own sessions, but such as began in another partition."""

TELLING_MESSAGES, TELLING_BYTES = 1_000, 32_000
"""Below these, what a message costs and what it comes to is mostly the cost of a task and a file's own frame."""


class Subscription:
    """The partitions that a run reads, and those that only keep their place in the ledger.

    Attributes:
        positions: Where each partition that is read stands.
        is_new: There are partitions that the ledger does not know yet.
        is_unsaved: What was accepted concerns partitions that the next batch may not read: all are to be committed.
    """

    def __init__(self, known: Mapping[Key, LedgerRow], view: ClusterView, selected: frozenset[str]) -> None:
        """Take up where the ledger stands.

        Args:
            known: Newest ledger row of every partition ever read.
            view: Kafka's topics of the stream now.
            selected: Names of topics in the ledger that the stream's pattern still selects.
        """
        self.positions = bookkeeping.subscribed(known, view)
        self.is_unsaved = False
        self.is_new = not self.positions.keys() <= known.keys()
        self._others = {key: row for key, row in known.items() if key not in self.positions}
        self._gone = {
            key: Known(row.topic, row.until)
            for key, row in self._others.items()
            if row.topic in selected and not row.retired
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
    def known(self) -> dict[Key, Known]:
        """What an audit compares with Kafka: partitions that are read, and those that are gone."""
        return self._gone | {k: _known(p) for k, p in self.positions.items()}

    @property
    def learned(self) -> Learned:
        """What the batches of this run have shown of each partition."""
        return Learned(seconds_a_message=self._seconds, bytes_a_message=self._bytes, bins_before=self._bins)

    def stands_at(self, ends: Mapping[Key, int]) -> bool:
        """Whether all partitions have reached these offsets."""
        return all(p.next_offset >= ends.get(key, p.next_offset) for key, p in self.positions.items())

    def lag_messages(self, ends: Mapping[Key, Ends]) -> int:
        """Offsets between the positions and the high watermarks."""
        return bookkeeping.lag_messages(self.positions.values(), ends)

    def headroom_seconds(self, view: ClusterView, now_ms: int) -> float | None:
        """Time until retention removes a message that is not committed; see `headroom`."""
        places = {key: position.next_offset for key, position in self.positions.items()}
        return headroom_seconds(places, self._newest_ms, view, now_ms)

    def remember(self, plan: BatchPlan) -> None:
        """Keep the bins of a plan, so that the next one leaves partitions where their hot state lies."""
        self._bins |= {item.position.key: n for n, group in enumerate(plan.bins) for item in group}

    def take_up(self, view: ClusterView) -> None:
        """Read topics that were never read from their first offsets on; each once all its partitions have a leader."""
        known = {position.topic for position in self.positions.values()} | {row.topic for row in self._others.values()}
        for topic in (topic for name, topic in sorted(view.topics.items()) if name not in known):
            keys = [(topic.topic_id, partition) for partition in range(topic.partitions)]
            if all(key in view.ends for key in keys):
                LOG.info("new topic %s: read from its first offset", topic.name)
                self.positions |= {key: bookkeeping.first_position(topic, key, view.ends[key]) for key in keys}
                self.is_unsaved = True

    def accept(self, finding: Finding, view: ClusterView, *, suspend: bool) -> None:
        """Go on after what the class bears: expired offsets are passed over, new lives and partitions taken up.

        Args:
            finding: What the audit found.
            view: Kafka's topics of the stream now.
            suspend: The sessions that may have suffered wait for their next snapshot.
        """
        key = (finding.topic_id, finding.partition)
        if finding.cause == EXPIRED and key in self.positions:
            self._lost[key] = Hole(start=finding.offset, until=finding.until, cause="expired")
            self._move(key, finding.until, suspend=suspend)
        elif finding.cause == TRUNCATED and key in self.positions:
            self._cut(key, finding.offset, suspend=suspend)
        elif finding.cause == GREW and key in view.ends:
            self.positions[key] = bookkeeping.first_position(view.topics[finding.topic], key, view.ends[key])
            for sibling in [other for other in self.positions if suspend and other[0] == key[0]]:
                self._move(sibling, self.positions[sibling].next_offset, suspend=True)
        elif finding.cause == RECREATED and self._begun_anew(finding, view):
            self._gone.pop(key, None)
            self.positions.pop(key, None)
        elif key in self._told:
            return
        self._told.add(key)
        LOG.warning("%s", finding)

    def is_news(self, finding: Finding, *, suspend: bool) -> bool:
        """Whether `accept` would change anything, or tell of anything.

        What is appended to a cut log at offsets already read is passed over, until the log has caught up.
        """
        key = (finding.topic_id, finding.partition)
        if finding.cause == TRUNCATED and key in self.positions:
            before = self.positions[key]
            return before.leader_epoch is not None or (suspend and before.suspended_from != finding.offset)
        return finding.cause != GONE or key not in self._told

    def _cut(self, key: Key, offset: int, *, suspend: bool) -> None:
        """Go on in a log that holds other records than were read."""
        before = self.positions[key]
        self.positions[key] = msgspec.structs.replace(before, leader_epoch=None)
        if suspend and before.suspended_from != offset:
            self._move(key, offset, suspend=True)

    def _move(self, key: Key, offset: int, *, suspend: bool) -> None:
        position = self.positions[key]
        epoch = (
            position.leader_epoch if offset == position.next_offset else None
        )  # nothing is known of what is left out
        position = msgspec.structs.replace(position, next_offset=offset, leader_epoch=epoch)
        suspended_from = (offset or BEGUN_ELSEWHERE) if suspend else position.suspended_from
        self.positions[key] = msgspec.structs.replace(position, suspended_from=suspended_from)
        self.is_unsaved = True

    def _begun_anew(self, finding: Finding, view: ClusterView) -> bool:
        """Take up a topic's new life from its first offsets, once all its partitions have a leader."""
        topic = view.topics[finding.topic]
        keys = [(topic.topic_id, partition) for partition in range(topic.partitions)]
        if not all(key in view.ends for key in keys):
            return False
        for key in keys:
            if key not in self.positions:
                self.positions[key] = bookkeeping.first_position(topic, key, view.ends[key])
        return True

    def ledger_rows(
        self, identity: bookkeeping.BatchIdentity, facts: Sequence[RangeFacts], ends: Mapping[Key, Ends], *, full: bool
    ) -> list[LedgerRow]:
        """The ledger rows of a batch; of all partitions ever read, when it is to be a full set."""
        worked = {item.range.position.key for item in facts}
        quiet = [position for key, position in self.positions.items() if full and key not in worked]
        rows = bookkeeping.ledger_rows(identity, facts, quiet, ends)
        rows += [bookkeeping.carried(identity, row) for row in self._others.values() if full]
        return [bookkeeping.with_lost(row, self._lost.get((row.topic_id, row.partition))) for row in rows]

    def advance(self, bins: Iterable[BinFacts]) -> None:
        """Move the positions to where a committed batch ended, and learn from it."""
        if self.is_unsaved:
            self._lost.clear()  # such a batch has a row of every partition
        self.is_unsaved = False
        for group in bins:
            for item in group.ranges:
                self._advance(item)
            self._learn(group)

    def _advance(self, facts: RangeFacts) -> None:
        key = facts.range.position.key
        self._lost.pop(key, None)
        self.positions[key] = bookkeeping.advanced(facts.range.position, facts)
        if facts.trouble is not None:
            LOG.warning("%s/%s: %s", facts.range.position.topic, facts.range.position.partition, facts.trouble)

    def _learn(self, group: BinFacts) -> None:
        """What a bin shows of its partitions; a small one shows little more than its fixed costs."""
        size, rows = sum(file.size for file in group.files), sum(file.rows for file in group.files)
        large = sum(item.counts.messages for item in group.ranges) >= TELLING_MESSAGES
        for item in group.ranges:
            key, messages = item.range.position.key, item.counts.messages
            if messages and large:
                _learn(self._seconds, key, item.cpu_seconds / messages)
            if messages and size >= TELLING_BYTES:
                _learn(self._bytes, key, item.rows * size / rows / messages)


def _known(position: Position) -> Known:
    return Known(position.topic, position.next_offset, position.catching_up, position.leader_epoch)


def _learn(learned: dict[Key, float], key: Key, newest: float) -> None:
    learned[key] = (1 - FORGET_RATIO) * learned.get(key, newest) + FORGET_RATIO * newest
