"""Maps Python types to column types; a type without a mapping is refused by name when a row type is declared.

Only types whose values round-trip through Delta unchanged have a mapping. Ambiguous types (a
Decimal without a scale, a set without an order, a union of types) are refused with the alternative.
"""

from __future__ import annotations

import enum
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, Final, Literal, NewType, NoReturn, TypeVar, Union, get_args, get_origin

import msgspec
import pyarrow as pa
from msgspec.structs import fields

from lockstep.errors import DeclarationError
from lockstep.model.column_types import MAX_PRECISION, DecimalType, IntegerType

MAPPED: Final = (
    "str, bytes, bool, int, float, Annotated[Decimal, DecimalType(precision, scale)], datetime, date, "
    "an Enum or Literal of strings or of integers, another Struct, list[X], tuple[X, ...], dict[str, X], "
    "and X | None of these"
)
_REFUSED_IN_NAMES: Final = frozenset(" ,;{}()\n\t=")
_INSTEAD: Final[dict[object, str]] = {
    Any: "name the type the column holds",
    object: "name the type the column holds",
    list: "name its parts: list[X]",
    tuple: "name its parts: tuple[X, ...]",
    dict: "name its parts: dict[str, X]",
    set: "use list[X] with a fixed order: a set has none, and a replayed row must be the same",
    frozenset: "use list[X] with a fixed order: a set has none, and a replayed row must be the same",
}


class ColumnKind(enum.Enum):
    """How values of a column are checked and converted."""

    STRING = "string"
    BINARY = "binary"
    BOOLEAN = "boolean"
    INTEGER = "integer"
    FLOAT = "float"
    DECIMAL = "decimal"
    TIMESTAMP = "timestamp"
    DATE = "date"
    ENUM = "enum"
    STRUCT = "struct"
    LIST = "list"
    MAP = "map"


@dataclass(frozen=True, slots=True)
class ColumnType:
    """The column that a Python type becomes.

    Attributes:
        kind: How its values are checked and converted.
        arrow: Its Arrow type.
        nullable: Whether None is a value.
        python: The Enum or Struct class; None for the other kinds.
        children: Fields of a struct; the one element type of a list or map.
    """

    kind: ColumnKind
    arrow: pa.DataType
    nullable: bool = False
    python: type[Any] | None = None
    children: tuple[Column, ...] = ()


@dataclass(frozen=True, slots=True)
class Column:
    """A named column, or a named field of a nested struct."""

    name: str
    type: ColumnType

    def field(self) -> pa.Field[Any]:
        """The Arrow field of this column."""
        return pa.field(self.name, self.type.arrow, nullable=self.type.nullable)

    def inner_field(self) -> pa.Field[Any]:
        """The Arrow field inside a struct or list. It is always nullable.

        If a whole struct is null its fields are null too, and Spark's conversion to Arrow refuses
        that for fields that are not nullable. None in a field that is not optional is refused when
        rows are built.
        """
        return pa.field(self.name, self.type.arrow)


_SCALARS: Final[Mapping[object, ColumnType]] = {
    str: ColumnType(ColumnKind.STRING, pa.string()),
    bytes: ColumnType(ColumnKind.BINARY, pa.binary()),
    bool: ColumnType(ColumnKind.BOOLEAN, pa.bool_()),
    float: ColumnType(ColumnKind.FLOAT, pa.float64()),
    datetime: ColumnType(ColumnKind.TIMESTAMP, pa.timestamp("us", tz="UTC")),
    date: ColumnType(ColumnKind.DATE, pa.date32()),
}


def make_columns(row_type: type[msgspec.Struct]) -> tuple[Column, ...]:
    """The columns of a row type, in the order of its fields.

    Raises:
        DeclarationError: A field has a name or a type that no column can have.
    """
    return _struct_columns(row_type, row_type.__name__, ())


_INTEGERS: Final[Mapping[int, pa.DataType]] = {32: pa.int32(), 64: pa.int64()}


@dataclass(frozen=True, slots=True)
class _Place:
    """A place in the row type: dotted path, enclosing structs, markers."""

    path: str
    parents: tuple[type, ...]
    markers: tuple[object, ...] = ()

    def error(self, value: object, problem: str, instead: str | None = None) -> DeclarationError:
        return DeclarationError(self.path, value, problem, instead or f"use one of: {MAPPED}")


