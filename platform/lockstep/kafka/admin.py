"""Cluster metadata: topics, ids, offsets, configs, timestamps.

A failure to read Kafka is an error here, never an empty answer: an empty answer would retire topics.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from functools import lru_cache, partial
from typing import NamedTuple, TypeVar, cast

import msgspec
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    TIMESTAMP_NOT_AVAILABLE,
    IsolationLevel,
    KafkaException,
    Node,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka import KafkaError as ClientError
from confluent_kafka.admin._acl import AclOperation
from confluent_kafka.admin._config import ConfigEntry, ConfigResource
from confluent_kafka.admin._listoffsets import ListOffsetsResultInfo, OffsetSpec
from confluent_kafka.admin._metadata import ClusterMetadata
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.admin._topic import TopicDescription

from lockstep.errors import KafkaError
from lockstep.kafka.client import (
    ClusterClient,
    Configuration,
    OffsetAnswers,
    make_consumer,
    make_reader_configuration,
)
from lockstep.kafka.leader_epochs import TruncationCheck, check_truncation
from lockstep.kafka.topic_identity import find_identities
from lockstep.model.position import Position, TopicIdPartition, TopicNamePartition


class TopicSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Replication and settings of a topic.

    Attributes:
        topic: Its name.
        replicas: Replicas of the partition with the fewest.
        in_sync: In-sync replicas of the partition with the fewest.
        settings: The topic's settings by Kafka's names, cluster defaults included.
    """

    topic: str
    replicas: int
    in_sync: int
    settings: Mapping[str, str]


T = TypeVar("T")
Answer = TypeVar("Answer")
TURN_SECONDS = 1.0
_UNKNOWN_TOPIC = ClientError.UNKNOWN_TOPIC_OR_PART
_UNANSWERED = ClientError(ClientError._TIMED_OUT)  # noqa: SLF001  # the client's name
"""The client reports no error if a leader does not answer about offsets: it returns OFFSET_INVALID for each of them."""
_PROBE = "lockstep-may-see"
"""No topic: requested by name to learn whether this user may see topics at all."""
FIRST_BROKER_SECONDS = 3.0
"""Longest time for the broker that is asked first, and half of the next one's; at most a third of the timeout.

An answer for 1,000 topics takes some 20 ms.
"""
ASK_SECONDS_MIN = 0.1
"""The client refuses a timeout of zero."""
LOOK_SECONDS = 0.1
"""Pause between two requests for the name of a controller: with 10,000 topics an answer takes 0.2 s."""
REQUEST_PARTITIONS = 200
"""The client searches its list of partitions for each answer: 11 us a partition with 1,000 in a request, 6 with 200."""
REQUESTS_MAX = 100_000
"""Kept parts of requests, some 200 bytes each: three a partition."""
POLICY_SECONDS = 300.0
"""Age of the retention policies at which they are asked for again."""
SILENT_LEADER_SECONDS = 2.0
"""Time for a leader after another leader has answered."""
SILENT_AGAIN_SECONDS = 0.1
"""The same for a leader that was silent in the last poll."""


class _Question(NamedTuple):
    """A question about offsets."""

    which: int
    isolation: IsolationLevel


_START = _Question(OFFSET_BEGINNING, IsolationLevel.READ_UNCOMMITTED)
_HIGH_WATERMARK = _Question(OFFSET_END, IsolationLevel.READ_UNCOMMITTED)
_STABLE_END = _Question(OFFSET_END, IsolationLevel.READ_COMMITTED)


_Request = tuple[int, _Question, int]
"""A request for offsets: the leader that is asked, the question, and the number of its first partition there."""


class _Answers(NamedTuple):
    """The partitions of a request, and their pending answers."""

    asked: list[TopicPartition]
    future: Future[OffsetAnswers]


class _Leader(NamedTuple):
    """The broker that leads a partition."""

    key: TopicIdPartition
    broker: int


