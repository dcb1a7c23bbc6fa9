"""Cluster and topic settings.

Producer settings cannot be read from the cluster; see docs/producers.md.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta

import msgspec
from confluent_kafka import KafkaException
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType

from lockstep.declare.stream import AnyStream
from lockstep.errors import format_some
from lockstep.integrity.base import IntegrityClass
from lockstep.integrity.best_effort import NoIntegrity
from lockstep.integrity.once import Once
from lockstep.integrity.strict import Strict
from lockstep.kafka.admin import ClusterAdmin, TopicSettings, read_newest_timestamps, read_topic_settings
from lockstep.kafka.api_versions import LEADER_EPOCHS, METADATA, TOPIC_IDS_SINCE, read_api_versions
from lockstep.kafka.client import ClusterClient, make_admin_client
from lockstep.model.position import TopicNamePartition
from lockstep.operations.doctor.diagnosis import Diagnosis, Level, make_error, make_ok, make_warning
from lockstep.settings import KafkaSettings, TopicIdentity
from lockstep.time_limit import SLOW

RETENTION_MIN = timedelta(days=3)
"""A weekend without operators: Friday evening to Monday morning is 62 hours."""


class Fitness(msgspec.Struct, frozen=True, kw_only=True):
    """Check of one setting of one topic.

    Attributes:
        topic: Name of the topic.
        setting: Kafka's name of the setting.
        found: Its value.
        level: OK, WARNING or ERROR: the class refuses or cannot keep its promise.
        reason: Consequence of the value; empty without a problem.
        remedy: Remedy; empty when none is needed.
    """

    topic: str
    setting: str
    found: str
    level: Level = Level.OK
    reason: str = ""
    remedy: str = ""


def check_fitness(topic: TopicSettings, integrity: IntegrityClass, *, message_bytes_max: int) -> tuple[Fitness, ...]:
    """All checks of a topic, good and bad, in a fixed order.

    Args:
        topic: Settings of the topic in the cluster.
        integrity: The class of the stream that reads it.
        message_bytes_max: The stream's `Limits.message_bytes`.
    """
    return tuple(_Look(topic, integrity, message_bytes_max).all())


class _Look:
    """Checks one topic against the needs of one class."""

    def __init__(self, topic: TopicSettings, integrity: IntegrityClass, message_bytes_max: int) -> None:
        self._topic = topic
        self._message_bytes_max = message_bytes_max
        self._exact = isinstance(integrity, (Strict, Once))
        self._fuzzy = isinstance(integrity, NoIntegrity)
        self._class = type(integrity).__name__

    def all(self) -> Iterator[Fitness]:
        """All checks."""
        yield self._cleanup()
        yield self._replicas()
        yield self._in_sync()
        yield self._unclean()
        yield self._retention()
        yield self._retention_bytes()
        yield self._timestamps()
        yield self._message_bytes()

    def _cleanup(self) -> Fitness:
        policy = self._setting("cleanup.policy", "delete")
        if self._exact and "compact" in policy:
            reason = f"compaction removes messages in the middle, and {self._class} refuses such a topic"
            return self._bad("cleanup.policy", policy, reason, self._alter("cleanup.policy=delete"))
        return self._good("cleanup.policy", policy)

    def _replicas(self) -> Fitness:
        name = "replication.factor"
        copies = self._topic.replicas
        if self._fuzzy or copies > 1:
            return self._good(name, str(copies))
        reason = "there is one copy: with its disk the messages are lost"
        return self._warn(name, str(copies), reason, "give the topic 3 replicas (kafka-reassign-partitions)")

    def _in_sync(self) -> Fitness:
        name = "min.insync.replicas"
        replicas = self._topic.replicas
        least = int(self._setting(name, "1"))
        state = f"{least} (in sync now: {self._topic.in_sync} of {replicas})"
        if least > self._topic.in_sync:
            reason = "producers with acks=all are refused now: too few copies are in sync"
            return self._bad(name, state, reason, "bring the missing brokers back, or lower the setting")
        if self._fuzzy or replicas == 1:
            return self._good(name, state)
        if least == 1:
            reason = "acks=all may mean a single copy, which a change of leaders then loses"
            return self._warn(name, state, reason, self._alter("min.insync.replicas=2"))
        if least == replicas:
            reason = "one broker's restart stops every producer with acks=all"
            return self._warn(name, state, reason, "keep one replica more than min.insync.replicas")
        return self._good(name, state)

    def _unclean(self) -> Fitness:
        name = "unclean.leader.election.enable"
        value = self._setting(name, "false")
        if self._fuzzy or value != "true":
            return self._good(name, value)
        reason = "a replica that is behind may become leader: acknowledged messages vanish, the log is truncated"
        level = Level.ERROR if self._exact else Level.WARNING
        return self._finding(name, value, level, reason, self._alter(f"{name}=false"))

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
        value = self._setting(name, "-1")
        if self._fuzzy or int(value) < 0:
            return self._good(name, value)
        reason = "a burst of a producer deletes unread messages, however young they are"
        return self._warn(name, value, reason, self._alter(f"{name}=-1") + "; bound the time with retention.ms")

    def _timestamps(self) -> Fitness:
        name = "message.timestamp.type"
        value = self._setting(name, "CreateTime")
        if value == "CreateTime":
            return self._good(name, value)
        reason = "the producer's time is replaced by the broker's: freshness is counted from the broker on"
        return self._warn(name, value, reason, self._alter(f"{name}=CreateTime"))

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


AHEAD_SECONDS_MAX = 60.0
"""A message further in the future shows a wrong clock: the producer's, the broker's or this machine's."""
NAMED_MAX = 3


