"""The values of messages: JSON, or Avro behind the id of its schema (Confluent's wire format)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

        self._kind = value
        self._write = schemaless_writer
        self._schema = parse_schema(make_avro_schema(value))
        self._frame = _MAGIC_BYTE + schema_id.to_bytes(4, "big")
        self._convert = _make_record_converter(make_columns(value))

    def encode(self, value: Any) -> bytes:
        """Encode a value. Raises one of UNENCODABLE, such as for a Decimal with more places than its field."""
        if type(value) is not self._kind:
            raise TypeError(f"it is of the type {type(value).__name__}, and the schema of {self._kind.__name__}")
        message = BytesIO()
        message.write(self._frame)
        self._write(message, self._schema, self._convert(value))
        return message.getvalue()

    def encode_lines(self, values: Sequence[msgspec.Struct]) -> Sequence[bytes]:
        """Encode values, each by itself."""
        return list(map(self.encode, values))


def _make_record_converter(columns: Sequence[Column]) -> Convert:
    """Make the fields of a Struct values of Avro's types."""
    names = [column.name for column in columns]
    converters = dict[str, Convert]()
    for column in columns:
        convert = _find_converter(column.type)
        if convert is not None:
            converters[column.name] = convert

    def convert_record(value: Any) -> dict[str, Any]:
        fields = {name: getattr(value, name) for name in names}
        for name, convert_field in converters.items():
            if fields[name] is not None:
                fields[name] = convert_field(fields[name])
        return fields

    return convert_record


def _find_converter(column: ColumnType) -> Convert | None:
    """The conversion of a value that is not None; None if fastavro takes the value as it is."""
    if column.kind is ColumnKind.ENUM:
        return _read_member
    if column.kind is ColumnKind.STRUCT:
        return _make_record_converter(column.children)
    if column.kind is ColumnKind.LIST:
        return _make_list_converter(_find_converter(column.children[0].type))
    if column.kind is ColumnKind.MAP:
        return _make_map_converter(_find_converter(column.children[0].type))
    return check_int32 if column.arrow == pa.int32() else None


def _read_member(member: Any) -> Any:
    return member.value


def _make_list_converter(convert: Convert | None) -> Convert | None:
    """Convert the elements that are not None."""
    if convert is None:
        return None

    def convert_list(values: Any) -> list[Any]:
        return [None if element is None else convert(element) for element in values]

    return convert_list


def _make_map_converter(convert: Convert | None) -> Convert | None:
    """Convert the values that are not None."""
    if convert is None:
        return None

    def convert_map(values: Any) -> dict[str, Any]:
        return {key: None if element is None else convert(element) for key, element in values.items()}

    return convert_map
