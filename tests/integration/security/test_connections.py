"""Each way to secure a connection works against a real broker; each error in it is named with the remedy."""

from __future__ import annotations

import re
import sys
import time
from threading import Timer
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin._acl import AclOperation
from confluent_kafka.cimpl import NewTopic

from lockstep.errors import KafkaError
from lockstep.kafka.admin import ClusterAdmin
from lockstep.kafka.client import make_admin_client, make_consumer, make_producer, make_reader_configuration
from lockstep.kafka.reader import MessageRun, Range, UnreadableRange, read_ranges
from lockstep.model.tuning import Tuning
from lockstep.verify.kafka_reader import KafkaTopicLog
from tests.integration.security.secured import ANSWER_SECONDS, ODD_READER, READER, Secured
from tests.support.installation import wait_until
from tests.support.sts_server import KEY_ID, KEY_PHRASE, StsServer, run_sts_server
from tests.support.token_server import AUDIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

from lockstep.settings import KafkaSettings

WAYS: dict[str, Callable[[Secured], KafkaSettings]] = {
    "PLAIN": lambda kafka: kafka.sasl("PLAIN"),
    "SCRAM-SHA-256": lambda kafka: kafka.sasl("SCRAM-SHA-256"),
    "SCRAM-SHA-512": lambda kafka: kafka.sasl("SCRAM-SHA-512"),
    "mutual TLS": Secured.mutual,
    "a token": Secured.oidc,
    "the identity of a machine in Azure": Secured.azure,
    "a name and a password that JAAS would stumble over": lambda kafka: kafka.sasl("SCRAM-SHA-256", ODD_READER),
    "SCRAM without TLS": lambda kafka: without_tls(kafka.sasl("SCRAM-SHA-256", listener="SASL_PLAINTEXT")),
}
WAIT_SECONDS = 3.0
"""Wait for a client whose error may be temporary; a correct client has its answer in a tenth of it."""


def changed(settings: KafkaSettings, server: str = "", **options: str | None) -> KafkaSettings:
    """Return the settings with changed options, not validated; None removes an option."""
    wanted = {**settings.options, **{name.replace("_", "."): value for name, value in options.items()}}
    kept = {name: value for name, value in wanted.items() if value is not None}
    servers = server or settings.bootstrap_servers
    return settings.model_copy(update={"options": kept, "bootstrap_servers": servers})


def without_tls(settings: KafkaSettings) -> KafkaSettings:
    return changed(settings, security_protocol="SASL_PLAINTEXT", ssl_ca_location=None)


def with_phrase(settings: KafkaSettings, reference: str) -> KafkaSettings:
    return changed(settings).model_copy(update={"secrets": {"sasl.password": reference}})


def made(kafka: Secured, *topics: str) -> None:
    admin = kafka.admin()
    for future in admin.create_topics([NewTopic(topic, num_partitions=1) for topic in topics]).values():
        future.result(ANSWER_SECONDS)


def ask(settings: KafkaSettings) -> frozenset[str]:
    return ClusterAdmin(make_admin_client(settings), settings.timeout_seconds).topic_names()


def refusal(settings: KafkaSettings) -> KafkaError:
    with pytest.raises(KafkaError) as refused:
        ask(settings)
    return refused.value


@pytest.mark.parametrize("way", WAYS)
def test_every_way_shows_the_topics_and_their_offsets(secured: Secured, way: str, topic_family: str) -> None:
    made(secured, topic_family)
    settings = WAYS[way](secured)
    # A broker may list a new topic a moment after it has made it.
    wait_until(lambda: topic_family in ask(settings), "the topic in the list", ANSWER_SECONDS)
    view = ClusterAdmin(make_admin_client(settings), ANSWER_SECONDS).view([topic_family])
    assert [ends.high_watermark for ends in view.ends.values()] == [0]


@pytest.mark.parametrize("way", WAYS)
def test_the_proof_reads_by_every_way_too(secured: Secured, way: str, topic_family: str) -> None:
    """It shares no code with the reader of runs."""
    made(secured, topic_family)
    log = KafkaTopicLog(WAYS[way](secured))
    wait_until(lambda: topic_family in log.find_topics([topic_family]), "the topic", ANSWER_SECONDS)


