"""Keeps the run's view of Kafka: the subscribed topics, audited against the ledger before each batch."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TypeVar

import msgspec

from lockstep.engine.driver.archived_log import ArchivedLog
from lockstep.engine.driver.context import RunContext
from lockstep.engine.driver.kafka_patience import KafkaPatience
from lockstep.engine.driver.topic_history import Instant
from lockstep.errors import KafkaError
from lockstep.kafka.admin import ClusterView
from lockstep.kafka.audit import ENDINGS, audit_positions, find_recreated_topics, need_epoch_check
from lockstep.kafka.topic_end import TopicEnd, judge_topic_end
from lockstep.model.finding import Finding
from lockstep.model.position import Position, TopicIdPartition

LOG = logging.getLogger("lockstep")

T = TypeVar("T")

RETIRED_SECONDS = 3.0
"""Timeout of requests about retired topics: batches of all other topics wait for them."""


class ClusterMonitor:
    """The run's view of Kafka. The set of topics is fixed, unless the run adopts new topics or retires drained ones."""

    def __init__(
        self,
        context: RunContext,
        known_topics: frozenset[str],
        retired: frozenset[str],
        patience: KafkaPatience,
        archive: ArchivedLog,
    ) -> None:
        """Read Kafka.

        Args:
            context: Dependencies of the run.
            known_topics: Topics that the ledger knows.
            retired: Those of them that are not read.
            patience: Repeats questions without an answer.
            archive: The older part of the log.
        """
        self._archive = archive
        self.patience = patience
        self._context = context
        self._brief_admin = context.admin.within(RETIRED_SECONDS)
        self._tuning = context.launch.tuning
        self._retired = retired
        self._names = known_topics - retired
        self._listed_at = time.monotonic()
        self._appeared = frozenset[tuple[str, str]]()
        self._held = dict[TopicIdPartition, int]()
        self._described_at = 0.0
        self._warned = set[str]()
        self.view = self._view_first()

    def refresh_for_commit(self, read: Mapping[TopicIdPartition, Position]) -> list[str]:
        """Read the topics again, and the leader epochs of their partitions; log starts stay as they were.

        Args:
            read: Positions of the partitions that the batch has read.

        Returns:
            Topics that the batch has read and that were deleted or re-created since the last view, or that have logs
            which may have been truncated.

        Raises:
            KafkaError: No answer for as long as the run waits: see `KafkaPatience`.
        """
        planned = self.view
        self.view = self._ask(
            lambda: self._observe(lambda: self._context.admin.view_for_commit(self._names, self.view))
        )
        changed = {read[key].topic for key in self.check_leader_epochs(read)}
        replaced = find_recreated_topics(planned, self.view.topics)
        if replaced:
            changed |= {position.topic for position in read.values()}.intersection(replaced)
        return sorted(changed)

    def refresh_for_plan(self) -> ClusterView:
        """Read the offsets again; the topics, too, unless they were described a moment ago.

        A topic that was re-created in that moment is planned with offsets of its predecessor. It is found before the
        commit: a batch is committed only after its topics were described again.

        Raises:
            KafkaError: No answer for as long as the run waits: see `KafkaPatience`.
        """
        if time.monotonic() - self._described_at <= self._tuning.described_seconds:
            with suppress(KafkaError):
                self.view = self._observe(lambda: self._context.admin.view_offsets(self.view), is_described=False)
                return self.view
        self.view = self._read()
        return self.view

    def poll_new_topics(self) -> None:
        """Add new topics of the stream to the view; Kafka is asked at an interval.

        Two polls in a row must show a topic under the same id: once it is read, its deletion is a loss, and a topic
        that is deleted and re-created again and again is shown by any two polls.
        """
        if time.monotonic() - self._listed_at < self._tuning.appear_seconds:
            return
        self._listed_at = time.monotonic()
        try:
            new = self._list_names() - self._names - self._retired
            unreadable = self._context.admin.find_unreadable(new)
            described = self._context.admin.topics(new - unreadable)
        except KafkaError as error:
            self.warn_once(f"new topics are not read: {error.problem}")
            return
        for name in sorted(unreadable):
            self.warn_once(f"new topic {name} is not read: Kafka shows it to this user, and does not let it read")
        appeared_before = self._appeared
        self._appeared = frozenset((name, topic.topic_id) for name, topic in described.items())
        lasting = frozenset(name for name, _ in appeared_before & self._appeared)
        if lasting:
            self.follow(lasting)

    def follow(self, names: frozenset[str]) -> None:
        """Add topics to the view; two reads complete each other."""
        self._names = self._names | names
        self._retired = self._retired - names
        self.view = merge_views(self._read(), self._read())

    def leave(self, names: frozenset[str]) -> None:
        """Remove topics from the view: Kafka is no longer asked about them."""
        self._names = self._names - names
        self._retired = self._retired | names
        self.view = without_topics(self.view, names)
        self._context.history.leave(names)

    def view_retired(self) -> ClusterView | None:
        """The retired topics that Kafka has, without a request if there are none; None if Kafka does not answer."""
        if not self._retired:
            return msgspec.structs.replace(self.view, topics={}, ends={})
        try:
            return self._brief_admin.view(self._retired & self._brief_admin.topic_names())
        except KafkaError as error:
            self.warn_once(f"retired topics are not read: {error.problem}")
            return None

    def find_deleted(self, names: Iterable[str]) -> frozenset[str]:
        """Those of some retired topics that Kafka reports as nonexistent; none without an answer."""
        return self._brief_admin.find_deleted(names)

    def check_leader_epochs(self, known: Mapping[TopicIdPartition, Position]) -> frozenset[TopicIdPartition]:
        """Check for truncation the logs whose leader has changed since they were read; returns those that may differ.

        A partition without an answer is left out of the view: the next read asks about it again.
        """
        asked = need_epoch_check(known, self.view, self._held)
        if not asked:
            return frozenset()
        answer = self._context.admin.compared(asked)
        ends = self.view.ends
        self._held = {key: epoch for key, epoch in self._held.items() if key in ends}  # others were retired
        for key in answer.holding:
            epoch = ends[key].leader_epoch
            if epoch is not None:
                self._held[key] = epoch
        doubted = asked.keys() - answer.holding
        silent = doubted - answer.cut
        answered = {key: offsets for key, offsets in ends.items() if key not in silent}
        self.view = msgspec.structs.replace(self.view, ends=answered, cut=self.view.cut | answer.cut)
        return frozenset(doubted)

    def judge_ends(
        self, findings: Iterable[Finding], known: Mapping[TopicIdPartition, Position]
    ) -> dict[str, TopicEnd]:
        """The ends of the topics that some findings report as deleted or re-created, by topic id.

        Args:
            findings: Findings of an audit.
            known: Partitions of the subscribed topics.
        """
        ids = {finding.topic_id for finding in findings if finding.cause in ENDINGS}
        positions: dict[str, dict[int, Position]] = {topic_id: {} for topic_id in ids}
        if not ids:  # nearly always
            return {}
        for key, position in known.items():
            if key.topic_id in positions:
                positions[key.topic_id][key.partition] = position
        ends = dict[str, TopicEnd]()
        for topic_id, of_topic in positions.items():
            gone = self._context.history.find_gone(topic_id)
            ends[topic_id] = judge_topic_end(gone, of_topic, self._held, self._tuning.end_seconds_max)
        return ends

    def confirmed(self, known: Mapping[TopicIdPartition, Position], *, permanent: bool) -> tuple[Finding, ...]:
        """Findings of the audit that every further read confirms, as of the last read.

        If reads differ in a log start, the lowest counts: an offset that any read showed is not skipped.

        Args:
            known: Partitions of the subscribed topics.
            permanent: Whether the stream would halt with them.
        """
        findings = audit_positions(known, self.view)
        seconds = self._tuning.confirm_seconds if permanent else self._tuning.move_seconds
        for _ in range(self._tuning.confirm_looks - 1):
            if not findings:
                break
            LOG.warning("Kafka seems wrong, reading it again: %s", findings[0])
            if self._context.stop.wait(seconds / (self._tuning.confirm_looks - 1)):
                return ()
            self.view = with_lowest_starts(self.view, self._ask(self._read_same_cluster))
            self.check_leader_epochs(known)
            places = {_place(finding) for finding in findings}
            findings = tuple(finding for finding in audit_positions(known, self.view) if _place(finding) in places)
        return findings

    def _view_first(self) -> ClusterView:
        """The first view, of two reads or more: a topic is left out only if none of them shows it."""
        self._names |= self._ask(self._list_names) - self._retired
        view = self._read()
        for _ in range(self._tuning.confirm_looks - 1):
            pause = self._tuning.move_seconds / (self._tuning.confirm_looks - 1)
            if self._lacks(view) and self._context.stop.wait(pause):
                break
            earlier = view
            view = merge_views(earlier, self._read())
            if not self._lacks(view) and not find_recreated_topics(earlier, view.topics):
                break
        return view

    def _lacks(self, view: ClusterView) -> bool:
        """Whether a topic is missing, or a partition has no leader."""
        return bool(view.unavailable) or not self._names <= view.topics.keys()

    def _list_names(self) -> frozenset[str]:
        return self._context.stream.topics.select(self._context.admin.topic_names())

    def _read(self) -> ClusterView:
        return self._ask(lambda: self._observe(lambda: self._context.admin.view(self._names)))

    def _read_same_cluster(self) -> ClusterView:
        """Topics that are gone or others may be those of another cluster, to which the brokers' addresses now lead."""
        view = self._observe(lambda: self._context.admin.view(self._names))
        self._context.admin.check_cluster()
        return view

    def _ask(self, question: Callable[[], T]) -> T:
        """The answer, once there is one; its content is as old as the question."""

        def ask() -> T:
            self._described_at = time.monotonic()
            return question()

        return self.patience.ask(ask)

    def _observe(self, look: Callable[[], ClusterView], *, is_described: bool = True) -> ClusterView:
        """Read a view, and note it in the history of the topics."""
        asked = Instant.now()
        view = self._archive.extend(look())
        self._context.history.note(view, asked, Instant.now(), is_described=is_described)
        return view

    def warn_once(self, text: str) -> None:
        """Log a warning, unless it was logged before."""
        if text not in self._warned:
            self._warned.add(text)
            LOG.warning("%s", text)


