"""What the cluster says: topics, their ids, and the offsets of their partitions.

"Could not read Kafka" is an error here, never an empty answer: an empty answer would retire topics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import msgspec
from confluent_kafka import IsolationLevel, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.admin._metadata import ClusterMetadata
from confluent_kafka.admin._resource import ResourceType

from lockstep.errors import KafkaError

T = TypeVar("T")
_UNKNOWN_TOPIC = 3
_EARLIEST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]  # the library's own stub
_LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # the library's own stub


class Topic(msgspec.Struct, frozen=True):
    """One life of a topic.

    Attributes:
        name: Its name.
        topic_id: Kafka's id of this life.
        partitions: Number of partitions.
        deletes_only: cleanup.policy is `delete` alone, so that a missing offset can only be a
            control record or an aborted message.
    """

    name: str
    topic_id: str
    partitions: int
    deletes_only: bool


class Ends(msgspec.Struct, frozen=True):
    """Offsets of one partition.

    Attributes:
        start: First offset still there.
        stable_end: End that a plan may use: open transactions lie behind it.
        high_watermark: End of what is replicated.
    """

    start: int
    stable_end: int
    high_watermark: int


class ClusterView(msgspec.Struct, frozen=True):
    """The cluster at one moment.

    Attributes:
        cluster_id: Kafka's id of the cluster.
        topics: The stream's topics by name.
        ends: Offsets by (topic id, partition).
    """

    cluster_id: str
    topics: dict[str, Topic]
    ends: dict[tuple[str, int], Ends]


class Discovery:
    """Asks one cluster. Keeps the cleanup policy of each life of a topic, the slowest question."""

    def __init__(self, admin: AdminClient, timeout_seconds: float) -> None:
        self._admin, self._timeout = admin, timeout_seconds
        self._policies: dict[str, bool] = {}
        self._cluster_id: str | None = None

    def topic_names(self) -> frozenset[str]:
        """All topics of the cluster.

        Raises:
            KafkaError: The cluster did not answer.
        """
        return frozenset(self._metadata().topics)

    def cluster_id(self) -> str:
        """Kafka's id of the cluster; asked once.

        Raises:
            KafkaError: The cluster did not answer.
        """
        if self._cluster_id is None:
            self._cluster_id = str(self._metadata().cluster_id)
        return self._cluster_id

    def view(self, names: Iterable[str]) -> ClusterView:
        """Ids and offsets of the topics that are there, in three questions for all of them.

        Raises:
            KafkaError: A question was not answered.
        """
        topics = self.topics(names)
        spec = [(t.name, t.topic_id, p) for t in topics.values() for p in range(t.partitions)]
        starts = self._offsets(spec, _EARLIEST, IsolationLevel.READ_UNCOMMITTED)
        stable = self._offsets(spec, _LATEST, IsolationLevel.READ_COMMITTED)
        marks = self._offsets(spec, _LATEST, IsolationLevel.READ_UNCOMMITTED)
        ends = {key: Ends(starts[key], stable[key], marks[key]) for key in starts if key in stable and key in marks}
        return ClusterView(cluster_id=self.cluster_id(), topics=topics, ends=ends)

    def topics(self, names: Iterable[str]) -> dict[str, Topic]:
        """Id and partitions of each topic that is there; names that are not there are left out."""
        wanted = sorted(names)
        if not wanted:
            return {}
        answers = self._ask(
            "describe topics",
            lambda: self._admin.describe_topics(TopicCollection(wanted), request_timeout=self._timeout),
        )
        found: dict[str, tuple[str, int]] = {}
        for name, future in answers.items():
            try:
                description = future.result()
            except KafkaException as error:
                if error.args[0].code() == _UNKNOWN_TOPIC:
                    continue
                raise _unread(f"topic {name}", error) from error
            found[name] = (str(description.topic_id), len(description.partitions))
        self._learn_policies({name: topic_id for name, (topic_id, _) in found.items()})
        return {
            name: Topic(name=name, topic_id=topic_id, partitions=count, deletes_only=self._policies[topic_id])
            for name, (topic_id, count) in found.items()
        }

    def _learn_policies(self, ids: Mapping[str, str]) -> None:
        unknown = {name: topic_id for name, topic_id in ids.items() if topic_id not in self._policies}
        if not unknown:
            return
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in unknown]
        answers = self._ask(
            "topic settings", lambda: self._admin.describe_configs(resources, request_timeout=self._timeout)
        )
        for resource, future in answers.items():
            try:
                policy = future.result()["cleanup.policy"].value
            except KafkaException as error:
                raise _unread(f"settings of topic {resource.name}", error) from error
            self._policies[unknown[resource.name]] = policy == "delete"

    def _offsets(
        self, spec: list[tuple[str, str, int]], which: OffsetSpec, isolation: IsolationLevel
    ) -> dict[tuple[str, int], int]:
        if not spec:
            return {}
        ids = {name: topic_id for name, topic_id, _ in spec}
        request = {TopicPartition(name, partition): which for name, _, partition in spec}
        answers = self._ask(
            "offsets",
            lambda: self._admin.list_offsets(request, isolation_level=isolation, request_timeout=self._timeout),
        )
        found = {}
        for place, future in answers.items():
            try:
                found[ids[place.topic], place.partition] = int(future.result().offset)
            except KafkaException:
                # A partition without a leader: left out, so that the others go on.
                continue
        return found

    def _metadata(self) -> ClusterMetadata:
        return self._ask("metadata", lambda: self._admin.list_topics(timeout=self._timeout))

    def _ask(self, what: str, question: Callable[[], T]) -> T:
        try:
            return question()
        except KafkaException as error:
            raise _unread(what, error) from error


def _unread(what: str, error: KafkaException) -> KafkaError:
    return KafkaError(
        f"Kafka did not answer about {what}: {error.args[0].str()}",
        next_step="check kafka.bootstrap_servers and that the brokers are up; lockstep tries again by itself",
    )
