"""A real Kafka with one listener for each way to secure a connection, and the identities that it knows."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trustme
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.admin._scram import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from cryptography.hazmat.primitives import serialization as pem

from lockstep.features.localdev.broker import Broker
from lockstep.settings import KafkaSettings
from tests.support.sts_server import REGION
from tests.support.token_server import (
    AUDIENCE,
    CLIENT,
    CLIENT_PHRASE,
    KEYS,
    RESOURCE,
    TokenServer,
    run_token_server,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ANSWER_SECONDS = 30.0
READER = "reader"
PHRASE = "plain-reader-passphrase"
KEY_PHRASE = "key-passphrase"
ODD_READER = 'odd"; required debug="true" a,b=c'
"""A name and a password that would end a quoted part of a JAAS line, or a field of SCRAM."""
ODD_PHRASE = 'p"; user_admin="x" \\ , = {} $HOME %s'

LISTENERS = {
    "SASL_SSL": "SASL_SSL",
    "MUTUAL": "SSL",
    "ELSEWHERE": "SASL_SSL",
    "SASL_PLAINTEXT": "SASL_PLAINTEXT",
    "TOKEN": "SASL_SSL",
}
"""ELSEWHERE has a certificate for `localhost` only, and redirects its clients to 127.0.0.1."""

_PLAIN = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{READER}="{PHRASE}";'
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
_PREFIX = "listener.name"
_OAUTH = "org.apache.kafka.common.security.oauthbearer"


@dataclass(frozen=True)
class Secured:
    """The broker and its clients' credentials.

    Attributes:
        broker: The broker; its plain listener lets anyone do anything.
        tokens: Issues the tokens of the listener TOKEN.
        folder: Holds ca.pem, other_ca.pem, client.pem (certificate and key) and the secret files.
    """

    broker: Broker
    tokens: TokenServer
    folder: Path

    def file(self, name: str) -> str:
        """The path of a file of the identities."""
        return str(self.folder / name)

    def create_user(self, user: str, phrase: str) -> None:
        """Create a user who logs in by SCRAM, or change a user's password."""
        admin = self.admin()
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            wanted = UserScramCredentialUpsertion(user, ScramCredentialInfo(mechanism, 4096), phrase.encode())
            admin.alter_user_scram_credentials([wanted])[user].result(ANSWER_SECONDS)

    def write_key(self, name: str, phrase: str) -> None:
        """Write the client's private key with another passphrase to another file."""
        held = (self.folder / "client.key").read_bytes()
        (self.folder / name).write_bytes(_locked(held, KEY_PHRASE.encode(), phrase))

    def requests(self) -> str:
        """Return the broker's log of requests that it has answered by now."""
        return self.broker.log.read_text(errors="replace")

    def secret(self, name: str, value: str) -> str:
        """Write a secret to a file and return a reference to the file."""
        path = self.folder / name
        path.touch(mode=0o600)
        path.write_text(value + "\n")
        return f"file:{path}"

    def sasl(self, mechanism: str = "PLAIN", user: str = READER, listener: str = "SASL_SSL") -> KafkaSettings:
        """Return correct settings of a user with a password, over TLS."""
        passphrase = ODD_PHRASE if user == ODD_READER else PHRASE
        return KafkaSettings(
            bootstrap_servers=self.broker.address(listener),
            options={
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": mechanism,
                "sasl.username": user,
                "ssl.ca.location": self.file("ca.pem"),
            },
            secrets={"sasl.password": self.secret(f"passphrase-of-{len(user)}", passphrase)},
            timeout_seconds=ANSWER_SECONDS,
        )

    def oidc(self) -> KafkaSettings:
        """Settings of a client whose identity is a token."""
        return KafkaSettings(
            bootstrap_servers=self.broker.address("TOKEN"),
            options={
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.token.endpoint.url": self.tokens.url,
                "sasl.oauthbearer.client.id": CLIENT,
                "sasl.oauthbearer.scope": "streams",
                "ssl.ca.location": self.file("ca.pem"),
                "https.ca.location": self.file("ca.pem"),
            },
            secrets={"sasl.oauthbearer.client.secret": self.secret("client-secret", CLIENT_PHRASE)},
            issuer_hosts=("127.0.0.1",),
            timeout_seconds=ANSWER_SECONDS,
        )

    def azure(self) -> KafkaSettings:
        """Settings of a machine in Azure, whose metadata service is the issuer of the tests."""
        settings = KafkaSettings(
            bootstrap_servers=self.broker.address("TOKEN"),
            options={
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.metadata.authentication.type": "azure_imds",
                "sasl.oauthbearer.config": f"query=api-version=2025-04-07&resource={RESOURCE}",
                "ssl.ca.location": self.file("ca.pem"),
            },
            timeout_seconds=ANSWER_SECONDS,
        )
        # The client library has the address of the real service.
        here = {"sasl.oauthbearer.token.endpoint.url": self.tokens.url, "https.ca.location": self.file("ca.pem")}
        return settings.model_copy(update={"options": {**settings.options, **here}})

    def aws(self) -> KafkaSettings:
        """Settings of a machine in AWS."""
        return KafkaSettings(
            bootstrap_servers=self.broker.address("TOKEN"),
            options={
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.metadata.authentication.type": "aws_iam",
                "sasl.oauthbearer.config": f"region={REGION},audience={AUDIENCE}",
                "ssl.ca.location": self.file("ca.pem"),
            },
            timeout_seconds=ANSWER_SECONDS,
        )

    def mutual(self) -> KafkaSettings:
        """Settings of a client that shows a certificate."""
        return KafkaSettings(
            bootstrap_servers=self.broker.address("MUTUAL"),
            options={
                "security.protocol": "SSL",
                "ssl.ca.location": self.file("ca.pem"),
                "ssl.certificate.location": self.file("client.pem"),
                "ssl.key.location": self.file("client.key"),
            },
            secrets={"ssl.key.password": self.secret("key-passphrase", KEY_PHRASE)},
            timeout_seconds=ANSWER_SECONDS,
        )

    def plain(self) -> KafkaSettings:
        """Settings of the listener without any security, on which everybody is a super user."""
        return KafkaSettings(bootstrap_servers=self.broker.bootstrap_servers)

    def admin(self) -> AdminClient:
        """A client that may do anything."""
        return AdminClient({"bootstrap.servers": self.broker.bootstrap_servers, "log_level": 2})

    def allow_only(self, user: str, topic: str, *operations: AclOperation) -> None:
        """Allow a user some operations on a topic, and other users none."""
        self._create_acls([_acl(topic, user, each, AclPermissionType.ALLOW) for each in operations])

    def allow_group(self, user: str, group: str) -> None:
        """Allow only this user to read and set the offsets of a group."""
        self._create_acls([_acl(group, user, AclOperation.READ, AclPermissionType.ALLOW, ResourceType.GROUP)])

    def forbid_the_cluster(self, user: str) -> None:
        """Deny this user every right that is not about a topic or a group."""
        every = _acl("kafka-cluster", user, AclOperation.ALL, AclPermissionType.DENY, ResourceType.BROKER)
        self._create_acls([every])

    @contextlib.contextmanager
    def seeing_nothing(self, user: str) -> Iterator[None]:
        """Hide every topic from this user during the block."""
        with self.denied(user, AclOperation.DESCRIBE):
            yield

    @contextlib.contextmanager
    def denied(self, user: str, operation: AclOperation, topic: str = "*") -> Iterator[None]:
        """Forbid this user one operation during the block."""
        acl = _acl(topic, user, operation, AclPermissionType.DENY)
        self._create_acls([acl])
        try:
            yield
        finally:
            admin = self.admin()
            admin.delete_acls([_filter_of(acl)])[_filter_of(acl)].result(ANSWER_SECONDS)

    def _create_acls(self, bindings: list[AclBinding]) -> None:
        admin = self.admin()
        for future in admin.create_acls(bindings).values():
            future.result(ANSWER_SECONDS)