class RetentionPolicy(NamedTuple):
    """The settings of a topic that decide how long its messages stay.

    Attributes:
        topic: Name of the topic.
        deletes_only: cleanup.policy is `delete` alone.
        retention_ms: Retention by age; None for unlimited.
    """

    topic: str
    deletes_only: bool
    retention_ms: int | None


class Topic(msgspec.Struct, frozen=True, gc=False):
    """One topic, identified by its id.

    Attributes:
        name: Its name.
        topic_id: Kafka's topic id.
        partitions: Number of partitions.
        deletes_only: cleanup.policy is `delete` alone: nothing is compacted, according to this request.
        retention_ms: Retention by age; None for unlimited. Retention by size is not considered.
    """

    name: str
    topic_id: str
    partitions: int
    deletes_only: bool
    retention_ms: int | None = None


class PartitionOffsets(msgspec.Struct, frozen=True, gc=False):
    """Offsets of one partition.

    Attributes:
        start: First offset that can be read.
        stable_end: Last stable offset: the end that a plan may use.
        high_watermark: End of the replicated log.
        leader_epoch: Epoch of the partition's leader; None if the broker does not send it.
        log_start: First offset in Kafka, if the archive has all before it from `start` on; otherwise None.
    """

    start: int
    stable_end: int
    high_watermark: int
    leader_epoch: int | None = None
    log_start: int | None = None

    def is_archived(self, offset: int) -> bool:
        """Whether an offset that can be read is in the archive, and no more in Kafka."""
        return self.log_start is not None and offset < self.log_start


class ClusterView(msgspec.Struct, frozen=True):
    """A snapshot of the cluster.

    Attributes:
        cluster_id: Kafka's id of the cluster.
        topics: The stream's topics by name.
        ends: Offsets by (topic id, partition).
        cut: Partitions whose log no longer contains the records that were read, although it is as long.
        leaders: The broker that leads each partition, by topic and number, as of the topics' description.
    """

    cluster_id: str
    topics: dict[str, Topic]
    ends: dict[TopicIdPartition, PartitionOffsets]
    cut: frozenset[TopicIdPartition] = frozenset()
    leaders: Mapping[TopicNamePartition, int] = {}

    @property
    def unavailable(self) -> tuple[TopicNamePartition, ...]:
        """Partitions without a leader or without an answer, by topic and number."""
        missing = list[TopicNamePartition]()
        for topic in self.topics.values():
            for partition in range(topic.partitions):
                if (topic.topic_id, partition) not in self.ends:
                    missing.append(TopicNamePartition(topic.name, partition))
        return tuple(sorted(missing))


