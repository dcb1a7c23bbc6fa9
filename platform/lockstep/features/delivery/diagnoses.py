"""The part of `lockstep doctor` about deliveries: their targets are tried without a row, and without fencing a run."""

from __future__ import annotations

import socket
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin._acl import AclOperation

from lockstep.addresses import is_loopback_name
from lockstep.declare.delivery import KafkaTopic
from lockstep.declare.postgres_table import PostgresTable
from lockstep.declare.stream import AnyStream
from lockstep.declare.webhook import Webhook
from lockstep.engine.driver.run import make_registry
from lockstep.errors import LockstepError
from lockstep.features.delivery.deliver import list_deliveries
from lockstep.features.delivery.kafka_setup import (
    PREFIX,
    check_rows_topic,
    check_same_topic,
    check_token,
    check_token_topic,
    find_topics,
    start_producer,
)
from lockstep.features.delivery.kafka_tokens import TokenTopic
from lockstep.features.delivery.registered_schema import ValueSchema
from lockstep.features.delivery.targets import DeclaredDelivery, require_driver
from lockstep.features.delivery.webhook_target import fetch_address, fetch_headers
from lockstep.kafka.admin import ClusterAdmin, read_topic_settings
from lockstep.kafka.client import ClusterClient, make_admin_client
from lockstep.operations.doctor.diagnosis import Diagnosis, make_error, make_ok, make_warning
from lockstep.settings import KafkaSettings, RegistrySettings, Settings
from lockstep.time_limit import SLOW, describe_silence, run_within

RESOLVE_SECONDS = 5.0
PROBE = f"{PREFIX}:doctor"
"""A transactional id under the same rights, and of no delivery: a topic cannot have this name."""
_ROWS_RIGHTS = ("WRITE", "DESCRIBE", "DESCRIBE_CONFIGS")
_TOKEN_RIGHTS = (*_ROWS_RIGHTS, "READ")


def check_deliveries(streams: Mapping[str, AnyStream], settings: Settings) -> Iterator[Diagnosis]:
    """Check the target of each delivery; a target of a user is not known."""
    for name, declared in list_deliveries(streams.values()).items():
        check = f"delivery {name}"
        try:
            yield from _check_target(check, declared, settings)
        except LockstepError as error:
            yield make_error(check, error.problem, error.next_step)


def _check_target(check: str, declared: DeclaredDelivery, settings: Settings) -> Iterator[Diagnosis]:
    delivery = declared.delivery
    target = delivery.target
    if isinstance(target, KafkaTopic):
        yield from _check_topic(check, delivery.name, target, settings.kafka)
        yield from _check_schema(check, declared, target, settings.registry)
    elif isinstance(target, PostgresTable):
        require_driver(delivery.name)
        from lockstep.features.delivery.postgres_diagnoses import check_table

        yield from check_table(check, delivery.name, target)
    elif isinstance(target, Webhook):
        yield _check_webhook(check, delivery.name, target)


def _check_topic(check: str, delivery: str, target: KafkaTopic, settings: KafkaSettings) -> Iterator[Diagnosis]:
    client = make_admin_client(settings)
    admin = ClusterAdmin(client, settings.timeout_seconds)
    topics = find_topics(delivery, target, admin)
    topic = topics[target.topic]
    check_rows_topic(delivery, target, topic, client, settings.timeout_seconds)
    yield make_ok(check, f"KafkaTopic.topic = {target.topic} exists, with {topic.partitions} partitions")
    rights: dict[str, Sequence[str]] = {target.topic: _ROWS_RIGHTS}
    if target.tokens in topics:
        check_token_topic(delivery, topics[target.tokens], client, settings.timeout_seconds)
        rights[target.tokens] = _TOKEN_RIGHTS
        token = TokenTopic(delivery, target, admin, settings).read_newest()
        if token is not None:
            check_token(delivery, target.topic, token)
            check_same_topic(delivery, topic, target.format, token)
            yield make_ok(check, f"its position is after batch {token.batch}, with the topic of now")
    else:
        yield make_ok(check, f"KafkaTopic.tokens = {target.tokens} does not exist: the first run creates it")
    for name, needed in rights.items():
        yield from judge_rights(check, name, needed, _read_rights(client, name, settings.timeout_seconds))
    for kept in read_topic_settings(client, rights, settings.timeout_seconds):
        if kept.replicas == 1:
            problem = f"replication.factor of {kept.topic} is 1: with its disk the delivered rows are lost"
            yield make_warning(check, problem, "give the topic 3 replicas (kafka-reassign-partitions)")
    start_producer(delivery, PROBE, settings, lambda *_: None)
    yield make_ok(check, "the brokers take its transactions")


