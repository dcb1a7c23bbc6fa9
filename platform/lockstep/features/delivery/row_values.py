"""The values of messages: JSON, or Avro behind the id of its schema (Confluent's wire format)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Decimal
from functools import partial
from io import BytesIO
from typing import Any, Final, Protocol

import msgspec
import pyarrow as pa

from lockstep.declare.row_schema import make_avro_schema
from lockstep.features.delivery.value_checks import check_int32
from lockstep.model.columns import Column, ColumnKind, ColumnType, make_columns

UNENCODABLE: Final = (AttributeError, OverflowError, TypeError, ValueError)
"""An encoder raises these for a value that its format cannot hold."""
_MAGIC_BYTE: Final = b"\x00"
_ID_BYTES: Final = 4

Convert = Callable[[Any], Any]


class ValueEncoder(Protocol):
    """Encodes the values of messages in one format."""

    format: str

    def encode(self, value: Any) -> bytes:
        """Encode a value. Raises one of UNENCODABLE."""
        ...

    def encode_lines(self, values: Sequence[msgspec.Struct]) -> Sequence[bytes]:
        """Encode values in one call, or return another number of them. Raises one of UNENCODABLE."""
        ...

    def clear_id(self, message: bytes) -> bytes:
        """A message whose id of a schema is 0, so that messages are equal if their values are."""
        ...


class JsonValues:
    """Values as JSON."""

    format = "JSON"

    def __init__(self) -> None:
        self._encoder = msgspec.json.Encoder()

    def encode(self, value: Any) -> bytes:
        """Encode a value."""
        return self._encoder.encode(value)

    def encode_lines(self, values: Sequence[msgspec.Struct]) -> Sequence[bytes]:
        """Encode values in a third of the time; a value with a line feed has two lines."""
        return self._encoder.encode_lines(values).splitlines()

    def clear_id(self, message: bytes) -> bytes:
        """The whole message."""
        return message


class AvroValues:
    """Values as Avro."""

    format = "Avro"

    def __init__(self, value: type[msgspec.Struct], schema_id: int) -> None:
        """Encode nothing yet.

        Args:
            value: Type of the values.
            schema_id: Id of its schema in the registry.
        """
        from fastavro import parse_schema, schemaless_writer

        self._write = schemaless_writer
        self._schema = parse_schema(make_avro_schema(value))
        self._frame = _MAGIC_BYTE + schema_id.to_bytes(_ID_BYTES, "big")
        self._convert = _make_record_converter(value, make_columns(value))

    def encode(self, value: Any) -> bytes:
        """Encode a value. Raises one of UNENCODABLE, such as for a Decimal with more places than its field."""
        message = BytesIO()
        message.write(self._frame)
        self._write(message, self._schema, self._convert(value))
        return message.getvalue()

    def encode_lines(self, values: Sequence[msgspec.Struct]) -> Sequence[bytes]:
        """Encode values, each by itself."""
        return list(map(self.encode, values))

    def clear_id(self, message: bytes) -> bytes:
        """A message with the id 0: a registry that was restored may have assigned another id to its schema."""
        if not message.startswith(_MAGIC_BYTE):
            return message
        return _MAGIC_BYTE + bytes(_ID_BYTES) + message[len(self._frame) :]


def _make_record_converter(kind: type[Any], columns: Sequence[Column]) -> Convert:
    """Make the fields of a Struct values of Avro's types; subclasses are refused: they have further fields."""
    converters = [(column.name, _make_converter(column.type)) for column in columns]

    def convert(value: Any) -> dict[str, Any]:
        _check_type(value, kind)
        return {name: convert_field(getattr(value, name)) for name, convert_field in converters}

    return convert


def _make_converter(column: ColumnType) -> Convert:
    """Make the conversion of a value that is checked: fastavro writes some values of other types without an error."""
    convert = _make_required_converter(column)
    if not column.nullable:
        return convert
    return lambda value: None if value is None else convert(value)


def _make_required_converter(column: ColumnType) -> Convert:
    """Of a value that is not None."""
    kind = column.kind
    if kind is ColumnKind.STRUCT and column.python is not None:
        return _make_record_converter(column.python, column.children)
    if kind is ColumnKind.ENUM and column.python is not None:
        return partial(_read_member, column.python)
    if kind is ColumnKind.LIST:
        return partial(_convert_list, _make_converter(column.children[0].type))
    if kind is ColumnKind.MAP:
        return partial(_convert_map, _make_converter(column.children[0].type))
    return _make_number_converter(column)


def _make_number_converter(column: ColumnType) -> Convert:
    """Of a Decimal or a small integer; the other types have one check each."""
    if column.kind is ColumnKind.DECIMAL:
        arrow: Any = column.arrow
        return partial(_check_decimal, arrow.precision, arrow.scale)
    return _check_small if column.arrow == pa.int32() else _CHECKS[column.kind]


def _check_type(value: Any, kind: type[Any]) -> Any:
    """Refuse a value of another type, also of a subclass: a bool is not an int, a datetime is not a date."""
    if type(value) is not kind:
        raise TypeError(f"it is of the type {type(value).__name__}, not {kind.__name__}")
    return value


def _check_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"it is of the type {type(value).__name__}, not str")
    return value


def _check_small(value: Any) -> int:
    return check_int32(_check_type(value, int))


def _check_float(value: Any) -> float:
    """Take an integer if a float is equal to it."""
    if type(value) is int and float(value) == value:
        return float(value)
    return float(_check_type(value, float))


def _check_time(value: Any) -> datetime:
    """Refuse a time without a zone: it would be read in the zone of the machine."""
    if _check_type(value, datetime).tzinfo is None:
        raise ValueError(f"{value} has no time zone")
    return value  # type: ignore[no-any-return]  # checked


def _check_decimal(precision: int, scale: int, value: Any) -> Decimal:
    """Refuse a Decimal with more digits than the field, in front of the point or behind it."""
    exponent = _check_type(value, Decimal).as_tuple().exponent
    if not isinstance(exponent, int) or -exponent > scale or (value and value.adjusted() >= precision - scale):
        raise ValueError(f"{value} is not a decimal of {precision} digits, {scale} of them behind the point")
    return value  # type: ignore[no-any-return]  # checked


_CHECKS: Final[dict[ColumnKind, Convert]] = {
    ColumnKind.STRING: _check_text,
    ColumnKind.BINARY: partial(_check_type, kind=bytes),
    ColumnKind.BOOLEAN: partial(_check_type, kind=bool),
    ColumnKind.INTEGER: partial(_check_type, kind=int),
    ColumnKind.FLOAT: _check_float,
    ColumnKind.TIMESTAMP: _check_time,
    ColumnKind.DATE: partial(_check_type, kind=date),
}


def _read_member(kind: type[Any], member: Any) -> Any:
    return _check_type(member, kind).value


def _convert_list(convert: Convert, values: Any) -> list[Any]:
    """Convert the elements. To fastavro a tuple inside of a union is a branch and its value."""
    if not isinstance(values, list | tuple):
        raise TypeError(f"it is of the type {type(values).__name__}, not list or tuple")
    return [convert(element) for element in values]


def _convert_map(convert: Convert, values: Any) -> dict[str, Any]:
    return {_check_text(key): convert(element) for key, element in _check_type(values, dict).items()}
