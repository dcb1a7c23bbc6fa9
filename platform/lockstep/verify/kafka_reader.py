"""Reads Kafka again with a consumer of the proof's own; shares nothing with the engine's reader, on purpose."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import msgspec
from confluent_kafka import Consumer, KafkaException, Message, TopicCollection, TopicPartition
from confluent_kafka import KafkaError as ClientError
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.admin._topic import TopicDescription

from lockstep.errors import KafkaError
from lockstep.kafka.diagnostics import ConnectionLog
from lockstep.kafka.secrets import with_secrets
from lockstep.model.position import TopicNamePartition
from lockstep.settings import KafkaSettings, TopicIdentity
from lockstep.time_limit import describe_silence

TOGETHER_MAX = 64
"""Partitions read at once: each holds the states of its sessions in memory."""
MESSAGES_A_CALL = 1_000
POLL_SECONDS = 0.05
"""Timeout of one poll for its messages; a shorter one only adds polls."""
SILENCE_SECONDS_MAX = 30.0
RETRY_SECONDS = 0.25
_UNKNOWN_TOPIC = 3
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""The zero id."""
_LEADER_MOVES = {ClientError.LEADER_NOT_AVAILABLE, ClientError.NOT_LEADER_FOR_PARTITION}
LOG_LEVEL = 6
"""That of information: some causes are logged at no other."""
_NEXT_STEP = "lockstep doctor checks Kafka; then repeat the command"


class BufferedRange(msgspec.Struct, frozen=True):
    """The retained offsets of a partition: [first, end)."""

    first: int
    end: int


class FoundTopic(msgspec.Struct, frozen=True):
    """A topic in Kafka: its id, and the number of its partitions."""

    topic_id: str
    partitions: int


class WantedRange(msgspec.Struct, frozen=True):
    """Offsets [start, until) to read again."""

    topic: str
    partition: int
    start: int
    until: int


class Piece(msgspec.Struct):
    """The next messages of one partition.

    Attributes:
        index: Which of the wanted ones.
        messages: In offset order; all before `until`.
        reached: Every offset before this one was seen, or has no message.
    """

    index: int
    messages: list[Message]
    reached: int


