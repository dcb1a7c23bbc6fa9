"""Reads secrets from the references in the settings, on the machine that needs them, when it needs them.

Pickled or sent objects (settings, Spark's closures) contain only the reference: `file:/run/secrets/kafka`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.request import getproxies, proxy_bypass

from lockstep.errors import SettingsError
from lockstep.settings import SECRET_OPTIONS

Plain = str | int | float | bool
SECRET_BYTES_MAX = 65_536
"""A private key with its chain takes a few thousand; more is a wrong file."""


def with_secrets(configuration: Mapping[str, Plain]) -> dict[str, Plain]:
    """The configuration with secrets instead of references.

    Raises:
        SettingsError: A file or variable is missing, or contains no secret; never shows its content. Or a proxy of
            this machine would get its token.
    """
    if configuration.get("sasl.oauthbearer.metadata.authentication.type") == "azure_imds":
        _refuse_proxy()
    complete = dict(configuration)
    for name, reference in configuration.items():
        if name in SECRET_OPTIONS:
            complete[name] = fetch_secret(f"kafka.secrets {name}", str(reference))
    return complete


def fetch_secret(setting: str, reference: str) -> str:
    """The secret behind a reference.

    Args:
        setting: Name of the setting, for errors.
        reference: `file:` and a path, or `env:` and a variable.

    Raises:
        SettingsError: The file or variable is missing, or contains no secret; never shows its content.
    """
    kind, _, place = reference.partition(":")
    secret = _read_secret(setting, kind, place)
    if not secret:
        raise SettingsError(
            f"{setting} refers to {reference}, and there is nothing on this machine",
            next_step=f"put the secret there, on every machine that runs tasks ({place})",
        )
    if not setting.endswith(".pem") and not secret.isprintable():
        # librdkafka truncates a text at the first NUL silently, and logs in with the rest.
        raise SettingsError(
            f"{setting} refers to {reference}, which holds control characters or more than one line",
            next_step="store the secret alone, as one line of text",
        )
    return secret


def _read_secret(setting: str, kind: str, place: str) -> str:
    if kind == "file":
        return _from_file(setting, Path(place))
    return os.environ.get(place, "")


METADATA_HOST = "169.254.169.254"
"""Where a machine in Azure gets its tokens, without TLS and inside of the machine."""


def _refuse_proxy() -> None:
    """Refuse to request the token of this machine through a proxy, which could read it, or send that of another."""
    if {"http", "all"} & getproxies().keys() and not proxy_bypass(METADATA_HOST):
        raise SettingsError(
            "the proxy of the environment would get the token of this machine",
            next_step=f"add {METADATA_HOST} to the variables NO_PROXY and no_proxy",
        )


def _from_file(setting: str, path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            secret = file.read(SECRET_BYTES_MAX + 1)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise SettingsError(
            f"{setting} refers to file:{path}, which cannot be read: {reason}",
            next_step="let the user that runs lockstep read it, on every machine that runs tasks",
        ) from None
    if len(secret) > SECRET_BYTES_MAX:
        raise SettingsError(
            f"{setting} refers to file:{path}, longer than any secret: {SECRET_BYTES_MAX:,} characters at most",
            next_step="name the file that holds the secret alone",
        )
    return secret.removesuffix("\n").removesuffix("\r")
