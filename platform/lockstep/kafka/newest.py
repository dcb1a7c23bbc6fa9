"""The newest and the oldest message of each partition, by their timestamps."""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from lockstep.errors import KafkaError
from lockstep.kafka.oldest import Place

_NEWEST: OffsetSpec = OffsetSpec.max_timestamp()  # type: ignore[no-untyped-call]  # the library's own stub
_OLDEST: OffsetSpec = OffsetSpec.for_timestamp(0)


def newest_timestamps(admin: AdminClient, places: Iterable[Place], timeout_seconds: float) -> dict[Place, int]:
    """Milliseconds since 1970 of the newest message of each partition; empty partitions are left out.

    Raises:
        KafkaError: The cluster did not answer.
    """
    return _timestamps(admin, places, _NEWEST, timeout_seconds)


def oldest_timestamps(admin: AdminClient, places: Iterable[Place], timeout_seconds: float) -> dict[Place, int]:
    """Milliseconds since 1970 of the first message that each partition still holds; empty ones are left out.

    Raises:
        KafkaError: The cluster did not answer.
    """
    return _timestamps(admin, places, _OLDEST, timeout_seconds)


def _timestamps(
    admin: AdminClient, places: Iterable[Place], which: OffsetSpec, timeout_seconds: float
) -> dict[Place, int]:
    request = {TopicPartition(topic, partition): which for topic, partition in places}
    if not request:
        return {}
    try:
        answers = admin.list_offsets(request, request_timeout=timeout_seconds)
    except KafkaException as error:
        raise KafkaError(
            f"Kafka did not say how old its messages are: {error.args[0].str()}", next_step="lockstep doctor"
        ) from error
    found = {}
    for place, future in answers.items():
        try:
            timestamp = future.result().timestamp
        except KafkaException:
            continue  # a partition without a leader
        if timestamp >= 0:
            found[place.topic, place.partition] = timestamp
    return found