def test_a_wrong_password_is_called_that(secured: Secured) -> None:
    error = refusal(with_phrase(secured.sasl(), secured.secret("wrong", "guessed")))
    address = secured.broker.address("SASL_SSL")
    assert error.problem == (
        "Kafka did not answer about metadata: "
        f"authentication failed at {address}: Authentication failed: Invalid username or password"
    )
    assert error.next_step == (
        "check kafka.options sasl.username and sasl.mechanism, and what kafka.secrets sasl.password refers to"
    )


def test_a_certificate_of_another_authority_is_called_that(secured: Secured) -> None:
    error = refusal(changed(secured.sasl(), ssl_ca_location=secured.file("other_ca.pem")))
    address = secured.broker.address("SASL_SSL")
    assert f"the certificate of {address} could not be verified: unable to get local issuer" in error.problem
    assert "ssl.ca.location" in error.next_step


def test_a_certificate_of_another_host_is_called_that(secured: Secured) -> None:
    error = refusal(changed(secured.sasl(listener="ELSEWHERE")))
    assert "could not be verified: IP address mismatch, certificate is not valid for '127.0.0.1'" in error.problem


def test_a_broker_cannot_send_its_clients_on_to_another_host(secured: Secured) -> None:
    elsewhere = secured.broker.address("ELSEWHERE").replace("127.0.0.1", "localhost")
    settings = changed(secured.sasl(), server=elsewhere, broker_address_family="v4")
    with pytest.raises(KafkaError) as refused:
        ClusterAdmin(make_admin_client(settings), WAIT_SECONDS).topics(["any"])
    address = secured.broker.address("ELSEWHERE")
    assert (
        f"the certificate of {address}, an address that the cluster named (its advertised.listeners), "
        "could not be verified"
    ) in refused.value.problem


def test_a_client_without_tls_on_a_port_with_it_is_told_so(secured: Secured) -> None:
    plain = changed(secured.plain(), server=secured.broker.address("SASL_SSL"))
    error = refusal(plain.model_copy(update={"timeout_seconds": WAIT_SECONDS}))
    assert "closes the connection without an answer" in error.problem
    assert error.next_step.startswith("set kafka.options security.protocol to what this listener speaks")


def test_a_client_with_tls_on_a_port_without_it_is_told_so(secured: Secured) -> None:
    error = refusal(changed(secured.mutual(), server=secured.broker.bootstrap_servers))
    assert "speaks no TLS, and this client is configured for it" in error.problem


def test_a_client_without_a_certificate_where_one_is_asked_for_is_told_so(secured: Secured) -> None:
    plain = changed(secured.mutual(), ssl_certificate_location=None, ssl_key_location=None)
    error = refusal(plain.model_copy(update={"secrets": {}}))
    assert "did not accept this client's certificate" in error.problem
    assert "ssl.certificate.location" in error.next_step


def test_a_key_that_cannot_be_opened_is_no_client(secured: Secured) -> None:
    wrong = secured.mutual().model_copy(update={"secrets": {"ssl.key.password": secured.secret("wrong", "guessed")}})
    error = refusal(wrong)
    assert error.problem.startswith("no Kafka client can be made of these settings")
    assert "guessed" not in str(error)


def test_a_topic_that_is_hidden_is_no_missing_topic(secured: Secured, topic_family: str) -> None:
    made(secured, topic_family)
    secured.allow_only("somebody-else", topic_family, AclOperation.READ)
    with pytest.raises(KafkaError) as refused:
        ClusterAdmin(make_admin_client(secured.sasl()), ANSWER_SECONDS).view([topic_family])
    assert refused.value.problem.startswith(f"Kafka hides topic {topic_family} from this user")
    assert "grant the user READ" in refused.value.next_step


