"""How the rows of a stream replay to the states of its sessions: key, removal and values, read from the declaration.

Of the rows with one session and one key, the newest is the row of the session's state: equal in the columns that row
and value share, and null in the column of removals exactly if the key is gone. A reader gets the current rows of a
table by one query (docs/reading.md), and `lockstep verify` proves that the claim holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from types import NoneType
from typing import Annotated, Any, NewType, cast, get_args, get_origin, get_type_hints

import msgspec

from lockstep.declare.decoders.base import list_members
from lockstep.declare.transform import R, S, Transform, is_overridden
from lockstep.errors import DeclarationError
from lockstep.model.map_state import MapState


class ReplayKey(msgspec.Struct, frozen=True):
    """The columns by which rows replay to a state.

    Attributes:
        columns: The columns of a row that spell its key, in the order of the parts of the state's key.
        removed: The column that is null exactly in the row of a removed key.
        values: The columns that equal the field of that name in the value of the state.
        is_scalar: The value of the state is not a Struct; it equals the column `removed`.
    """

    columns: tuple[str, ...]
    removed: str
    values: tuple[str, ...] = ()
    is_scalar: bool = False

    def parts_of(self, key: object) -> tuple[object, ...]:
        """The parts of a state's key, one for each column."""
        if isinstance(key, msgspec.Struct):
            return msgspec.structs.astuple(key)
        if isinstance(key, tuple):
            return cast("tuple[object, ...]", key)
        return (key,)


def find_replay_key(transform: Transform[Any, S, R], state: object, row: type[msgspec.Struct]) -> ReplayKey | None:
    """The columns by which the rows of a transform replay to its states; None if they do not.

    Args:
        transform: The fold.
        state: Its state type.
        row: Its row type.

    Raises:
        DeclarationError: `key` or `removed` does not fit the state or the row.
    """
    declared = transform.replay_columns()
    if declared is None:
        return None
    kind, (columns, removed) = type(transform), declared
    key, value = _read_row_types(kind, state)
    fields = {each.name: each.type for each in msgspec.structs.fields(row)}
    _check_key(kind, columns, key, fields)
    _check_removed(kind, columns, removed, fields)
    if not getattr(transform, "ends_remove", True):  # the rows of ended sessions stay
        return None
    if not _is_struct(value):
        return ReplayKey(columns, removed, is_scalar=_members(fields[removed]) == _members(value))
    shared = [
        each.name
        for each in msgspec.structs.fields(cast("type[msgspec.Struct]", value))
        if each.name in fields and each.name not in columns and _members(fields[each.name]) == _members(each.type)
    ]
    return ReplayKey(columns, removed, tuple(shared))


def _read_row_types(kind: type, state: object) -> tuple[object, object]:
    """The types of key and value of a state's rows."""
    if is_overridden(kind, "list_rows"):
        listed = get_type_hints(kind.list_rows, include_extras=True).get("return")  # type: ignore[attr-defined]  # overridden
        pair = get_args(next(iter(get_args(listed)), None))
        if len(pair) == 2:  # noqa: PLR2004  # key and value
            return pair[0], pair[1]
        problem = "does not declare the types of key and value"
        instead = "annotate it as Iterable[tuple[Key, Value]]"
        raise DeclarationError(f"{kind.__name__}.list_rows", listed, problem, instead)
    if get_origin(state) in {dict, Mapping, MutableMapping, MapState} and len(get_args(state)) == 2:  # noqa: PLR2004
        return cast("tuple[object, object]", get_args(state))
    problem = f"needs rows by key, and the state is {state}"
    raise DeclarationError(f"{kind.__name__}.key", kind.key, problem, "define list_rows(self, state)")  # type: ignore[attr-defined]  # a Transform


def _check_key(kind: type, columns: tuple[str, ...], key: object, fields: Mapping[str, object]) -> None:
    parts = _split_key(key, len(columns))
    if len(parts) != len(columns):
        problem = f"names {len(columns)} columns, and the key {key} of the state has {len(parts)} parts"
        raise DeclarationError(f"{kind.__name__}.key", columns, problem, "a field of the row for each part of the key")
    for name, part in zip(columns, parts, strict=True):
        if name not in fields:
            raise DeclarationError(
                f"{kind.__name__}.key", name, "is not a field of the row", f"one of {_listed(fields)}"
            )
        if _members(fields[name]) != _members(part) or _has_none(fields[name]) is not _has_none(part):
            problem = f"is of type {fields[name]} in the row, and of type {part} in the key of the state"
            raise DeclarationError(f"{kind.__name__}.key", name, problem, "declare both of one type")


def _split_key(key: object, columns: int) -> tuple[object, ...]:
    if get_origin(key) is tuple:
        parts = get_args(key)
        return parts[:1] * columns if parts[1:] == (Ellipsis,) else parts
    if _is_struct(key):
        return tuple(each.type for each in msgspec.structs.fields(cast("type[msgspec.Struct]", key)))
    return (key,)


def _check_removed(kind: type, columns: tuple[str, ...], removed: str, fields: Mapping[str, object]) -> None:
    if removed not in fields or removed in columns:
        problem = "is part of the key" if removed in columns else "is not a field of the row"
        others = [name for name in fields if name not in columns]
        raise DeclarationError(f"{kind.__name__}.removed", removed, problem, f"one of {_listed(others)}")
    if not _has_none(fields[removed]):
        problem = "is null in the row of a removed key, and is not optional"
        raise DeclarationError(f"{kind.__name__}.removed", removed, problem, f"{removed}: {fields[removed]} | None")


def _members(kind: object) -> frozenset[object]:
    """The types of a field, without None and without what only its column needs (precision, width)."""
    return frozenset(_plain(each) for each in list_members(_plain(kind)) if each is not NoneType)


def _plain(kind: object) -> object:
    while True:
        if get_origin(kind) is Annotated:
            kind = get_args(kind)[0]
        elif isinstance(kind, NewType):
            kind = kind.__supertype__
        else:
            return kind


def _has_none(kind: object) -> bool:
    return NoneType in list_members(_plain(kind))


def _is_struct(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
