"""Whether a topic is kept as its stream's integrity class needs it: what `lockstep doctor` says of it. Pure.

What a producer sets on its own side cannot be asked of the cluster; docs/producers.md says it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from enum import Enum

import msgspec

from lockstep.integrity.contract import IntegrityClass
from lockstep.integrity.none import NoIntegrity
from lockstep.integrity.once import Once
from lockstep.integrity.strict import Strict

RETENTION_MIN = timedelta(days=3)
"""A weekend without a person: Friday evening to Monday morning is 62 hours."""


class Level(Enum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


class TopicSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How the cluster keeps a topic.

    Attributes:
        topic: Its name.
        replicas: Copies of the partition that has the fewest.
        in_sync: Copies that are up to date now, of the partition that has the fewest.
        settings: The topic's settings by Kafka's names, defaults of the cluster included.
    """

    topic: str
    replicas: int
    in_sync: int
    settings: Mapping[str, str]


class Fitness(msgspec.Struct, frozen=True, kw_only=True):
    """One look at one setting of one topic.

    Attributes:
        topic: Name of the topic.
        setting: Kafka's name of the setting.
        found: Its value.
        level: OK, WARNING or ERROR: the class refuses or cannot keep its promise.
        reason: What follows from the value; empty when it is as it should be.
        remedy: What to do; empty when there is nothing to do.
    """

    topic: str
    setting: str
    found: str
    level: Level = Level.OK
    reason: str = ""
    remedy: str = ""


def fitness(topic: TopicSettings, integrity: IntegrityClass, *, message_bytes_max: int) -> tuple[Fitness, ...]:
    """All that can be said of a topic, good and bad, in a fixed order.

    Args:
        topic: How the cluster keeps it.
        integrity: The class of the stream that reads it.
        message_bytes_max: The stream's `Limits.message_bytes`.
    """
    return tuple(_Look(topic, integrity, message_bytes_max).all())


class _Look:
    """One topic seen with the needs of one class."""

    def __init__(self, topic: TopicSettings, integrity: IntegrityClass, message_bytes_max: int) -> None:
        self._topic, self._message_bytes_max = topic, message_bytes_max
        self._exact = isinstance(integrity, (Strict, Once))
        self._fuzzy = isinstance(integrity, NoIntegrity)
        self._class = type(integrity).__name__

    def all(self) -> Iterator[Fitness]:
        """Every look."""
        yield self._cleanup()
        yield self._replicas()
        yield self._in_sync()
        yield self._unclean()
        yield self._retention()
        yield self._retention_bytes()
        yield self._timestamps()
        yield self._message_bytes()

    def _cleanup(self) -> Fitness:
        found = self._setting("cleanup.policy", "delete")
        if self._exact and "compact" in found:
            reason = f"compaction removes messages in the middle, and {self._class} refuses such a topic"
            return self._bad("cleanup.policy", found, reason, self._alter("cleanup.policy=delete"))
        return self._good("cleanup.policy", found)

    def _replicas(self) -> Fitness:
        name, copies = "replication.factor", self._topic.replicas
        if self._fuzzy or copies > 1:
            return self._good(name, str(copies))
        reason = "there is one copy: with its disk the messages are lost"
        return self._warn(name, str(copies), reason, "give the topic 3 replicas (kafka-reassign-partitions)")

    def _in_sync(self) -> Fitness:
        name, replicas = "min.insync.replicas", self._topic.replicas
        least = int(self._setting(name, "1"))
        found = f"{least} (in sync now: {self._topic.in_sync} of {replicas})"
        if least > self._topic.in_sync:
            reason = "producers with acks=all are refused now: too few copies are in sync"
            return self._bad(name, found, reason, "bring the missing brokers back, or lower the setting")
        if self._fuzzy or replicas == 1:
            return self._good(name, found)
        if least == 1:
            reason = "acks=all may mean a single copy, which a change of leaders then loses"
            return self._warn(name, found, reason, self._alter("min.insync.replicas=2"))
        if least == replicas:
            reason = "one broker's restart stops every producer with acks=all"
            return self._warn(name, found, reason, "keep one replica more than min.insync.replicas")
        return self._good(name, found)

    def _unclean(self) -> Fitness:
        name = "unclean.leader.election.enable"
        found = self._setting(name, "false")
        if self._fuzzy or found != "true":
            return self._good(name, found)
        reason = "a replica that is behind may become leader: acknowledged messages vanish, the log is truncated"
        level = Level.ERROR if self._exact else Level.WARNING
        return self._finding(name, found, level, reason, self._alter(f"{name}=false"))

    def _retention(self) -> Fitness:
        name = "retention.ms"
        kept_ms = int(self._setting(name, "604800000"))
        least_ms = int(RETENTION_MIN.total_seconds() * 1_000)
        if kept_ms < 0 or kept_ms >= least_ms or "delete" not in self._setting("cleanup.policy", "delete"):
            return self._good(name, str(kept_ms))
        hours = timedelta(milliseconds=kept_ms) / timedelta(hours=1)
        reason = f"messages are deleted after {hours:.3g} h, read or not: a stream stopped for a weekend loses some"
        return self._warn(name, str(kept_ms), reason, self._alter(f"{name}={least_ms}"))

    def _retention_bytes(self) -> Fitness:
        name = "retention.bytes"
        found = self._setting(name, "-1")
        if self._fuzzy or int(found) < 0:
            return self._good(name, found)
        reason = "a burst of a producer deletes what was not read yet, however young it is"
        return self._warn(name, found, reason, self._alter(f"{name}=-1") + "; bound the time with retention.ms")

    def _timestamps(self) -> Fitness:
        name = "message.timestamp.type"
        found = self._setting(name, "CreateTime")
        if found == "CreateTime":
            return self._good(name, found)
        reason = "the producer's time is replaced by the broker's: freshness is counted from the broker on"
        return self._warn(name, found, reason, self._alter(f"{name}=CreateTime"))

    def _message_bytes(self) -> Fitness:
        name = "max.message.bytes"
        largest = int(self._setting(name, "1048588"))
        if largest <= self._message_bytes_max:
            return self._good(name, str(largest))
        reason = f"the stream takes messages above {self._message_bytes_max} bytes for undecodable"
        remedy = f"raise Limits.message_bytes of the stream, or: {self._alter(f'{name}={self._message_bytes_max}')}"
        return self._warn(name, str(largest), reason, remedy)

    def _setting(self, name: str, default: str) -> str:
        return self._topic.settings.get(name, default)

    def _alter(self, setting: str) -> str:
        entity = f"--entity-type topics --entity-name {self._topic.topic}"
        return f"kafka-configs --alter {entity} --add-config {setting}"

    def _good(self, name: str, found: str) -> Fitness:
        return Fitness(topic=self._topic.topic, setting=name, found=found)

    def _warn(self, name: str, found: str, reason: str, remedy: str) -> Fitness:
        return self._finding(name, found, Level.WARNING, reason, remedy)

    def _bad(self, name: str, found: str, reason: str, remedy: str) -> Fitness:
        return self._finding(name, found, Level.ERROR, reason, remedy)

    def _finding(self, name: str, found: str, level: Level, reason: str, remedy: str) -> Fitness:
        return Fitness(topic=self._topic.topic, setting=name, found=found, level=level, reason=reason, remedy=remedy)