def test_a_topic_that_is_hidden_is_no_deleted_topic(secured: Secured, topic_family: str) -> None:
    made(secured, topic_family)
    hidden = [topic_family, f"{topic_family}.hidden"]
    deleted = f"{topic_family}.deleted"
    for topic in hidden:
        secured.allow_only("somebody-else", topic, AclOperation.READ)
    admin = ClusterAdmin(make_admin_client(secured.sasl()), ANSWER_SECONDS)
    assert admin.find_deleted([*hidden, deleted]) == {deleted}


def test_a_topic_that_may_be_seen_and_not_read_is_refused_before_a_task_waits_for_it(
    secured: Secured, topic_family: str
) -> None:
    made(secured, topic_family)
    secured.allow_only(READER, topic_family, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)
    with pytest.raises(KafkaError) as refused:
        ClusterAdmin(make_admin_client(secured.sasl()), ANSWER_SECONDS).view([topic_family])
    assert refused.value.problem == f"Kafka shows topic {topic_family} to this user, and does not let it read"


def test_read_and_describe_configs_are_all_the_rights_that_a_stream_needs(secured: Secured, topic_family: str) -> None:
    made(secured, topic_family)
    secured.allow_only(READER, topic_family, AclOperation.READ, AclOperation.DESCRIBE_CONFIGS)
    view = ClusterAdmin(make_admin_client(secured.sasl()), ANSWER_SECONDS).view([topic_family])
    assert view.topics[topic_family].deletes_only


def test_a_user_who_may_see_nothing_is_not_told_that_there_is_nothing(secured: Secured, topic_family: str) -> None:
    made(secured, topic_family)
    with secured.seeing_nothing(READER):
        error = refusal(secured.sasl())
    assert error.problem.startswith("Kafka hides all topics from this user")


def test_a_task_that_hears_nothing_says_why(secured: Secured) -> None:
    tuning = Tuning(silence_seconds_max=WAIT_SECONDS)
    wrong = with_phrase(secured.sasl(), secured.secret("wrong", "guessed"))
    reader = make_consumer(make_reader_configuration(wrong))
    found: list[MessageRun | UnreadableRange] = list(read_ranges(reader, [Range("any", 0, 0, 1)], tuning))
    reader.close()
    assert len(found) == 1
    assert isinstance(found[0], UnreadableRange)
    assert "authentication failed at" in found[0].reason


def changed_tokens(settings: KafkaSettings, **options: str) -> KafkaSettings:
    """Return the settings with changed token options: `client_id` is `sasl.oauthbearer.client.id`."""
    named = {f"sasl.oauthbearer.{name.replace('_', '.')}": value for name, value in options.items()}
    return settings.model_copy(update={"options": {**settings.options, **named}})


