"""A declared stream with its table and its cluster, as an operation, a sensor or an asset reads them."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from lockstep.declare.stream import AnyStream
from lockstep.engine.driver.archived_log import ArchivedBlocks, expand_view
from lockstep.engine.driver.join_offsets import read_join_offsets
from lockstep.errors import KafkaError, LockstepError
from lockstep.kafka.admin import ClusterAdmin, ClusterView
from lockstep.kafka.client import ClusterClient, make_admin_client
from lockstep.kafka.consumer_group import ConsumerGroup
from lockstep.model.position import TopicIdPartition
from lockstep.operations.stream_table import NoTable, try_read_head
from lockstep.settings import KafkaSettings, Settings
from lockstep.table.archive import read_blocks
from lockstep.table.create import is_incoming
from lockstep.table.head import Head
from lockstep.table.layout import StreamFolders, require_root
from lockstep.table.ledger import LedgerRow, read_positions
from lockstep.table.positions import find_retired_topics

CLIENT_SECONDS_MAX = 600.0
"""The delay after which snapshots that share a client notice that its addresses lead to another cluster."""


class SharedCluster:
    """A client of the cluster for many snapshots, replaced every ten minutes, as it refuses any cluster but its first.

    It remembers the settings of topics, which take half of the time of a snapshot: 0.9 s for 1,000 topics (measured).
    """

    def __init__(self, kafka: KafkaSettings, timeout_seconds: float) -> None:
        """Connects at first use.

        Args:
            kafka: Connection to Kafka.
            timeout_seconds: Timeout of a request, if less than the setting.
        """
        self._kafka = kafka
        self._timeout_seconds = min(kafka.timeout_seconds, timeout_seconds)
        self._lock = threading.Lock()
        self._asks = threading.Lock()
        self._made_at = 0.0
        self._cluster: ClusterAdmin | None = None
        self._names: frozenset[str] | KafkaError | None = None
        self._was_away = False

    def connect(self) -> ClusterAdmin:
        """The client.

        Raises:
            LockstepError: The settings of the connection cannot be used.
        """
        with self._lock:
            # Made again now and then: its addresses may lead to another cluster by now.
            if self._cluster is None or time.monotonic() - self._made_at > CLIENT_SECONDS_MAX:
                self._cluster = ClusterAdmin(make_admin_client(self._kafka), self._timeout_seconds)
                self._made_at = time.monotonic()
            return self._cluster

    def topic_names(self) -> frozenset[str]:
        """All topics of the cluster; requested once for all snapshots: a silent cluster is not waited for again.

        Raises:
            KafkaError: The cluster did not answer.
            LockstepError: The settings of the connection cannot be used.
        """
        cluster = self.connect()
        with self._asks:
            if self._names is None:
                try:
                    self._names = cluster.topic_names()
                except KafkaError as error:
                    # Remembered, so that a silent cluster is waited for once and not by each snapshot.
                    self._names = error
            if isinstance(self._names, KafkaError):
                raise self._names.with_traceback(None)
            return self._names

    def stays_away(self, seconds: float) -> bool:
        """Whether Kafka does not answer, and does not some seconds later either, or did not the last time."""
        is_away = self._is_away()
        if is_away and not self._was_away:
            time.sleep(seconds)
            self.invalidate()
            is_away = self._is_away()
        self._was_away = is_away
        return is_away

    def _is_away(self) -> bool:
        try:
            self.topic_names()
        except KafkaError:
            return True
        except LockstepError:  # each snapshot reports it
            return False
        return False

    def invalidate(self) -> None:
        """Forget the topics: the next snapshot requests them."""
        with self._asks:
            self._names = None


V = TypeVar("V")


class computed_once(Generic[V]):  # noqa: N801  # it is used as a decorator
    """`functools.cached_property` without its lock, which in Python 3.11 all instances of a class share.

    Snapshots of several streams would wait for each other: behind a Kafka that does not answer, all would wait.
    """

    def __init__(self, compute: Callable[[Any], V]) -> None:
        """Decorate the method that computes the value."""
        self._compute = compute
        self._name = compute.__name__
        self.__doc__ = compute.__doc__

    def __get__(self, instance: object, owner: type) -> V:
        value = self._compute(instance)
        vars(instance)[self._name] = value  # found there from now on
        return value


class StreamHandle:
    """A declared stream with its table and its cluster, each opened at first use and only once.

    Its values never change: a handle serves one snapshot, such as one command or one tick of a sensor.

    Attributes:
        stream: The declaration.
        settings: Addresses of Kafka and the tables.
        folders: Folders of the stream's tables.
        timeout_seconds: Timeout of a request to Kafka.
    """

    def __init__(
        self,
        stream: AnyStream,
        settings: Settings,
        *,
        kafka_seconds_max: float = math.inf,
        shared: SharedCluster | None = None,
    ) -> None:
        """Opens nothing yet.

        Args:
            stream: The declaration.
            settings: Addresses of Kafka and the tables.
            kafka_seconds_max: Timeout of a request to Kafka, if less than the setting.
            shared: A client for metadata that other snapshots share; by default a separate client.
        """
        self.stream = stream
        self.settings = settings
        self._shared = shared
        self.folders = StreamFolders(stream.name, settings.table_root)
        self.timeout_seconds = min(settings.kafka.timeout_seconds, kafka_seconds_max)

    @computed_once
    def head(self) -> Head | None:
        """The head of the table; None without a table.

        Raises:
            TableError: The table does not match its head.
        """
        return try_read_head(self.folders)

    def require_head(self) -> Head:
        """The head of the table.

        Raises:
            NoTable: The stream has none yet.
            TableRootMissing: The table root does not exist.
            TableError: The table does not match its head.
        """
        if self.head is None:
            require_root(self.folders.root)
            raise NoTable(self.folders.stream, self.folders.root, incoming=is_incoming(self.folders))
        return self.head

    @computed_once
    def positions(self) -> Mapping[TopicIdPartition, LedgerRow]:
        """The newest ledger row of every partition ever read, by (topic id, partition).

        Raises:
            TableError: A ledger file is missing or damaged.
        """
        if self.head is not None:
            return read_positions(self.folders, self.head)
        return {}

    @property
    def subscribed(self) -> tuple[LedgerRow, ...]:
        """Those of topics that are read: not retired, deleted or re-created; by topic and partition."""
        rows = (row for row in self.positions.values() if not row.retired)
        return tuple(sorted(rows, key=lambda row: (row.topic, row.partition)))

    @property
    def retired(self) -> frozenset[str]:
        """Names of topics that are in the ledger and not read any more."""
        return find_retired_topics(self.positions.values())

    @computed_once
    def admin(self) -> ClusterClient:
        """Client of the cluster."""
        return make_admin_client(self.settings.kafka)

    @computed_once
    def cluster(self) -> ClusterAdmin:
        """Metadata of the cluster."""
        if self._shared:
            return self._shared.connect()
        return ClusterAdmin(self.admin, self.timeout_seconds)

    @computed_once
    def selected(self) -> frozenset[str]:
        """Topics in Kafka that the pattern selects.

        Raises:
            KafkaError: The cluster did not answer; that is never "no topics".
        """
        return self.stream.topics.select((self._shared or self.cluster).topic_names())

    @computed_once
    def view(self) -> ClusterView:
        """Ids and offsets of the topics that are selected or subscribed.

        Raises:
            KafkaError: The cluster did not answer.
            TableError: A ledger file is missing or damaged.
        """
        return self.cluster.view(self.selected | {row.topic for row in self.subscribed})

    @computed_once
    def readable(self) -> ClusterView:
        """The view, in which a log starts where the archive does if that has all offsets before Kafka's.

        Raises:
            KafkaError: The cluster did not answer.
            TableError: A ledger file is missing or damaged.
        """
        return expand_view(self.view, self.archived)

    @computed_once
    def archived(self) -> ArchivedBlocks:
        """The archived offsets of the partitions of which Kafka no longer has all messages.

        Raises:
            KafkaError: The cluster did not answer.
            TableError: A ledger file is missing or damaged.
        """
        # Only where Kafka has deleted the start of a log is the archive needed.
        cut = dict.fromkeys((key for key, ends in self.view.ends.items() if ends.start > 0), 0)
        if self.head is not None and cut:
            return read_blocks(self.folders, self.head, cut)
        return {}

    @computed_once
    def joined(self) -> Mapping[TopicIdPartition, int]:
        """Offset at which a run would join the log of each new partition that it does not read from its beginning.

        Raises:
            KafkaError: The cluster did not answer.
            DeclarationError: A declared consumer group has no offset of the topics.
            TableError: A ledger file is missing or damaged.
        """
        return self.find_joined(self.view)

    def find_joined(self, view: ClusterView) -> Mapping[TopicIdPartition, int]:
        """Find `joined` in another view, in which logs may start in the archive.

        Raises:
            KafkaError: The cluster did not answer.
            DeclarationError: A declared consumer group has no offset of the topics.
            TableError: A ledger file is missing or damaged.
        """
        begun = {topic_id for topic_id, _ in self.positions}
        new = [each for each in view.topics.values() if each.name in self.selected and each.topic_id not in begun]
        kafka = self.settings.kafka.model_copy(update={"timeout_seconds": self.timeout_seconds})
        group = ConsumerGroup(kafka, self.stream.name)
        first = self.head is None or not self.head.batch
        declared = self.stream.topics
        return read_join_offsets(declared, new, view, self.cluster, group.committed_by, is_first_run=first)


def make_cluster_admin(kafka: KafkaSettings) -> ClusterAdmin:
    """Client for the metadata of the configured cluster."""
    return ClusterAdmin(make_admin_client(kafka), kafka.timeout_seconds)
