"""The Kafka side of a walk: topics that are created, grow, expire and are deleted, and mostly correct messages."""

from __future__ import annotations

import json
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException, TopicCollection

from tests.correctness.walk.walked_stream import POISON
from tests.correctness.walk.walked_windows import make_timed
from tests.support.feed import ANSWER_SECONDS, ProducerRecord, kept_admin

if TYPE_CHECKING:
    from tests.correctness.walk.walked_stream import Release
    from tests.support.feed import Feed

Place = tuple[str, int]
"""Topic id and partition."""
TOPICS_MAX = 3
PARTITIONS_MAX = 3


@dataclass
class Log:
    """The messages of a partition in one life of its topic.

    Attributes:
        topic: Name of the topic.
        partition: Partition number.
        sent: All messages, by offset.
        numbers: The last number of each session.
        is_gone: Whether the topic was deleted.
        expired: Kafka has nothing before this offset.
    """

    topic: str
    partition: int
    sent: list[tuple[str, bytes]] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)
    is_gone: bool = False
    expired: int = 0


class Producing:
    """All topics of a walk, and their producer."""

    def __init__(self, feed: Feed, choose: random.Random, release: Release) -> None:
        self.feed, self.choose, self.logs = feed, choose, dict[Place, Log]()
        self.release = release

    @property
    def living(self) -> list[str]:
        """Return the topics that exist."""
        return sorted({log.topic for log in self.logs.values() if not log.is_gone})

    @property
    def loses(self) -> bool:
        """Whether Kafka has lost anything."""
        return any(log.is_gone or log.expired for log in self.logs.values())

    def create(self) -> str | None:
        """Create a topic."""
        number = len({log.topic for log in self.logs.values()})
        if number >= TOPICS_MAX:
            return None
        self._register(self.feed.create(f"t{number}", partitions=self.choose.choice((1, 2))))
        return f"t{number}"

    def grow(self) -> str | None:
        """Add a partition."""
        topic = self.choose.choice(self.living)
        count = sum(log.topic == topic and not log.is_gone for log in self.logs.values())
        if count >= PARTITIONS_MAX:
            return None
        self.feed.grow(topic, count + 1)
        self._register(topic)
        return topic

    def remove(self) -> str | None:
        """Delete a topic, unless it is the last."""
        if len(self.living) == 1:
            return None
        topic = self.choose.choice(self.living)
        self.feed.delete(topic)
        for log in self.logs.values():
            log.is_gone |= log.topic == topic
        return topic

    def make_again(self) -> str | None:
        """Create a deleted topic again, with another id."""
        gone = sorted({log.topic for log in self.logs.values()} - set(self.living))
        if not gone:
            return None
        self._register(self.feed.create_again(gone[0].rpartition(".")[2]))
        return gone[0]

    def expire(self, place: Place, reached: int) -> str:
        """Let Kafka's retention delete some of the messages that were read."""
        log = self.logs[place]
        until = self.choose.randint(0, reached)
        if until > log.expired:
            self.feed.expire(log.topic, until, log.partition)
            log.expired = until
        return f"{log.topic}/{log.partition} before {log.expired}"

    def send(self) -> None:
        """Send some messages to most partitions."""
        for log in self.logs.values():
            if not log.is_gone and self.choose.random() < 0.8:
                some = [self._make_message(log) for _ in range(self.choose.randint(1, 12))]
                self.feed.append(log.topic, [ProducerRecord(key, value) for key, value in some], log.partition)
                log.sent += some

    def _register(self, topic: str) -> None:
        admin = kept_admin(self.feed.bootstrap_servers)
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            try:
                found = admin.describe_topics(TopicCollection([topic]))[topic].result(ANSWER_SECONDS)
                break
            except KafkaException:  # some listeners do not know it yet
                assert time.monotonic() < deadline, topic
                time.sleep(0.1)
        for partition in range(len(found.partitions)):
            self.logs.setdefault((str(found.topic_id), partition), Log(topic, partition))

    def _make_message(self, log: Log) -> tuple[str, bytes]:
        """Return mostly the next update of a session, else a snapshot, an end, or a fault."""
        if self.release.has_windows:
            return make_timed(log, self.choose, ends=not self.release.reorders)
        key = f"{self.choose.choice('abcd')}{log.partition}"
        number = log.numbers.get(key)
        chance = self.choose.random()
        values = {name: self.choose.randint(1, 9) for name in self.choose.sample("xyz", self.choose.randint(1, 2))}
        kind = "update"
        step = 1
        if chance < 0.02:
            return key, b"{"
        if number is None or chance < 0.10:
            kind = "snapshot"
        elif chance < 0.15:
            step = 2 if chance < 0.13 else 0
        elif chance < 0.17:
            values = {"x": 1, "y": POISON}
        elif chance < 0.20:
            kind = "end"
            values = {}
        log.numbers[key] = (number or 0) + step
        return key, json.dumps({"kind": kind, "seq": log.numbers[key], "values": values}).encode()
