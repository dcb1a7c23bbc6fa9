"""Where this installation's schema registry is: the `[registry]` part of the settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

_HOW_TO_SAY: Final = 'name its file or variable, as "file:/run/secrets/registry" or "env:REGISTRY_SECRET"'


def _address(value: str) -> str:
    if "@" in value:
        raise ValueError("an address holds no user or password; they are registry.user and registry.secrets")
    parts = urlsplit(value)
    if value and (parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment):
        raise ValueError("is not an address such as http://registry:8081")
    return value


def _reference(value: str) -> str:
    kind, _, place = value.partition(":")
    if not (kind == "file" and Path(place).is_absolute()) and not (kind == "env" and place.isidentifier()):
        raise ValueError(f"does not say where the secret is: {_HOW_TO_SAY}")
    return value


class RegistrySettings(BaseModel):
    """How to reach the schema registry.

    Attributes:
        url: Address, for example http://registry:8081; empty where there is none.
        user: User, where it asks for one.
        secrets: Where the user's `password` is: `file:` and an absolute path, or `env:` and a
            variable. Fetched by each process that asks.
        ca_file: Certificates to trust instead of the system's; on every machine that runs tasks.
        timeout_seconds: How long one question may take, repeats included.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    url: Annotated[str, AfterValidator(_address)] = ""
    user: str = ""
    secrets: dict[Literal["password"], Annotated[str, AfterValidator(_reference)]] = {}
    ca_file: Path | None = None
    timeout_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 10.0

    @model_validator(mode="after")
    def _whole(self) -> RegistrySettings:
        if bool(self.user) != bool(self.secrets):
            raise ValueError("a user needs registry.secrets password, and the password a user")
        return self
