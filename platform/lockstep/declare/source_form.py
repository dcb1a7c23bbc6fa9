"""A declaration as a person writes it: `Strict(evidence=Linked())`. Pure."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import timedelta
from enum import Enum

_UNITS = (("days", 86_400), ("hours", 3_600), ("minutes", 60))


def source_form(value: object, *, with_defaults: bool = False) -> str:
    """The value as source text.

    Args:
        value: A part of a declaration: a dataclass, or a plain value.
        with_defaults: Also show the fields of a dataclass that are as they are by default.
    """
    if is_dataclass(value) and not isinstance(value, type):
        shown = [each for each in fields(value) if each.init and (with_defaults or _differs(value, each))]
        parts = ", ".join(f"{each.name}={source_form(getattr(value, each.name))}" for each in shown)
        return f"{type(value).__name__}({parts})"
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, timedelta):
        return _duration(value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, str):
        return f'"{value}"'
    return getattr(value, "__qualname__", None) or repr(value)


def _differs(owner: object, field: Field[object]) -> bool:
    default = field.default_factory() if field.default_factory is not MISSING else field.default
    return bool(getattr(owner, field.name) != default)


def _duration(value: timedelta) -> str:
    seconds = value.total_seconds()
    unit, size = next(((unit, size) for unit, size in _UNITS if seconds and not seconds % size), ("seconds", 1))
    return f"timedelta({unit}={source_form(seconds / size)})"
