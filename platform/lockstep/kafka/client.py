"""Settings of the Kafka clients, each with its reason, and the clients themselves."""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

from confluent_kafka import Consumer, IsolationLevel, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka import KafkaError as ClientError
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import ListOffsetsResultInfo
from confluent_kafka.admin._topic import TopicDescription
from typing_extensions import override

from lockstep.errors import KafkaError, KafkaUnreachable, LockstepError
from lockstep.kafka.diagnostics import ConnectionLog, explain_unverified_certificate
from lockstep.kafka.secrets import Plain, with_secrets
from lockstep.settings import KafkaSettings
from lockstep.time_limit import describe_silence

Configuration = dict[str, Plain]
"""Configuration of a client. May be pickled and shown: it contains references instead of secrets."""

_NO_RIGHT = (ClientError.TOPIC_AUTHORIZATION_FAILED, ClientError.CLUSTER_AUTHORIZATION_FAILED)
INFORMATION = 6
"""librdkafka's log level: some causes are logged only at the level of information."""
_BY_ITSELF = "check kafka.bootstrap_servers and that the brokers are up; lockstep tries again by itself"


SILENT_BROKER_MS = 5_000
"""A broker that is stopped keeps its connections, and a client that knows no other one asks it again and again until
this timeout of a request closes the connection: a minute by default. All requests here are small."""

NEW_TOPICS_MAX = 10
"""The client's own request, which is one for all, comes sooner than the answers about many topics."""
METADATA_SECONDS = 1.0
"""Interval of the client's own requests for the metadata of new topics (librdkafka 2.16, measured)."""


OffsetAnswers = Mapping[TopicPartition, ListOffsetsResultInfo | ClientError]
"""The answers to one request for offsets."""


def _count_references(described: TopicDescription | SimpleNamespace) -> int:
    topic_id = described.topic_id
    return sys.getrefcount(topic_id)


_REFERENCES = _count_references(SimpleNamespace(topic_id=object()))
"""To an object that one other object has."""
_release = ctypes.pythonapi.Py_DecRef
_release.argtypes = [ctypes.py_object]
_release.restype = None


def _release_topic_ids(answer: Future[Any]) -> None:
    """Release the reference to each id that the client keeps: 100 bytes a topic and request, which nothing else frees.

    confluent-kafka does so in 2.16 and in all releases before that know topic ids: 8 GB a day with 1,000 topics and a
    batch a second. An id whose only reference is that of its description is left alone.
    """
    if answer.exception() is not None:
        return
    topics = answer.result()
    if not isinstance(topics, list):  # of `describe_topics`: a future for each topic
        topics = [topics]
    for described in topics:
        if isinstance(described, TopicDescription) and _count_references(described) > _REFERENCES:
            _release(described.topic_id)


