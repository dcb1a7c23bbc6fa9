"""The requests that a broker knows, read from the client's log: no call of the client library returns them.

librdkafka logs each answer to its ApiVersions request as `ApiKey Metadata (3) Versions 0..13`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from lockstep.kafka.client import make_connection_configuration
from lockstep.kafka.secrets import with_secrets
from lockstep.settings import KafkaSettings

METADATA = "Metadata"
LEADER_EPOCHS = "OffsetForLeaderEpoch"
TOPIC_IDS_SINCE = 10
"""Answers about topics have topic ids from this version of `Metadata` on (KIP-516, Kafka 2.8)."""
_VERSIONS = re.compile(r"ApiKey (\w+) \(-?\d+\) Versions -?\d+\.\.(-?\d+)")


class _VersionLog:
    """Takes the log lines of a client."""

    def __init__(self) -> None:
        self.highest: dict[str, int] = {}

    def log(self, level: int, form: str, *arguments: object) -> None:
        """A log line."""
        del level
        match = _VERSIONS.search(form % arguments)
        if match is not None:
            self.highest[match[1]] = int(match[2])


def read_api_versions(settings: KafkaSettings, address: str | None = None) -> Mapping[str, int]:
    """The highest version of each request that a broker knows; empty if it does not answer.

    Args:
        settings: Connection to the cluster.
        address: host:port of the broker; by default any of the cluster.
    """
    log = _VersionLog()
    configuration = with_secrets(make_connection_configuration(settings, address))
    client = AdminClient({**configuration, "debug": "feature", "log_level": 7, "logger": log})  # type: ignore[dict-item]  # as the client takes it
    try:
        client.list_topics(timeout=settings.timeout_seconds)
    except KafkaException:
        return {}
    client.poll(0)
    return log.highest