class ClusterAdmin:
    """Queries one cluster. Caches the retention policy of each topic id for a while: it is the slowest request."""

    def __init__(self, admin: ClusterClient, timeout_seconds: float) -> None:
        self._admin = admin
        self._timeout = timeout_seconds
        self._policies = dict[str, RetentionPolicy]()
        self._renewed_at = time.monotonic()
        self._cluster_id: str | None = None
        self._silent: set[int] = set()

    def within(self, seconds: float) -> ClusterAdmin:
        """The same cluster by the same connections, with at most this timeout: for requests that may fail."""
        return ClusterAdmin(self._admin, min(seconds, self._timeout))

    def topic_names(self) -> frozenset[str]:
        """All topics of the cluster.

        Raises:
            KafkaError: The cluster did not answer, or hides all topics from this user.
        """
        names = frozenset(self._metadata().topics)
        if not names:
            self._check_topics_visible()
        return names

    def cluster_id(self) -> str:
        """Kafka's id of the cluster; requested once.

        Raises:
            KafkaError: The cluster did not answer.
        """
        return self._cluster_id or str(self._metadata().cluster_id)

    def check_cluster(self) -> None:
        """Check that the brokers that answer are still those of the same cluster.

        Raises:
            KafkaError: They are not, or did not answer.
        """
        self._metadata()

    def view(self, names: Iterable[str]) -> ClusterView:
        """Ids and offsets of the existing topics, in three requests to each leader.

        The last stable offsets are requested last: below a high watermark of before, they show an open transaction.

        Raises:
            KafkaError: A request was not answered.
        """
        self._renew_policies()
        topics, leaders = self._describe(names)
        return self.view_offsets(ClusterView(cluster_id=self.cluster_id(), topics=topics, ends={}, leaders=leaders))

    def view_offsets(self, view: ClusterView) -> ClusterView:
        """The topics of a view as they were described then, with the offsets of now.

        Raises:
            KafkaError: A request was not answered.
        """
        ends = self._offsets(_find_leaders(view.topics, view.leaders))
        self._admin.clear_log()
        return msgspec.structs.replace(view, ends=ends, cut=frozenset())

    def view_for_commit(self, names: Iterable[str], before: ClusterView) -> ClusterView:
        """Ids, last stable offsets and leader epochs of the existing topics, in one request to each leader.

        Log starts, and high watermarks below a last stable offset, are copied from `before`: for a plan both are too
        old. Partitions that were not in the view before are not in this one.

        Raises:
            KafkaError: A request was not answered.
        """
        topics, leaders = self._describe(names)
        (stable,) = self._ask_leaders(_find_leaders(topics, leaders), _STABLE_END)
        ends = dict[TopicIdPartition, PartitionOffsets]()
        for key, offsets in before.ends.items():
            if key in stable:
                ends[key] = msgspec.structs.replace(
                    offsets,
                    stable_end=stable[key].offset,
                    high_watermark=max(offsets.high_watermark, stable[key].offset),
                    leader_epoch=_known_epoch(stable[key]),
                )
        self._admin.clear_log()
        return ClusterView(cluster_id=before.cluster_id, topics=topics, ends=ends, leaders=leaders)

    def find_offsets_at(self, places: Iterable[TopicNamePartition], timestamp_ms: int) -> dict[TopicNamePartition, int]:
        """Offset of the first message with this Kafka timestamp or later; partitions without one are left out.

        Args:
            places: The partitions, by (topic, partition).
            timestamp_ms: Milliseconds since 1970 (UTC).

        Raises:
            KafkaError: The cluster did not answer.
        """
        request = {TopicPartition(*place): OffsetSpec.for_timestamp(timestamp_ms) for place in places}
        if not request:
            return {}
        answers = self._ask("offsets by time", lambda: self._admin.list_offsets(request, request_timeout=self._timeout))
        offsets: dict[TopicNamePartition, int] = {}
        for place, future in answers.items():
            try:
                offset = int(future.result().offset)
            except KafkaException as error:
                raise self._unread(f"the offsets by time of topic {place.topic}", error) from error
            if offset == OFFSET_INVALID:
                raise self._unread(f"the offsets by time of topic {place.topic}", KafkaException(_UNANSWERED))
            if offset >= 0:  # -1, the end, without such a message
                offsets[TopicNamePartition(place.topic, place.partition)] = offset
        return offsets

    def compared(self, read: Mapping[TopicIdPartition, Position]) -> TruncationCheck:
        """Whether the logs of these partitions, by (topic id, partition), still contain the records that were read."""
        return check_truncation(make_reader_configuration(self._admin.settings), read)

    def topics(self, names: Iterable[str]) -> dict[str, Topic]:
        """Id and partitions of each existing topic; other names are left out."""
        return self._describe(names)[0]

    def find_deleted(self, names: Iterable[str]) -> frozenset[str]:
        """Names that the cluster reports as nonexistent.

        Topics that are hidden from this user, and topics without an answer, are not among them.
        """
        wanted = sorted(names)
        if not wanted:
            return frozenset()
        try:
            answers = self._ask_patiently(
                "topics", lambda seconds: self._admin.request_descriptions(wanted, seconds).result()
            )
        except KafkaError:  # no answer proves nothing about a topic
            return frozenset()
        deleted = set[str]()
        for name, answer in zip(wanted, answers, strict=True):
            if isinstance(answer, ClientError) and answer.code() == _UNKNOWN_TOPIC:
                deleted.add(name)
        return frozenset(deleted)

    def find_unreadable(self, names: Iterable[str]) -> frozenset[str]:
        """Those of the topics that this user may see but not read; topics that are gone are left out.

        Raises:
            KafkaError: The cluster did not answer, or hides one of them.
        """
        wanted = TopicCollection(sorted(names))
        if not wanted.topic_names:
            return frozenset()
        ask = partial(self._admin.describe_topics, wanted, include_authorized_operations=True)
        answers = self._ask_patiently(
            "topics", lambda seconds: self._answer_each(ask(request_timeout=seconds), "topic", passes_over_gone=True)
        )
        unreadable = set[str]()
        for name, topic in answers.items():
            rights = topic.authorized_operations
            if rights is not None and AclOperation.READ not in rights:  # None: the broker does not tell
                unreadable.add(name)
        return frozenset(unreadable)

    def _describe(self, names: Iterable[str]) -> tuple[dict[str, Topic], dict[TopicNamePartition, int]]:
        """The existing topics, and the leader of each partition that has one."""
        wanted = sorted(names)
        described: dict[str, TopicDescription] = {}
        if wanted:
            described = self._ask_patiently("topics", partial(self._describe_once, wanted))
        topic_ids = {name: str(description.topic_id) for name, description in described.items()}
        ids = find_identities(topic_ids, self._admin.settings)
        policies = self._find_policies(ids)
        topics = dict[str, Topic]()
        leaders = dict[TopicNamePartition, int]()
        for name, description in described.items():
            topic_id = ids[name]
            topics[name] = Topic(
                name=name,
                topic_id=topic_id,
                partitions=len(description.partitions),
                deletes_only=policies[topic_id].deletes_only,
                retention_ms=policies[topic_id].retention_ms,
            )
            for partition in description.partitions:
                if cast("Node | None", partition.leader) is not None:
                    leaders[TopicNamePartition(name, partition.id)] = partition.leader.id
        return topics, leaders

    def _ask_patiently(self, what: str, ask: Callable[[float], T]) -> T:
        """Ask again without an answer: the client asks only the broker that it takes for the controller.

        Args:
            what: The subject of the question, in part of a sentence.
            ask: Asks once, within so many seconds; raises the client's error without an answer.
        """
        deadline = time.monotonic() + self._timeout
        patience = min(FIRST_BROKER_SECONDS, self._timeout / 3)
        while True:
            remaining = deadline - time.monotonic()
            try:
                return ask(max(ASK_SECONDS_MIN, min(patience, remaining)))
            except KafkaException as error:
                if remaining <= patience or self._admin.is_failing_permanently():
                    raise self._unread(what, error) from error
            patience = min(2 * patience, deadline - time.monotonic())
            self._look_for_controller(patience / 2)

    def _look_for_controller(self, seconds: float) -> None:
        """Let the client learn of a controller that has just answered: it asks the one that any answer named last.

        With KRaft a broker names any broker that it takes for alive: a silent one too, for some seconds.
        """
        deadline = time.monotonic() + seconds
        turn = min(TURN_SECONDS, seconds / 3)
        answering = set[int]()
        while (remaining := deadline - time.monotonic()) > 0:
            with suppress(KafkaException):  # of all topics: one that is asked for by name may be created by that
                metadata = self._admin.list_topics(timeout=max(ASK_SECONDS_MIN, min(turn, remaining)))
                answering.add(metadata.orig_broker_id)
                if metadata.controller_id in answering:
                    return
            time.sleep(LOOK_SECONDS)

    def _answer_each(
        self, answers: Mapping[T, Future[Answer]], what: str, *, passes_over_gone: bool = False
    ) -> dict[T, Answer]:
        """The answer about each topic.

        Args:
            answers: The pending answers.
            what: The subject of one, in part of a sentence that the topic's name ends.
            passes_over_gone: A topic that is gone is left out.

        Raises:
            KafkaException: A topic has no answer.
            KafkaError: The answer about one of them is an error.
        """
        results: dict[T, Answer] = {}
        for key, future in answers.items():
            try:
                results[key] = future.result()
            except KafkaException as error:
                if error.args[0].code() < 0:  # the client's own code, such as a timeout: ask again
                    raise
                if not passes_over_gone or error.args[0].code() != _UNKNOWN_TOPIC:
                    name = key.name if isinstance(key, ConfigResource) else key
                    raise self._unread(f"{what} {name}", error) from error
        return results

    def _describe_once(self, wanted: Sequence[str], seconds: float) -> dict[str, TopicDescription]:
        answers = self._admin.request_descriptions(wanted, seconds).result()
        described: dict[str, TopicDescription] = {}
        for name, answer in zip(wanted, answers, strict=True):
            if not isinstance(answer, ClientError):
                described[name] = answer
            elif answer.code() < 0:
                raise KafkaException(answer)  # no answer
            elif answer.code() != _UNKNOWN_TOPIC:
                raise self._unread(f"topic {name}", KafkaException(answer))
        return described

    def _find_policies(self, ids: Mapping[str, str]) -> Mapping[str, RetentionPolicy]:
        """Those of the topics, by topic id; asks for what is unknown.

        Threads share a client: the policies that one thread read stay its own, even if others read other policies.
        """
        policies = self._policies
        unknown = {name: topic_id for name, topic_id in ids.items() if topic_id not in policies}
        if not unknown:
            return policies
        self._refuse_unreadable(unknown)
        added = self._ask_policies(unknown)
        self._policies = {**self._policies, **added}
        return {**policies, **added}

    def _renew_policies(self) -> None:
        """Ask again: an operator changes them during a run. Without an answer they stay as they were."""
        if not self._policies or time.monotonic() - self._renewed_at < POLICY_SECONDS:
            return
        self._renewed_at = time.monotonic()
        with suppress(KafkaError):
            names = {policy.topic: topic_id for topic_id, policy in self._policies.items()}
            self._policies = self._ask_policies(names, passes_over_gone=True)

    def _ask_policies(self, ids: Mapping[str, str], *, passes_over_gone: bool = False) -> dict[str, RetentionPolicy]:
        """Those of the topics, by topic id."""
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in ids]
        ask = partial(self._admin.describe_configs, resources)
        read = partial(self._answer_each, what="the settings of topic", passes_over_gone=passes_over_gone)
        answers = self._ask_patiently("topic settings", lambda seconds: read(ask(request_timeout=seconds)))
        policies: dict[str, RetentionPolicy] = {}
        for resource, settings in answers.items():
            policy = settings["cleanup.policy"].value
            limit_ms = int(settings["retention.ms"].value)
            # A topic that is only compacted ignores the limit; -1 is unlimited.
            retention_ms = limit_ms if "delete" in policy and limit_ms >= 0 else None
            policies[ids[resource.name]] = RetentionPolicy(resource.name, policy == "delete", retention_ms)
        return policies

    def _refuse_unreadable(self, names: Iterable[str]) -> None:
        """Refuse topics that this user may see but not read: better here than in a task that waits.

        Raises:
            KafkaError: Names the topic.
        """
        for name in sorted(self.find_unreadable(names)):
            raise KafkaError(
                f"Kafka shows topic {name} to this user, and does not let it read",
                next_step="grant the user READ on the stream's topics (docs/security.md)",
            )

    def _offsets(self, asked: Mapping[TopicNamePartition, _Leader]) -> dict[TopicIdPartition, PartitionOffsets]:
        """Offsets of partitions: log starts and high watermarks, and then the last stable offsets.

        A leader that is silent while others answer is not waited for: its partitions are left out, as those without
        a leader are.
        """
        starts, marks = self._ask_leaders(asked, _START, _HIGH_WATERMARK)
        answering = {place: leader for place, leader in asked.items() if leader.key in marks}
        # After the high watermarks: a stable end below one of before shows an open transaction.
        (stable,) = self._ask_leaders(answering, _STABLE_END)
        offsets = dict[TopicIdPartition, PartitionOffsets]()
        for key, start in starts.items():
            if key in stable and key in marks:
                offsets[key] = PartitionOffsets(
                    start=start.offset,
                    stable_end=stable[key].offset,
                    # Messages after the read of the high watermark are part of the log, too.
                    high_watermark=max(marks[key].offset, stable[key].offset),
                    leader_epoch=_known_epoch(stable[key]),
                )
        return offsets

    def _ask_leaders(
        self, asked: Mapping[TopicNamePartition, _Leader], *questions: _Question
    ) -> tuple[dict[TopicIdPartition, ListOffsetsResultInfo], ...]:
        """The answers to each question, by partition; all questions to all leaders at once."""
        requests = self._request_all(asked, questions)
        ends: dict[_Question, dict[TopicIdPartition, ListOffsetsResultInfo]] = {question: {} for question in questions}
        silence: ClientError | None = None
        for request in self._await_leaders(requests):
            _, question, _ = request
            for place, answer in _read_answers(requests[request]).items():
                if not isinstance(answer, ClientError) and answer.offset != OFFSET_INVALID:
                    ends[question][asked[TopicNamePartition(place.topic, place.partition)].key] = answer
                    continue
                error = answer if isinstance(answer, ClientError) else _UNANSWERED
                if error.code() == ClientError.TOPIC_AUTHORIZATION_FAILED:
                    raise self._unread(f"the offsets of topic {place.topic}", KafkaException(error))
                if error.code() < 0:
                    silence = error
        # One leader that answers is enough: the partitions of the others are unavailable for a while.
        if not any(ends.values()) and silence is not None:
            raise self._unread("offsets", KafkaException(silence))
        return tuple(ends[question] for question in questions)

    def _request_all(
        self, asked: Mapping[TopicNamePartition, _Leader], questions: Sequence[_Question]
    ) -> dict[_Request, _Answers]:
        requests = dict[_Request, _Answers]()
        for leader, led in _by_leader(asked).items():
            for first in range(0, len(led), REQUEST_PARTITIONS):
                part = led[first : first + REQUEST_PARTITIONS]
                for question in questions:
                    requests[leader, question, first] = self._request_offsets(part, question)
        return requests

    def _request_offsets(self, places: Sequence[TopicNamePartition], question: _Question) -> _Answers:
        asked = [_make_request(place, question.which) for place in places]
        answers = self._ask("offsets", lambda: self._admin.request_offsets(asked, question.isolation, self._timeout))
        return _Answers(asked, answers)

    def _await_leaders(self, requests: Mapping[_Request, _Answers]) -> list[_Request]:
        """Wait for the first leader, and then a while for the others: less for one that was silent the last time."""
        waiting = {request: answers.future for request, answers in requests.items()}
        if len({leader for leader, *_ in waiting}) <= 1:
            wait(waiting.values())
        else:
            wait(waiting.values(), return_when=FIRST_COMPLETED)
            usual = [future for (leader, *_), future in waiting.items() if leader not in self._silent]
            wait(usual, SILENT_LEADER_SECONDS)
            wait(waiting.values(), SILENT_AGAIN_SECONDS)
        silent = {leader for (leader, *_), future in waiting.items() if not future.done()}
        asked = {leader for leader, *_ in waiting}
        self._silent = (self._silent - asked) | silent
        return [request for request, future in waiting.items() if future.done()]

    def _metadata(self) -> ClusterMetadata:
        """Polled with short timeouts: a refused password is known immediately, without waiting for the full timeout."""
        deadline = time.monotonic() + self._timeout
        while True:
            remaining = deadline - time.monotonic()
            try:
                metadata = self._admin.list_topics(timeout=max(0.0, min(TURN_SECONDS, remaining)))
            except KafkaException as error:
                if remaining <= TURN_SECONDS or self._admin.is_failing_permanently():
                    raise self._unread("metadata", error) from error
                continue
            self._admin.clear_log()
            self._note_cluster(str(metadata.cluster_id))
            return metadata

    def _note_cluster(self, cluster_id: str) -> None:
        if self._cluster_id not in {None, cluster_id}:
            raise KafkaError(
                f"Kafka is another cluster now: {cluster_id}, and {self._cluster_id} before",
                next_step="correct kafka.bootstrap_servers or the name service; where another cluster is meant: "
                "another table_root, or another name for the stream",
            )
        self._cluster_id = cluster_id

    def _check_topics_visible(self) -> None:
        """Tell a cluster without topics from a cluster that hides all: request a topic by name.

        Raises:
            KafkaError: This user may see no topic.
        """
        probe = self._ask(
            "topics", lambda: self._admin.describe_topics(TopicCollection([_PROBE]), request_timeout=self._timeout)
        )
        error = probe[_PROBE].exception()
        if isinstance(error, KafkaException) and error.args[0].code() != _UNKNOWN_TOPIC:
            raise self._unread("all topics", error) from error

    def _ask(self, what: str, question: Callable[[], T]) -> T:
        try:
            return question()
        except KafkaException as error:
            raise self._unread(what, error) from error

    def _unread(self, what: str, error: KafkaException) -> KafkaError:
        return self._admin.explain_failure(what, error.args[0], self._timeout)


