"""Shows every setting and every option of the declared streams: value, default and origin. Shows no secret."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
from pydantic import BaseModel
from pydantic_settings import EnvSettingsSource, TomlConfigSettingsSource

from lockstep.addresses import to_uri
from lockstep.declare.stream import AnyStream, format_source
from lockstep.settings import Settings, find_settings_file, load_settings

HIDDEN = "(set, not shown)"
PUBLIC_OPTIONS = re.compile(
    r"security\.protocol|sasl\.(mechanism|username)|client\.(rack|dns\.lookup)|broker\.address\.family"
    r"|ssl\.[a-z.]+\.location|ssl\.(cipher\.suites|curves\.list|sigalgs\.list)"
    r"|(socket|reconnect|metadata|topic\.metadata)\.[a-z.]+"
)
"""Kafka options whose values are not secrets. All others are hidden."""
SECRET_NAMES = re.compile(r"(?i)secret|pass|token|credential|key|private|auth|jaas|javaoptions|executorenv")
"""Spark properties whose values may hold secrets; wider than Spark's own list."""
LOGIN = re.compile(r"://[^/@\s]*:[^/@\s]*@")
"""User and password in an address."""
WHOLE = ("integrity", "decoder", "trigger")
IN_FIELDS = ("topics", "limits", "objectives")
"""Parts of a stream chosen as a whole, and those whose fields are options; a transform's fields are its author's."""


class Option(msgspec.Struct, frozen=True):
    """One setting or option.

    Attributes:
        name: Its dotted name.
        value: Its value; for secrets only whether it is set.
        default: Its default; empty when it has none.
        origin: "default", "file", "environment", or "declaration" for options of a stream.
        set_by: The environment variable, or the place, that sets it.
    """

    name: str
    value: str
    default: str
    origin: str
    set_by: str


class AllOptions(msgspec.Struct, frozen=True):
    """Effective settings.

    Attributes:
        file: The settings file; it may be missing.
        file_exists: Whether it exists.
        options: Settings of the installation, then the options of each stream.
    """

    file: str
    file_exists: bool
    options: tuple[Option, ...]


def list_options(streams: Mapping[str, AnyStream]) -> AllOptions:
    """Read the settings with the origin of each value.

    Raises:
        SettingsError: A setting is invalid.
    """
    settings = load_settings()
    file = TomlConfigSettingsSource(Settings, find_settings_file())
    sources = {"environment": EnvSettingsSource(Settings)(), "file": file()}
    listed = list(_settings((), settings, sources))
    for name in sorted(streams):
        listed += _stream(streams[name])
    return AllOptions(str(find_settings_file()), find_settings_file().is_file(), tuple(listed))


def _settings(path: tuple[str, ...], model: BaseModel, given: Mapping[str, object]) -> Iterator[Option]:
    """The settings below one part, depth first."""
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        here = (*path, name)
        if isinstance(value, BaseModel):
            yield from _settings(here, value, given)
        elif isinstance(value, dict) and value:
            yield from (_setting((*here, key), held, "", given) for key, held in sorted(value.items()))
        else:
            yield _setting(here, value, _text(field.get_default(call_default_factory=True)), given)


def _setting(path: tuple[str, ...], value: object, default: str, given: Mapping[str, object]) -> Option:
    origin = next((name for name, source in given.items() if _is_set(source, path)), "default")
    places = {
        "environment": f"LOCKSTEP_{'__'.join(path[:2]).upper()}",
        "file": str(find_settings_file()),
        "default": "",
    }
    shown = HIDDEN
    # An address may have user and password in it.
    if not _may_be_secret(path) and not LOGIN.search(str(value)):
        shown = _text(value)
    return Option(".".join(path), shown, default, origin, places[origin])


def _is_set(source: object, path: tuple[str, ...]) -> bool:
    for name in path:
        if not isinstance(source, dict) or name not in source:
            return False
        source = source[name]
    return True


def _may_be_secret(path: tuple[str, ...]) -> bool:
    """Whether a value is hidden: `secrets` hold checked references only; other names that sound secret are hidden."""
    if "secrets" in path:
        return False
    if path[:-1] == ("kafka", "options"):
        return PUBLIC_OPTIONS.fullmatch(path[-1]) is None
    return SECRET_NAMES.search(path[-1]) is not None


def _stream(stream: AnyStream) -> Iterator[Option]:
    """The options of the parts of a declaration."""
    for field in fields(stream):
        if field.name in WHOLE:
            yield _declared(stream.name, stream, field)
        elif field.name in IN_FIELDS:
            part = getattr(stream, field.name)
            yield from (_declared(f"{stream.name}.{field.name}", part, inner) for inner in fields(part))
    for lookup in stream.lookups:
        yield Option(f"{stream.name}.lookups.{lookup.name}", format_source(lookup), "", "declaration", "assets/")


def _declared(path: str, part: object, field: Field[Any]) -> Option:
    value = getattr(part, field.name)
    default = field.default
    if field.default_factory is not MISSING:
        default = field.default_factory()
    shown = ""
    if default is not MISSING:
        shown = _text(default)
    if default is not MISSING and value == default:
        return Option(f"{path}.{field.name}", _text(value), shown, "default", "")
    return Option(f"{path}.{field.name}", _text(value), shown, "declaration", "assets/")


def _text(value: Any) -> str:
    if isinstance(value, Path):
        return to_uri(value)
    if isinstance(value, Enum):
        text: str = value.value
        return text
    return str(value)