def with_lowest_starts(before: ClusterView, view: ClusterView) -> ClusterView:
    """The newer of two views, with the lower log start of each partition that both show."""
    ends = dict(view.ends)
    for key, offsets in view.ends.items():
        if key in before.ends:
            ends[key] = msgspec.structs.replace(offsets, start=min(offsets.start, before.ends[key].start))
    return msgspec.structs.replace(view, ends=ends)


def merge_views(before: ClusterView, view: ClusterView) -> ClusterView:
    """The union of two views: the newer value if both have one, with the lower log starts."""
    topics = before.topics | view.topics
    merged = before.ends | with_lowest_starts(before, view).ends
    ids = {topic.topic_id for topic in topics.values()}
    ends = {key: offsets for key, offsets in merged.items() if key.topic_id in ids}  # a re-created topic has another id
    return msgspec.structs.replace(view, topics=topics, ends=ends, cut=before.cut | view.cut)


def without_topics(view: ClusterView, names: frozenset[str]) -> ClusterView:
    """A view without these topics."""
    ids = {topic.topic_id for name, topic in view.topics.items() if name in names}
    return msgspec.structs.replace(
        view,
        topics={name: topic for name, topic in view.topics.items() if name not in names},
        ends={key: offsets for key, offsets in view.ends.items() if key.topic_id not in ids},
    )


def _place(finding: Finding) -> tuple[str, str, int]:
    return finding.cause, finding.topic_id, finding.partition
