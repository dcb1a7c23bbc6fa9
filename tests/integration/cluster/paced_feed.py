"""A producer that continues during faults and records the time of each turn."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from tests.support.feed import session, session_in, update

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lockstep.table.ledger import LedgerRow
    from tests.support.feed import Feed

Partition = tuple[str, int]
PACE_SECONDS = 0.25
UPDATES_A_TURN = 25


@dataclass
class Lane:
    """Messages sent to one partition.

    Attributes:
        partition: Its number.
        values: All messages, in order.
        turns: (end offset, wall time) after each turn.
    """

    partition: int
    values: list[bytes] = field(default_factory=list)
    turns: list[tuple[int, float]] = field(default_factory=list)

    @property
    def messages(self) -> list[tuple[int, str, bytes]]:
        """The messages in the plain fold's format."""
        return [(offset, session_in(self.partition), value) for offset, value in enumerate(self.values)]


class PacedFeed:
    """Sends to all partitions in turn, on a thread, until closed."""

    def __init__(self, feed: Feed, partitions: Iterable[Partition]) -> None:
        self.lanes = {partition: Lane(partition[1]) for partition in partitions}
        self._feed, self._over = feed, threading.Event()
        self._thread = threading.Thread(target=self._send, name="paced-feed")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _send(self) -> None:
        while not self._over.wait(PACE_SECONDS):
            for (topic, partition), lane in self.lanes.items():
                count = len(lane.values)
                fresh = [update(count + n, a=n, b=-n) for n in range(1, UPDATES_A_TURN + 1)] if count else session(1)
                self._feed.send(topic, fresh, partition=partition)
                lane.values += fresh
                lane.turns.append((len(lane.values), time.time()))

    def freshness(self, ledger: Iterable[LedgerRow], since: float, until: float) -> dict[Partition, list[float]]:
        """Return by partition the sorted seconds from send to commit, of each turn sent in [since, until)."""
        commits: dict[Partition, list[tuple[int, float]]] = {partition: [] for partition in self.lanes}
        for row in ledger:
            commits[row.topic, row.partition].append((row.until, row.committed_at.timestamp()))
        return {
            partition: sorted(
                reached[bisect_left(reached, (end, 0.0))][1] - sent
                for end, sent in self.lanes[partition].turns
                if since <= sent < until and reached and end <= reached[-1][0]
            )
            for partition, reached in commits.items()
        }
