"""Options that would protect less than they seem to are refused; secrets are named by their place."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import msgspec
import pytest
from pydantic import ValidationError

from lockstep.errors import SettingsError
from lockstep.kafka.client import make_consumer, make_reader_configuration
from lockstep.kafka.secrets import SECRET_BYTES_MAX, fetch_secret, with_secrets
from lockstep.settings import KafkaSettings

if TYPE_CHECKING:
    from pathlib import Path

SASL = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "reader"}
REFERENCE = {"sasl.password": "env:KAFKA_PHRASE"}
MADE_UP = "corr3ct-h0rse"


def problem(options: dict[str, str], secrets: dict[str, str] | None = None) -> str:
    with pytest.raises(ValidationError) as refused:
        KafkaSettings(options=options, secrets=secrets or {})
    (only,) = refused.value.errors()
    return only["msg"].removeprefix("Value error, ")


def without(name: str, **changes: str) -> dict[str, str]:
    kept = {key: value for key, value in SASL.items() if key != name}
    return {**kept, **{key.replace("_", "."): value for key, value in changes.items()}}


@pytest.mark.parametrize(
    ("options", "secrets", "said"),
    [
        (without("security.protocol"), REFERENCE, "sasl.mechanism has no effect with security.protocol unset"),
        ({"ssl.ca.location": "/ca.pem"}, {}, "ssl.ca.location has no effect with security.protocol unset"),
        ({}, REFERENCE, "sasl.password has no effect with security.protocol unset, which means PLAINTEXT"),
        ({**SASL, "security.protocol": "PLAINTEXT"}, REFERENCE, "no effect with security.protocol PLAINTEXT"),
        ({**SASL, "security.protocol": "SSL"}, REFERENCE, "sasl.mechanism has no effect with security.protocol SSL"),
        (
            without("", security_protocol="SASL_PLAINTEXT", sasl_mechanism="SCRAM-SHA-256", ssl_ca_location="/ca.pem"),
            REFERENCE,
            "ssl.ca.location has no effect with security.protocol SASL_PLAINTEXT",
        ),
        (without("", security_protocol="SASL_PLAINTEXT"), REFERENCE, "sends the password readable"),
        (without("", security_protocol="TLS"), REFERENCE, "is one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        (without("sasl.mechanism"), REFERENCE, "sasl.mechanism is unset; it is one of PLAIN, SCRAM-SHA-256"),
        (without("", sasl_mechanism="OAUTHBEARER"), REFERENCE, "needs options sasl.oauthbearer.token.endpoint.url"),
        (without("", sasl_mechanism="GSSAPI"), REFERENCE, "sasl.mechanism is GSSAPI; it is one of"),
        (without("sasl.username"), REFERENCE, "PLAIN needs options sasl.username and secrets sasl.password"),
        (SASL, {}, "PLAIN needs options sasl.username and secrets sasl.password"),
    ],
)
def test_what_would_be_silently_unprotected_is_refused(
    options: dict[str, str], secrets: dict[str, str], said: str
) -> None:
    assert said in problem(options, secrets)


ENDPOINT = "sasl.oauthbearer.token.endpoint.url"
CLIENT = "sasl.oauthbearer.client.id"
ISSUER = "https://login.example/tenant/oauth2/v2.0/token"
TOKEN = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", ENDPOINT: ISSUER, CLIENT: "streams"}
CLIENT_SECRET = {"sasl.oauthbearer.client.secret": "env:CLIENT_PHRASE"}


def token_problem(options: dict[str, str], secrets: dict[str, str], *hosts: str) -> str:
    with pytest.raises(ValidationError) as refused:
        KafkaSettings(options=options, secrets=secrets, issuer_hosts=hosts)
    (only,) = refused.value.errors()
    return only["msg"].removeprefix("Value error, ")


def test_a_token_is_requested_by_librdkafka_and_its_secret_is_a_reference() -> None:
    settings = KafkaSettings(options=TOKEN, secrets=CLIENT_SECRET, issuer_hosts=("login.example",))
    sent = make_reader_configuration(settings)
    assert (sent["sasl.oauthbearer.method"], sent["sasl.oauthbearer.client.secret"]) == ("oidc", "env:CLIENT_PHRASE")


@pytest.mark.parametrize(
    ("options", "secrets", "said"),
    [
        ({**SASL, CLIENT: "streams"}, REFERENCE, f"{CLIENT} has no effect without sasl.mechanism OAUTHBEARER"),
        ({**SASL, "https.ca.location": "/ca.pem"}, REFERENCE, "https.ca.location has no effect without"),
        (TOKEN, {}, "needs secrets sasl.oauthbearer.client.secret"),
        ({name: value for name, value in TOKEN.items() if name != CLIENT}, CLIENT_SECRET, f"needs options {CLIENT}"),
        ({**TOKEN, "sasl.username": "reader"}, CLIENT_SECRET, "sasl.username has no effect with OAUTHBEARER"),
        (TOKEN, {**CLIENT_SECRET, **REFERENCE}, "sasl.password has no effect with OAUTHBEARER"),
        ({**TOKEN, "security.protocol": "SASL_PLAINTEXT"}, CLIENT_SECRET, "sends the token readable"),
    ],
)
def test_a_login_by_token_that_cannot_be_as_meant_is_refused(
    options: dict[str, str], secrets: dict[str, str], said: str
) -> None:
    assert said in token_problem(options, secrets, "login.example")


MACHINE = "sasl.oauthbearer.metadata.authentication.type"
CONFIG = "sasl.oauthbearer.config"
PROTECTED = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
AZURE = {**PROTECTED, MACHINE: "azure_imds", CONFIG: "query=api-version=2025-04-07&resource=api://1-2&client_id=3"}
AWS = {**PROTECTED, MACHINE: "aws_iam", CONFIG: "region=eu-central-1,audience=https://kafka.example"}


@pytest.mark.parametrize("options", [AZURE, AWS, {**AWS, CONFIG: f"{AWS[CONFIG]},duration_seconds=600"}])
def test_the_identity_of_a_machine_in_a_cloud_needs_no_secret(options: dict[str, str]) -> None:
    sent = make_reader_configuration(KafkaSettings(options=options))
    assert {"sasl.oauthbearer.method": "oidc", **options}.items() <= sent.items()


@pytest.mark.parametrize(
    ("options", "secrets", "said"),
    [
        ({**AZURE, MACHINE: "gcp"}, {}, "is 'gcp'; it is one of azure_imds, aws_iam"),
        ({**PROTECTED, CONFIG: AWS[CONFIG]}, {}, "is 'unset'; it is one of"),
        ({**PROTECTED, MACHINE: "aws_iam"}, {}, "is not of the form 'region=eu-central-1,audience="),
        ({**AWS, CONFIG: AZURE[CONFIG]}, {}, "is not of the form"),
        ({**AZURE, CONFIG: "query=resource=a,endpoint=http://evil.example"}, {}, "is not of the form"),
        ({**AWS, CONFIG: f"{AWS[CONFIG]},sts_endpoint=https://evil.example"}, {}, "is not of the form"),
        ({**AWS, CONFIG: f"{AWS[CONFIG]},aws_debug=console"}, {}, "is not of the form"),
        ({**AWS, CONFIG: f"{AWS[CONFIG]},duration_seconds=59"}, {}, "is not of the form"),
        ({**AWS, CONFIG: f"{AWS[CONFIG]},duration_seconds=3601"}, {}, "is not of the form"),
        ({**AWS, CONFIG: f"{AWS[CONFIG]}\n"}, {}, "control characters"),
        ({**AZURE, ENDPOINT: ISSUER}, {}, f"{ENDPOINT} has no effect with azure_imds"),
        ({**AZURE, CLIENT: "streams"}, {}, f"{CLIENT} has no effect with azure_imds"),
        (AWS, CLIENT_SECRET, "sasl.oauthbearer.client.secret has no effect with aws_iam"),
        ({**AWS, "sasl.username": "reader"}, {}, "sasl.username has no effect with aws_iam"),
        ({**AWS, "security.protocol": "SASL_PLAINTEXT"}, {}, "sends the token readable"),
    ],
)
def test_an_identity_that_cannot_be_as_meant_is_refused(
    options: dict[str, str], secrets: dict[str, str], said: str
) -> None:
    assert said in token_problem(options, secrets)


def test_hosts_of_issuers_have_no_effect_with_the_identity_of_a_machine() -> None:
    assert "kafka.issuer_hosts has no effect with" in token_problem(AWS, {}, "login.example")


@pytest.mark.parametrize("variable", ["http_proxy", "all_proxy"])
def test_no_proxy_gets_the_token_of_a_machine(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service of the cloud has no TLS: a proxy could read the token, or answer with another token."""
    monkeypatch.setenv(variable, "http://proxy.example:3128")
    monkeypatch.delenv("no_proxy", raising=False)
    sent = make_reader_configuration(KafkaSettings(options=AZURE))  # to a task, on a machine with another environment
    with pytest.raises(SettingsError) as refused:
        make_consumer(sent)
    assert refused.value.next_step == "add 169.254.169.254 to the variables NO_PROXY and no_proxy"
    monkeypatch.setenv("no_proxy", "localhost,169.254.169.254")
    assert with_secrets(sent) == sent
    monkeypatch.delenv("no_proxy")
    assert with_secrets(make_reader_configuration(KafkaSettings(options=AWS)))


