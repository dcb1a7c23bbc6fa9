"""Settings of an installation: Kafka, tables, Spark, schema registry, Dagster, web server, health, schedules.

Read from `lockstep.toml` in the working folder (or the file that LOCKSTEP_SETTINGS names), then
from the environment: `LOCKSTEP_TABLE_ROOT`, `LOCKSTEP_KAFKA__BOOTSTRAP_SERVERS`, ... A stream
declares its contents; the settings place it in an installation.
"""

from __future__ import annotations

import difflib
import os
import re
import tempfile
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Final, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource
from pydantic_settings import SettingsError as SourceError

from lockstep.addresses import OBJECT_SCHEME, is_in_object_store, make_absolute
from lockstep.cron import find_cron_problem
from lockstep.errors import SettingsError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


DEFAULT_TABLE_ROOT: Final = Path("var/tables")
"""From the working folder; the first start of a stream makes it."""
HOURS_MAX: Final = 876_600
"""A hundred years: subtracted from now it stays a date."""
DEFAULT_PORTS: Final = {"http": 80, "https": 443}
"""Ports that an origin and a `Host` leave out."""
REQUEST_SECONDS_MAX: Final = 3_600
"""The longest time that librdkafka takes for one request."""
ALIKE_MIN: Final = 0.85
"""Similarity from which on a variable is proposed for a mistyped one; below it, hints are mostly wrong."""
_HOW_TO_SAY: Final = 'name its file or variable, as "file:/run/secrets/NAME" or "env:NAME"'


_ESCAPE: Final = re.compile("%[0-9A-Fa-f]{2}")
_NOT_IN_PREFIX: Final = re.compile(rf"[#?\x00-\x1f\x7f]|{_ESCAPE.pattern}")
"""delta-rs reads these as fragment, query and quoted character, and would make the tables below another prefix."""
_WITH_SECRET: Final = re.compile(r"@|https?://.*[?#]")
"""An address with a user and password, or with a query, which may be a token."""


def _address(value: str) -> str:
    if "@" in value:
        raise ValueError("an address holds no user or password; they are registry.user and registry.secrets")
    parts = urlsplit(value)
    if value and (parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment):
        raise ValueError("is not an address such as http://registry:8081")
    return value


def _folder(value: object) -> object:
    if isinstance(value, str) and (not value.strip() or "://" in value):
        raise ValueError("is not the path of a folder, such as /data/lockstep")
    if isinstance(value, str) and value.startswith("~"):
        raise ValueError("starts with ~, which only a shell expands; name the whole path")
    return value


def _folder_or_prefix(value: object) -> object:
    if isinstance(value, str) and value.startswith(f"{OBJECT_SCHEME}//"):
        parts = PurePosixPath(value).parts
        if len(parts) < 3 or ".." in parts:  # noqa: PLR2004  # scheme, bucket, prefix
            raise ValueError("is not a bucket and a prefix below it, such as s3://data/lockstep")
        match = _NOT_IN_PREFIX.search(value)
        if match is not None:
            raise ValueError(f"has {match[0]!r} in its prefix, which delta-rs and Spark read as part of an URL")
        return value
    if isinstance(value, str) and "://" in value:
        raise ValueError("is neither the path of a folder, such as /data/lockstep, nor s3://BUCKET/PREFIX")
    return _folder(value)


_HEADER: Final = re.compile(r"[A-Za-z][A-Za-z0-9-]*")
_OWN_HEADERS: Final = frozenset({"accept", "authorization", "connection", "content-length", "cookie", "host"})