@pytest.mark.parametrize(
    ("wrong", "cause", "step"),
    [
        ("secret", "no token from the issuer.*invalid_client", "client.id"),
        ("client", "no token from the issuer.*invalid_client", "client.id"),
        ("authority", "no token from the issuer.*certificate", "https.ca.location"),
        ("port", "no token from the issuer.*Could not connect", "token.endpoint.url"),
        ("audience", "refused the token.*invalid_token", "audience"),
    ],
)
def test_a_token_that_is_not_issued_or_not_accepted_is_named(
    secured: Secured, wrong: str, cause: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = secured.oidc()
    if wrong == "secret":
        reference = secured.secret("wrong-client-secret", "wrong")
        settings = settings.model_copy(update={"secrets": {"sasl.oauthbearer.client.secret": reference}})
    elif wrong == "client":
        settings = changed_tokens(settings, client_id="nobody")
    elif wrong == "authority":
        settings = changed(settings, https_ca_location=secured.file("other_ca.pem"))
    elif wrong == "port":
        settings = changed_tokens(settings, token_endpoint_url="https://127.0.0.1:9/token")  # noqa: S106  # an address
    else:
        monkeypatch.setattr(secured.tokens, "audience", "another")
    refused = refusal(settings.model_copy(update={"timeout_seconds": WAIT_SECONDS}))
    assert re.search(cause, refused.problem)
    assert step in refused.next_step


def test_a_redirect_to_another_issuer_is_not_followed(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other issuer would receive the client's secret, and is not in the list of hosts."""
    monkeypatch.setattr(secured.tokens, "redirect", f"{secured.tokens.url}/of-another-host")
    before = secured.tokens.issued
    refusal(secured.oidc().model_copy(update={"timeout_seconds": WAIT_SECONDS}))
    assert secured.tokens.issued == before


def test_a_reader_continues_over_the_ends_of_its_tokens(
    secured: Secured, topic_family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task's consumer and the driver's client continue over three token lifetimes and one outage of the issuer."""
    made(secured, topic_family)
    wait_until(lambda: topic_family in ask(secured.oidc()), "the topic in the list", ANSWER_SECONDS)
    producer = Producer({"bootstrap.servers": secured.broker.bootstrap_servers})
    for value in (b"1", b"2"):
        producer.produce(topic_family, value)
    assert producer.flush(ANSWER_SECONDS) == 0
    monkeypatch.setattr(secured.tokens, "life_seconds", 5)
    settings = secured.oidc()
    driver = ClusterAdmin(make_admin_client(settings), ANSWER_SECONDS)
    consumer = make_consumer(make_reader_configuration(settings))
    before = secured.tokens.issued

    def can_read() -> bool:
        try:
            ends = driver.view([topic_family]).ends
        except KafkaError:
            return False  # a refused token is requested again after ten seconds: its life is shorter here
        runs = [each for each in read_ranges(consumer, [Range(topic_family, 0, 0, 2)]) if isinstance(each, MessageRun)]
        return len(ends) == 1 and sum(len(run.messages) for run in runs) == 2

    monkeypatch.setattr(secured.tokens, "refusal", 0)  # restored at the end
    outage = [Timer(8, setattr, (secured.tokens, "refusal", 503)), Timer(9, setattr, (secured.tokens, "refusal", 0))]
    for change in outage:
        change.start()  # on separate threads: a client may wait for a token
    end = time.monotonic() + 15
    while time.monotonic() < end:
        wait_until(can_read, "an answer", ANSWER_SECONDS)
        time.sleep(0.5)
    consumer.close()
    for change in outage:
        change.join()
    assert secured.tokens.issued - before >= 4
    assert set(secured.tokens.scopes) == {"streams"}


@pytest.fixture
def sts(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> Iterator[StsServer]:
    """The token service of a cloud, and the credentials of a machine there."""
    with run_sts_server(secured.tokens) as service:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", service.address)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEY_PHRASE)
        yield service


def test_the_identity_of_a_machine_in_aws_is_a_signed_request_that_is_repeated_in_time(
    secured: Secured, sts: StsServer, topic_family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(secured, topic_family)
    monkeypatch.setattr(secured.tokens, "life_seconds", 10)
    client = ClusterAdmin(make_admin_client(secured.aws()), ANSWER_SECONDS)
    wait_until(lambda: topic_family in client.topic_names(), "the topic in the list", ANSWER_SECONDS)
    first = len(sts.requests)
    wait_until(lambda: len(sts.requests) > first, "another token", 30)
    assert topic_family in client.topic_names()
    assert sts.refused == 0
    assert all(each["Action"] == ["GetWebIdentityToken"] for each in sts.requests)
    assert all(each["Audience.member.1"] == [AUDIENCE] for each in sts.requests)


def test_wrong_credentials_of_a_machine_in_aws_are_named(
    secured: Secured, sts: StsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "guessed")
    error = refusal(secured.aws())
    assert sts.refused > 0
    assert error.problem == "no token for the identity of this machine arrived within 10 seconds"
    assert "role or credentials of this machine" in error.next_step


def test_the_package_for_an_identity_in_aws_is_named_if_it_is_missing(
    secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    for name in [each for each in sys.modules if each.startswith("confluent_kafka._oauthbearer")]:
        monkeypatch.delitem(sys.modules, name)
    error = refusal(secured.aws())
    assert error.next_step == 'pip install "lockstep[aws]" for the driver and the executors'


def test_a_profile_of_aws_that_is_missing_is_named(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "missing")
    with pytest.raises(KafkaError, match=r"ProfileNotFound.*\(missing\)"):
        make_producer(secured.aws(), {})
