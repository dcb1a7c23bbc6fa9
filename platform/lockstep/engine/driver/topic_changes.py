"""Topics that appear and vanish during a run.

New topics are added, retired ones read again when a message arrives, deleted ones forgotten.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import islice

from lockstep.control.handover import take_retire_request
from lockstep.declare.options import NewTopics
from lockstep.engine.driver.cluster_view import ClusterMonitor
from lockstep.engine.driver.context import RunContext
from lockstep.engine.driver.join_offsets import read_join_offsets
from lockstep.engine.driver.startup import WriterClaim, check_topics_fit
from lockstep.engine.driver.subscription import Subscription
from lockstep.errors import KafkaUnreachable
from lockstep.kafka.admin import ClusterView, Topic
from lockstep.model.position import TopicIdPartition
from lockstep.table.positions import RETIRED

JOIN_SECONDS = 60.0
"""Pause after an unanswered question for the offsets at which new topics are joined; batches wait for an answer."""
FORGOTTEN_MAX = 1_000
"""Partitions that are forgotten at once; the next poll takes the next ones."""


def open_subscription(
    context: RunContext, claimed: WriterClaim, monitor: ClusterMonitor, selected: frozenset[str]
) -> Subscription:
    """Partitions of a run at its start: at the positions of the ledger, or at the offsets that join new logs.

    Args:
        context: Dependencies of the run.
        claimed: Result of the claim.
        monitor: The view of Kafka.
        selected: Names of topics in the ledger that the stream's pattern still selects.

    Raises:
        LockstepError: The stream cannot run on these topics.
    """
    view = monitor.view
    check_topics_fit(context.stream, view.topics, claimed.known.values())
    read_ids = {topic_id for topic_id, _ in claimed.known}
    new = [topic for topic in view.topics.values() if topic.topic_id not in read_ids]
    is_first_run = not claimed.head.batch
    joined = monitor.patience.ask(lambda: _read_join_offsets(context, view, new, is_first_run=is_first_run))
    return Subscription(claimed.known, view, selected, joined)


def _read_join_offsets(
    context: RunContext, view: ClusterView, new: Sequence[Topic], *, is_first_run: bool
) -> dict[TopicIdPartition, int]:
    committed = context.group.committed_by
    return read_join_offsets(context.stream.topics, new, view, context.admin, committed, is_first_run=is_first_run)


class TopicChanges:
    """Changes the subscription of a run, and the topics in its view of Kafka."""

    def __init__(self, context: RunContext, epoch: int, monitor: ClusterMonitor, partitions: Subscription) -> None:
        """Read retired topics again that have new messages; re-created topics are added as new topics.

        Args:
            context: Dependencies of the run.
            epoch: Epoch of the writer.
            monitor: The view of Kafka.
            partitions: The subscription.
        """
        self._context = context
        self._epoch = epoch
        self._monitor = monitor
        self._partitions = partitions
        self._looked_at = time.monotonic()
        self._join_at = 0.0
        adopts = context.launch.adopts_topics or context.stream.topics.new_topics is NewTopics.ADOPT
        self._adopts = adopts and not context.is_bounded
        self._read_revived()
        self._add_new()

    def poll(self) -> None:
        """Follow the changes since the last poll.

        1. Retire the topics that an operator has asked for.
        2. At an interval: read revived topics again.
        3. Add new topics.
        """
        request = take_retire_request(self._context.folders.control, self._epoch)  # 1
        if request is not None:
            idle = self._partitions.find_idle_topics(self._monitor.view.ends)
            self._retire(idle & frozenset(request.topics), request.who, request.why)
        if time.monotonic() - self._looked_at >= self._context.launch.tuning.lifecycle_seconds:  # 2
            self._looked_at = time.monotonic()
            self._read_revived()
        if self._adopts:  # 3
            self._monitor.poll_new_topics()
        self._add_new()

    def _add_new(self) -> None:
        """Subscribe to the topics that are new in the view, as a new run would.

        Other topics do not wait for the offsets at which these are joined: without an answer they are asked for later.
        """
        view = self._monitor.view
        new = self._partitions.find_new_topics(view)
        if not new or time.monotonic() < self._join_at:
            return
        check_topics_fit(self._context.stream, view.topics, ())
        try:
            joined = _read_join_offsets(self._context, view, new, is_first_run=False)
        except KafkaUnreachable as error:
            self._join_at = time.monotonic() + JOIN_SECONDS
            self._monitor.warn_once(f"new topics are not read yet: {error.problem}")
        else:
            self._partitions.take_up(view, joined)

    def _read_revived(self) -> None:
        """Read retired topics again that have new messages; re-created ones become new topics of the view."""
        view = self._monitor.view_retired()
        if view is None:
            return
        names = self._partitions.find_revived(view)
        if names:
            self._monitor.follow(names)
            self._partitions.read_again(self._monitor.view)
        self._forget({**view.topics, **self._monitor.view.topics}, time.time_ns() // 1_000)

    def _forget(self, topics: Mapping[str, Topic], now_us: int) -> None:
        """Forget retired partitions of topics that Kafka has not had for long, after asking for each topic by name.

        A list of all topics lacks those that this user may not describe, and a forgotten topic that returned under the
        same id would be read from its first offset. Under a class that buffers messages nothing is forgotten: buffered
        messages are not accounted for yet.
        """
        present = {topic.topic_id for topic in topics.values()}
        self._partitions.note_gone(present, now_us)
        if self._context.stream.integrity.buffer:
            return
        before_us = now_us - int(self._context.launch.tuning.forget_seconds * 1e6)
        gone = dict(islice(sorted(self._partitions.find_long_gone(before_us).items()), FORGOTTEN_MAX))
        deleted = self._monitor.find_deleted(set(gone.values()) - topics.keys())
        # A topic with this name and another id: the old one is gone for certain.
        certain = {key for key, name in gone.items() if name in deleted or name in topics}
        self._partitions.forget(certain)
        hidden = {topic_id for topic_id, _ in gone.keys() - certain}
        self._partitions.note_gone(present | hidden, now_us)

    def _retire(self, names: frozenset[str], who: str, why: str) -> None:
        if names:
            self._partitions.retire(names, RETIRED, who=who, why=why)
            self._monitor.leave(names)
