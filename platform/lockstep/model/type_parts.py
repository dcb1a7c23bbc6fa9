"""The types inside of a type, as msgspec sees them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import msgspec
from msgspec import inspect


def list_type_parts(info: inspect.Type) -> Iterator[inspect.Type]:
    """A type and all types inside of it, each once, also if they are recursive."""
    seen = set[int]()
    parts = [cast("object", info)]
    while parts:
        part = parts.pop()
        if isinstance(part, tuple):
            parts += cast("tuple[object, ...]", part)
        elif isinstance(part, inspect.Field):
            parts.append(part.type)
        elif isinstance(part, inspect.Type) and id(part) not in seen:
            seen.add(id(part))
            yield part
            parts += [getattr(part, name) for name in cast("msgspec.Struct", part).__struct_fields__]