def _check_schema(
    check: str, declared: DeclaredDelivery, target: KafkaTopic, settings: RegistrySettings
) -> Iterator[Diagnosis]:
    """Whether the registry answers, and has the schema. Nothing is registered."""
    schema = ValueSchema(declared.delivery, target, declared.stream.types.row, make_registry(settings))
    if not schema.subject:
        return
    if schema.is_registered():
        yield make_ok(check, f"the schema registry has the schema of its rows, as {schema.subject}")
    else:
        yield make_ok(check, f"the first run registers the schema of its rows as {schema.subject}")


def judge_rights(check: str, topic: str, needed: Collection[str], granted: Collection[str]) -> Iterator[Diagnosis]:
    """Judge the rights of this user on a topic. Pure.

    Args:
        check: Name of the check.
        topic: Name of the topic.
        needed: Operations of Kafka that a delivery needs.
        granted: The granted operations; empty if the cluster does not tell.
    """
    missing = [each for each in needed if each not in granted]
    if granted and missing:
        names = ", ".join(missing)
        yield make_error(check, f"this user lacks {names} on topic {topic}", f"grant {names} on {topic}")


def _read_rights(client: ClusterClient, topic: str, seconds: float) -> frozenset[str]:
    """The operations that this user may do; empty if the cluster does not tell."""
    try:
        answers = client.describe_topics(
            TopicCollection([topic]), include_authorized_operations=True, request_timeout=seconds
        )
        operations = answers[topic].result().authorized_operations or ()
    except KafkaException as error:
        raise client.explain_failure(f"the rights on topic {topic}", error.args[0], seconds) from error
    if AclOperation.ALL in operations:
        return frozenset(_TOKEN_RIGHTS)
    return frozenset(each.name for each in operations)


def _check_webhook(check: str, delivery: str, target: Webhook) -> Diagnosis:
    """Whether the address and the credentials are there, and the host has an address. Nothing is sent."""
    address = fetch_address(delivery, target)
    headers = fetch_headers(delivery, target)
    field = f"Webhook.url, of {target.url},"
    try:
        parts = urlsplit(address)
        host = parts.hostname or ""
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:  # its text has a part of the address
        parts = urlsplit("")
        host = ""
        port = 0
    if not host or "@" in parts.netloc:
        step = "write it as https://host:port/path; credentials belong into Webhook.authorization"
        return make_error(check, f"{field} has no host, another port than a number, or credentials", step)
    is_by_proxy = bool(parts.scheme in getproxies() and not proxy_bypass(host))
    found = None if is_by_proxy else _resolve(check, f"the host of {field}", target, host, port)
    if found is not None:
        return found
    if parts.scheme == "http" and "Authorization" in headers and not is_loopback_name(host):
        problem = f"{field} is an address of http://: everybody on the way reads {target.authorization}"
        return make_warning(check, problem, "store an address of https:// there")
    if is_by_proxy:
        return make_ok(check, f"{field} is reached by the proxy of the environment; nothing was sent")
    return make_ok(check, f"the host of {field} has an address; nothing was sent")


def _resolve(check: str, named: str, target: Webhook, host: str, port: int) -> Diagnosis | None:
    """Find the address of the receiver's host; the fault, if any."""
    try:
        run_within(RESOLVE_SECONDS, partial(socket.getaddrinfo, host, port, proto=socket.IPPROTO_TCP))
    except TimeoutError:
        problem = f"{named}: {describe_silence('the resolver of names', RESOLVE_SECONDS)}"
        return make_warning(check, problem, f"{SLOW}: repeat the command")
    except (OSError, UnicodeError):
        return make_error(check, f"{named} has no address", f"correct {target.url}, or the name service")
    return None