def _find_leaders(
    topics: Mapping[str, Topic], leaders: Mapping[TopicNamePartition, int]
) -> dict[TopicNamePartition, _Leader]:
    found_leaders = dict[TopicNamePartition, _Leader]()
    for place, broker in leaders.items():
        topic = topics.get(place.topic)
        if topic is not None:
            found_leaders[place] = _Leader(TopicIdPartition(topic.topic_id, place.partition), broker)
    return found_leaders


@lru_cache(maxsize=REQUESTS_MAX)
def _make_request(place: TopicNamePartition, which: int) -> TopicPartition:
    """Kept: each batch asks the same, and making one costs as much as all else of a request."""
    return TopicPartition(*place, which)


def _by_leader(asked: Mapping[TopicNamePartition, _Leader]) -> dict[int, list[TopicNamePartition]]:
    places: dict[int, list[TopicNamePartition]] = {}
    for place, leader in asked.items():
        places.setdefault(leader.broker, []).append(place)
    return places


def _read_answers(answers: _Answers) -> OffsetAnswers:
    """The answers to a request; if the request failed, its error for each of its partitions."""
    try:
        return answers.future.result()
    except KafkaException as error:
        return dict.fromkeys(answers.asked, error.args[0])


def _known_epoch(end: ListOffsetsResultInfo) -> int | None:
    """The leader's epoch; None if the broker does not send it."""
    if end.leader_epoch is not None and end.leader_epoch < 0:
        return None
    return end.leader_epoch