@pytest.mark.parametrize(
    "endpoint",
    [
        "https://evil.example/token",
        "https://login.example.evil.example/token",
        "https://evil.example/login.example/token",
        "https://login.example@evil.example/token",
        f"https://login.example:{MADE_UP}@evil.example/token",
        "https://evil.example#login.example/token",
        "https://evil.example?login.example/token",
        r"https://evil.example\@login.example/token",
        "https://evil.example/@login.example/token",
        "https://login.example%2eevil.example/token",
        "https://login.example /token",
        "https://LOGIN.example/token",
        "https:login.example/token",
        "https:///login.example/token",
        "https://login.example:99999/token",
        "https://login.example:/token",
        "https://login.example/token?next=https://evil.example",
        "https://login.example/token#part",
        "https://login.example/t oken",
        "https://login.example",
        "http://login.example/token",
        "file:///run/secrets/kafka",
        "//login.example/token",
        "login.example/token",
        "https://[::1]/token",
        "https://xn--login.example/token",
        "",
    ],
)
def test_a_token_is_requested_from_a_host_of_the_list_only(endpoint: str) -> None:
    said = token_problem({**TOKEN, ENDPOINT: endpoint}, CLIENT_SECRET, "login.example")
    assert said.startswith(f"options {ENDPOINT} ")