def _acl(
    name: str,
    user: str,
    operation: AclOperation,
    permission: AclPermissionType,
    kind: ResourceType = ResourceType.TOPIC,
) -> AclBinding:
    return AclBinding(kind, name, ResourcePatternType.LITERAL, f"User:{user}", "*", operation, permission)


def _filter_of(acl: AclBinding) -> AclBindingFilter:
    return AclBindingFilter(
        acl.restype, acl.name, acl.resource_pattern_type, acl.principal, acl.host, acl.operation, acl.permission_type
    )


@contextlib.contextmanager
def secured_kafka(folder: Path) -> Iterator[Secured]:
    """Start the secured Kafka and stop it after the block."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_identities(folder)
    levels = {"kafka.request.logger": "DEBUG"}  # requests of clients with their rack
    settings = _broker_settings(folder)
    keys = f"file:{folder / KEYS}"
    java = (f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={keys}",)
    with (
        run_token_server(folder) as tokens,
        Broker.start(
            folder / "kafka", settings=settings, listeners=LISTENERS, log_levels=levels, java_options=java
        ) as broker,
    ):
        secured = Secured(broker, tokens, folder)
        for user, phrase in ((READER, PHRASE), (ODD_READER, ODD_PHRASE)):
            secured.create_user(user, phrase)
        yield secured


def _write_identities(folder: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    trustme.CA().cert_pem.write_to_path(str(folder / "other_ca.pem"))
    for name, host in (("broker", "127.0.0.1"), ("elsewhere", "localhost"), ("tokens", "127.0.0.1")):
        issued = authority.issue_cert(host)
        (folder / f"{name}.pem").write_bytes(_key(issued) + issued.cert_chain_pems[0].bytes())
    client = authority.issue_cert("reader@example.org", common_name=READER)
    client.cert_chain_pems[0].write_to_path(str(folder / "client.pem"))
    (folder / "client.key").write_bytes(_locked(client.private_key_pem.bytes(), None, KEY_PHRASE))


def _key(issued: trustme.LeafCert) -> bytes:
    return _locked(issued.private_key_pem.bytes(), None, "")


def _locked(key_pem: bytes, old: bytes | None, phrase: str) -> bytes:
    """Return a private key as PKCS 8, the only form that Java reads, with another passphrase."""
    key = pem.load_pem_private_key(key_pem, password=old)
    locked = pem.BestAvailableEncryption(phrase.encode()) if phrase else pem.NoEncryption()
    return key.private_bytes(pem.Encoding.PEM, pem.PrivateFormat.PKCS8, locked)


def _broker_settings(folder: Path) -> dict[str, str]:
    stores = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "ca.pem"),
        f"{_PREFIX}.elsewhere.ssl.keystore.type": "PEM",
        f"{_PREFIX}.elsewhere.ssl.keystore.location": str(folder / "elsewhere.pem"),
        f"{_PREFIX}.mutual.ssl.client.auth": "required",
    }
    sasl = {
        f"{_PREFIX}.{listener}.{name}": value
        for listener in ("sasl_ssl", "elsewhere", "sasl_plaintext")
        for name, value in {
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            "plain.sasl.jaas.config": _PLAIN,
            "scram-sha-256.sasl.jaas.config": _SCRAM,
            "scram-sha-512.sasl.jaas.config": _SCRAM,
        }.items()
    }
    oidc = {
        f"{_PREFIX}.token.{name}": value
        for name, value in {
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "oauthbearer.sasl.jaas.config": f"{_OAUTH}.OAuthBearerLoginModule required;",
            "oauthbearer.sasl.server.callback.handler.class": f"{_OAUTH}.OAuthBearerValidatorCallbackHandler",
            "oauthbearer.sasl.oauthbearer.jwks.endpoint.url": f"file:{folder / KEYS}",
            "oauthbearer.sasl.oauthbearer.expected.audience": AUDIENCE,
            "oauthbearer.connections.max.reauth.ms": "3600000",
        }.items()
    }
    rights = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "allow.everyone.if.no.acl.found": "true",
    }
    return {**stores, **sasl, **oidc, **rights}
