"""State type changes that old state survives. Pure.

Allowed are additions with a default (by position: at the end only), int -> float and
X -> Optional[X]. All else is refused, including changes that msgpack would decode silently. The rules
are transitive (a default may be neither removed nor changed), so that comparing the newest segment with the
current type also covers the older segments of its chain.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from lockstep.model.state_types import FieldSchema, StateTypeSchema

_NONE = StateTypeSchema("none")
_KEYED = ("dict", "rows")
"""Kinds whose keys are unique: as floats, two large ints may become one."""


class Incompatibility(msgspec.Struct, frozen=True):
    """One reason why stored state cannot be read as the declared type.

    Attributes:
        path: Place of the difference, for example `rows{}.price`; empty for the state itself.
        stored: The stored state's type there.
        declared: The current type there.
    """

    path: str
    stored: str
    declared: str

    def __str__(self) -> str:
        return f"{self.path or 'state'}: stored {self.stored}, declared {self.declared}"


def find_incompatibilities(stored: StateTypeSchema, declared: StateTypeSchema) -> tuple[Incompatibility, ...]:
    """Every reason why state of the stored schema cannot be read as the declared one; empty when it can."""
    return tuple(_compare(stored, declared, ""))


def _compare(stored: StateTypeSchema, declared: StateTypeSchema, path: str) -> Iterator[Incompatibility]:
    if stored == declared:
        return
    old = _members(stored)
    new = _members(declared)
    if new != (declared,) or old != (stored,):
        yield from _compare_unions(stored, declared, old, new, path)
    elif stored.kind == "int" and declared.kind == "float" and not (stored.detail or declared.detail):
        return
    elif _outline(stored) != _outline(declared):
        yield Incompatibility(path, str(stored), str(declared))
    else:
        yield from _compare_items(stored, declared, path)
        yield from _compare_fields(stored, declared, path)


def _outline(shape: StateTypeSchema) -> tuple[str, str, int]:
    return shape.kind, shape.detail, len(shape.items)


def _members(shape: StateTypeSchema) -> tuple[StateTypeSchema, ...]:
    """The members of a union without None; of any other type, the type itself."""
    if shape.kind != "union":
        return (shape,)
    return tuple(item for item in shape.items if item != _NONE)


def _compare_unions(
    stored: StateTypeSchema,
    declared: StateTypeSchema,
    old: tuple[StateTypeSchema, ...],
    new: tuple[StateTypeSchema, ...],
    path: str,
) -> Iterator[Incompatibility]:
    may_add_none = _NONE in declared.items or _NONE not in stored.items
    if len(old) != len(new) or not may_add_none:
        yield Incompatibility(path, str(stored), str(declared))
        return
    # Members are sorted by their encoding, kind and tag first, so that corresponding ones are paired.
    for was, now in zip(old, new, strict=True):
        yield from _compare(was, now, path)


def _compare_items(stored: StateTypeSchema, declared: StateTypeSchema, path: str) -> Iterator[Incompatibility]:
    for number, (was, now) in enumerate(zip(stored.items, declared.items, strict=True)):
        if number == 0 and stored.kind in _KEYED:
            if was != now:
                yield Incompatibility(f"{path}{{key}}", str(was), str(now))
        else:
            inner = f"{path}[{number}]" if stored.kind == "tuple" else f"{path}{{}}"
            yield from _compare(was, now, inner)


def _compare_fields(stored: StateTypeSchema, declared: StateTypeSchema, path: str) -> Iterator[Incompatibility]:
    declared_fields = {field.name: field for field in declared.fields}
    for field in stored.fields:
        if field.name not in declared_fields:
            yield Incompatibility(_inside(path, field), str(field.shape), "no such field")
        else:
            yield from _compare_field(field, declared_fields[field.name], path)
    old_names = _names(stored)
    new_names = _names(declared)
    for field in declared.fields:
        if field.name not in old_names and field.default is None:
            yield Incompatibility(_inside(path, field), "no such field", f"{field.shape} without a default")
    if stored.kind == "array" and old_names != new_names[: len(old_names)]:
        yield Incompatibility(path, f"fields by position {', '.join(old_names)}", ", ".join(new_names))


def _compare_field(stored: FieldSchema, declared: FieldSchema, path: str) -> Iterator[Incompatibility]:
    if stored.default is not None and stored.default != declared.default:
        # Sessions stored before the field existed lack it: they would silently read the new default.
        new_default = "no default" if declared.default is None else f"default {declared.default}"
        yield Incompatibility(_inside(path, stored), f"default {stored.default}", new_default)
    yield from _compare(stored.shape, declared.shape, _inside(path, stored))


def _names(shape: StateTypeSchema) -> tuple[str, ...]:
    return tuple(field.name for field in shape.fields)


def _inside(path: str, field: FieldSchema) -> str:
    return f"{path}.{field.name}" if path else field.name
