"""The modules that a stream imports, and the classes in them."""

from __future__ import annotations

from importlib import import_module

MODULES = ("lockstep", "lockstep.decoders", "lockstep.derived", "lockstep.rules", "lockstep.windows")


def list_public_classes() -> list[type]:
    """List all public classes, in the order of their modules."""
    found: list[type] = []
    for module in map(import_module, MODULES):
        values = (getattr(module, name) for name in module.__all__)
        found += [value for value in values if isinstance(value, type)]
    return found
