"""Schema of a state type, untyped view of old state.

msgpack silently decodes values written for another type: swapped fields of one type, renamed fields
with defaults. The schema makes such a change visible before anything is decoded.

Types that msgpack carries as text stay text (Decimal, date, UUID); enums are their values. A field with a default
may be missing in values stored before the field existed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from typing import cast, get_args, get_origin

import msgspec
from msgspec import inspect

from lockstep.errors import DeclarationError
from lockstep.model.map_state import TableState, is_table_type

_VALUES = (
    *(inspect.NoneType, inspect.BoolType, inspect.IntType, inspect.FloatType, inspect.StrType, inspect.BytesType),
    *(inspect.DateTimeType, inspect.DateType, inspect.TimeType, inspect.TimeDeltaType, inspect.UUIDType),
    *(inspect.DecimalType, inspect.EnumType, inspect.LiteralType),
)
_KEYS = (inspect.IntType, inspect.StrType, inspect.BytesType, inspect.EnumType, inspect.LiteralType)
_NUMBERS = (inspect.FloatType, inspect.DecimalType)


class RowsType(msgspec.Struct, frozen=True):
    """One table in a state.

    Attributes:
        attribute: The field of the state's Struct; empty if the state is the table.
        name: The field's name in the encoding.
        key: Type of its keys.
        value: Type of its rows.
        has_mutable_rows: A row can be changed in place.
        has_number_keys: Equal keys may have several spellings.
    """

    attribute: str
    name: str
    key: object
    value: object
    has_mutable_rows: bool = False
    has_number_keys: bool = False


def find_map_types(state_type: object) -> tuple[RowsType, ...]:
    """The tables of a state type, by field.

    Raises:
        DeclarationError: Keys or rows are of a type that cannot be saved row by row.
    """
    if get_origin(state_type) is TableState:
        return (_table_type(state_type),)
    if is_table_type(state_type):
        return (_rows_type("", "", state_type),)
    struct = get_origin(state_type) or state_type
    if not (isinstance(struct, type) and issubclass(struct, msgspec.Struct)):
        return ()
    fields = msgspec.structs.fields(cast("type[msgspec.Struct]", state_type))
    return tuple(_rows_type(field.name, field.encode_name, field.type) for field in fields if is_table_type(field.type))


def _rows_type(attribute: str, name: str, annotation: object) -> RowsType:
    arguments = get_args(annotation)
    if len(arguments) != 2:  # noqa: PLR2004  # a key and a row
        raise _refused(annotation, "does not declare its types", "write MapState[K, V]")
    key, value = arguments
    if not _is_key(inspect.type_info(key)):
        instead = "use str, int, bytes, an enum, or a tuple; of a number the text of DecimalType.canonical"
        raise _refused(annotation, f"its key {key} has no single encoding", instead)
    if not _is_frozen(inspect.type_info(value), ()):
        problem = f"its row {value} can be changed in place, and such a change would be lost"
        raise _refused(annotation, problem, "make it a Struct with frozen=True, lists in it tuple[X, ...]")
    return RowsType(attribute, name, key, value)


def find_table_type(state_type: object) -> object:
    """The type of a dict that is stored row by row; the type itself if its keys have no single encoding."""
    if get_origin(state_type) is not dict:
        return state_type
    key, value = get_args(state_type)
    if not _is_key(inspect.type_info(key), (*_KEYS, *_NUMBERS)):
        return state_type
    return TableState[key, value]  # type: ignore[valid-type]  # made at run time


def _table_type(annotation: object) -> RowsType:
    """The rows of a ready fold: a row may be changed in place, and keys may be numbers."""
    key, value = get_args(annotation)
    is_frozen = _is_frozen(inspect.type_info(value), ())
    is_exact = _is_key(inspect.type_info(key))
    return RowsType("", "", key, value, has_mutable_rows=not is_frozen, has_number_keys=not is_exact)


def _is_key(info: inspect.Type, kinds: tuple[type[inspect.Type], ...] = _KEYS) -> bool:
    if isinstance(info, inspect.Metadata):
        return _is_key(info.type, kinds)
    if isinstance(info, inspect.TupleType):
        return all(_is_key(item, kinds) for item in info.item_types)
    return isinstance(info, kinds)


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


RecordType = inspect.StructType | inspect.NamedTupleType
_CONSTRAINTS = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern", "tz")
_ITEMS = ("item_type", "key_type", "value_type")


class FieldSchema(msgspec.Struct, frozen=True, array_like=True):
    """One field of a record type.

    Attributes:
        name: Its name in the encoding.
        shape: Shape of its type.
        default: Its value if it is missing, as text; None when it is required.
    """

    name: str
    shape: StateTypeSchema
    default: str | None


class StateTypeSchema(msgspec.Struct, frozen=True, array_like=True):
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
    items: tuple[StateTypeSchema, ...] = ()
    fields: tuple[FieldSchema, ...] = ()

    def __str__(self) -> str:
        text = self.kind
        if self.detail:
            text += f"({self.detail})"
        inner = ", ".join([*map(str, self.items), *(field.name for field in self.fields)])
        if inner:
            text += f"[{inner}]"
        return text


def make_type_schema(state_type: object) -> StateTypeSchema:
    """The schema of a state type.

    Raises:
        DeclarationError: The type, or a type inside of it, cannot be saved and recovered.
    """
    try:
        tables = {table.name: _rows_shape(table) for table in find_map_types(state_type)}
        info = inspect.type_info(state_type)
        if tables and isinstance(info, inspect.CustomType):
            return tables[""]
        shape = _shape(info, (), frozenset(tables))
    except (TypeError, NameError) as error:
        raise _unsaveable(state_type, str(error)) from error
    if not tables:
        return shape
    fields = list[FieldSchema]()
    for field in shape.fields:
        fields.append(msgspec.structs.replace(field, shape=tables.get(field.name, field.shape)))
    return msgspec.structs.replace(shape, fields=tuple(fields))


def hash_of_type_schema(shape: StateTypeSchema) -> str:
    """A short name of a schema: equal for equal schemas only."""
    return hashlib.blake2b(msgspec.msgpack.encode(shape), digest_size=16).hexdigest()


def _rows_shape(table: RowsType) -> StateTypeSchema:
    key = _shape(inspect.type_info(table.key), ())
    row = _shape(inspect.type_info(table.value), ())
    return StateTypeSchema("rows", items=(key, row))


def _shape(info: inspect.Type, outer: tuple[type, ...], tables: Collection[str] = ()) -> StateTypeSchema:
    """Walk one type; `outer` are the records around it, outermost first, `tables` fields of it that are Rows."""
    if isinstance(info, inspect.Metadata):
        return _shape(info.type, outer)
    if isinstance(info, inspect.CustomType) and is_table_type(info.cls):
        raise _unsaveable(info, "Rows is the whole state, or a field of the state's own Struct")
    if isinstance(info, RecordType):
        return _record(info, outer, tables)
    if isinstance(info, inspect.UnionType):
        members = [_shape(member, outer) for member in info.types]
        return StateTypeSchema("union", items=tuple(sorted(members, key=msgspec.msgpack.encode)))
    if isinstance(info, inspect.EnumType):
        values = [member.value for member in info.cls]
        return StateTypeSchema("enum", detail=repr(sorted(values, key=repr)))
    if isinstance(info, inspect.LiteralType):
        return StateTypeSchema("literal", detail=repr(sorted(info.values, key=repr)))
    return StateTypeSchema(_kind(info), _constraints(info), _items(info, outer))


def _record(info: RecordType, outer: tuple[type, ...], tables: Collection[str] = ()) -> StateTypeSchema:
    if info.cls in outer:
        return StateTypeSchema("outer", detail=str(len(outer) - outer.index(info.cls)))
    inside = (*outer, info.cls)
    fields = list[FieldSchema]()
    for field in info.fields:
        shape = StateTypeSchema("rows")
        if field.encode_name not in tables:
            shape = _shape(field.type, inside)
        fields.append(FieldSchema(field.encode_name, shape, _default(field)))
    by_position = isinstance(info, inspect.NamedTupleType) or getattr(info, "array_like", False)
    return StateTypeSchema("array" if by_position else "record", _tag(info), fields=tuple(fields))


def _tag(info: inspect.Type) -> str:
    tag = getattr(info, "tag", None)
    if tag is None:
        return ""
    return f"{getattr(info, 'tag_field', None)}={tag!r}"


def _default(field: inspect.Field) -> str | None:
    """The text of a default: the same in every process, so without addresses."""
    factory = field.default_factory
    if factory is not msgspec.NODEFAULT:
        name = getattr(factory, "__qualname__", None)
        if name is None:
            return repr(cast("Callable[[], object]", factory)())
        return f"{name}()"
    if field.default is not msgspec.NODEFAULT:
        return repr(field.default)
    return None if field.required else "left out"


def _items(info: inspect.Type, outer: tuple[type, ...]) -> tuple[StateTypeSchema, ...]:
    if isinstance(info, inspect.TupleType):
        return tuple(_shape(item, outer) for item in info.item_types)
    return tuple(_shape(getattr(info, name), outer) for name in _ITEMS if hasattr(info, name))


def _constraints(info: inspect.Type) -> str:
    values = {name: getattr(info, name, None) for name in _CONSTRAINTS}
    return ", ".join(f"{name}={value!r}" for name, value in values.items() if value is not None)


def _kind(info: inspect.Type) -> str:
    return type(info).__name__.removesuffix("Type").lower()


def _unsaveable(found: object, reason: str) -> DeclarationError:
    return DeclarationError(
        "Transform[Message, State, Row]: the state type",
        found,
        f"cannot be saved and recovered: {reason}",
        "use types that msgspec encodes: Structs, lists, dicts, numbers, strings, dates, Decimal, enums",
    )


_NAMED = ("record", "dict")
_LISTED = ("array", "tuple", "vartuple", "list")


def to_untyped(value: object, shape: StateTypeSchema) -> object:
    """A decoded value with field names: of one schema, as msgpack holds it."""
    return _plain(value, shape, ())


def _plain(value: object, shape: StateTypeSchema, outer: tuple[StateTypeSchema, ...]) -> object:
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


def _of_dict(value: dict[object, object], shape: StateTypeSchema, outer: tuple[StateTypeSchema, ...]) -> object:
    if shape.kind == "record":
        inside = (*outer, shape)
        shapes = {field.name: field.shape for field in shape.fields}
        fields = dict(cast("dict[str, object]", value))
        for name, inner in fields.items():
            if name in shapes:
                fields[name] = _plain(inner, shapes[name], inside)
        return fields
    if len(shape.items) == 2:  # noqa: PLR2004  # a key and a value
        key_shape, item_shape = shape.items
        return {_plain(key, key_shape, outer): _plain(item, item_shape, outer) for key, item in value.items()}
    return value


def _of_list(value: list[object], shape: StateTypeSchema, outer: tuple[StateTypeSchema, ...]) -> object:
    if shape.kind == "array":
        return _of_array(value, shape, (*outer, shape))
    if shape.kind == "tuple":
        return tuple(_plain(item, item_shape, outer) for item, item_shape in zip(value, shape.items, strict=True))
    if not shape.items:
        return list(value)
    return [_plain(item, shape.items[0], outer) for item in value]


def _of_array(value: list[object], shape: StateTypeSchema, inside: tuple[StateTypeSchema, ...]) -> dict[str, object]:
    """Name the fields by position; later fields may be missing at the end of older values."""
    named = dict[str, object]()
    tag, _, tagged = shape.detail.partition("=")
    if tagged:
        named[tag] = value[0]
        value = value[1:]
    for field, item in zip(shape.fields, value, strict=False):
        named[field.name] = _plain(item, field.shape, inside)
    return named


def _member(value: object, members: tuple[StateTypeSchema, ...]) -> StateTypeSchema:
    """The member of a union that a value belongs to: by its tag, else by its structure."""
    kinds: tuple[str, ...] = ()
    if isinstance(value, dict):
        kinds = _NAMED
    elif isinstance(value, list):
        kinds = _LISTED
    candidates = [shape for shape in members if shape.kind != "none"]
    fitting = [shape for shape in candidates if shape.kind in (*kinds, "outer")] or candidates
    return next((shape for shape in fitting if _is_tagged(value, shape)), fitting[0])


def _is_tagged(value: object, shape: StateTypeSchema) -> bool:
    name, _, tag = shape.detail.partition("=")
    if isinstance(value, dict):
        return bool(tag) and repr(value.get(name)) == tag
    return bool(tag) and isinstance(value, list) and bool(value) and repr(value[0]) == tag
