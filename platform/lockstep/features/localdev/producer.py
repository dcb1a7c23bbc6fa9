"""Produces recorded or generated messages into a Kafka topic, in order and once.

A test that must find every loss may not itself lose, repeat or reorder a message. So this producer is
idempotent, waits for every acknowledgement, and fails on the first message that was not written.
"""

from __future__ import annotations

import time
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException, Message
from confluent_kafka.cimpl import NewTopic

from lockstep.errors import KafkaError
from lockstep.kafka.admin import ClusterAdmin
from lockstep.kafka.client import make_admin_client, make_producer
from lockstep.kafka.secrets import Plain
from lockstep.settings import KafkaSettings
from lockstep.time_limit import SLOW, describe_silence

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


# The broker may have just started; a local one answers in well under a second after that.
ANSWER_TIMEOUT_S = 30.0
# How long the last acknowledgements are waited for, and room in a full queue.
FLUSH_TIMEOUT_S = 65.0
QUEUE_KBYTES = 65_536
# Critical only: errors are raised here, and a broker that is not up yet makes the client
# log a warning 20 times a second.
LOG_LEVEL = 2
MILLISECONDS_PER_HOUR = 3_600_000

# The client's own errors (not the broker's) have names with an underscore.
_NO_ANSWER = (ClientError._TIMED_OUT, ClientError._MSG_TIMED_OUT, ClientError._TRANSPORT)  # noqa: SLF001


Cluster = str | KafkaSettings
"""Bootstrap servers of a cluster without security; settings of any other."""


class Outgoing(Protocol):
    """A message to produce; `Recorded` is one."""

    @property
    def key(self) -> bytes | None:
        """The message key, None for none."""

    @property
    def value(self) -> bytes | None:
        """The message value, None for a tombstone."""

    @property
    def timestamp_ms(self) -> int:
        """The create time, ms since 1970 UTC."""


def produce(cluster: Cluster, topic: str, messages: Iterable[Outgoing], partitions: int = 1) -> int:
    """Write messages to a topic, in their order within each key, and wait until all are acknowledged.

    A missing topic is created with this many partitions; an existing one is not changed.

    Returns:
        The number of messages written.

    Raises:
        KafkaError: The topic could not be created, or a message was refused or not acknowledged.
    """
    create_topic(cluster, topic, partitions)
    delivery = SentMessages(cluster)
    for message in messages:
        delivery.send(topic, message)
    return delivery.finish()


