"""Remembers the last reads of the ends of topics, for the case that a topic is deleted.

A plan reads the offsets anyway. `TopicWatch` reads them on its own thread where batches or the trigger leave more time
between two plans, so that neither a slow machine nor a long interval decides whether a deletion is a fault.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Mapping
from types import TracebackType
from typing import NamedTuple, Self

from lockstep.errors import KafkaError
from lockstep.kafka.admin import ClusterAdmin, ClusterView, PartitionOffsets, Topic
from lockstep.kafka.topic_end import EndSnapshot, GoneTopic
from lockstep.model.position import TopicIdPartition

POLL_SECONDS = 0.5
"""Interval at which the watch checks the age of the last read, and whether the run is over."""

END_SECONDS = 1.0
"""Longest wait for the thread at the end of a run: a Kafka that does not answer must not delay that end."""


class Instant(NamedTuple):
    """A moment by two clocks of this machine: one may be set, the other stops while the machine sleeps."""

    monotonic: float
    wall: float

    @staticmethod
    def now() -> Instant:
        """The current moment."""
        return Instant(time.monotonic(), time.time())

    def since(self, earlier: Instant) -> float:
        """Seconds since an earlier moment, by the clock that shows more."""
        return max(self.monotonic - earlier.monotonic, self.wall - earlier.wall)


class _Look(NamedTuple):
    """One read of offsets.

    Attributes:
        asked: Time of the first request.
        answered: Time of the last answer.
        ends: Offsets by partition.
        is_described: The topics were described just before, so that the offsets are those of these topic ids.
    """

    asked: Instant
    answered: Instant
    ends: Mapping[TopicIdPartition, PartitionOffsets]
    is_described: bool

    def is_certain(self, described_at: Instant) -> bool:
        """Whether the offsets are those of these topic ids, if a description at some time showed them."""
        return self.is_described or self.answered.monotonic <= described_at.monotonic


class TopicHistory:
    """The last reads of the ends of the topics, and the topics that are gone since. For several threads.

    Two reads are kept, the newest one and the newest certain one. Of a partition that these do not have, because its
    leader did not answer or its topic is being deleted, the last two that had it are kept as well.
    """

    def __init__(self) -> None:
        """Knows nothing yet."""
        self._lock = threading.Lock()
        self._looks: tuple[_Look, ...] = ()
        self._silent: dict[TopicIdPartition, tuple[_Look, ...]] = {}
        self._topics: Mapping[str, Topic] = {}
        self._described_at = Instant(0.0, 0.0)
        self._gone: dict[str, GoneTopic] = {}

    def note(self, view: ClusterView, asked: Instant, answered: Instant, *, is_described: bool = True) -> None:
        """Remember a read of topics and offsets.

        Args:
            view: The answer.
            asked: Time of the first request.
            answered: Time of the last answer.
            is_described: The topics were described, too; otherwise the description of an earlier view was used.
        """
        look = _Look(asked, answered, view.ends, is_described)
        with self._lock:
            if self._looks and asked.monotonic < self._looks[0].asked.monotonic:
                return  # another thread was faster
            if is_described:
                self._describe(view.topics, asked, answered)
            self._remember(look)

    def leave(self, names: Collection[str]) -> None:
        """Forget topics that are no longer read: they still exist."""
        with self._lock:
            self._topics = {name: topic for name, topic in self._topics.items() if name not in names}

    def forget(self, topic_ids: Iterable[str]) -> None:
        """Forget topics that are gone, once their ends are judged."""
        with self._lock:
            for topic_id in topic_ids:
                self._gone.pop(topic_id, None)

    def find_gone(self, topic_id: str) -> GoneTopic | None:
        """A topic that is gone; None if this run has not observed it."""
        with self._lock:
            return self._gone.get(topic_id)

    @property
    def names(self) -> frozenset[str]:
        """Names of the topics that the last description has shown."""
        with self._lock:
            return frozenset(self._topics)

    @property
    def age_seconds(self) -> float:
        """Age of the last read; infinite before the first read."""
        with self._lock:
            if not self._looks:
                return float("inf")
            return Instant.now().since(self._looks[0].asked)

    def _describe(self, topics: Mapping[str, Topic], asked: Instant, answered: Instant) -> None:
        ids = {topic.topic_id for topic in topics.values()}
        for topic in self._topics.values():
            if topic.topic_id not in ids:
                self._gone[topic.topic_id] = self._freeze(topic, answered)
        for topic_id in self._gone.keys() & ids:  # an odd answer hid it
            del self._gone[topic_id]
        self._silent = {key: looks for key, looks in self._silent.items() if key[0] in ids}
        self._topics = topics
        self._described_at = asked

    def _remember(self, look: _Look) -> None:
        certain = next((other for other in (look, *self._looks) if other.is_certain(self._described_at)), look)
        for earlier in self._looks:
            for key in earlier.ends.keys() - look.ends.keys() - self._silent.keys():
                self._silent[key] = self._looks
        for key in self._silent.keys() & look.ends.keys():
            del self._silent[key]
        self._looks = (look,) if certain is look else (look, certain)

    def _freeze(self, topic: Topic, noticed: Instant) -> GoneTopic:
        """The last reads of a topic that is gone."""
        keys = [TopicIdPartition(topic.topic_id, number) for number in range(topic.partitions)]
        looks = dict[int, _Look]()
        for key in keys:
            for look in self._silent.get(key, self._looks):
                looks[id(look)] = look  # each once: a comparison of looks compares all their offsets
        snapshots = list[EndSnapshot]()
        for look in looks.values():
            ends = {key.partition: look.ends[key] for key in keys if key in look.ends}
            snapshots.append(EndSnapshot(ends, noticed.since(look.asked), look.is_certain(self._described_at)))
        snapshots.sort(key=lambda snapshot: snapshot.age_seconds)
        return GoneTopic(topic, tuple(snapshots), int(noticed.wall * 1e6))


class TopicWatch:
    """Reads the ends of the topics while nothing else does, on its own thread, until closed.

    Attributes:
        history: Remembers the views that are read.
    """

    def __init__(self, admin: ClusterAdmin, seconds: float) -> None:
        """Does not read yet.

        Args:
            admin: Client for cluster metadata.
            seconds: Age of the last read at which the ends are read again.
        """
        self._admin = admin
        self._seconds = seconds
        self.history = TopicHistory()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="topic watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self._thread.join(END_SECONDS)

    def _watch(self) -> None:
        while not self._closing.wait(min(POLL_SECONDS, self._seconds / 2)):
            if self.history.age_seconds >= self._seconds:
                self._look()

    def _look(self) -> None:
        names = self.history.names
        if not names:
            return
        asked = Instant.now()
        try:
            view = self._admin.view(names)
        except KafkaError:
            return  # the run reports it, and waits
        self.history.note(view, asked, Instant.now())