def check_cluster(kafka: KafkaSettings) -> Iterator[Diagnosis]:
    """Check that the cluster answers, and its brokers' settings.

    Raises:
        KafkaError: It does not answer.
    """
    admin = make_admin_client(kafka)
    began = time.monotonic()
    cluster_id = ClusterAdmin(admin, kafka.timeout_seconds).cluster_id()
    brokers = _brokers(admin, kafka.timeout_seconds)
    took = time.monotonic() - began
    yield make_ok(
        "Kafka", f"cluster {cluster_id} answers in {took:.2f} s, brokers {', '.join(map(str, sorted(brokers)))}"
    )
    versions = {address: read_api_versions(kafka, address) for address in brokers.values()}
    yield from judge_api_versions(versions, kafka.topic_identity)
    settings = _broker_settings(admin, min(brokers), kafka.timeout_seconds)
    if settings.get("auto.create.topics.enable") == "true":
        step = "auto.create.topics.enable=false on the brokers: producers then learn of a mistyped topic at once"
        yield make_warning("Kafka: auto.create.topics.enable", "a mistyped topic name makes a new topic", step)
    if len(brokers) == 1:
        step = "three brokers with replication factor 3, where messages must outlive a disk"
        yield make_warning("Kafka: brokers", "there is one: its disk is the only copy of all messages", step)


def judge_api_versions(versions: Mapping[str, Mapping[str, int]], identity: TopicIdentity) -> Iterator[Diagnosis]:
    """Judge which requests the brokers know: topic ids and leader epochs. Pure.

    Args:
        versions: The highest version of each request by broker; empty for a broker that does not tell.
        identity: The identity of topics by the settings.
    """
    check = "Kafka: API versions"
    silent = sorted(address for address, known in versions.items() if not known)
    if silent:
        yield make_warning(
            check, f"{format_some(silent, NAMED_MAX)} did not answer in time", f"{SLOW}: repeat the command"
        )
    answered = {address: requests for address, requests in versions.items() if requests}
    if not answered:
        return
    oldest = min(requests.get(METADATA, 0) for requests in answered.values())
    state = f"{METADATA} up to version {oldest}, topic ids need version {TOPIC_IDS_SINCE}"
    step = (
        "brokers with topic ids, or kafka.topic_identity = name without the classes Strict and Once (docs/brokers.md)"
    )
    if identity is TopicIdentity.NAME:
        risk = "a topic that was re-created is read as the old topic"
        yield make_warning(check, f"topics are identified by name ({state}): {risk}", step)
    elif oldest < TOPIC_IDS_SINCE:
        yield make_error(check, f"{state}: no stream starts", step)
    else:
        yield make_ok(check, state)
    without = sorted(address for address, requests in answered.items() if LEADER_EPOCHS not in requests)
    if without:
        risk = f"no {LEADER_EPOCHS}: a log that was cut and has grown again is read as the old log"
        yield make_warning(check, f"{format_some(without, NAMED_MAX)}: {risk}", "brokers of Kafka 0.11 or later")