def create_topic(cluster: Cluster, topic: str, partitions: int = 1, *, retention_hours: float | None = None) -> bool:
    """Create a topic with unlimited retention or some hours of it, unless it exists.

    Unlimited, because recorded messages carry their old receive time: with the usual seven days of
    retention the broker deletes them within minutes.

    Returns:
        Whether the topic was created now.

    Raises:
        KafkaError: The broker refused or did not answer.
    """
    config = {"retention.ms": "-1", "retention.bytes": "-1"}
    if retention_hours is not None:
        # Retention deletes whole segments: an eighth of the time each, so that it takes effect.
        kept_ms = int(retention_hours * MILLISECONDS_PER_HOUR)
        config |= {"retention.ms": str(kept_ms), "segment.ms": str(kept_ms // 8)}
    wanted = NewTopic(topic, num_partitions=partitions, config=config)
    settings = _settings(cluster)
    admin = make_admin_client(settings)
    try:
        admin.create_topics([wanted], request_timeout=ANSWER_TIMEOUT_S)[topic].result(ANSWER_TIMEOUT_S)
    except KafkaException as error:
        if error.args[0].code() == ClientError.TOPIC_ALREADY_EXISTS:
            return False
        raise _failed(settings, f"topic {topic} was not made", error.args[0], ANSWER_TIMEOUT_S) from error
    except TimeoutError as error:
        raise _failed(settings, f"topic {topic} was not made", None, ANSWER_TIMEOUT_S) from error
    return True


def count_produced(cluster: Cluster, topic: str) -> int:
    """Number of messages written to a topic so far; 0 without such a topic.

    Raises:
        KafkaError: The broker did not answer.
    """
    admin = ClusterAdmin(make_admin_client(_settings(cluster)), ANSWER_TIMEOUT_S)
    return sum(ends.high_watermark for ends in admin.view([topic]).ends.values())


OPTIONS: Mapping[str, Plain] = MappingProxyType(
    {
        "enable.idempotence": True,  # acks=all, and order kept over retries
        "enable.gapless.guarantee": True,  # a message given up is the end: none after it may be written
        "partitioner": "murmur2_random",  # the same partition for a key as Kafka's own Java client
        "compression.type": "zstd",
        "linger.ms": 20,
        # Without end: messages that time out are exempt from the gapless guarantee, and those after them are written.
        "message.timeout.ms": 0,
        "queue.buffering.max.kbytes": QUEUE_KBYTES,
        "log_level": LOG_LEVEL,
    }
)
"""Of the client that sends."""


class SentMessages:
    """One run of a producer: counts the messages written and stores the first refusal."""

    def __init__(self, cluster: Cluster) -> None:
        self._settings = _settings(cluster)
        self._topic = ""
        self._taken = 0
        self._sent = 0
        self._refusal: ClientError | None = None
        self._producer = make_producer(self._settings, OPTIONS)

    def send(self, topic: str, message: Outgoing) -> None:
        """Pass one message to the client; waits while its queue is full, as it is when Kafka is away for long.

        Raises:
            KafkaError: This message or one before it was refused; no later message was or will be written.
        """
        self._topic = topic
        deadline = time.monotonic() + FLUSH_TIMEOUT_S
        while not self._queued(message):
            self._check(late=time.monotonic() > deadline)
        self._sent += 1
        self._producer.poll(0)
        self._check(late=False)

    def finish(self) -> int:
        """Wait for every acknowledgement."""
        self._producer.flush(FLUSH_TIMEOUT_S)
        self._check(late=self._taken < self._sent)
        return self._taken

    def abandon(self, seconds: float) -> None:
        """Wait a moment for acknowledgements, then give up, even if some are missing."""
        self._producer.flush(seconds)
        self._producer.purge()

    def _queued(self, message: Outgoing) -> bool:
        try:
            self._producer.produce(
                self._topic,
                value=message.value,
                key=message.key,
                timestamp=message.timestamp_ms,
                on_delivery=self._delivered,
            )
        except BufferError:
            self._producer.poll(1.0)
            return False
        except KafkaException as error:
            self._refusal = error.args[0]  # refused before it was sent, for example for its size
            return False
        return True

    def _delivered(self, error: ClientError | None, message: Message) -> None:
        del message
        if error is None:
            self._taken += 1
        elif self._refusal is None:
            self._refusal = error

    def _check(self, *, late: bool) -> None:
        if self._refusal is None and not late:
            return
        self._producer.purge()  # else it would send the messages queued behind the refused message
        written = f"topic {self._topic}: only {self._taken} messages written"
        raise _failed(self._settings, written, self._refusal, FLUSH_TIMEOUT_S)


def _settings(cluster: Cluster) -> KafkaSettings:
    return KafkaSettings(bootstrap_servers=cluster) if isinstance(cluster, str) else cluster


def _failed(settings: KafkaSettings, problem: str, cause: ClientError | None, seconds: float) -> KafkaError:
    if cause is None or cause.code() in _NO_ANSWER:
        silence = describe_silence(f"Kafka at {settings.bootstrap_servers}", seconds)
        return KafkaError(f"{problem}: {silence}", next_step=f"{SLOW}: try again; see that Kafka runs: lockstep doctor")
    return KafkaError(f"{problem}: {cause.str()}", next_step="fix what Kafka refused, then produce again")
