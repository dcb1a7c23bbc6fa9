"""Which partition of its topic a session began in: a session in two of them has no order."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.engine.facts import BinFacts, RangeFacts
from lockstep.integrity.contract import Fault, IntegrityClass
from lockstep.integrity.finding import Finding
from lockstep.integrity.verdict import Judgement

HOMES_MAX = 1_000_000
"""Sessions remembered, some 150 bytes each; the oldest are forgotten first."""


class Homes:
    """The sessions that began in this run, in topics of more than one partition.

    A session that began before the run is not known here: its second life is seen by `lockstep verify`.
    """

    def __init__(self) -> None:
        self._partition_of: dict[tuple[str, bytes], int] = {}

    def moved(self, bins: Sequence[BinFacts], integrity: IntegrityClass) -> tuple[Finding, ...]:
        """Sessions that a batch begins in another partition than they are known in; else remember its own."""
        if integrity.answer(Fault.MOVED) is not Judgement.VIOLATION:
            return ()
        ranges = sorted((item for group in bins for item in group.ranges), key=lambda item: item.range.position.key)
        found = [_finding(item, home) for item in ranges if (home := self._home_elsewhere(item)) is not None]
        while len(self._partition_of) > HOMES_MAX:
            del self._partition_of[next(iter(self._partition_of))]
        return tuple(found)

    def forget(self, topic_id: str) -> None:
        """A topic has grown, and its sessions may move."""
        self._partition_of = {key: home for key, home in self._partition_of.items() if key[0] != topic_id}

    def _home_elsewhere(self, item: RangeFacts) -> int | None:
        topic_id, partition = item.range.position.key
        for session in item.closed:
            if self._partition_of.get((topic_id, session)) == partition:
                del self._partition_of[topic_id, session]
        homes = [self._partition_of.setdefault((topic_id, session), partition) for session in item.opened]
        return next((home for home in homes if home != partition), None)


def _finding(item: RangeFacts, home: int) -> Finding:
    position = item.range.position
    return Finding(
        cause=Fault.MOVED.value,
        topic=position.topic,
        topic_id=position.topic_id,
        partition=position.partition,
        offset=position.next_offset,
        until=item.until,
        expected=f"each session in one partition; one began in partition {home}",
        found=f"it begins in partition {position.partition} as well",
        detail="mend the producer's partitioner, then read the topic's sessions from their next snapshots",
    )
