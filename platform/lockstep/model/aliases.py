"""Aliases: one object in two places of a state, which would be loaded as two."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import msgspec

from lockstep.model.map_state import MapState


def find_alias(state: object, path: str = "state") -> str:
    """Two places with one object that can be changed; empty without any."""
    places: dict[int, str] = {}
    inside = deque([(path, state)])
    while inside:
        place, value = inside.popleft()
        if is_mutable(value):
            if first := places.get(id(value)):
                return f"{first} and {place} are one {type(value).__name__}, and would be loaded as two: copy it"
            places[id(value)] = place
        inside.extend(_list_parts(value, place))
    return ""


def is_mutable(value: object) -> bool:
    """Whether an object can be changed in place."""
    if isinstance(value, msgspec.Struct):
        return not value.__struct_config__.frozen
    return isinstance(value, (list, dict, MapState))


def _list_parts(value: Any, place: str) -> Iterator[tuple[str, object]]:
    """The values directly inside a value, with their places. Rows of a `MapState` cannot be changed."""
    if isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield f"{place}.{name}", getattr(value, name)
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield f"{place}[{key!r}]", inner
    elif isinstance(value, (list, tuple)):
        for at, inner in enumerate(value):
            yield f"{place}[{at}]", inner
