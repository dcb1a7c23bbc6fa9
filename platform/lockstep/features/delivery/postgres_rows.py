"""The columns of a delivered row in Postgres, and its values as COPY takes them.

| field | column |
|---|---|
| str, Enum and Literal of texts | text |
| bytes | bytea |
| bool | boolean |
| int; Annotated[int, IntegerType(32)]; Enum and Literal of integers | bigint; integer; bigint |
| float | double precision |
| Decimal of a precision and scale | numeric(precision, scale) |
| datetime, date | timestamp with time zone, date |
| Struct, list, tuple, dict | jsonb |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from operator import attrgetter
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
from psycopg.types.json import Jsonb

from lockstep.declare.delivery_target import DeliveredRow
from lockstep.features.delivery.value_checks import check_int32
from lockstep.model.columns import Column, ColumnKind
from lockstep.model.table_schema import make_row_columns

_encode_json: Final = msgspec.json.Encoder(decimal_format="number").encode
_TYPES: Final = {
    ColumnKind.STRING: "text",
    ColumnKind.BINARY: "bytea",
    ColumnKind.BOOLEAN: "boolean",
    ColumnKind.FLOAT: "double precision",
    ColumnKind.TIMESTAMP: "timestamp with time zone",
    ColumnKind.DATE: "date",
    ColumnKind.STRUCT: "jsonb",
    ColumnKind.LIST: "jsonb",
    ColumnKind.MAP: "jsonb",
}
_COPIED: Final = {
    "text": "text",
    "bytea": "bytea",
    "boolean": "bool",
    "bigint": "int8",
    "integer": "int4",
    "double precision": "float8",
    "timestamp with time zone": "timestamptz",
    "date": "date",
    "jsonb": "jsonb",
}


class TableColumn(NamedTuple):
    """A column of a target table.

    Attributes:
        name: Its name.
        type: Its type, as Postgres formats it.
        is_required: It is NOT NULL in a new table.
        is_origin: It is of the origin of the row, not of the row.
    """

    name: str
    type: str
    is_required: bool
    is_origin: bool = False

    @property
    def copied_type(self) -> str:
        """Its type as COPY in binary form takes it."""
        return _COPIED.get(self.type, "numeric")


NUMBER: Final = "_number"
"""The number of the row among the delivered rows: consecutive, and never used again."""
ORIGIN_COLUMNS: Final = (
    TableColumn(NUMBER, "bigint", is_required=True, is_origin=True),
    TableColumn("_generation", "bigint", is_required=True, is_origin=True),
    TableColumn("_batch", "bigint", is_required=True, is_origin=True),
    TableColumn("_topic", "text", is_required=True, is_origin=True),
    TableColumn("_topic_id", "text", is_required=True, is_origin=True),
    TableColumn("_partition", "integer", is_required=True, is_origin=True),
    TableColumn("_emit_offset", "bigint", is_required=True, is_origin=True),
    TableColumn("_row", "integer", is_required=True, is_origin=True),
    TableColumn("_session", "text", is_required=True, is_origin=True),
)

_read_origin: Final = attrgetter(*(column.name[1:] for column in ORIGIN_COLUMNS[1:]))

Values = tuple[Any, ...]


class RowValues:
    """Makes the values of rows of one type, in the order of `columns`: those of the row, then those of its origin."""

    def __init__(self, value: type[msgspec.Struct]) -> None:
        declared = make_row_columns(value)
        own = (TableColumn(each.name, _find_type(each), not each.type.nullable) for each in declared)
        self.columns = (*own, *ORIGIN_COLUMNS)
        converters = ((at, _find_converter(column)) for at, column in enumerate(declared))
        self._converters = [(at, convert) for at, convert in converters if convert is not None]
        self._kind = value

    def make(self, row: DeliveredRow, number: int) -> Values:
        """The values of a row.

        Raises:
            TypeError: The row is of another type.
            ValueError: A decimal has more places than its column, which would round it.
        """
        if type(row.value) is not self._kind:
            problem = (
                f"is of the type {type(row.value).__name__}, and the table has the columns of {self._kind.__name__}"
            )
            raise TypeError(problem)
        values: Sequence[Any] = msgspec.structs.astuple(row.value)
        if self._converters:
            changed = list(values)
            for at, convert in self._converters:
                if changed[at] is not None:
                    changed[at] = convert(changed[at])
            values = changed
        return (*values, number, *_read_origin(row.origin))


def _find_type(column: Column) -> str:
    kind = column.type.kind
    if kind in _TYPES:
        return _TYPES[kind]
    arrow = column.type.arrow
    if isinstance(arrow, pa.Decimal128Type):
        return f"numeric({arrow.precision},{arrow.scale})"
    if arrow == pa.string():  # an enum
        return "text"
    return "integer" if arrow == pa.int32() else "bigint"


def _find_converter(column: Column) -> Callable[[Any], Any] | None:
    if column.type.kind is ColumnKind.ENUM:
        return _read_value
    if column.type.kind in {ColumnKind.STRUCT, ColumnKind.LIST, ColumnKind.MAP}:
        return _make_json
    arrow = column.type.arrow
    if arrow == pa.int32():
        return check_int32
    return _PlacesCheck(column.name, arrow.scale) if isinstance(arrow, pa.Decimal128Type) else None


def _read_value(member: Any) -> Any:
    return member.value


def _make_json(value: object) -> Jsonb:
    return Jsonb(value, dumps=_encode_json)


class _PlacesCheck:
    """Refuses a decimal that Postgres would round without an error."""

    def __init__(self, name: str, scale: int) -> None:
        self._name = name
        self._scale = scale

    def __call__(self, value: Decimal) -> Decimal:
        exponent = value.as_tuple().exponent
        if not isinstance(exponent, int) or -exponent > self._scale:
            raise ValueError(f"{self._name} is {value}, and its column has {self._scale} decimal places")
        return value
