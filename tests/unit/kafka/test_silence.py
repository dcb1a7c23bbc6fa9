"""A cluster that does not answer a group request is described by one text for all errors of the client."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException

from lockstep.errors import KafkaUnreachable
from lockstep.kafka.consumer_group import ConsumerGroup
from lockstep.settings import KafkaSettings

SILENT = ("_TIMED_OUT", "_TIMED_OUT_QUEUE", "_WAIT_COORD", "REQUEST_TIMED_OUT")


@pytest.mark.parametrize("name", SILENT)
def test_every_error_of_a_silent_cluster_has_the_same_text(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log repeats a warning whose text changes: an outage would be reported again and again."""
    group = ConsumerGroup(KafkaSettings(bootstrap_servers="127.0.0.1:1", timeout_seconds=2.0), "g")

    def fail(_: object) -> object:
        raise KafkaException(ClientError(getattr(ClientError, name)))

    monkeypatch.setattr(group, "_patience", fail)
    with pytest.raises(KafkaUnreachable) as silent:
        group._patiently("take offsets of", lambda: None)  # noqa: SLF001  # each error, which no broker shows in turn
    assert silent.value.problem == "Kafka did not take offsets of group g within 2 s"
