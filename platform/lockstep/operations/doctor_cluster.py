"""Kafka: does it answer, what does it say of itself, and are the streams' topics kept as their classes need it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType

from lockstep.engine.hands import AnyStream
from lockstep.errors import KafkaError
from lockstep.kafka.client import admin_client
from lockstep.kafka.discovery import Discovery
from lockstep.kafka.fitness import Fitness, Level, fitness
from lockstep.kafka.newest import newest_timestamps
from lockstep.kafka.topic_settings import topic_settings
from lockstep.operations.finding import Diagnosis, ok, warning
from lockstep.settings import KafkaSettings

AHEAD_SECONDS_MAX = 60.0
"""A message from further in the future says that a clock is wrong: the producer's, the broker's or this one."""
NAMED_MAX = 3


def cluster(kafka: KafkaSettings) -> Iterator[Diagnosis]:
    """Whether it answers, and what its brokers say of themselves.

    Raises:
        KafkaError: It does not answer.
    """
    admin = admin_client(kafka)
    began = time.monotonic()
    cluster_id = Discovery(admin, kafka.timeout_seconds).cluster_id()
    brokers = _brokers(admin, kafka.timeout_seconds)
    took = time.monotonic() - began
    yield ok("Kafka", f"cluster {cluster_id} answers in {took:.2f} s, brokers {', '.join(map(str, sorted(brokers)))}")
    settings = _broker_settings(admin, min(brokers), kafka.timeout_seconds)
    if settings.get("auto.create.topics.enable") == "true":
        step = "auto.create.topics.enable=false on the brokers: producers then learn of a mistyped topic at once"
        yield warning("Kafka: auto.create.topics.enable", "a mistyped topic name makes a new topic", step)
    if len(brokers) == 1:
        step = "three brokers with replication factor 3, where messages must outlive a disk"
        yield warning("Kafka: brokers", "there is one: its disk is the only copy of all messages", step)


def topics(kafka: KafkaSettings, streams: Mapping[str, AnyStream]) -> Iterator[Diagnosis]:
    """The topics of each stream, judged by what its integrity class promises.

    Raises:
        KafkaError: It does not answer.
    """
    admin, timeout = admin_client(kafka), kafka.timeout_seconds
    discovery = Discovery(admin, timeout)
    names = discovery.topic_names()
    for name in sorted(streams):
        stream = streams[name]
        wanted = stream.topics.select(names)
        if not wanted:
            step = "create them, or correct Topics(pattern=...)"
            yield warning(f"topics of {name}", f"no topic matches {stream.topics.pattern}", step)
            continue
        looks = [
            look
            for kept in topic_settings(admin, wanted, timeout)
            for look in fitness(kept, stream.integrity, message_bytes_max=stream.limits.message_bytes)
        ]
        yield from judged(name, looks)
        yield from _clocks(name, admin, discovery, wanted, timeout)


def judged(stream: str, looks: Iterable[Fitness]) -> Iterator[Diagnosis]:
    """One finding for all topics that are the same in what matters. Pure."""
    looks = list(looks)
    groups: dict[tuple[str, str, str], list[Fitness]] = {}
    for look in looks:
        if look.level is not Level.OK:
            groups.setdefault((look.setting, look.found, look.reason), []).append(look)
    good, count = sum(look.level is Level.OK for look in looks), len({look.topic for look in looks})
    yield ok(f"topics of {stream}", f"{count} topics, {good} of {len(looks)} settings as they should be")
    for (setting, found, reason), group in sorted(groups.items()):
        where = ", ".join(look.topic for look in group[:NAMED_MAX])
        more = f" and {len(group) - NAMED_MAX} more" if len(group) > NAMED_MAX else ""
        said = f"{found}: {reason} ({where}{more})"
        yield Diagnosis(f"topics of {stream}: {setting}", group[0].level, said, group[0].remedy)


def _clocks(
    stream: str, admin: AdminClient, discovery: Discovery, names: Iterable[str], timeout: float
) -> Iterator[Diagnosis]:
    """Kafka cannot be asked for its time; a message from the future says as much."""
    places = [(topic.name, number) for topic in discovery.topics(names).values() for number in range(topic.partitions)]
    newest = newest_timestamps(admin, places, timeout)
    ahead = {topic: at / 1000 - time.time() for (topic, _), at in newest.items()}
    far = {topic: seconds for topic, seconds in ahead.items() if seconds > AHEAD_SECONDS_MAX}
    if far:
        topic = max(far, key=lambda name: far[name])
        step = "set the clocks by NTP: of the producers, of the brokers and of this machine"
        found = f"{len(far)} topics have messages from the future, {topic} by {far[topic]:.0f} s: freshness is wrong"
        yield warning(f"clocks of {stream}", found, step)


def _brokers(admin: AdminClient, timeout: float) -> list[int]:
    try:
        return list(admin.list_topics(timeout=timeout).brokers)
    except KafkaException as error:
        raise _unread(error) from error


def _broker_settings(admin: AdminClient, broker: int, timeout: float) -> dict[str, str]:
    """Settings of one broker; empty where this user may not ask for them."""
    resource = ConfigResource(ResourceType.BROKER, str(broker))
    try:
        entries = admin.describe_configs([resource], request_timeout=timeout)[resource].result()
    except KafkaException:
        return {}
    return {name: str(entry.value) for name, entry in entries.items()}


def _unread(error: KafkaException) -> KafkaError:
    return KafkaError(f"Kafka did not answer: {error.args[0].str()}", next_step="check kafka.bootstrap_servers")
