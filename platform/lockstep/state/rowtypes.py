"""Where a state type holds `Rows`, and whether their types can be saved row by row. Pure."""

from __future__ import annotations

from typing import cast, get_args, get_origin

import msgspec
from msgspec import inspect

from lockstep.declare.rows import Rows
from lockstep.errors import DeclarationError

_VALUES = (
    *(inspect.NoneType, inspect.BoolType, inspect.IntType, inspect.FloatType, inspect.StrType, inspect.BytesType),
    *(inspect.DateTimeType, inspect.DateType, inspect.TimeType, inspect.TimeDeltaType, inspect.UUIDType),
    *(inspect.DecimalType, inspect.EnumType, inspect.LiteralType),
)
_KEYS = (inspect.IntType, inspect.StrType, inspect.BytesType, inspect.EnumType, inspect.LiteralType)


class RowsType(msgspec.Struct, frozen=True):
    """One table in a state.

    Attributes:
        attribute: The field of the state's Struct; empty where the state is the table.
        name: The field's name in the encoding.
        key: Type of its keys.
        value: Type of its rows.
    """

    attribute: str
    name: str
    key: object
    value: object


def rows_types(state_type: object) -> tuple[RowsType, ...]:
    """The tables of a state type, by field.

    Raises:
        DeclarationError: Keys or rows are of a type that cannot be saved row by row.
    """
    if get_origin(state_type) is Rows or state_type is Rows:
        return (_rows_type("", "", state_type),)
    struct = get_origin(state_type) or state_type
    if not (isinstance(struct, type) and issubclass(struct, msgspec.Struct)):
        return ()
    fields = msgspec.structs.fields(cast("type[msgspec.Struct]", state_type))
    return tuple(
        _rows_type(field.name, field.encode_name, field.type)
        for field in fields
        if field.type is Rows or get_origin(field.type) is Rows
    )


def _rows_type(attribute: str, name: str, annotation: object) -> RowsType:
    given = get_args(annotation)
    if len(given) != 2:  # noqa: PLR2004  # a key and a row
        raise _refused(annotation, "does not say its types", "write Rows[K, V]")
    key, value = given
    if not _is_key(inspect.type_info(key)):
        raise _refused(annotation, f"its key {key} has no single encoding", "use str, int, bytes, an enum, or a tuple")
    if not _is_frozen(inspect.type_info(value), ()):
        problem = f"its row {value} can be changed in place, which nobody would see"
        raise _refused(annotation, problem, "make it a Struct with frozen=True, lists in it tuple[X, ...]")
    return RowsType(attribute, name, key, value)


def _is_key(info: inspect.Type) -> bool:
    if isinstance(info, inspect.Metadata):
        return _is_key(info.type)
    if isinstance(info, inspect.TupleType):
        return all(map(_is_key, info.item_types))
    return isinstance(info, _KEYS)


def _is_frozen(info: inspect.Type, outer: tuple[type, ...]) -> bool:
    if isinstance(info, inspect.Metadata):
        return _is_frozen(info.type, outer)
    if isinstance(info, inspect.UnionType):
        return all(_is_frozen(member, outer) for member in info.types)
    if isinstance(info, inspect.TupleType):
        return all(_is_frozen(item, outer) for item in info.item_types)
    if isinstance(info, (inspect.VarTupleType, inspect.FrozenSetType)):
        return _is_frozen(info.item_type, outer)
    if isinstance(info, (inspect.StructType, inspect.NamedTupleType)):
        return _is_frozen_record(info, outer)
    return isinstance(info, _VALUES)


def _is_frozen_record(info: inspect.StructType | inspect.NamedTupleType, outer: tuple[type, ...]) -> bool:
    if info.cls in outer:
        return True
    config = getattr(info.cls, "__struct_config__", None)
    if config is not None and not config.frozen:
        return False
    return all(_is_frozen(field.type, (*outer, info.cls)) for field in info.fields)


def _refused(found: object, problem: str, instead: str) -> DeclarationError:
    return DeclarationError("Transform[Message, State, Row]: the state type", found, problem, instead)