class KafkaTopicLog:
    """One cluster, as configured in the settings."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._connection_log = ConnectionLog()

    def find_topics(self, topics: Iterable[str]) -> dict[str, FoundTopic]:
        """Those of some topics that exist now.

        Raises:
            KafkaError: Kafka does not answer; that never means "no topics".
        """
        descriptions = self._describe(sorted(topics))
        if self._settings.topic_identity is TopicIdentity.NAME:
            ids = {name: f"name:{name}" for name in descriptions}
        else:
            ids = {name: str(topic.topic_id) for name, topic in descriptions.items()}
        # Brokers without topic ids return one id for all: re-created topics would not be noticed.
        if len(set(ids.values())) < len(ids) or _NO_ID in ids.values():
            raise KafkaError(
                "the brokers have no topic ids: the proof cannot tell topics apart",
                next_step="set kafka.topic_identity as the stream's runs have it (docs/brokers.md)",
            )
        return {name: FoundTopic(ids[name], len(topic.partitions)) for name, topic in descriptions.items()}

    def _describe(self, wanted: list[str]) -> dict[str, TopicDescription]:
        """Those of the topics that exist."""
        if not wanted:
            return {}
        admin = self._admin()
        timeout = self._settings.timeout_seconds
        answers = admin.describe_topics(TopicCollection(wanted), request_timeout=timeout)
        found: dict[str, TopicDescription] = {}
        for name, future in answers.items():
            try:
                found[name] = future.result()
            except KafkaException as error:
                if _error(error).code() != _UNKNOWN_TOPIC:
                    admin.poll(0)  # for the events that name the cause
                    raise self._unread(f"topic {name}", _error(error).str()) from error
        return found

    def count_partitions(self, topic: str) -> int:
        """Number of partitions of a topic; 0 if the topic does not exist.

        Raises:
            KafkaError: Kafka does not answer.
        """
        descriptions = self._describe([topic])
        if topic in descriptions:
            return len(descriptions[topic].partitions)
        return 0

    def find_compacted(self, topics: Iterable[str]) -> frozenset[str]:
        """Those of some existing topics whose `cleanup.policy` is not `delete` alone.

        Raises:
            KafkaError: Kafka does not answer, or not this user.
        """
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in sorted(topics)]
        if not resources:
            return frozenset()
        admin = self._admin()
        timeout = self._settings.timeout_seconds
        try:
            answers = admin.describe_configs(resources, request_timeout=timeout)
            policies = {resource.name: future.result()["cleanup.policy"].value for resource, future in answers.items()}
        except KafkaException as error:
            admin.poll(0)  # as above
            raise self._unread("the settings of topics", _error(error).str()) from error
        return frozenset(name for name, policy in policies.items() if policy != "delete")

    def read_ranges(self, partitions: Iterable[TopicNamePartition]) -> dict[TopicNamePartition, BufferedRange]:
        """First offset and high watermark of each partition."""
        consumer = self._consumer(committed=True)
        found: dict[TopicNamePartition, BufferedRange] = {}
        try:
            for partition in partitions:
                first, end = self._read_ends(consumer, TopicPartition(*partition))
                found[partition] = BufferedRange(first, end)
        except KafkaException as error:
            raise self._unread("offsets", _error(error).str()) from error
        except TypeError as error:  # the client returns None on a timeout
            raise self._unread("offsets", describe_silence("Kafka", self._settings.timeout_seconds)) from error
        finally:
            consumer.close()
        return found

    def _read_ends(self, consumer: Consumer, place: TopicPartition) -> tuple[int, int]:
        """First offset and high watermark; asked again while the leader moves, which a broker may learn late."""
        seconds = self._settings.timeout_seconds
        deadline = time.monotonic() + seconds
        while True:
            try:
                first, end = consumer.get_watermark_offsets(place, timeout=seconds)
            except KafkaException as error:
                if _error(error).code() not in _LEADER_MOVES or time.monotonic() > deadline:
                    raise
                time.sleep(RETRY_SECONDS)
                consumer.list_topics(place.topic, timeout=seconds)
            else:
                return first, end

    def read(self, wanted: Sequence[WantedRange], *, committed: bool = True) -> Iterator[Piece]:
        """Read all ranges; the pieces of a partition arrive in order, and the last piece reaches `until`.

        Raises:
            KafkaError: Kafka stopped answering, or an offset has expired meanwhile.
        """
        consumer = self._consumer(committed=committed)
        try:
            reading = _Reading(consumer, wanted)
            silent_since = time.monotonic()
            while reading.unfinished:
                pieces = reading.pieces(consumer.consume(MESSAGES_A_CALL, POLL_SECONDS))
                if pieces:
                    silent_since = time.monotonic()
                elif time.monotonic() - silent_since > SILENCE_SECONDS_MAX:
                    raise self._unread("messages", describe_silence("Kafka", SILENCE_SECONDS_MAX, verb="send any"))
                yield from pieces
        except KafkaException as error:
            raise self._unread("messages", _error(error).str()) from error
        finally:
            consumer.close()

    def _consumer(self, *, committed: bool) -> Consumer:
        isolation = "read_committed" if committed else "read_uncommitted"
        return Consumer(
            self._configuration()
            | {
                "group.id": "lockstep-verify",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "isolation.level": isolation,
                # A reset would skip messages silently.
                "auto.offset.reset": "error",
                # A partition may end with markers of transactions, at which no message arrives.
                "enable.partition.eof": True,
                "check.crcs": True,
                "allow.auto.create.topics": False,
                "fetch.wait.max.ms": 10,
            }
        )

    def _configuration(self) -> dict[str, Any]:
        log = self._connection_log
        logging: dict[str, Any] = {"error_cb": log, "logger": log, "log_level": LOG_LEVEL}
        return {**with_secrets(self._settings.connection), **logging, "client.id": "lockstep-verify"}

    def _admin(self) -> AdminClient:
        return AdminClient(self._configuration())

    def _unread(self, what: str, error: str) -> KafkaError:
        """Names the brokers, and the cause if a connection failed: the client itself only reports "timed out"."""
        cause = self._connection_log.cause()
        problem = error
        next_step = _NEXT_STEP
        if cause is not None:
            problem = cause.problem
            next_step = f"{cause.next_step}; then repeat the command"
        brokers = self._settings.bootstrap_servers
        return KafkaError(f"{what} could not be read from Kafka ({brokers}): {problem}", next_step=next_step)


class _Reading:
    """The unfinished partitions, and the remaining offsets of each."""

    def __init__(self, consumer: Consumer, wanted: Sequence[WantedRange]) -> None:
        self._consumer = consumer
        self._wanted = wanted
        self._at = [item.start for item in wanted]
        self.unfinished = dict[TopicNamePartition, int]()
        assigned = list[TopicPartition]()
        for number, item in enumerate(wanted):
            if item.start < item.until:
                self.unfinished[TopicNamePartition(item.topic, item.partition)] = number
                assigned.append(TopicPartition(item.topic, item.partition, item.start))
        consumer.assign(assigned)

    def pieces(self, polled: list[Message]) -> list[Piece]:
        """The messages of one poll, by partition."""
        messages: dict[int, list[Message]] = {}
        ends: dict[int, int] = {}
        for message in polled:
            index = self.unfinished.get((message.topic(), message.partition()))  # type: ignore[call-overload]  # set on every message, and made for each
            if index is None:
                continue  # fetched beyond the wanted range
            error = message.error()
            if error is None:
                messages.setdefault(index, []).append(message)
            elif error.code() == ClientError._PARTITION_EOF:  # noqa: SLF001  # the client's name of the event
                ends[index] = cast("int", message.offset())
            elif not error.retriable():
                raise KafkaException(error)
        return [self._piece(n, messages.get(n, []), ends.get(n, 0)) for n in sorted(messages.keys() | ends.keys())]

    def _piece(self, index: int, messages: list[Message], end: int) -> Piece:
        wanted = self._wanted[index]
        reached = max(self._at[index], end)
        if messages:
            reached = max(reached, find_offset(messages[-1]) + 1)
        self._at[index] = min(reached, wanted.until)
        if reached >= wanted.until:
            messages = [message for message in messages if find_offset(message) < wanted.until]
            self._finish(wanted)
        return Piece(index, messages, self._at[index])

    def _finish(self, wanted: WantedRange) -> None:
        del self.unfinished[TopicNamePartition(wanted.topic, wanted.partition)]
        if self.unfinished:
            self._consumer.incremental_unassign([TopicPartition(wanted.topic, wanted.partition)])


def find_offset(message: Message) -> int:
    """The offset of a consumed message, which always has one."""
    return cast("int", message.offset())


def _error(error: KafkaException) -> ClientError:
    return cast("ClientError", error.args[0])