def check_topics(kafka: KafkaSettings, streams: Mapping[str, AnyStream]) -> Iterator[Diagnosis]:
    """Check the topics of each stream against its integrity class.

    Raises:
        KafkaError: It does not answer.
    """
    admin = make_admin_client(kafka)
    timeout = kafka.timeout_seconds
    cluster = ClusterAdmin(admin, timeout)
    names = cluster.topic_names()
    for name in sorted(streams):
        stream = streams[name]
        wanted = stream.topics.select(names)
        if not wanted:
            step = "create them, or correct Topics(pattern=...)"
            yield make_warning(f"topics of {name}", f"no topic matches {stream.topics.pattern}", step)
            continue
        looks = list[Fitness]()
        for topic in read_topic_settings(admin, wanted, timeout):
            looks += check_fitness(topic, stream.integrity, message_bytes_max=stream.limits.message_bytes)
        yield from summarize_checks(name, looks)
        yield from _clocks(name, admin, cluster, wanted, timeout)


def summarize_checks(stream: str, looks: Iterable[Fitness]) -> Iterator[Diagnosis]:
    """Combine checks of topics with the same result into one finding. Pure."""
    looks = list(looks)
    groups: dict[tuple[str, str, str], list[Fitness]] = {}
    for look in looks:
        if look.level is not Level.OK:
            groups.setdefault((look.setting, look.found, look.reason), []).append(look)
    good = sum(look.level is Level.OK for look in looks)
    count = len({look.topic for look in looks})
    yield make_ok(f"topics of {stream}", f"{count} topics, {good} of {len(looks)} settings as they should be")
    for (setting, found, reason), group in sorted(groups.items()):
        problem = f"{found}: {reason} ({format_some([look.topic for look in group], NAMED_MAX)})"
        yield Diagnosis(f"topics of {stream}: {setting}", group[0].level, problem, group[0].remedy)


def _clocks(
    stream: str, admin: ClusterClient, cluster: ClusterAdmin, names: Iterable[str], timeout: float
) -> Iterator[Diagnosis]:
    """Check for messages from the future: Kafka's own time cannot be read."""
    places = list[TopicNamePartition]()
    for topic in cluster.topics(names).values():
        places += [TopicNamePartition(topic.name, number) for number in range(topic.partitions)]
    newest = read_newest_timestamps(admin, places, timeout)
    ahead = {topic: at / 1000 - time.time() for (topic, _), at in newest.items()}
    far = {topic: seconds for topic, seconds in ahead.items() if seconds > AHEAD_SECONDS_MAX}
    if far:
        worst = max(far, key=lambda name: far[name])
        step = "set the clocks by NTP: of the producers, of the brokers and of this machine"
        problem = f"{len(far)} topics have messages from the future, {worst} by {far[worst]:.0f} s: freshness is wrong"
        yield make_warning(f"clocks of {stream}", problem, step)


def _brokers(admin: ClusterClient, timeout: float) -> dict[int, str]:
    """Address of each broker, by its id."""
    try:
        brokers = admin.list_topics(timeout=timeout).brokers
    except KafkaException as error:
        raise admin.explain_failure("its brokers", error.args[0], timeout) from error
    return {number: f"{each.host}:{each.port}" for number, each in brokers.items()}


def _broker_settings(admin: ClusterClient, broker: int, timeout: float) -> dict[str, str]:
    """Settings of one broker; empty if this user may not read them.

    Raises:
        KafkaError: It does not answer.
    """
    resource = ConfigResource(ResourceType.BROKER, str(broker))
    try:
        entries = admin.describe_configs([resource], request_timeout=timeout)[resource].result()
    except KafkaException as error:
        if error.args[0].code() >= 0:
            return {}
        raise admin.explain_failure(f"the settings of broker {broker}", error.args[0], timeout) from error
    return {name: str(entry.value) for name, entry in entries.items()}