def read_topic_settings(
    admin: ClusterClient, names: Iterable[str], timeout_seconds: float
) -> tuple[TopicSettings, ...]:
    """Replication and settings of these topics, in the order of their names.

    Raises:
        KafkaError: The cluster did not answer, or this user may not describe one of them.
    """
    wanted = sorted(names)
    if not wanted:
        return ()
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in wanted]
    try:
        copies = admin.describe_topics(TopicCollection(wanted), request_timeout=timeout_seconds)
        configs = admin.describe_configs(resources, request_timeout=timeout_seconds)
        entries = {resource.name: future.result() for resource, future in configs.items()}
        return tuple(_make_settings(copies[name].result(), entries[name]) for name in wanted)
    except KafkaException as error:
        raise admin.explain_failure("how topics are kept", error.args[0], timeout_seconds) from error


def _make_settings(topic: TopicDescription, entries: Mapping[str, ConfigEntry]) -> TopicSettings:
    return TopicSettings(
        topic=topic.name,
        replicas=min(len(partition.replicas) for partition in topic.partitions),
        in_sync=min(len(partition.isr) for partition in topic.partitions),
        settings={name: str(entry.value) for name, entry in entries.items()},
    )


POLL_SECONDS = 0.2
LITTLE = {"queued.min.messages": 1, "fetch.message.max.bytes": 65_536, "queued.max.messages.kbytes": 4_096}
"""One message per partition is wanted; further fetched messages are discarded."""