def _further_headers(headers: dict[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if not _HEADER.fullmatch(name) or name.lower() in _OWN_HEADERS:
            raise ValueError(f"{name!r} is not a further header, such as target-sr-cluster")
        if not value.isascii() or not value.isprintable():
            raise ValueError(f"the header {name} holds other characters than printable ASCII")
    return headers


def _cron(value: str) -> str:
    problem = find_cron_problem(value)
    if problem:
        raise ValueError(problem)
    return value


def _module(value: str) -> str:
    if not all(part.isidentifier() for part in value.split(".")):
        raise ValueError('is not the name of a module, such as "my_platform.costs"')
    return value


def _reference(value: str) -> str:
    kind, _, place = value.partition(":")
    if not (kind == "file" and Path(place).is_absolute()) and not (kind == "env" and place.isidentifier()):
        raise ValueError(f"does not name the place of the secret: {_HOW_TO_SAY}")
    return value


class _Refusing(BaseModel):
    """Base of all settings: pydantic would take true for 1, and no setting is true or false."""

    @field_validator("*", mode="before")
    @classmethod
    def _no_boolean(cls, value: object) -> object:
        if isinstance(value, bool):
            raise ValueError("is true or false, which no setting is")  # noqa: TRY004  # pydantic reports this one
        return value


class RegistrySettings(_Refusing):
    """Connection to the schema registry.

    Attributes:
        url: Address, for example http://registry:8081; empty without a registry. For decoders with a schema registry.
        user: User, if the registry requires one. For registries with a login.
        secrets: Location of the user's `password`, or of the `client_secret`. For registries with a login.
        client_id: Client of OpenID Connect, whose token is sent instead of a user. For registries with tokens.
        issuer_url: Address at which the client requests its tokens. For registries with tokens.
        issuer_hosts: Hosts that may issue tokens, that of `issuer_url` among them. For registries with tokens.
        scope: Scope of the tokens, if the issuer requires one. For registries with tokens.
        headers: Further headers of each request to the registry, such as `target-sr-cluster`. For services with several
            registries.
        ca_file: Certificates to trust instead of the system's, on every machine that runs tasks. For certificates of a
            private authority.
        timeout_seconds: Timeout of one request, retries included. For slow or distant registries.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    url: Annotated[str, AfterValidator(_address)] = ""
    user: str = ""
    secrets: dict[Literal["password", "client_secret"], Annotated[str, AfterValidator(_reference)]] = {}
    client_id: str = ""
    issuer_url: str = ""
    issuer_hosts: tuple[str, ...] = ()
    scope: str = ""
    headers: Annotated[dict[str, str], AfterValidator(_further_headers)] = {}
    ca_file: Path | None = None
    timeout_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 10.0

    @model_validator(mode="after")
    def _whole(self) -> RegistrySettings:
        if bool(self.user) != ("password" in self.secrets):
            raise ValueError("a user needs registry.secrets password, and the password a user")
        problem = self._find_wrong_client()
        if problem:
            raise ValueError(problem)
        return self

    def _find_wrong_client(self) -> str:
        """The problem of the client of OpenID Connect; empty without one."""
        of_client = (bool(self.client_id), "client_secret" in self.secrets, bool(self.issuer_url))
        if not any(of_client):
            for name in ("scope", "issuer_hosts"):
                if getattr(self, name):
                    return f"registry.{name} has no effect without registry.client_id"
            return ""
        if not all(of_client):
            return "a client needs registry.client_id, registry.issuer_url and registry.secrets client_secret"
        if self.user:
            return "registry.user has no effect with registry.client_id: remove one of them"
        if urlsplit(self.url).scheme != "https":
            return "a token over http is readable: registry.url of a client starts with https"
        problem = _find_wrong_issuer(self.issuer_url, self.issuer_hosts, "registry.issuer_hosts")
        return f"registry.issuer_url {problem}" if problem else ""


ALLOWED_OPTIONS = (
    *("security.protocol", "sasl.mechanism", "sasl.username"),
    *("sasl.oauthbearer.token.endpoint.url", "sasl.oauthbearer.client.id", "sasl.oauthbearer.scope"),
    *("sasl.oauthbearer.extensions", "sasl.oauthbearer.metadata.authentication.type", "sasl.oauthbearer.config"),
    *("https.ca.location",),
    *("ssl.ca.location", "ssl.ca.pem", "ssl.certificate.location", "ssl.certificate.pem", "ssl.key.location"),
    *("ssl.keystore.location", "ssl.crl.location", "ssl.cipher.suites", "ssl.curves.list", "ssl.sigalgs.list"),
    *("client.rack", "client.dns.lookup", "broker.address.family"),
)
ALLOWED_FAMILIES = ("socket.", "reconnect.", "metadata.", "topic.metadata.")
"""Options passed through to librdkafka: the connection to a cluster. Read options are lockstep's own."""
SECRET_OPTIONS = (
    *("sasl.password", "sasl.oauthbearer.client.secret"),
    *("ssl.key.password", "ssl.keystore.password", "ssl.key.pem"),
)
"""Options whose values are never written in settings, only their locations."""
OTHER_VARIABLES = ("LOCKSTEP_SETTINGS", "LOCKSTEP_MAVEN_REPOSITORY", "LOCKSTEP_LIVE")
"""Environment variables that are not settings of this file."""
REFUSED_OPTIONS = {
    "sasl.jaas.config": "is Java's; set sasl.mechanism, sasl.username and kafka.secrets sasl.password",
    "ssl.endpoint.identification.algorithm": "cannot be changed: the host name is always checked",
    "metadata.broker.list": "is another name of kafka.bootstrap_servers",
}
"""Options that users of other clients try, with the alternative."""
TOKENS = "OAUTHBEARER"
"""Client credentials of OpenID Connect: librdkafka requests a token, and a new one before it expires."""
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", TOKENS)
"""Excluded: GSSAPI runs a shell command."""


def _reach_only(options: dict[str, str]) -> dict[str, str]:
    for name, value in options.items():
        if name in SECRET_OPTIONS:
            raise ValueError(f"{name} is a secret, and is never written here: {_REFERENCE}")
        if name in REFUSED_OPTIONS:
            raise ValueError(f"option {name!r} {REFUSED_OPTIONS[name]}")
        if name not in ALLOWED_OPTIONS and not name.startswith(ALLOWED_FAMILIES):
            families = [f"{family}*" for family in ALLOWED_FAMILIES]
            allowed = ", ".join([*ALLOWED_OPTIONS, *families])
            raise ValueError(f"option {name!r} is not passed through; allowed: {allowed}")
        if not name.endswith(".pem") and not value.isprintable():
            raise ValueError(f"option {name!r} holds control characters")
        if name.endswith(".location") and not Path(value).is_absolute():
            raise ValueError(f"option {name!r} is not an absolute path, and tasks run in other folders")
    return options


_REFERENCE = 'name its file or variable in kafka.secrets, as "file:/run/secrets/kafka" or "env:KAFKA_SECRET"'


def _references_only(secrets: dict[str, str]) -> dict[str, str]:
    for name, reference in secrets.items():
        if name not in SECRET_OPTIONS:
            raise ValueError(f"{name!r} is not a secret option; they are {', '.join(SECRET_OPTIONS)}")
        kind, _, place = reference.partition(":")
        is_in_file = kind == "file" and Path(place).is_absolute()
        if not is_in_file and not (kind == "env" and place.isidentifier()):
            raise ValueError(f"{name} does not name the place of the secret: {_REFERENCE}")
    return secrets


def _servers(value: str) -> str:
    if "@" in value:
        raise ValueError("an address holds no user or password; they are kafka.options sasl.username and kafka.secrets")
    for server in value.split(","):
        host, _, port = server.strip().rpartition(":")
        if not host or not port.isdigit():
            raise ValueError(f"{server.strip()!r} is not host:port")
    return value


class TopicIdentity(StrEnum):
    """The identity of a topic: two topics with one identity are the same topic."""

    ID = "id"
    """Kafka's topic id: a re-created topic is another topic."""
    NAME = "name"
    """The name, for brokers without topic ids: a re-created topic is read as the old topic.

    `Strict` and `Once` are refused.
    """


class KafkaSettings(_Refusing):
    """Connection to Kafka.

    Attributes:
        bootstrap_servers: host:port, separated by commas. For all installations.
        options: librdkafka options for TLS, SASL, rack and sockets. For clusters with TLS, a login or racks.
        secrets: Locations of the secrets, by librdkafka's name of the option. For clusters with a login.
        issuer_hosts: Hosts that may issue tokens, that of `sasl.oauthbearer.token.endpoint.url` among them. For
            clusters with OpenID Connect.
        timeout_seconds: Timeout of one request to the cluster. For slow or distant clusters.
        topic_identity: `id`: topics are known by their topic id. `name`: by their name; a re-created topic is then read
            as the old topic, and `Strict` and `Once` are refused (docs/brokers.md). For brokers without topic ids.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    bootstrap_servers: Annotated[str, AfterValidator(_servers)] = "127.0.0.1:9092"
    options: Annotated[dict[str, str], AfterValidator(_reach_only)] = {}
    secrets: Annotated[dict[str, str], AfterValidator(_references_only)] = {}
    issuer_hosts: tuple[str, ...] = ()
    timeout_seconds: Annotated[float, Field(gt=0, le=REQUEST_SECONDS_MAX)] = 15.0
    topic_identity: TopicIdentity = TopicIdentity.ID

    @model_validator(mode="after")
    def _protected_as_meant(self) -> KafkaSettings:
        """Refuse options that librdkafka would silently ignore: the connection would be unprotected."""
        problem = _downgrade(self.options, self.secrets) or _wrong_tokens(self.options, self.secrets, self.issuer_hosts)
        if problem:
            raise ValueError(problem)
        return self

    @property
    def connection(self) -> dict[str, str]:
        """The configuration of every client that connects: addresses, options, and references of secrets."""
        configuration = {**self.options, **self.secrets}
        if self.options.get("sasl.mechanism") == TOKENS:
            configuration["sasl.oauthbearer.method"] = "oidc"
        return {**configuration, "bootstrap.servers": self.bootstrap_servers}


def _downgrade(options: dict[str, str], secrets: dict[str, str]) -> str:
    """Reason why these options protect less than they seem to; empty otherwise."""
    protocol = options.get("security.protocol", "").upper()
    if protocol not in {"", "PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"}:
        return "options security.protocol is one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"
    for family, word in (("sasl.", "SASL"), ("ssl.", "SSL")):
        unused = [name for name in (*options, *secrets) if name.startswith(family)]
        if unused and word not in protocol.split("_"):
            return (
                f"{unused[0]} has no effect with security.protocol {protocol or 'unset, which means PLAINTEXT'}: "
                "set security.protocol SASL_SSL, or SSL for TLS alone"
            )
    if not protocol.startswith("SASL"):
        return ""
    return _weak_login(protocol, options, secrets)


def _weak_login(protocol: str, options: dict[str, str], secrets: dict[str, str]) -> str:
    mechanism = options.get("sasl.mechanism", "unset")
    if mechanism not in MECHANISMS:
        return f"options sasl.mechanism is {mechanism}; it is one of {', '.join(MECHANISMS)}"
    if mechanism == TOKENS:
        if protocol != "SASL_SSL":
            return "OAUTHBEARER over SASL_PLAINTEXT sends the token readable: set security.protocol SASL_SSL"
        return ""
    if "sasl.username" not in options or "sasl.password" not in secrets:
        return f"{mechanism} needs options sasl.username and secrets sasl.password"
    if protocol == "SASL_PLAINTEXT" and mechanism == "PLAIN":
        return "PLAIN over SASL_PLAINTEXT sends the password readable: set SASL_SSL, or a SCRAM mechanism"
    return ""


_ENDPOINT = "sasl.oauthbearer.token.endpoint.url"
_CLIENT = "sasl.oauthbearer.client.id"
_SECRET = "sasl.oauthbearer.client.secret"  # noqa: S105  # its name
_IDENTITY = "sasl.oauthbearer.metadata.authentication.type"
_IDENTITY_CONFIG = "sasl.oauthbearer.config"
_IDENTITIES = {
    "azure_imds": (
        re.compile(r"query=[\w.~:/%=&-]+", re.ASCII),
        "query=api-version=2025-04-07&resource=api://APPLICATION",
    ),
    "aws_iam": (
        re.compile(
            r"region=[a-z0-9-]+,audience=[\w.~:/-]+"
            r"(,duration_seconds=([6-9]\d|[1-9]\d\d|[12]\d{3}|3[0-5]\d\d|3600))?(,signing_algorithm=(ES384|RS256))?",
            re.ASCII,
        ),
        "region=eu-central-1,audience=https://kafka.example",
    ),
}
"""Identities of a machine in a cloud, each with the form and an example of its configuration. Other parts of it would
name another host, or log secrets."""
_HOST = re.compile(r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?")
_PATH = re.compile(r"(?:/[\w.~-]+)+", re.ASCII)


def _wrong_tokens(options: dict[str, str], secrets: dict[str, str], hosts: tuple[str, ...]) -> str:
    """Reason why no token can be requested, or a token from a host that is not allowed; empty otherwise."""
    of_tokens = [name for name in (*options, *secrets) if name.startswith(("sasl.oauthbearer.", "https."))]
    if options.get("sasl.mechanism") != TOKENS:
        return f"{of_tokens[0]} has no effect without sasl.mechanism {TOKENS}" if of_tokens else ""
    if _IDENTITY in options or _IDENTITY_CONFIG in options:
        if hosts:
            return f"kafka.issuer_hosts has no effect with {_IDENTITY}: the cloud issues the tokens"
        return _wrong_identity(options, secrets)
    return _wrong_client(options, secrets, hosts)


def _wrong_client(options: dict[str, str], secrets: dict[str, str], hosts: tuple[str, ...]) -> str:
    """Reason why client credentials cannot be used as meant; empty otherwise."""
    missing = [name for name in (_ENDPOINT, _CLIENT) if name not in options]
    if missing:
        return f"{TOKENS} needs options {missing[0]}"
    if _SECRET not in secrets:
        return f"{TOKENS} needs secrets {_SECRET}"
    unused = [name for name in ("sasl.username", "sasl.password") if name in options or name in secrets]
    if unused:
        return f"{unused[0]} has no effect with {TOKENS}, whose identity is {_CLIENT}"
    problem = _find_wrong_issuer(options[_ENDPOINT], hosts, "kafka.issuer_hosts")
    return f"options {_ENDPOINT} {problem}" if problem else ""


def _wrong_identity(options: dict[str, str], secrets: dict[str, str]) -> str:
    """Reason why a machine's identity in its cloud cannot be used as meant; empty otherwise."""
    kind = options.get(_IDENTITY, "unset")
    if kind not in _IDENTITIES:
        return f"options {_IDENTITY} is {kind!r}; it is one of {', '.join(_IDENTITIES)}"
    form, example = _IDENTITIES[kind]
    if not form.fullmatch(options.get(_IDENTITY_CONFIG, "")):
        return f"options {_IDENTITY_CONFIG} is not of the form {example!r}"
    used = {"sasl.mechanism", _IDENTITY, _IDENTITY_CONFIG, "sasl.oauthbearer.extensions"}
    unused = [name for name in (*options, *secrets) if name.startswith(("sasl.", "https.")) and name not in used]
    return f"{unused[0]} has no effect with {kind}, whose identity is the machine's" if unused else ""


def _find_wrong_issuer(address: str, hosts: tuple[str, ...], setting: str) -> str:
    """The problem of the address of an issuer of tokens; empty without one."""
    try:
        url = urlsplit(address)
        host = url.hostname or ""
        port = url.port
    except ValueError:
        return "is not a URL"
    netloc = host if port is None else f"{host}:{port}"
    # The library that requests the token may read an unusual address in another way than this check.
    if address != f"https://{netloc}{url.path}" or not _HOST.fullmatch(host) or not _PATH.fullmatch(url.path):
        return "is https://HOST[:PORT]/PATH in lower case, without user, query and fragment"
    return "" if host in hosts else f"names the host {host}, which is not in {setting}"


class SparkSettings(_Refusing):
    """Spark master and properties of the tasks.

    Attributes:
        master: A classic Spark master. `local[N,3]` retries the tasks of a killed worker; plain `local[N]` does not.
            For clusters, and machines that do other work.
        driver_memory: Heap of the driver's JVM. For derived tables and checks under a `local` master, whose queries run
            in the driver's JVM.
        worker_memory_mb: Maximum memory of a Python worker, in MB; by default half of the memory of its container or
            machine. For transforms that need more, or machines that do other work.
        options: Further Spark properties. For memory and cores of executors on a cluster.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    master: str = f"local[{os.cpu_count() or 2},3]"
    driver_memory: str = "1g"
    worker_memory_mb: Annotated[int, Field(ge=256)] | None = None
    options: dict[str, str] = {}

    @property
    def worker_memory_bytes(self) -> int | None:
        """`worker_memory_mb` in bytes."""
        if self.worker_memory_mb is None:
            return None
        return self.worker_memory_mb * 1_000_000


class DagsterSettings(_Refusing):
    """The streams in Dagster: hosts, and retention in Dagster's own database.

    Attributes:
        hosts: Groups of streams (`Stream(host_group=...)`) that Dagster runs in one run each (docs/host.md). For
            installations of many streams.
        retention_days: Retention of ended runs, events without a run and check results; the newest always stay. For
            installations that must keep the history of runs longer, or have little disk.
        runs_max: Maximum number of ended runs of each job, however young. For streams with many short runs.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    hosts: tuple[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")], ...] = ()
    retention_days: Annotated[float, Field(gt=0, le=HOURS_MAX / 24)] = 7.0
    runs_max: Annotated[int, Field(ge=1)] = 50


def _origin(value: str) -> str:
    """An origin in the form in which browsers send it."""
    try:
        parts = urlsplit(value.lower())
        port = parts.port
    except ValueError:
        parts = urlsplit("")
        port = None
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname or value.lower() != f"{parts.scheme}://{parts.netloc}":
        raise ValueError(f"{value!r} is not an origin: write http:// or https://, a host and its port, and no path")
    if "@" in parts.netloc or "*" in parts.netloc:
        raise ValueError(f"{parts.hostname!r}: an origin is one host, without user and password")
    netloc = parts.netloc
    if port == DEFAULT_PORTS[parts.scheme]:  # browsers leave it out
        netloc = netloc.removesuffix(f":{port}")
    return f"{parts.scheme}://{netloc}"


class WebSettings(_Refusing):
    """Dagster's web server, as `make up` and `python -m lockstep.orchestration.web_server` start it.

    Attributes:
        origins: Addresses under which a proxy publishes it, for example https://console.example. Requests for other
            hosts, or of pages of other sites, are refused. For a web UI behind a proxy.
        user_header: Header in which that proxy names the user whom it has authenticated; it must set it on every
            request. For a proxy that authenticates users.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    origins: tuple[Annotated[str, AfterValidator(_origin)], ...] = ()
    user_header: Annotated[str, Field(pattern=r"^([A-Za-z0-9-]+)?$")] = ""


Cron = Annotated[str, AfterValidator(_cron)]
"""A cron expression of five fields, in UTC."""


class ScheduleSettings(_Refusing):
    """When Dagster runs the maintenance of each stream: cron expressions, in UTC.

    Attributes:
        compaction: Compaction; shortly after the hour, when the hour before is certainly closed. For machines that are
            busy at that time.
        minor_compaction: When a compaction is requested if the open hour has many small files, as short triggers leave.
            For short triggers, and for machines that are busy at that time.
        housekeeping: Housekeeping; after compaction. For machines that are busy at that time.
        checks: Checks of the table. For checks that are too expensive for every hour.
        export: Export, of streams that declare one; after housekeeping, which moves the rewind floor. For readers that
            expect hours at another time.
        delivery: Delivery, of streams that declare one. For consumers that can wait longer.
        current: Refresh of the current table, of streams that declare one. For readers that can wait longer.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    compaction: Cron = "10 * * * *"
    minor_compaction: Cron = "5-55/10 * * * *"
    housekeeping: Cron = "20 * * * *"
    checks: Cron = "30 * * * *"
    export: Cron = "40 * * * *"
    delivery: Cron = "* * * * *"
    current: Cron = "* * * * *"


class HealthSettings(_Refusing):
    """Notification of alarms.

    Attributes:
        secrets: Location of the `webhook`, an address that takes a POST at the start and at the end of an alarm. For
            teams that are called by chat or pager.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    secrets: dict[Literal["webhook"], Annotated[str, AfterValidator(_reference)]] = {}


class Settings(_Refusing, BaseSettings):
    """All settings of this installation.

    Attributes:
        kafka: Connection to Kafka. For all installations.
        spark: Spark master and properties of the tasks. For clusters.
        registry: Connection to the schema registry, for decoders that need one. For decoders with a schema registry.
        dagster: Retention in Dagster's database. For installations with other retention.
        web: Dagster's web server. For a web UI behind a proxy.
        health: Notification of alarms. For teams that are called by chat or pager.
        schedules: When Dagster runs the maintenance of each stream. For machines that are busy at certain times.
        table_root: Folder that holds `<stream>/table` and its side tables, or `s3://BUCKET/PREFIX`. For all
            installations.
        local_root: Folder of an executor for the local stores; may be lost at any time. For machines whose fast disk is
            elsewhere.
        code_root: Folder with the copies of the user's code that runs import. The workers of a cluster must see it. By
            default `table_root` with `.code` after its name; `var/tables.code` for tables in an object store. For
            clusters.
        rewind_hours: How far back a rewind, time travel and a slow reader of the tables may go, at least an hour. For
            rewinds and slow readers that go further back, or little disk.
        target_file_mb: Approximate maximum size of a compacted file, in MB. For readers that prefer other sizes.
        extensions: Modules of this installation's own commands and alarms, `["my_platform.costs"]`; found from the
            working folder. For teams that add commands and alarms.
    """

    model_config = SettingsConfigDict(
        env_prefix="LOCKSTEP_",
        hide_input_in_errors=True,  # a traceback must not show a password
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        nested_model_default_partial_update=True,
    )

    kafka: KafkaSettings = KafkaSettings()
    spark: SparkSettings = SparkSettings()
    registry: RegistrySettings = RegistrySettings()
    dagster: DagsterSettings = DagsterSettings()
    web: WebSettings = WebSettings()
    health: HealthSettings = HealthSettings()
    schedules: ScheduleSettings = ScheduleSettings()
    table_root: Annotated[Path, BeforeValidator(_folder_or_prefix)] = DEFAULT_TABLE_ROOT
    local_root: Annotated[Path, BeforeValidator(_folder)] = Path(tempfile.gettempdir()) / "lockstep"
    code_root: Annotated[Path, BeforeValidator(_folder)] | None = None
    rewind_hours: Annotated[float, Field(ge=1, le=HOURS_MAX)] = 72.0
    target_file_mb: Annotated[int, Field(ge=1, le=8_000)] = 256
    extensions: tuple[Annotated[str, AfterValidator(_module)], ...] = ()

    @property
    def target_file_bytes(self) -> int:
        """`target_file_mb` in bytes."""
        return self.target_file_mb * 1_000_000

    def find_code_root(self) -> Path:
        """`code_root`, or its default."""
        if self.code_root is not None:
            return self.code_root.absolute()
        tables = DEFAULT_TABLE_ROOT if is_in_object_store(self.table_root) else self.table_root
        tables = tables.absolute()
        return tables.with_name(f"{tables.name}.code")

    def list_data_folders(self) -> tuple[Path, ...]:
        """Folders of this machine that hold tables and state, and not code."""
        return (self.table_root.absolute(), self.local_root.absolute(), self.find_code_root())

    @property
    def has_shared_code(self) -> bool:
        """Whether the workers see the code root: those of this machine do, those of a cluster if it is set."""
        return self.code_root is not None or self.spark.master.startswith("local")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments first, then the environment, then the file."""
        del dotenv_settings, file_secret_settings
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, find_settings_file())


def find_settings_file() -> Path:
    """The settings file in force."""
    return Path(os.environ.get("LOCKSTEP_SETTINGS", "lockstep.toml"))


def load_settings() -> Settings:
    """Read the settings.

    Raises:
        SettingsError: Names each wrong key, and its value unless that may be a secret.
    """
    _refuse_mistyped_origins()
    try:
        settings = Settings()
    except ValidationError as error:
        problems = "; ".join(_problem(item) for item in error.errors(include_url=False))
        raise SettingsError(f"settings are wrong: {problems}", next_step=_where()) from error
    except (SourceError, ValueError) as error:
        raise SettingsError(f"settings cannot be read: {error}", next_step=_where()) from error
    roots = {"table_root": make_absolute(settings.table_root), "local_root": settings.local_root.absolute()}
    _refuse_escape(roots["table_root"])
    return settings.model_copy(update=roots)


def _refuse_escape(root: Path) -> None:
    """Refuse a folder such as `a%2Fb`, also one above: a table would be written there and read in `a/b`."""
    match = _ESCAPE.search(str(root))
    if match is not None:
        problem = f"settings are wrong: table_root = '{root}': has {match[0]!r}, which delta-rs reads as an escape"
        raise SettingsError(problem, next_step="set table_root to a folder whose whole path has no such part")


def _refuse_mistyped_origins() -> None:
    """Refuse an unread file or variable, which would leave the default in force, such as another table root.

    A whole group in one variable is JSON, as pydantic-settings reads it; any other value is meant for one of its parts.
    """
    if "LOCKSTEP_SETTINGS" in os.environ and not find_settings_file().is_file():
        raise SettingsError(
            f"LOCKSTEP_SETTINGS names {find_settings_file()}, and there is no such file",
            next_step="correct the name, or unset LOCKSTEP_SETTINGS to read lockstep.toml",
        )
    variables = tuple(f"LOCKSTEP_{name.upper()}" for name in Settings.model_fields)
    for name in sorted(os.environ):
        setting = name.upper().partition("__")[0]
        if setting.startswith("LOCKSTEP_") and setting not in (*variables, *OTHER_VARIABLES):
            raise SettingsError(
                f"{name} in the environment is not a setting; known: {', '.join(variables)} (parts after __)",
                next_step=f"correct or unset {name}{_name_closest(name.upper())}",
            )
        field = Settings.model_fields.get(name.upper().removeprefix("LOCKSTEP_").lower())
        if field is not None and isinstance(field.default, BaseModel) and not os.environ[name].lstrip().startswith("{"):
            parts = ", ".join(f"{name}__{part.upper()}" for part in type(field.default).model_fields)
            raise SettingsError(f"{name} is a group of settings, not a value", next_step=f"set one of {parts}")


def _problem(item: ErrorDetails) -> str:
    """One wrong key. Values of options and of unknown keys may be secrets, and are hidden."""
    key = ".".join(map(str, item["loc"]))
    value = item["input"]
    if item["type"] == "extra_forbidden":
        return f"{key} is not a setting{_name_known(item['loc'])}"
    is_hidden = any(part in key for part in (".options", ".secrets")) or _WITH_SECRET.search(str(value)) is not None
    if isinstance(value, (str, int, float)) and not is_hidden:
        key = f"{key} = {value!r}"
    return f"{key}: {item['msg'].removeprefix('Value error, ')}"


def _name_known(path: tuple[int | str, ...]) -> str:
    """The settings that an unknown key was compared with: those of its group, or the groups."""
    group = Settings.model_fields.get(str(path[0]))
    if len(path) > 1 and group is not None and isinstance(group.default, BaseModel):
        return f" (known in {path[0]}: {', '.join(type(group.default).model_fields)})"
    return f" (known: {', '.join(Settings.model_fields)})"


def _name_closest(name: str) -> str:
    """A hint at the variable that a mistyped one is most like; empty if none is."""
    keys = list(Settings.model_fields)
    for key, field in Settings.model_fields.items():
        if isinstance(field.default, BaseModel):
            keys += [f"{key}__{part}" for part in type(field.default).model_fields]
    variables = [f"LOCKSTEP_{key.upper()}" for key in keys]
    similar = difflib.get_close_matches(name, variables, n=1, cutoff=ALIKE_MIN)
    return f" (the closest is {similar[0]})" if similar else ""


def _where() -> str:
    return f"correct {find_settings_file()} or the LOCKSTEP_* variables of the environment"
