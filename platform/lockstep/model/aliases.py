"""Aliases: one object in two places of a state, which would be loaded as two, or in a state and in a row."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from copy import copy
from functools import cache
from typing import Any, TypeVar, cast, get_origin

import msgspec
from msgspec import inspect
from msgspec.structs import force_setattr

from lockstep.model.map_state import MapState, TableState, list_held_rows
from lockstep.model.type_parts import list_type_parts

V = TypeVar("V")


def find_alias(state: object) -> str:
    """Two places with one object that can be changed; empty without any."""
    if not _has_alias(state):
        return ""
    return _name_alias(state)


def _has_alias(state: object) -> bool:
    """Whether the state has any alias: checked after each message of a test, so without names and immutable values."""
    seen = set[int]()
    inside = [state]
    while inside:
        value = inside.pop()
        if is_mutable(value):
            if id(value) in seen:
                return True
            seen.add(id(value))
        parts = _list_values(value)
        deep = {kind for kind in set(map(type, parts)) if not _is_flat(kind)}
        if deep:
            inside.extend(part for part in parts if type(part) in deep)
    return False


def _list_values(value: Any) -> Collection[object]:
    """The values directly inside a value; keys and rows of a `MapState` cannot be changed."""
    if isinstance(value, msgspec.Struct):
        return [getattr(value, name) for name in value.__struct_fields__]
    if isinstance(value, dict):
        return cast("Collection[object]", value.values())
    if isinstance(value, TableState):
        return cast("Collection[object]", list_held_rows(value).values())
    if isinstance(value, (list, tuple)):
        return cast("Collection[object]", value)
    return ()


@cache
def _is_flat(kind: type) -> bool:
    """Whether no value of a class has an object inside that can be changed, nor can be changed itself."""
    if not issubclass(kind, msgspec.Struct):
        return not issubclass(kind, (list, dict, tuple, MapState))
    try:
        info = inspect.type_info(kind)
    except TypeError:  # no type of a state
        return False
    return not any(isinstance(part, _UNKNOWN) or _find_mutable(part) for part in list_type_parts(info))


_UNKNOWN = (inspect.AnyType, inspect.CustomType)


def _name_alias(state: object) -> str:
    places: dict[int, str] = {}
    inside = deque([("state", state)])
    while inside:
        place, value = inside.popleft()
        if is_mutable(value):
            first = places.get(id(value))
            if first:
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
    elif isinstance(value, (dict, TableState)):
        rows = value if isinstance(value, dict) else list_held_rows(value)
        for key, inner in rows.items():
            yield f"{place}[{key!r}]", inner
    elif isinstance(value, (list, tuple)):
        for number, inner in enumerate(value):
            yield f"{place}[{number}]", inner


def may_share_objects(left: object, right: object) -> bool:
    """Whether a value of one type may hold an object of a value of the other one, and the object can be changed."""
    others = _list_mutable(right)
    for kind in _list_mutable(left):
        if any(issubclass(kind, other) or issubclass(other, kind) for other in others):
            return True
    return False


def _list_mutable(declared: object) -> set[type]:
    """The classes in a type whose objects can be changed in place."""
    kinds = set[type]()
    for part in list_type_parts(inspect.type_info(declared)):
        kinds |= _find_mutable(part)
    return kinds


def _find_mutable(info: inspect.Type) -> set[type]:
    if isinstance(info, inspect.StructType):
        kind = cast("type[msgspec.Struct]", get_origin(info.cls) or info.cls)
        return set() if kind.__struct_config__.frozen else {kind}
    if isinstance(info, inspect.ListType):
        return {list}
    return {dict} if isinstance(info, inspect.DictType) else set()


def copy_value(value: V) -> V:
    """A value that shares no object with another mutable value."""
    return cast("V", _copy(value))


def _copy(value: Any) -> object:
    if isinstance(value, msgspec.Struct):
        return _copy_struct(value)
    if isinstance(value, dict):
        return {key: _copy(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_copy(inner) for inner in value]
    if type(value) is tuple:
        return tuple(map(_copy, value))
    return value


def _copy_struct(value: msgspec.Struct) -> msgspec.Struct:
    copied = copy(value)
    for name in value.__struct_fields__:
        inner = getattr(value, name)
        other = _copy(inner)
        if other is not inner:
            force_setattr(copied, name, other)
    return copied
