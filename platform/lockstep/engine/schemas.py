"""The installation's schema registry, as a stream's tasks get it."""

from __future__ import annotations

from lockstep.declare.decoders.framing import refuse_without_registry
from lockstep.declare.decoders.http_registry import HttpRegistry
from lockstep.engine.hands import AnyStream
from lockstep.registry_settings import RegistrySettings


def registry_for(stream: AnyStream, settings: RegistrySettings) -> HttpRegistry | None:
    """The registry of the installation; None where it has none.

    Raises:
        SettingsError: The stream's decoder needs one, and nobody names any.
    """
    registry = registry_of(settings)
    refuse_without_registry(stream.decoder.connected(registry))
    return registry


def registry_of(settings: RegistrySettings) -> HttpRegistry | None:
    """The registry that the settings name."""
    if not settings.url:
        return None
    return HttpRegistry(
        url=settings.url,
        user=settings.user,
        password_from=settings.secrets.get("password", ""),
        ca_file=settings.ca_file,
        timeout_seconds=settings.timeout_seconds,
    )