def find_oldest_unread(
    configuration: Configuration, positions: Mapping[TopicNamePartition, int], seconds: float
) -> dict[TopicNamePartition, int]:
    """The timestamp, in milliseconds, of the first message at or after each position.

    Partitions without such a message, without timestamps, or without an answer in time are left out.

    Args:
        configuration: Configuration of a reader.
        positions: Offset by (topic, partition).
        seconds: Timeout.

    Raises:
        KafkaError: The client could not be created.
    """
    if not positions:
        return {}
    try:
        reader = make_consumer({**configuration, **LITTLE})
        reader.assign([TopicPartition(topic, partition, offset) for (topic, partition), offset in positions.items()])
    except KafkaException as error:
        raise KafkaError(f"Kafka could not be read: {error.args[0].str()}", next_step="lockstep doctor") from error
    answered: set[TopicNamePartition] = set()
    timestamps: dict[TopicNamePartition, int] = {}
    deadline = time.monotonic() + seconds
    try:
        while len(answered) < len(positions) and time.monotonic() < deadline:
            for message in reader.consume(len(positions), POLL_SECONDS):
                topic = message.topic()
                partition = message.partition()
                if topic is None or partition is None or (topic, partition) in answered:
                    continue
                answered.add(TopicNamePartition(topic, partition))
                reader.pause([TopicPartition(topic, partition)])
                kind, timestamp = message.timestamp()
                if message.error() is None and kind != TIMESTAMP_NOT_AVAILABLE and timestamp >= 0:
                    timestamps[TopicNamePartition(topic, partition)] = timestamp
    finally:
        reader.close()
    return timestamps


