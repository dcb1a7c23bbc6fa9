"""Settings of this installation: the user's Kafka, table root, Spark. One typed file, environment overrides.

Read from `lockstep.toml` in the working folder (or the file that LOCKSTEP_SETTINGS names), then
from the environment: `LOCKSTEP_TABLE_ROOT`, `LOCKSTEP_KAFKA__BOOTSTRAP_SERVERS`, ... Streams
declare what they are; settings say where they run.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)
from pydantic_settings import (
    SettingsError as SourceError,
)

from lockstep.errors import SettingsError
from lockstep.registry_settings import RegistrySettings

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

ALLOWED_OPTIONS = ("security.protocol", "client.rack", "client.dns.lookup", "broker.address.family")
ALLOWED_FAMILIES = ("sasl.", "ssl.", "socket.", "reconnect.", "metadata.", "topic.metadata.")
"""What passes through to librdkafka: how to reach a cluster. How to read it is lockstep's own."""
OTHER_VARIABLES = ("LOCKSTEP_SETTINGS", "LOCKSTEP_MAVEN_REPOSITORY", "LOCKSTEP_LIVE")
"""Variables of the environment that are no settings of this file."""
REFUSED_OPTIONS = ("sasl.oauthbearer.config", "ssl.engine.location", "ssl.providers")
"""Would load code, or reach hosts that nobody named."""


def _reach_only(options: dict[str, str]) -> dict[str, str]:
    for name in options:
        allowed = name in ALLOWED_OPTIONS or name.startswith(ALLOWED_FAMILIES)
        if not allowed or name in REFUSED_OPTIONS:
            known = ", ".join((*ALLOWED_OPTIONS, *(f"{family}*" for family in ALLOWED_FAMILIES)))
            raise ValueError(f"option {name!r} is not passed through; allowed: {known}")
    return options


def _servers(value: str) -> str:
    if "@" in value:
        raise ValueError("an address holds no user or password; they are kafka.options sasl.username and sasl.password")
    for server in value.split(","):
        host, _, port = server.strip().rpartition(":")
        if not host or not port.isdigit():
            raise ValueError(f"{server.strip()!r} is not host:port")
    return value


class KafkaSettings(BaseModel):
    """How to reach Kafka.

    Attributes:
        bootstrap_servers: host:port, separated by commas.
        options: librdkafka options for TLS, SASL, rack and sockets.
        timeout_seconds: How long one question to the cluster may take.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    bootstrap_servers: Annotated[str, AfterValidator(_servers)] = "127.0.0.1:9092"
    options: Annotated[dict[str, str], AfterValidator(_reach_only)] = {}
    timeout_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 15.0


class SparkSettings(BaseModel):
    """Which Spark runs the tasks.

    Attributes:
        master: A classic Spark master. `local[N,3]` gives a killed worker another attempt, which
            plain `local[N]` does not.
        driver_memory: Heap of the driver's JVM.
        options: Further Spark properties.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    master: str = f"local[{os.cpu_count() or 2},3]"
    driver_memory: str = "1g"
    options: dict[str, str] = {}


class Settings(BaseSettings):
    """All settings of this installation.

    Attributes:
        kafka: How to reach Kafka.
        spark: Which Spark runs the tasks.
        registry: How to reach the schema registry, for decoders that need one.
        table_root: Folder that holds `<stream>/table` and its companions.
        local_root: Folder of an executor for the hot copy of state; may be lost at any time.
    """

    model_config = SettingsConfigDict(
        env_prefix="LOCKSTEP_",
        hide_input_in_errors=True,  # a traceback is no place for a password
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        nested_model_default_partial_update=True,
    )

    kafka: KafkaSettings = KafkaSettings()
    spark: SparkSettings = SparkSettings()
    registry: RegistrySettings = RegistrySettings()
    table_root: Path = Path("var/tables")
    local_root: Path = Path(tempfile.gettempdir()) / "lockstep"

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
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, settings_file())


def settings_file() -> Path:
    """The settings file in force."""
    return Path(os.environ.get("LOCKSTEP_SETTINGS", "lockstep.toml"))


def load_settings() -> Settings:
    """Read the settings.

    Raises:
        SettingsError: Names each wrong key, and its value where that cannot be a secret.
    """
    _refuse_mistyped_origins()
    try:
        settings = Settings()
    except ValidationError as error:
        problems = "; ".join(_problem(item) for item in error.errors(include_url=False))
        raise SettingsError(f"settings are wrong: {problems}", next_step=_where()) from error
    except (SourceError, ValueError) as error:
        raise SettingsError(f"settings cannot be read: {error}", next_step=_where()) from error
    roots = {"table_root": settings.table_root.absolute(), "local_root": settings.local_root.absolute()}
    return settings.model_copy(update=roots)


def _refuse_mistyped_origins() -> None:
    """A file or variable that is silently not read would leave the default in force, such as another table root."""
    if "LOCKSTEP_SETTINGS" in os.environ and not settings_file().is_file():
        raise SettingsError(
            f"LOCKSTEP_SETTINGS names {settings_file()}, and there is no such file",
            next_step="correct the name, or unset LOCKSTEP_SETTINGS to read lockstep.toml",
        )
    known = tuple(f"LOCKSTEP_{name.upper()}" for name in Settings.model_fields)
    for name in sorted(os.environ):
        setting = name.upper().partition("__")[0]
        if setting.startswith("LOCKSTEP_") and setting not in (*known, *OTHER_VARIABLES):
            raise SettingsError(
                f"{name} in the environment is no setting; known: {', '.join(known)} (parts after __)",
                next_step=f"correct or unset {name}",
            )


def _problem(item: ErrorDetails) -> str:
    """One wrong key. Values of options and of unknown keys may be secrets, and are not shown."""
    key, value = ".".join(map(str, item["loc"])), item["input"]
    if item["type"] == "extra_forbidden":
        return f"{key} is no setting"
    plain = isinstance(value, (str, int, float)) and ".options" not in key and "@" not in str(value)
    return f"{key}{f' = {value!r}' if plain else ''}: {item['msg'].removeprefix('Value error, ')}"


def _where() -> str:
    return f"correct {settings_file()} or the LOCKSTEP_* variables of the environment"