_Mapping = Callable[[Any, _Place], ColumnType]


def _struct_columns(struct: type[msgspec.Struct], path: str, parents: tuple[type, ...]) -> tuple[Column, ...]:
    place = _Place(path, parents)
    if struct in parents:
        raise place.error(struct, "is recursive, so it has no fixed columns", "keep the inner value as encoded bytes")
    try:
        declared = fields(struct)
    except NameError as unknown:
        problem = f"has an annotation that cannot be resolved: {unknown}"
        raise place.error(struct, problem, "define the type at module level") from unknown
    if not declared:
        raise place.error(struct, "has no fields", "declare at least one field: an empty struct cannot be a column")
    _check_names([field.name for field in declared], path)
    inner = (*parents, struct)
    return tuple(Column(f.name, _column_type(f.type, _Place(f"{path}.{f.name}", inner))) for f in declared)


def _check_names(names: list[str], path: str) -> None:
    seen: dict[str, str] = {}
    for name in names:
        place = _Place(f"{path}.{name}", ())
        refused = sorted(set(name) & _REFUSED_IN_NAMES)
        if refused:
            problem = f"Delta allows no {refused} in a column's name"
            raise place.error(name, problem, "use letters, digits and underscores")
        other = seen.setdefault(name.lower(), name)
        if other != name:
            problem = f"Delta cannot tell it from the column {other!r}: case does not count"
            raise place.error(name, problem, "rename one")


def _column_type(annotation: object, place: _Place) -> ColumnType:
    annotation, place = _unwrapped(annotation, place)
    if get_origin(annotation) not in {Union, types.UnionType}:
        _check_markers(annotation, place)
    return _mapping(annotation)(annotation, place)


_MARKED: Final[Mapping[type, tuple[type, str]]] = {
    DecimalType: (Decimal, "Annotated[Decimal, DecimalType(18, 8)]"),
    IntegerType: (int, "Annotated[int, IntegerType(32)]"),
}


def _check_markers(annotation: object, place: _Place) -> None:
    """Refuse annotations of a type that do not describe its column."""
    for marker in place.markers:
        is_class = isinstance(marker, type)
        kind = marker if isinstance(marker, type) else type(marker)
        marked, example = _MARKED.get(kind, (None, ""))
        if marked is not None and (is_class or annotation is not marked):
            problem = "is a class and no value of it" if is_class else f"is for {marked.__name__} alone"
            raise place.error(marker, f"{problem}, next to {annotation}", f"for example {example}")


def _mapping(annotation: object) -> _Mapping:
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return _struct
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return _enum
    return _MAPPINGS.get(get_origin(annotation) or annotation, _unmapped)


def _unmapped(annotation: object, place: _Place) -> NoReturn:
    instead = _INSTEAD.get(get_origin(annotation) or annotation)
    raise place.error(annotation, "has no column type", instead)


def _unwrapped(annotation: object, place: _Place) -> tuple[object, _Place]:
    """Unwrap NewType, type aliases and Annotated, keeping the markers of the latter."""
    while True:
        if isinstance(annotation, NewType):
            annotation = annotation.__supertype__
        elif hasattr(annotation, "__value__"):  # a `type X = ...` statement of Python 3.12
            annotation = annotation.__value__
        elif get_origin(annotation) is Annotated:
            annotation, *markers = get_args(annotation)
            place = replace(place, markers=(*place.markers, *markers))
        else:
            return annotation, place


def _optional(annotation: object, place: _Place) -> ColumnType:
    inner = [member for member in get_args(annotation) if member is not types.NoneType]
    if len(inner) != 1:
        raise place.error(annotation, "is a union of several types, a column has one", "split it into optional columns")
    return replace(_column_type(inner[0], place), nullable=True)


def _scalar(annotation: object, place: _Place) -> ColumnType:
    if any(isinstance(marker, msgspec.Meta) and marker.tz is False for marker in place.markers):
        raise place.error(annotation, "asks for times without a zone", "use aware datetimes: the table holds UTC")
    return _SCALARS[annotation]