_NEWEST: OffsetSpec = OffsetSpec.max_timestamp()  # type: ignore[no-untyped-call]  # the library's own stub
_OLDEST: OffsetSpec = OffsetSpec.for_timestamp(0)


def read_newest_timestamps(
    admin: ClusterClient, places: Iterable[TopicNamePartition], timeout_seconds: float
) -> dict[TopicNamePartition, int]:
    """Milliseconds since 1970 of the newest message of each partition; empty partitions are left out.

    Raises:
        KafkaError: The cluster did not answer.
    """
    return _timestamps(admin, places, _NEWEST, timeout_seconds)


def read_oldest_timestamps(
    admin: ClusterClient, places: Iterable[TopicNamePartition], timeout_seconds: float
) -> dict[TopicNamePartition, int]:
    """Milliseconds since 1970 of the oldest retained message of each partition; empty ones are left out.

    Raises:
        KafkaError: The cluster did not answer.
    """
    return _timestamps(admin, places, _OLDEST, timeout_seconds)


def _timestamps(
    admin: ClusterClient, places: Iterable[TopicNamePartition], which: OffsetSpec, timeout_seconds: float
) -> dict[TopicNamePartition, int]:
    request = {TopicPartition(topic, partition): which for topic, partition in places}
    if not request:
        return {}
    try:
        answers = admin.list_offsets(request, request_timeout=timeout_seconds)
    except KafkaException as error:
        raise admin.explain_failure("the age of its messages", error.args[0], timeout_seconds) from error
    timestamps = dict[TopicNamePartition, int]()
    for place, future in answers.items():
        try:
            timestamp = future.result().timestamp
        except KafkaException:
            continue  # a partition without a leader
        if timestamp >= 0:  # -1 for an empty partition
            timestamps[TopicNamePartition(place.topic, place.partition)] = timestamp
    return timestamps
