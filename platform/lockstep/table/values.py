"""Checks and converts one value for its column, strictly: the way of doubtful rows and of nested values.

Arrow alone is too obliging: it cuts 1.5 to 1 in an integer column, takes a naive datetime for UTC
and drops the time of a datetime in a date column.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from operator import attrgetter, index
from typing import TYPE_CHECKING, Any, Final

import msgspec

from lockstep.table.columns import Kind

if TYPE_CHECKING:
    from lockstep.table.columns import ColumnType

Convert = Callable[[Any], object]
"""From a value of the user's row to what Arrow takes; raises ValueError that says what is wrong."""


def converter(column: ColumnType) -> Convert:
    """The strict conversion of one value of this column, None included."""
    convert = _NESTED[column.kind](column) if column.kind in _NESTED else _SCALARS[column.kind]
    return _nullable(convert) if column.nullable else _required(convert)


def _nullable(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _required(convert: Convert) -> Convert:
    def required(value: Any) -> object:
        if value is None:
            raise ValueError("None in a column that is not optional")
        return convert(value)

    return required


def _wrong(value: object, wanted: str) -> ValueError:
    return ValueError(f"is of type {type(value).__name__}, not {wanted}")


def _of(kinds: type | tuple[type, ...], wanted: str) -> Convert:
    def check(value: Any) -> object:
        if not isinstance(value, kinds):
            raise _wrong(value, wanted)
        return value

    return check


def _integer(value: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise _wrong(value, "int")
    return index(value)


def _float(value: Any) -> object:
    if isinstance(value, bool) or not isinstance(value, (float, int)):
        raise _wrong(value, "float")
    return value


def _timestamp(value: Any) -> datetime:
    if not isinstance(value, datetime):
        raise _wrong(value, "datetime")
    if value.utcoffset() is None:
        raise ValueError("is a datetime without a zone; the table holds UTC, so say which zone it is in")
    return value


def _date(value: Any) -> date:
    if isinstance(value, datetime) or not isinstance(value, date):
        raise _wrong(value, "date")
    return value


def _enum(column: ColumnType) -> Convert:
    wanted = column.python
    if wanted is None:  # pragma: no cover  the mapping sets it for every enum
        raise TypeError("an enum column without its class")
    check = _of(wanted, wanted.__name__)
    value_of = attrgetter("value")
    return lambda value: value_of(check(value))


def _struct(column: ColumnType) -> Convert:
    fields = [(child.name, attrgetter(child.name), converter(child.type)) for child in column.children]
    check = _of(column.python or msgspec.Struct, getattr(column.python, "__name__", "Struct"))

    def convert(value: Any) -> object:
        check(value)
        return tuple(_inside(f".{name}", each, read(value)) for name, read, each in fields)

    return convert


def _list(column: ColumnType) -> Convert:
    each = converter(column.children[0].type)
    check = _of((list, tuple), "list or tuple")

    def convert(values: Any) -> object:
        check(values)
        return [_inside(f"[{position}]", each, value) for position, value in enumerate(values)]

    return convert


def _map(column: ColumnType) -> Convert:
    each = converter(column.children[0].type)
    check, check_key = _of(dict, "dict"), _of(str, "str")

    def convert(values: Any) -> object:
        check(values)
        return [(check_key(key), _inside(f"[{key!r}]", each, value)) for key, value in values.items()]

    return convert


def _inside(where: str, convert: Convert, value: object) -> object:
    """Convert a nested value; an error says where inside the column it is."""
    try:
        return convert(value)
    except ValueError as wrong:
        text = str(wrong)
        raise ValueError(where + (text if text[:1] in ".[" else f": {text}")) from None


_SCALARS: Final[dict[Kind, Convert]] = {
    Kind.STRING: _of(str, "str"),
    Kind.BINARY: _of((bytes, bytearray, memoryview), "bytes"),
    Kind.BOOLEAN: _of(bool, "bool"),
    Kind.INTEGER: _integer,
    Kind.FLOAT: _float,
    Kind.DECIMAL: _of(Decimal, "Decimal"),
    Kind.TIMESTAMP: _timestamp,
    Kind.DATE: _date,
}
_NESTED: Final[dict[Kind, Callable[[ColumnType], Convert]]] = {
    Kind.ENUM: _enum,
    Kind.STRUCT: _struct,
    Kind.LIST: _list,
    Kind.MAP: _map,
}