class ClusterClient(AdminClient):
    """An admin client that records the log lines of its connections, and answers about many topics at once.

    `AdminClient` makes a future for each topic or partition, 12 us of CPU time each: more than all else that a request
    costs. Two requests of every batch are made as it makes them itself, with one future.

    Attributes:
        settings: Kafka settings.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        """Create the client; nothing is sent yet.

        Raises:
            KafkaError: The options do not fit together, or a file that they name cannot be used.
            SettingsError: A secret that the settings refer to is missing.
        """
        self.settings = settings
        self._connection_log = ConnectionLog()
        connection = make_connection_configuration(settings)
        configuration = _with_log(self._connection_log, {"socket.timeout.ms": SILENT_BROKER_MS, **connection})
        try:
            super().__init__(configuration)
        except Exception as error:
            raise _make_unusable(error) from error

    def request_descriptions(
        self, names: Sequence[str], timeout_seconds: float
    ) -> Future[list[TopicDescription | ClientError]]:
        """`describe_topics` with one future: the answers in the order of the names."""
        answer = _make_future()
        answer.add_done_callback(_release_topic_ids)
        super(AdminClient, self).describe_topics(list(names), answer, request_timeout=timeout_seconds)  # type: ignore[arg-type]  # its stub swaps them
        return answer

    def describe_topics(self, topics: TopicCollection, **options: Any) -> dict[str, Future[Any]]:  # type: ignore[override]  # as its own
        """As `AdminClient`, without its memory leak."""
        answers = super().describe_topics(topics, **options)
        for answer in answers.values():
            answer.add_done_callback(_release_topic_ids)
        return answers

    def request_offsets(
        self, asked: Sequence[TopicPartition], isolation: IsolationLevel, timeout_seconds: float
    ) -> Future[OffsetAnswers]:
        """`list_offsets` with one future; each partition's offset is the time or the end that is asked for."""
        answer = _make_future()
        level = isolation.value
        super(AdminClient, self).list_offsets(
            list(asked), answer, isolation_level_value=level, request_timeout=timeout_seconds
        )
        return answer

    def clear_log(self) -> None:
        """The cluster has answered: discard earlier log lines."""
        self.poll(0)
        self._connection_log.forget()

    def is_failing_permanently(self) -> bool:
        """Whether the log lines since the last answer make waiting useless, such as a refused password."""
        self.poll(0)
        cause = self._connection_log.cause()
        return cause is not None and cause.certain

    def explain_failure(self, what: str, error: ClientError, seconds: float | None = None) -> KafkaError:
        """Why a request went unanswered, from the answer or from the log lines around it.

        Args:
            what: The subject of the request, in part of a sentence.
            error: The client's error.
            seconds: The timeout of the request; by default that of the settings.
        """
        if error.code() in _NO_RIGHT:
            return KafkaError(
                f"Kafka hides {what} from this user: {error.str()}",
                next_step="grant the user READ and DESCRIBE_CONFIGS on the stream's topics (docs/security.md)",
            )
        self.poll(0)
        cause = self._connection_log.cause()
        if error.code() >= 0:
            kind = KafkaUnreachable if error.retriable() else KafkaError
            return kind(f"Kafka did not answer about {what}: {error.str()}", next_step=_BY_ITSELF)
        is_certain = cause is not None and cause.certain  # known before the timeout
        limit = self.settings.timeout_seconds if seconds is None else seconds
        silence = f"Kafka did not answer about {what}" if is_certain else describe_silence("Kafka", limit, what)
        if cause is None:
            return KafkaUnreachable(silence, next_step=_BY_ITSELF)
        reason = explain_unverified_certificate(cause.unverified, self.settings.options) if cause.unverified else ""
        kind = KafkaError if is_certain else KafkaUnreachable
        return kind(f"{silence}: {cause.problem}{f': {reason}' if reason else ''}", next_step=cause.next_step)


class RangeConsumer(Consumer):
    """A consumer that records the log lines of its connections."""

    def __init__(
        self, configuration: Configuration, connection_log: ConnectionLog | None = None, *, log_level: int = INFORMATION
    ) -> None:
        """Create the consumer; nothing is sent yet. Raises as `ClusterClient` does.

        Args:
            configuration: Its configuration.
            connection_log: Receives its events and log lines; a new log unless given.
            log_level: Its log level.
        """
        self._connection_log = connection_log or ConnectionLog()
        self._requested = set[str]()
        try:
            super().__init__({**_with_log(self._connection_log, configuration), "log_level": log_level})
        except Exception as error:
            raise _make_unusable(error) from error

    @override
    def assign(self, partitions: list[TopicPartition]) -> None:
        """As `Consumer`; the leaders of a few new topics are requested first, for a second at most.

        The client requests the metadata of all topics that it does not know, but only once a second. A topic with a
        leader epoch is left to it: it compares the epoch with the log only if it learns of the leader afterwards.
        """
        compared = {partition.topic for partition in partitions if _has_leader_epoch(partition)}
        new = {partition.topic for partition in partitions} - compared - self._requested
        self._requested |= new
        if len(new) <= NEW_TOPICS_MAX:
            self._request_leaders(new)
        super().assign(partitions)

    def _request_leaders(self, topics: Iterable[str]) -> None:
        deadline = time.monotonic() + METADATA_SECONDS
        with suppress(KafkaException):  # whoever reads waits for longer, and has the cause from the log
            for topic in topics:
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return
                self.list_topics(topic, timeout=remaining)

    def clear_log(self) -> None:
        """The cluster has sent messages: discard earlier log lines."""
        self._connection_log.forget()

    def explain_silence(self) -> str:
        """Why no message arrives, in part of a sentence; empty without a log line."""
        cause = self._connection_log.cause()
        return "" if cause is None else cause.problem


def _has_leader_epoch(partition: TopicPartition) -> bool:
    epoch = cast("int | None", partition.leader_epoch)  # its stub has no None
    return epoch is not None


