"""Settings of the Kafka clients, each with its reason, and the clients themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from confluent_kafka import Consumer, KafkaException
from confluent_kafka import KafkaError as ClientError
from confluent_kafka.admin import AdminClient

from lockstep.errors import KafkaError
from lockstep.kafka.diagnostics import ConnectionLog, explain_unverified_certificate
from lockstep.kafka.secrets import Plain, with_secrets
from lockstep.settings import KafkaSettings

Configuration = dict[str, Plain]
"""What a client is made of. May travel and be shown: in the place of a secret is a reference to it."""

_NO_RIGHT = (ClientError.TOPIC_AUTHORIZATION_FAILED, ClientError.CLUSTER_AUTHORIZATION_FAILED)
INFORMATION = 6
"""librdkafka's log level: some causes are said to be no more than information."""
_BY_ITSELF = "check kafka.bootstrap_servers and that the brokers are up; lockstep tries again by itself"


class ClusterClient(AdminClient):
    """A client for questions to the cluster, which keeps what was said of its connections.

    Attributes:
        settings: How the cluster is reached.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        """Make it; nothing is sent yet.

        Raises:
            KafkaError: The options do not fit together, or a file that they name cannot be used.
            SettingsError: A secret is not where the settings say.
        """
        self.settings = settings
        self._heard = ConnectionLog()
        configuration = _heard_by(self._heard, _reach(settings))
        try:
            super().__init__(configuration)
        except KafkaException as error:
            raise _unusable(error) from error

    def answered(self) -> None:
        """The cluster has answered: what was said before is past."""
        self.poll(0)
        self._heard.forget()

    def hopeless(self) -> bool:
        """Whether what was said since the last answer makes waiting useless, such as a refused password."""
        self.poll(0)
        cause = self._heard.cause()
        return cause is not None and cause.certain

    def unanswered(self, what: str, error: ClientError) -> KafkaError:
        """Why a question went unanswered, from the answer or from what was said beside it.

        Args:
            what: What was asked, in part of a sentence.
            error: The client's error.
        """
        if error.code() in _NO_RIGHT:
            return KafkaError(
                f"Kafka hides {what} from this user: {error.str()}",
                next_step="grant the user READ and DESCRIBE_CONFIGS on the stream's topics (docs/security.md)",
            )
        self.poll(0)
        cause = self._heard.cause()
        if error.code() >= 0 or cause is None:
            return KafkaError(f"Kafka did not answer about {what}: {error.str()}", next_step=_BY_ITSELF)
        reason = explain_unverified_certificate(cause.unverified, self.settings.options) if cause.unverified else ""
        return KafkaError(
            f"Kafka did not answer about {what}: {cause.problem}{f': {reason}' if reason else ''}",
            next_step=cause.next_step,
        )


class RangeConsumer(Consumer):
    """A consumer that keeps what was said of its connections."""

    def __init__(
        self, configuration: Configuration, heard: ConnectionLog | None = None, *, log_level: int = INFORMATION
    ) -> None:
        """Make it; nothing is sent yet. Raises as `ClusterClient` does.

        Args:
            configuration: Its settings.
            heard: Takes what it says; one of its own unless given.
            log_level: How much it says.
        """
        self._heard = heard or ConnectionLog()
        try:
            super().__init__({**_heard_by(self._heard, configuration), "log_level": log_level})
        except KafkaException as error:
            raise _unusable(error) from error

    def answered(self) -> None:
        """The cluster has sent messages: what was said before is past."""
        self._heard.forget()

    def silence(self) -> str:
        """Why no message comes, in part of a sentence; empty when nothing was said."""
        cause = self._heard.cause()
        return cause.problem if cause is not None else ""


def make_admin_client(settings: KafkaSettings) -> ClusterClient:
    """The driver's client for questions to the cluster. Raises as `ClusterClient` does."""
    return ClusterClient(settings)


def make_reader_configuration(settings: KafkaSettings, *, queued_kbytes: int = 65_536) -> Configuration:
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
        # What is fetched beyond a range is thrown away, and taking it apart costs 0.4 us a message: with 100,000
        # queued and fetches of 4 MiB that was 1.1 to 3 us for each message of a 25,000-message range (measured).
        "queued.min.messages": 5_000,
        "fetch.queue.backoff.ms": 20,
        # The broker's own largest batch: of larger ones it would give one partition's a fetch, and stall the others.
        "fetch.message.max.bytes": 1_048_588,
    }


def make_producer_configuration(settings: KafkaSettings) -> Configuration:
    """How a producer reaches the cluster; secrets are still references (`with_secrets`)."""
    return _reach(settings)


def make_consumer(configuration: Configuration) -> RangeConsumer:
    """A consumer with exactly this configuration; secrets are fetched here, on the machine that reads."""
    return RangeConsumer(configuration)


def _reach(settings: KafkaSettings) -> Configuration:
    return {
        **settings.options,
        **settings.secrets,
        "bootstrap.servers": settings.bootstrap_servers,
        "client.id": "lockstep",
        "socket.keepalive.enable": True,
    }


def _heard_by(heard: ConnectionLog, configuration: Mapping[str, Plain]) -> dict[str, Any]:
    # What fails is raised, with the cause that was heard; a broker that bounces would otherwise be logged
    # 20 times a second.
    return {**with_secrets(configuration), "error_cb": heard, "logger": heard, "log_level": INFORMATION}


def _unusable(error: KafkaException) -> KafkaError:
    said = cast("ClientError", error.args[0]).str()
    return KafkaError(
        f"no Kafka client can be made of these settings: {said}",
        next_step="correct kafka.options, or the files that they and kafka.secrets name",
    )
