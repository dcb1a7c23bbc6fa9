"""Retires the drained topics of a run, reads retired ones again when a message arrives, and forgets deleted ones."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import islice

from lockstep.engine.driver.cluster_view import ClusterMonitor
from lockstep.engine.driver.context import RunContext
from lockstep.engine.driver.handover import take_retire_request
from lockstep.engine.driver.positions import RETIRED, Subscription
from lockstep.engine.protocol import to_event_time
from lockstep.errors import KafkaError
from lockstep.kafka.admin import Topic
from lockstep.kafka.progress import TopicFacts, TopicLifecycle, judge_lifecycle
from lockstep.model.finding import Finding

FORGOTTEN_MAX = 1_000
"""Partitions that are forgotten at once; the next look takes the next ones."""


class TopicRetirement:
    """Looks at an interval; requests of operators are answered with every batch."""

    def __init__(self, context: RunContext, epoch: int, monitor: ClusterMonitor, partitions: Subscription) -> None:
        self._context, self._epoch, self._monitor, self._partitions = context, epoch, monitor, partitions
        self._looked_at = time.monotonic()

    def read_revived(self) -> None:
        """Read retired topics again that have new messages; re-created ones become new topics of the view."""
        view = self._monitor.view_retired()
        if view is None:
            return
        if names := self._partitions.find_revived(view):
            self._monitor.follow(names)
            self._partitions.read_again(self._monitor.view)
        self._forget({**view.topics, **self._monitor.view.topics}, time.time_ns() // 1_000)

    def _forget(self, topics: Mapping[str, Topic], now_us: int) -> None:
        """Forget retired partitions of topics that Kafka has not had for long, as it says once more of each by name.

        A list of topics leaves out what this user may not see, and a topic of the same id that came back would be read
        from its first offset. Partitions of a class that buffers messages stay: what is buffered is not accounted for.
        """
        there = {topic.topic_id for topic in topics.values()}
        self._partitions.note_gone(there, now_us)
        if self._context.stream.integrity.buffer:
            return
        before_us = now_us - int(self._context.launch.tuning.forget_seconds * 1e6)
        gone = dict(islice(sorted(self._partitions.find_long_gone(before_us).items()), FORGOTTEN_MAX))
        deleted = self._context.admin.find_deleted(set(gone.values()) - topics.keys())
        sure = {key for key, name in gone.items() if name in deleted or name in topics}
        self._partitions.forget(sure)
        self._partitions.note_gone(there | {topic_id for topic_id, _ in gone.keys() - sure}, now_us)

    def poll(self) -> None:
        """Answer an operator's request; at an interval also retire drained topics, and read revived ones again."""
        request = take_retire_request(self._context.folders.control, self._epoch)
        if request is not None:
            idle = self._partitions.find_idle_topics(self._monitor.view.ends)
            self._retire(idle & frozenset(request.topics), request.who, request.why)
        if time.monotonic() - self._looked_at < self._context.launch.tuning.lifecycle_seconds:
            return
        self._looked_at = time.monotonic()
        self.read_revived()
        if self._context.stream.topics.retire_drained:
            self._retire(self._find_drained(), "the declaration", "drained: Topics(retire_drained=True)")

    def tolerates_deletion(self, finding: Finding) -> bool:
        """Whether a deleted topic was drained when an earlier run saw it last, and drained topics are retired."""
        topics, silence = self._context.stream.topics, self._partitions.find_silence(finding.topic_id)
        return topics.retire_drained and silence is not None and silence >= topics.inactive_after

    def _retire(self, names: frozenset[str], who: str, why: str) -> None:
        if names:
            self._partitions.retire(names, RETIRED, who=who, why=why)
            self._monitor.leave(names)

    def _find_drained(self) -> frozenset[str]:
        """Topics whose newest message is old enough; Kafka is asked only where this run has read none."""
        view, now = self._monitor.view, datetime.now(UTC)
        before_ms = int((now - self._context.stream.topics.inactive_after).timestamp() * 1000)
        idle = self._partitions.find_idle_topics(view.ends, before_ms)
        topics = [topic for name, topic in view.topics.items() if name in idle]
        try:
            newest_ms = self._context.admin.newest_timestamps(
                (topic.name, partition) for topic in topics for partition in range(topic.partitions)
            )
        except KafkaError:
            return frozenset()  # the read before the batch reports it, and waits
        ids = {topic.name: topic.topic_id for topic in topics}
        self._partitions.note_newest({(ids[name], partition): at for (name, partition), at in newest_ms.items()})
        return frozenset(topic.name for topic in topics if self._is_drained(topic, newest_ms, now))

    def _is_drained(self, topic: Topic, newest_ms: Mapping[tuple[str, int], int], now: datetime) -> bool:
        newest = max((at for (name, _), at in newest_ms.items() if name == topic.name), default=None)
        facts = TopicFacts(
            read_ids=frozenset({topic.topic_id}),
            topic=topic,
            is_selected=True,
            lag_messages=0,
            newest_message=None if newest is None else to_event_time(newest * 1000),
            inactive_after=self._context.stream.topics.inactive_after,
        )
        return judge_lifecycle(facts, now) is TopicLifecycle.DRAINED
