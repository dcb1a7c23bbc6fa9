"""The Avro schema of delivered rows.

| field | Avro |
|---|---|
| str, Enum and Literal of texts | string |
| bytes | bytes |
| bool | boolean |
| int; Annotated[int, IntegerType(32)]; Enum and Literal of integers | long; int; long |
| float | double |
| Decimal of a precision and scale | bytes, decimal(precision, scale) |
| datetime, date | long, timestamp-micros in UTC; int, date |
| Struct, list or tuple, dict of texts | record, array, map |
| X or None | union of null and X, with the default null |

An Enum is a string: readers of an earlier schema read a new member.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from lockstep.errors import DeclarationError

if TYPE_CHECKING:
    from lockstep.model.columns import Column, ColumnType

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""A name by Avro's specification."""
_SIMPLE: Final = {
    "string": "string",
    "binary": "bytes",
    "boolean": "boolean",
    "float": "double",
    "timestamp": {"type": "long", "logicalType": "timestamp-micros"},
    "date": {"type": "int", "logicalType": "date"},
}


def make_avro_schema(value: type[msgspec.Struct]) -> dict[str, Any]:
    """Make the Avro schema of a Struct: a record with its name and fields, as Avro's JSON has it.

    Raises:
        DeclarationError: A field has a name or a type that Avro or a table cannot have, or two Structs have one name.
    """
    from lockstep.model.columns import make_columns  # declarations load without pyarrow

    schema: dict[str, Any] = _SchemaMaker().make_record(value, make_columns(value))
    return schema


class _SchemaMaker:
    """Makes one schema. A record that occurs again is only named."""

    def __init__(self) -> None:
        self._records = dict[str, type[msgspec.Struct]]()

    def make_record(self, struct: type[msgspec.Struct], columns: Sequence[Column]) -> Any:
        name = struct.__name__
        _check_name(name, name, "a subclass with such a name")
        earlier = self._records.get(name)
        if earlier is struct:
            return name
        if earlier is not None:
            problem = f"is the name of two Structs, in {earlier.__module__} and {struct.__module__}"
            raise DeclarationError(name, name, problem, "two names: an Avro schema has each name once")
        self._records[name] = struct
        return {"type": "record", "name": name, "fields": [self._make_field(struct, column) for column in columns]}

    def _make_field(self, struct: type[msgspec.Struct], column: Column) -> dict[str, Any]:
        _check_name(f"{struct.__name__}.{column.name}", column.name, "rename the field")
        field = {"name": column.name, "type": self._make_type(column.type)}
        if column.type.nullable:
            return field | {"default": None}
        default = _find_default(struct, column)
        return field if default is msgspec.NODEFAULT else field | {"default": default}

    def _make_type(self, column: ColumnType) -> Any:
        schema = self._make_required(column)
        return ["null", schema] if column.nullable else schema

    def _make_required(self, column: ColumnType) -> Any:
        kind = column.kind.value
        if column.python is not None and kind == "struct":
            return self.make_record(column.python, column.children)
        if kind == "list":
            return {"type": "array", "items": self._make_type(column.children[0].type)}
        if kind == "map":
            return {"type": "map", "values": self._make_type(column.children[0].type)}
        if kind == "decimal":
            arrow: Any = column.arrow
            return {"type": "bytes", "logicalType": "decimal", "precision": arrow.precision, "scale": arrow.scale}
        return _SIMPLE.get(kind) or _NUMBERS[str(column.arrow)]


_NUMBERS: Final = {"string": "string", "int32": "int", "int64": "long"}
"""Of integers and enums, by the type of their column."""
_BITS: Final = {"int32": 32, "int64": 64}


def _check_name(place: str, name: str, right: str) -> None:
    if not _NAME.fullmatch(name):
        problem = "is not a name in Avro: letters, digits and underscores, without a digit in front"
        raise DeclarationError(place, name, problem, right)


_DEFAULTS: Final[dict[str, type[Any]]] = {"string": str, "boolean": bool, "float": float, "int32": int, "int64": int}
"""Types of defaults that JSON has as they are, by kind or type of the column."""


def _find_default(struct: type[msgspec.Struct], column: Column) -> Any:
    """The default of a field if it is of its type, and Avro's JSON has it: earlier messages lack a new field."""
    (field,) = (each for each in msgspec.structs.fields(struct) if each.name == column.name)
    kind = column.type.kind.value
    default = field.default
    if kind == "list" and (field.default_factory is list or default == ()):
        return []
    if kind == "map" and field.default_factory is dict:
        return {}
    if kind == "enum" and type(default) is column.type.python:
        default = default.value
    arrow = str(column.type.arrow)
    is_of_field = type(default) is _DEFAULTS.get(arrow, _DEFAULTS.get(kind))
    if is_of_field and isinstance(default, float):
        is_of_field = math.isfinite(default)
    if is_of_field and arrow in _BITS:
        bits = _BITS[arrow] - 1
        is_of_field = -(2**bits) <= default < 2**bits
    return default if is_of_field else msgspec.NODEFAULT
