"""Settings of the Kafka clients, each with its reason, and the clients themselves."""

from __future__ import annotations

from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

from lockstep.settings import KafkaSettings

Configuration = dict[str, str | int | float | bool]


def admin_client(settings: KafkaSettings) -> AdminClient:
    """The driver's client for questions to the cluster."""
    return AdminClient(_reach(settings))


def reader_configuration(settings: KafkaSettings, *, queued_kbytes: int = 65_536) -> Configuration:
    """Settings of the consumer that reads ranges in a task."""
    return {
        **_reach(settings),
        # No consumer group is ever joined; librdkafka wants a name all the same.
        "group.id": "lockstep-reader",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "isolation.level": "read_committed",
        # A position outside the log is a finding, never a silent jump.
        "auto.offset.reset": "error",
        "enable.partition.eof": True,
        "check.crcs": True,
        "allow.auto.create.topics": False,
        # The broker answers at once: a range is known to be there already.
        "fetch.wait.max.ms": 10,
        "fetch.error.backoff.ms": 50,
        "queued.max.messages.kbytes": queued_kbytes,
        "queued.min.messages": 100_000,
        "fetch.message.max.bytes": 4_194_304,
    }


def consumer(configuration: Configuration) -> Consumer:
    """A consumer with exactly this configuration."""
    return Consumer(dict(configuration))


def _reach(settings: KafkaSettings) -> Configuration:
    return {
        **settings.options,
        "bootstrap.servers": settings.bootstrap_servers,
        "client.id": "lockstep",
        # What fails is raised here; a broker that bounces would otherwise be logged 20 times a second.
        "log_level": 2,
        "socket.keepalive.enable": True,
    }
