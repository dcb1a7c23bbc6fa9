"""Asks the cluster how it keeps topics: copies, and settings."""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.admin._topic import TopicDescription

from lockstep.kafka.client import ClusterClient
from lockstep.kafka.fitness import TopicSettings


def topic_settings(admin: ClusterClient, names: Iterable[str], timeout_seconds: float) -> tuple[TopicSettings, ...]:
    """How each of these topics is kept, in the order of their names.

    Raises:
        KafkaError: The cluster did not answer, or may not be asked about one of them.
    """
    wanted = sorted(names)
    if not wanted:
        return ()
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in wanted]
    try:
        copies = admin.describe_topics(TopicCollection(wanted), request_timeout=timeout_seconds)
        configs = admin.describe_configs(resources, request_timeout=timeout_seconds)
        settings = {resource.name: future.result() for resource, future in configs.items()}
        return tuple(
            _kept(copies[name].result(), {key: str(entry.value) for key, entry in settings[name].items()})
            for name in wanted
        )
    except KafkaException as error:
        raise admin.unanswered("how topics are kept", error.args[0]) from error


def _kept(topic: TopicDescription, settings: dict[str, str]) -> TopicSettings:
    return TopicSettings(
        topic=topic.name,
        replicas=min(len(partition.replicas) for partition in topic.partitions),
        in_sync=min(len(partition.isr) for partition in topic.partitions),
        settings=settings,
    )
