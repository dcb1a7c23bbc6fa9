"""The consumer group of a stream: positions published as its offsets, so that ordinary lag tools work.

No consumer joins the group, and nothing is read through it. Its offsets are read back in one place only: a
start without a table checks whether there was one (`engine/driver/committer.py`). The offsets of another group are
read once for each partition, if a stream continues that group's work (`GroupOffsets`).

A consumer sends the requests, not the admin client: librdkafka 2.16 crashes the process when an admin
client requests a group's offsets while the group's coordinator starts (seen: a null pointer in
rd_kafka_cgrp_op, from the handler of OffsetFetch), or sets them over a link that carries nothing for a minute.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka import KafkaError as ClientError
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from lockstep.errors import KafkaError, KafkaUnreachable
from lockstep.kafka.client import make_admin_client, make_consumer, make_reader_configuration
from lockstep.model.position import TopicNamePartition
from lockstep.settings import KafkaSettings
from lockstep.time_limit import SLOW, describe_silence, run_within

T = TypeVar("T")

_COORDINATOR_STARTS = (
    ClientError.COORDINATOR_LOAD_IN_PROGRESS,
    ClientError.COORDINATOR_NOT_AVAILABLE,
    ClientError.NOT_COORDINATOR,
    ClientError._WAIT_COORD,  # noqa: SLF001  # the client's name
)
"""Errors in the first seconds of a group's existence, or after a broker's start."""
_SILENT = (
    *(ClientError._TIMED_OUT, ClientError._TIMED_OUT_QUEUE, ClientError._WAIT_COORD),  # noqa: SLF001  # as above
    ClientError.REQUEST_TIMED_OUT,
)
_RETRY_SECONDS = 0.2
_BY_ITSELF = f"{SLOW}; lockstep tries again by itself"
_SESSION_MS_MAX = 45_000
"""The client's default."""


class ConsumerGroup:
    """The group of one stream."""

    def __init__(self, settings: KafkaSettings, name: str) -> None:
        self.name = name
        self._settings = settings
        self._commit_ended = threading.Event()
        self._commit_ended.set()
        self._patience = Retrying(
            stop=stop_after_delay(settings.timeout_seconds),
            wait=wait_fixed(_RETRY_SECONDS),
            retry=retry_if_exception(_coordinator_starts),
            reraise=True,
        )

    def publish(self, offsets: Mapping[TopicNamePartition, int]) -> None:
        """Set the group's offsets.

        Raises:
            KafkaError: The cluster refused it or did not answer.
        """
        places = [TopicPartition(topic, partition, offset) for (topic, partition), offset in offsets.items()]
        if places:
            self._commit(places)

    def published(self, places: Iterable[TopicNamePartition]) -> dict[TopicNamePartition, int]:
        """The group's offsets of these partitions; those without one are left out.

        Raises:
            KafkaError: The cluster did not answer.
        """
        wanted = [TopicPartition(topic, partition) for topic, partition in places]
        if not wanted:
            return {}
        timeout = self._settings.timeout_seconds
        committed = self._as_member("show offsets of", lambda client: client.committed(wanted, timeout=timeout))
        offsets = dict[TopicNamePartition, int]()
        for place in committed:
            if place.offset >= 0:  # below: the group has none of this partition
                offsets[TopicNamePartition(place.topic, place.partition)] = place.offset
        return offsets

    def committed_by(self, group: str, places: Iterable[TopicNamePartition]) -> dict[TopicNamePartition, int]:
        """The committed offsets of another group of the same cluster; partitions without one are left out.

        Raises:
            KafkaError: The cluster did not answer.
        """
        return ConsumerGroup(self._settings, group).published(places)

    def forget(self) -> None:
        """Delete the group; a missing group is not an error.

        Raises:
            KafkaError: The cluster refused it or did not answer.
        """
        admin = make_admin_client(self._settings)

        def delete() -> None:
            answers = admin.delete_consumer_groups([self.name], request_timeout=self._settings.timeout_seconds)
            answers[self.name].result()

        try:
            self._patiently("delete", delete)
        except _NoGroup:
            return

    def _commit(self, places: list[TopicPartition]) -> None:
        """Commit on a thread that is left behind after the timeout, one at a time.

        While the coordinator is away, neither a commit nor the close of the client returns.
        """
        verb = "take offsets of"
        ended = self._commit_ended
        if not ended.is_set():
            raise KafkaUnreachable(self._describe_silence(verb), next_step=_BY_ITSELF)  # as the first: warned of once

        def commit() -> None:
            try:
                self._as_member(verb, lambda client: client.commit(offsets=places, asynchronous=False))
            finally:
                ended.set()

        ended.clear()
        try:
            run_within(self._settings.timeout_seconds, commit)
        except TimeoutError as error:
            raise KafkaUnreachable(self._describe_silence(verb), next_step=_BY_ITSELF) from error

    def _as_member(self, verb: str, ask: Callable[[Consumer], T]) -> T:
        timeout_ms = max(1, int(self._settings.timeout_seconds * 1000))
        client = make_consumer(
            {
                **make_reader_configuration(self._settings),
                "group.id": self.name,
                # So long a commit waits for the group's coordinator.
                "session.timeout.ms": min(_SESSION_MS_MAX, timeout_ms),
            }
        )
        try:
            return self._patiently(verb, lambda: ask(client))
        finally:
            client.close()

    def _patiently(self, verb: str, question: Callable[[], T]) -> T:
        try:
            return self._patience(question)
        except KafkaException as error:
            if error.args[0].code() == ClientError.GROUP_ID_NOT_FOUND:
                raise _NoGroup from error
            if error.args[0].code() in _SILENT:
                raise KafkaUnreachable(self._describe_silence(verb), next_step=_BY_ITSELF) from error
            raise KafkaError(
                f"Kafka did not {verb} group {self.name}: {error.args[0].str()}",
                next_step=f"check the brokers, and that this user may READ and DELETE group {self.name}",
            ) from error

    def _describe_silence(self, verb: str) -> str:
        return describe_silence("Kafka", self._settings.timeout_seconds, verb=f"{verb} group {self.name}")


class _NoGroup(Exception):
    """The group does not exist."""


def _coordinator_starts(error: BaseException) -> bool:
    return isinstance(error, KafkaException) and error.args[0].code() in _COORDINATOR_STARTS
