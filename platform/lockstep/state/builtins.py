"""Stored state without its type: dicts, lists and plain values, with the names that its shape remembers. Pure.

What msgpack carries as text stays text (Decimal, date, UUID); enums are their values. A field that its type had a
default for may be missing, where a value was stored before the field existed.
"""

from __future__ import annotations

from typing import cast

from lockstep.state.shape import Shape

_NAMED, _LISTED = ("record", "typeddict", "dict"), ("array", "tuple", "vartuple", "list", "set", "frozenset")


def as_builtins(value: object, shape: Shape) -> object:
    """A decoded value with field names: of one shape, as msgpack holds it."""
    return _plain(value, shape, ())


def _plain(value: object, shape: Shape, outer: tuple[Shape, ...]) -> object:
    if value is None:
        return None
    if shape.kind == "outer":
        around = len(outer) - int(shape.detail)
        return _plain(value, outer[around], outer[:around])
    if shape.kind == "union":
        return _plain(value, _member(value, shape.items), outer)
    if isinstance(value, dict):
        return _of_dict(value, shape, outer)
    if isinstance(value, list):
        return _of_list(value, shape, outer)
    return value


def _of_dict(value: dict[object, object], shape: Shape, outer: tuple[Shape, ...]) -> object:
    if shape.kind == "record":
        inside, shapes = (*outer, shape), {field.name: field.shape for field in shape.fields}
        named = cast("dict[str, object]", value)
        return {name: _plain(held, shapes[name], inside) if name in shapes else held for name, held in named.items()}
    if len(shape.items) == 2:  # noqa: PLR2004  # a key and a value
        key, item = shape.items
        return {_plain(name, key, outer): _plain(held, item, outer) for name, held in value.items()}
    return value


def _of_list(value: list[object], shape: Shape, outer: tuple[Shape, ...]) -> object:
    if shape.kind == "array":
        return _of_array(value, shape, (*outer, shape))
    if shape.kind == "tuple":
        return tuple(_plain(held, item, outer) for held, item in zip(value, shape.items, strict=True))
    item = shape.items[0] if shape.items else None
    return [held if item is None else _plain(held, item, outer) for held in value]


def _of_array(value: list[object], shape: Shape, inside: tuple[Shape, ...]) -> dict[str, object]:
    """Fields by position get their names; later ones may be missing, as they are at the end of older values."""
    tag, _, tagged = shape.detail.partition("=")
    named: dict[str, object] = {tag: value[0]} if tagged else {}
    fields = zip(shape.fields, value[1:] if tagged else value, strict=False)
    return named | {field.name: _plain(held, field.shape, inside) for field, held in fields}


def _member(value: object, members: tuple[Shape, ...]) -> Shape:
    """The member of a union that a value belongs to: by its tag, else by what it is made of."""
    there = [shape for shape in members if shape.kind != "none"]
    kinds = _NAMED if isinstance(value, dict) else _LISTED if isinstance(value, list) else ()
    fitting = [shape for shape in there if shape.kind in (*kinds, "outer")] or there
    return next((shape for shape in fitting if _is_tagged(value, shape)), fitting[0])


def _is_tagged(value: object, shape: Shape) -> bool:
    name, _, tag = shape.detail.partition("=")
    if isinstance(value, dict):
        return bool(tag) and repr(value.get(name)) == tag
    return bool(tag) and isinstance(value, list) and bool(value) and repr(value[0]) == tag
