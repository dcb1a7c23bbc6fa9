"""The partitions of a run: where each stands, and what was learned of it. The ledger has the first."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from lockstep.engine import bookkeeping
from lockstep.engine.facts import BinFacts, RangeFacts
from lockstep.engine.headroom import headroom_seconds
from lockstep.engine.plan import BatchPlan, Learned
from lockstep.integrity.finding import Finding, Hole
from lockstep.kafka.audit import EXPIRED, GREW, Key, Known
from lockstep.kafka.discovery import ClusterView, Ends
from lockstep.table.ledger import LedgerRow

LOG = logging.getLogger("lockstep")

FORGET_RATIO = 0.3
"""Weight of the newest batch in what is learned: the third batch after a change of load decides."""

TELLING_MESSAGES, TELLING_BYTES = 1_000, 32_000
"""Below these, what a message costs and what it comes to is mostly the cost of a task and a file's own frame."""


class Subscription:
    """The partitions that a run reads, and those that only keep their place in the ledger."""

    def __init__(self, known: Mapping[Key, LedgerRow], view: ClusterView, selected: frozenset[str]) -> None:
        """Take up where the ledger stands.

        Args:
            known: Newest ledger row of every partition ever read.
            view: Kafka's topics of the stream now.
            selected: Names of topics in the ledger that the stream's pattern still selects.
        """
        self.positions = bookkeeping.subscribed(known, view)
        self.is_new = not self.positions.keys() <= known.keys()
        self._others = {key: row for key, row in known.items() if key not in self.positions}
        self._gone = {key: Known(row.topic, row.until) for key, row in self._others.items() if row.topic in selected}
        self._bins: dict[Key, int] = {}
        self._seconds: dict[Key, float] = {}
        self._bytes: dict[Key, float] = {}
        self._lost: dict[Key, Hole] = {}
        self._newest_ms = {
            key: int(row.newest_timestamp.timestamp() * 1000)
            for key, row in known.items()
            if row.newest_timestamp is not None
        }

    @property
    def known(self) -> dict[Key, Known]:
        """What an audit compares with Kafka: partitions that are read, and those that are gone."""
        return self._gone | {key: Known(p.topic, p.next_offset) for key, p in self.positions.items()}

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

    def accept(self, finding: Finding, view: ClusterView) -> None:
        """What a class without a promise only counts: expired offsets are passed over, as a hole."""
        key = (finding.topic_id, finding.partition)
        if finding.cause == EXPIRED and key in self.positions:
            self._lost[key] = Hole(start=finding.offset, until=finding.until, cause="expired")
            self.positions[key] = msgspec.structs.replace(self.positions[key], next_offset=finding.until)
            LOG.warning("%s", finding)
        elif finding.cause == GREW and key in view.ends:
            self.positions[key] = bookkeeping.first_position(view.topics[finding.topic], key, view.ends[key])
            LOG.warning("%s", finding)

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
        for group in bins:
            row_bytes = sum(file.size for file in group.files) / max(1, sum(file.rows for file in group.files))
            for item in group.ranges:
                self._advance(item, row_bytes)

    def _advance(self, facts: RangeFacts, row_bytes: float) -> None:
        key = facts.range.position.key
        self._lost.pop(key, None)
        self.positions[key] = bookkeeping.advanced(facts.range.position, facts)
        if facts.newest_timestamp_ms:
            self._newest_ms[key] = facts.newest_timestamp_ms
        if messages := facts.counts.messages:
            _learn(self._seconds, key, facts.cpu_seconds / messages)
            _learn(self._bytes, key, facts.rows * row_bytes / messages)
        if facts.trouble is not None:
            LOG.warning("%s/%s: %s", facts.range.position.topic, facts.range.position.partition, facts.trouble)


def _learn(learned: dict[Key, float], key: Key, newest: float) -> None:
    learned[key] = (1 - FORGET_RATIO) * learned.get(key, newest) + FORGET_RATIO * newest
