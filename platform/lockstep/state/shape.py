"""The shape of a state type: what its encoding depends on, as data that is kept with every section.

msgpack decodes without a word what was written for another type: swapped fields of one type,
renamed fields with defaults. The shape makes such a change visible before anything is decoded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection

import msgspec
from msgspec import inspect

from lockstep.declare.rows import Rows
from lockstep.errors import DeclarationError
from lockstep.state.rowtypes import RowsType, rows_types

RecordType = inspect.StructType | inspect.DataclassType | inspect.TypedDictType | inspect.NamedTupleType
_NOT_SAVED = (inspect.CustomType, inspect.ExtType, inspect.RawType, inspect.MemoryViewType)
_CONSTRAINTS = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern", "tz")
_ITEMS = ("item_type", "key_type", "value_type")


class FieldShape(msgspec.Struct, frozen=True, array_like=True):
    """One field of a record type.

    Attributes:
        name: Its name in the encoding.
        shape: Shape of its type.
        default: What stands for it where it is missing, written as text; None when it is required.
    """

    name: str
    shape: Shape
    default: str | None


class Shape(msgspec.Struct, frozen=True, array_like=True):
    """One type.

    Attributes:
        kind: `int`, `list`, `dict`, `union`, `record` (fields by name), `array` (fields by
            position), `outer` (an enclosing record again), and so on.
        detail: Constraints, enum values, tag, or how many records outwards.
        items: Shapes of items, keys and values, or members of a union.
        fields: The fields of a record, in declared order.
    """

    kind: str
    detail: str = ""
    items: tuple[Shape, ...] = ()
    fields: tuple[FieldShape, ...] = ()

    def __str__(self) -> str:
        inner = ", ".join([*map(str, self.items), *(field.name for field in self.fields)])
        return self.kind + (f"({self.detail})" if self.detail else "") + (f"[{inner}]" if inner else "")


def shape_of(state_type: object) -> Shape:
    """The shape of a state type.

    Raises:
        DeclarationError: The type, or a type inside of it, cannot be saved and recovered.
    """
    try:
        tables = {table.name: _rows_shape(table) for table in rows_types(state_type)}
        info = inspect.type_info(state_type)
        if tables and isinstance(info, inspect.CustomType):
            return tables[""]
        shape = _shape(info, (), frozenset(tables))
    except (TypeError, NameError) as error:
        raise _unsaveable(state_type, str(error)) from error
    return msgspec.structs.replace(
        shape,
        fields=tuple(
            msgspec.structs.replace(field, shape=tables.get(field.name, field.shape)) if tables else field
            for field in shape.fields
        ),
    )


def shape_hash(shape: Shape) -> str:
    """A short name of a shape: equal for equal shapes, different for any others."""
    return hashlib.blake2b(msgspec.msgpack.encode(shape), digest_size=16).hexdigest()


def _rows_shape(table: RowsType) -> Shape:
    return Shape("rows", items=(_shape(inspect.type_info(table.key), ()), _shape(inspect.type_info(table.value), ())))


def _shape(info: inspect.Type, outer: tuple[type, ...], tables: Collection[str] = ()) -> Shape:
    """Walk one type; `outer` are the records around it, outermost first, `tables` fields of it that are Rows."""
    if isinstance(info, inspect.Metadata):
        return _shape(info.type, outer)
    if isinstance(info, inspect.CustomType) and info.cls is Rows:
        raise _unsaveable(info, "Rows is the whole state, or a field of the state's own Struct")
    if isinstance(info, _NOT_SAVED):
        raise _unsaveable(info, "msgspec does not encode and decode it by itself")
    if isinstance(info, RecordType):
        return _record(info, outer, tables)
    if isinstance(info, inspect.UnionType):
        members = [_shape(member, outer) for member in info.types]
        return Shape("union", items=tuple(sorted(members, key=msgspec.msgpack.encode)))
    if isinstance(info, inspect.EnumType):
        return Shape("enum", detail=repr(sorted((member.value for member in info.cls), key=repr)))
    if isinstance(info, inspect.LiteralType):
        return Shape("literal", detail=repr(sorted(info.values, key=repr)))
    return Shape(_kind(info), _constraints(info), _items(info, outer))


def _record(info: RecordType, outer: tuple[type, ...], tables: Collection[str] = ()) -> Shape:
    if info.cls in outer:
        return Shape("outer", detail=str(len(outer) - outer.index(info.cls)))
    inside = (*outer, info.cls)
    fields = tuple(
        FieldShape(
            field.encode_name,
            Shape("rows") if field.encode_name in tables else _shape(field.type, inside),
            _default(field),
        )
        for field in info.fields
    )
    by_position = isinstance(info, inspect.NamedTupleType) or getattr(info, "array_like", False)
    return Shape("array" if by_position else "record", _tag(info), fields=fields)


def _tag(info: inspect.Type) -> str:
    tag = getattr(info, "tag", None)
    return "" if tag is None else f"{getattr(info, 'tag_field', None)}={tag!r}"


def _default(field: inspect.Field) -> str | None:
    if field.default_factory is not msgspec.NODEFAULT:
        return f"{getattr(field.default_factory, '__qualname__', repr(field.default_factory))}()"
    if field.default is not msgspec.NODEFAULT:
        return repr(field.default)
    return None if field.required else "left out"


def _items(info: inspect.Type, outer: tuple[type, ...]) -> tuple[Shape, ...]:
    if isinstance(info, inspect.TupleType):
        return tuple(_shape(item, outer) for item in info.item_types)
    return tuple(_shape(getattr(info, name), outer) for name in _ITEMS if hasattr(info, name))


def _constraints(info: inspect.Type) -> str:
    given = ((name, getattr(info, name, None)) for name in _CONSTRAINTS)
    return ", ".join(f"{name}={value!r}" for name, value in given if value is not None)


def _kind(info: inspect.Type) -> str:
    return type(info).__name__.removesuffix("Type").lower()


def _unsaveable(found: object, reason: str) -> DeclarationError:
    return DeclarationError(
        "Transform[Message, State, Row]: the state type",
        found,
        f"cannot be saved and recovered: {reason}",
        "use types that msgspec encodes: Structs, lists, dicts, numbers, strings, dates, Decimal, enums",
    )
