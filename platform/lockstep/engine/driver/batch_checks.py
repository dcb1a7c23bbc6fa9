"""Verdicts on the driver's findings: faults of logs, quarantine limit, session in two partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lockstep.declare.options import Limits
from lockstep.engine.protocol import RangeResult, TaskResult, list_results
from lockstep.integrity.base import IntegrityClass
from lockstep.integrity.resume_options import BURST
from lockstep.integrity.verdict import Judgement
from lockstep.kafka.audit import ENDINGS
from lockstep.kafka.topic_end import TopicEnd
from lockstep.model.fault import Fault
from lockstep.model.finding import Finding


def judge_finding(finding: Finding, ends: Mapping[str, TopicEnd], integrity: IntegrityClass) -> Judgement:
    """The verdict on a finding of the audit: that of the class, unless a topic ended of which every message was read.

    Args:
        finding: The finding.
        ends: Ends of the topics that were deleted or re-created, by topic id.
        integrity: The class.
    """
    end = ends.get(finding.topic_id)
    if finding.cause in ENDINGS and end is not None and end.is_event:
        return Judgement.ACCEPT
    return integrity.judge(Fault(finding.cause))


def has_messages(bins: Sequence[TaskResult]) -> bool:
    """Whether a batch read anything: an empty batch proves nothing about a burst."""
    return any(item.counts.messages for item in list_results(bins))


def find_quarantine_burst(bins: Sequence[TaskResult], limits: Limits) -> Finding | None:
    """The violation of a batch in which too large a share could not be decoded or applied; None without one.

    Messages of suspended sessions do not count: they follow one cause, which was counted.
    """
    results = list_results(bins)
    messages = sum(item.counts.messages for item in results)
    refused = sum(item.counts.refused for item in results)
    if refused < limits.quarantine_burst or refused <= limits.quarantine_share * messages:
        return None
    worst = max(results, key=lambda item: item.counts.refused).range.position
    return Finding.at(
        worst,
        BURST,
        expected=f"at most {limits.quarantine_share:.0%} of a batch refused",
        found=f"{refused} of {messages} messages",
        detail="fix decoder or transform, or accept this one burst; nothing was read past",
    )


SESSIONS_MAX = 1_000_000
"""Number of sessions remembered, some 150 bytes each; the oldest are forgotten first."""


class SessionPartitions:
    """The sessions that started in this run, in topics of more than one partition.

    A session that started before the run is unknown here: `lockstep verify` finds its second partition.
    """

    def __init__(self) -> None:
        self._partition_of: dict[tuple[str, bytes], int] = {}

    def find_split_sessions(self, bins: Sequence[TaskResult], integrity: IntegrityClass) -> tuple[Finding, ...]:
        """Sessions that a batch starts in another partition than before; without any, remember those of the batch."""
        if integrity.judge(Fault.SESSION_SPLIT) is not Judgement.VIOLATION:
            return ()
        changed = [item for item in list_results(bins) if item.opened or item.closed]
        ranges = sorted(changed, key=lambda item: item.range.position.key)
        for item in ranges:  # a session that ended in the batch may have started elsewhere in it
            self._forget_ended(item)
        findings = list[Finding]()
        for item in ranges:
            other = self._find_other_partition(item)
            if other is not None:
                findings.append(_finding(item, other))
        while len(self._partition_of) > SESSIONS_MAX:
            del self._partition_of[next(iter(self._partition_of))]
        return tuple(findings)

    def forget(self, topic_id: str) -> None:
        """Forget a topic's sessions: it has grown, and they may change partitions."""
        self._partition_of = {key: number for key, number in self._partition_of.items() if key[0] != topic_id}

    def _forget_ended(self, item: RangeResult) -> None:
        topic_id, partition = item.range.position.key
        for session in item.closed:
            if self._partition_of.get((topic_id, session)) == partition:
                del self._partition_of[topic_id, session]

    def _find_other_partition(self, item: RangeResult) -> int | None:
        topic_id, partition = item.range.position.key
        # All are remembered, also after the first that is found: one finding a range is enough.
        partitions = [self._partition_of.setdefault((topic_id, session), partition) for session in item.opened]
        return next((other for other in partitions if other != partition), None)


def _finding(item: RangeResult, other: int) -> Finding:
    position = item.range.position
    return Finding.at(
        position,
        Fault.SESSION_SPLIT,
        until=item.reached.next_offset,
        expected=f"each session in one partition; one started in partition {other}",
        found=f"it starts in partition {position.partition} as well",
        detail="fix the producer's partitioner, then read the topic's sessions from their next snapshots",
    )