def _make_future() -> Future[Any]:
    """A future that the client sets the result of."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future


def make_admin_client(settings: KafkaSettings) -> ClusterClient:
    """The driver's admin client. Raises as `ClusterClient` does."""
    return ClusterClient(settings)


def make_reader_configuration(settings: KafkaSettings) -> Configuration:
    """Configuration of the consumer that reads ranges in a task."""
    return {
        # A silent broker keeps its connections: without these the client learns of a new leader after minutes. A fetch
        # over a slow link may take seconds.
        "socket.timeout.ms": 20_000,
        "topic.metadata.refresh.interval.ms": 5_000,
        # Its largest value. A topic may allow batches of up to the broker's socket.request.max.bytes, 104,857,600 by
        # default, and the client's default refuses answers above 100,000,000: nothing more of the partition is read.
        "receive.message.max.bytes": 2_147_483_647,
        **make_connection_configuration(settings),
        # No consumer group is ever joined; librdkafka requires a name nevertheless.
        "group.id": "lockstep-reader",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "isolation.level": "read_committed",
        # A position outside the log is a finding, never a silent jump.
        "auto.offset.reset": "error",
        "enable.partition.eof": True,
        "check.crcs": True,
        "allow.auto.create.topics": False,
        # The broker answers immediately: a range is known to exist already.
        "fetch.wait.max.ms": 10,
        "fetch.error.backoff.ms": 50,
        "queued.max.messages.kbytes": 65_536,
        # Messages fetched beyond a range are discarded, and parsing them costs 0.4 us a message: with 100,000
        # queued and fetches of 4 MiB that was 1.1 to 3 us for each message of a 25,000-message range (measured).
        "queued.min.messages": 5_000,
        "fetch.queue.backoff.ms": 20,
        # The broker's own largest batch: of larger ones it would send one partition's per fetch, and stall the others.
        "fetch.message.max.bytes": 1_048_588,
    }


def make_producer(settings: KafkaSettings, options: Mapping[str, Any]) -> Producer:
    """A producer; secrets are read here.

    Args:
        settings: Connection to the cluster.
        options: Further options of the client.

    Raises:
        KafkaError: No client can be made of the settings.
    """
    try:
        return Producer({**with_secrets(make_connection_configuration(settings)), **options})
    except Exception as error:
        raise _make_unusable(error) from error


def make_consumer(configuration: Configuration) -> RangeConsumer:
    """A consumer with exactly this configuration; secrets are read here, on the machine that reads."""
    return RangeConsumer(configuration)


def make_connection_configuration(settings: KafkaSettings, address: str | None = None) -> Configuration:
    """What every client needs to connect; secrets are still references (`with_secrets`).

    Args:
        settings: Connection to the cluster.
        address: host:port of one broker; by default those of the settings.
    """
    return {
        **settings.connection,
        "bootstrap.servers": address or settings.bootstrap_servers,
        "client.id": "lockstep",
        "socket.keepalive.enable": True,
    }


def _with_log(log: ConnectionLog, configuration: Mapping[str, Plain]) -> dict[str, Any]:
    # Errors are raised, with the logged cause; otherwise a restarting broker would be logged
    # 20 times a second.
    return {**with_secrets(configuration), "error_cb": log, "logger": log, "log_level": INFORMATION}


def _make_unusable(error: Exception) -> Exception:
    """The error of a client that cannot be made; a cloud's library may raise errors of any type."""
    if isinstance(error, LockstepError):
        return error
    step = "correct kafka.options, or the files that they and kafka.secrets name"
    if isinstance(error, ImportError):
        step = 'pip install "lockstep[aws]" for the driver and the executors'
        return KafkaError("the identity of a machine in AWS needs a package of the extra aws", next_step=step)
    if not isinstance(error, KafkaException):
        return KafkaError(f"no Kafka client can be made: {type(error).__name__}: {error}", next_step=step)
    reason = cast("ClientError", error.args[0]).str()
    if _NO_TOKEN in reason:
        step = "check the role or credentials of this machine, and that it reaches the token service of its cloud"
        return KafkaError("no token for the identity of this machine arrived within 10 seconds", next_step=step)
    return KafkaError(f"no Kafka client can be made of these settings: {reason}", next_step=step)


_NO_TOKEN = "OAuth token not set"  # noqa: S105  # words of the client library, which waits so long