@pytest.mark.parametrize("hosts", [(), ("example",), ("*.example",), ("login.example:443",), ("LOGIN.EXAMPLE",)])
def test_without_its_host_in_the_list_no_token_is_requested(hosts: tuple[str, ...]) -> None:
    assert "names the host login.example, which is not in kafka.issuer_hosts" in token_problem(
        TOKEN, CLIENT_SECRET, *hosts
    )


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("sasl.jaas.config", "x", "is Java's"),
        ("ssl.endpoint.identification.algorithm", "none", "the host name is always checked"),
        ("metadata.broker.list", "elsewhere:9092", "is another name of kafka.bootstrap_servers"),
        ("sasl.username", "reader\0admin", "holds control characters"),
        ("sasl.username", 'reader\nuser_admin="x"', "holds control characters"),
        ("ssl.ca.location", "ca.pem", "is not an absolute path"),
    ],
)
def test_an_option_that_would_open_a_way_around_is_refused_with_the_reason(option: str, value: str, said: str) -> None:
    assert said in problem({**SASL, option: value}, REFERENCE)


@pytest.mark.parametrize("reference", [MADE_UP, f"file:{MADE_UP}", f"env:{MADE_UP}", "", "file:", "env:", "FILE:/x"])
def test_a_secret_is_referred_to_and_never_written(reference: str) -> None:
    assert problem(SASL, {"sasl.password": reference}).startswith("sasl.password does not name the place of the secret")


def test_only_secrets_are_secrets() -> None:
    assert "is not a secret option" in problem(SASL, {**REFERENCE, "sasl.username": "env:USER"})


def test_settings_and_what_tasks_are_sent_hold_only_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_PHRASE", MADE_UP)
    settings = KafkaSettings(options=SASL, secrets=REFERENCE)
    sent = make_reader_configuration(settings)
    assert with_secrets(sent)["sasl.password"] == MADE_UP
    for held in (repr(settings), settings.model_dump_json(), repr(sent)):
        assert MADE_UP not in held
    for stored in (pickle.dumps(settings), pickle.dumps(sent), msgspec.msgpack.encode(sent)):
        assert MADE_UP.encode() not in stored


def test_a_secret_may_lie_in_a_file_and_loses_only_the_end_of_its_line(tmp_path: Path) -> None:
    path = tmp_path / "phrase"
    for written, fetched in ((f"{MADE_UP}\n", MADE_UP), (f" {MADE_UP} \r\n", f" {MADE_UP} "), ('ä;"=\\', 'ä;"=\\')):
        path.write_bytes(written.encode())
        assert with_secrets({"sasl.password": f"file:{path}"}) == {"sasl.password": fetched}


@pytest.mark.parametrize("content", [f"{MADE_UP}\nsecond line", f"{MADE_UP}\0rest", f"{MADE_UP}\n\n"])
def test_a_secret_that_would_be_cut_off_is_refused_and_not_shown(content: str, tmp_path: Path) -> None:
    (tmp_path / "phrase").write_text(content)
    with pytest.raises(SettingsError, match="holds control characters or more than one line") as refused:
        with_secrets({"sasl.password": f"file:{tmp_path}/phrase"})
    assert MADE_UP not in str(refused.value)


def test_a_file_that_is_no_secret_is_refused_and_not_cut(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(MADE_UP * SECRET_BYTES_MAX)
    with pytest.raises(SettingsError, match="longer than any secret: 65,536 characters at most") as refused:
        fetch_secret("kafka.secrets sasl.password", f"file:{tmp_path / 'secret'}")
    assert MADE_UP not in str(refused.value)


def test_a_key_may_have_many_lines(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("first\nsecond\n")
    assert with_secrets({"ssl.key.pem": f"file:{tmp_path}/key"}) == {"ssl.key.pem": "first\nsecond"}


def test_a_secret_that_is_not_there_is_named_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"refers to file:.*/none, which cannot be read: No such file"):
        with_secrets({"sasl.password": f"file:{tmp_path}/none"})
    with pytest.raises(SettingsError, match="refers to env:NOT_THERE, and there is nothing on this machine"):
        with_secrets({"sasl.password": "env:NOT_THERE"})
    (tmp_path / "empty").touch()
    with pytest.raises(SettingsError, match="and there is nothing on this machine"):
        with_secrets({"sasl.password": f"file:{tmp_path}/empty"})
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match="it is not UTF-8 text"):
        with_secrets({"sasl.password": f"file:{tmp_path}/bytes"})
