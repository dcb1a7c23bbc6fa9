"""What is inside a message type, as msgspec sees it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import cast

import msgspec
from msgspec import inspect


@dataclass
class _Walk:
    """A walk over a type and all types inside of it, each once, also where they are recursive."""

    seen: set[int] = field(default_factory=set)

    def over(self, part: object) -> Iterator[inspect.Type]:
        if isinstance(part, tuple):
            for one in cast("tuple[object, ...]", part):
                yield from self.over(one)
        elif isinstance(part, inspect.Field):
            yield from self.over(part.type)
        elif isinstance(part, inspect.Type) and id(part) not in self.seen:
            self.seen.add(id(part))
            yield part
            for name in cast("msgspec.Struct", part).__struct_fields__:
                yield from self.over(getattr(part, name))


def foreign_classes(message_type: object) -> list[type]:
    """Classes inside a type that msgspec does not know, such as generated Protobuf messages."""
    parts = _Walk().over(inspect.type_info(message_type))
    return [part.cls for part in parts if isinstance(part, inspect.CustomType)]


def tag_fields(message_type: object) -> list[str]:
    """Names of the fields by which the Structs inside a type are told apart."""
    parts = _Walk().over(inspect.type_info(message_type))
    return sorted({part.tag_field for part in parts if isinstance(part, inspect.StructType) and part.tag_field})