def _integer(_: object, place: _Place) -> ColumnType:
    bits = _marker(place, IntegerType, IntegerType(64)).bits
    if bits not in _INTEGERS:
        raise place.error(bits, "an integer column has 32 or 64 bits", "use int or Int32")
    return ColumnType(ColumnKind.INTEGER, _INTEGERS[bits])


def _decimal(annotation: object, place: _Place) -> ColumnType:
    marker = _marker(place, DecimalType, None)
    if marker is None:
        raise place.error(annotation, "needs its precision and scale", "write Annotated[Decimal, DecimalType(18, 8)]")
    if not (1 <= marker.precision <= MAX_PRECISION and 0 <= marker.scale <= marker.precision):
        raise place.error(marker, "no table holds it", f"precision 1 to {MAX_PRECISION}, scale 0 to precision")
    return ColumnType(ColumnKind.DECIMAL, pa.decimal128(marker.precision, marker.scale))


Marker = TypeVar("Marker", DecimalType, IntegerType)
Default = TypeVar("Default")


def _marker(place: _Place, kind: type[Marker], default: Default) -> Marker | Default:
    return next((marker for marker in reversed(place.markers) if isinstance(marker, kind)), default)


def _struct(annotation: type[msgspec.Struct], place: _Place) -> ColumnType:
    inner = _struct_columns(annotation, place.path, place.parents)
    arrow = pa.struct([column.inner_field() for column in inner])
    return ColumnType(ColumnKind.STRUCT, arrow, python=annotation, children=inner)


def _enum(annotation: type[enum.Enum], place: _Place) -> ColumnType:
    column = _of_values([member.value for member in annotation], annotation, place)
    return replace(column, python=annotation)


def _of_values(values: list[object], annotation: object, place: _Place) -> ColumnType:
    """The column of an Enum or Literal: all its values are of one type."""
    kinds = {type(value) for value in values}
    if values and all(isinstance(value, str) for value in values):
        return ColumnType(ColumnKind.ENUM, pa.string())
    if values and all(isinstance(value, int) for value in values) and bool not in kinds:
        return ColumnType(ColumnKind.ENUM, pa.int64())
    names = ", ".join(sorted(kind.__name__ for kind in kinds)) or "none"
    raise place.error(annotation, f"has values of these types: {names}", "use strings only or integers only")


def _literal(annotation: object, place: _Place) -> ColumnType:
    values = [value for value in get_args(annotation) if value is not None]
    column = _of_values(values, annotation, place)
    kind = ColumnKind.STRING if column.arrow == pa.string() else ColumnKind.INTEGER
    return replace(column, kind=kind, nullable=len(values) < len(get_args(annotation)))


def _list(annotation: object, place: _Place) -> ColumnType:
    inner = get_args(annotation)
    if not inner:
        return _unmapped(annotation, place)
    if get_origin(annotation) is tuple and inner[1:] != (Ellipsis,):
        raise place.error(annotation, "has a type for each position", "use a nested Struct, or tuple[X, ...]")
    element = Column("element", _column_type(inner[0], _Place(f"{place.path}[]", place.parents)))
    return ColumnType(ColumnKind.LIST, pa.list_(element.inner_field()), children=(element,))


def _map(annotation: object, place: _Place) -> ColumnType:
    if not get_args(annotation):
        return _unmapped(annotation, place)
    key, value = get_args(annotation)
    if _unwrapped(key, place)[0] is not str:
        raise place.error(annotation, "has keys that are not str", "use dict[str, X], or a list of a nested Struct")
    item = Column("value", _column_type(value, _Place(f"{place.path}{{}}", place.parents)))
    return ColumnType(ColumnKind.MAP, pa.map_(pa.string(), item.type.arrow), children=(item,))


_MAPPINGS: Final[Mapping[object, _Mapping]] = {
    **dict.fromkeys(_SCALARS, _scalar),
    int: _integer,
    Decimal: _decimal,
    Union: _optional,
    types.UnionType: _optional,
    Literal: _literal,
    list: _list,
    tuple: _list,
    dict: _map,
}
