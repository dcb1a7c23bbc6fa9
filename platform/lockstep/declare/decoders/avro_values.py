"""Values of Avro types: those of logical types, and a reader's defaults."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import MAX_PREC, Context, Decimal
from typing import Annotated, Any, Final, TypeVar, cast
from uuid import UUID

import msgspec

from lockstep.declare.decoders.avro_schema import (
    NO_DEFAULT,
    ArrayType,
    EnumType,
    Field,
    FixedType,
    Logical,
    MapType,
    PrimitiveType,
    RecordType,
    Schema,
    UnionType,
    list_parts,
)
from lockstep.declare.decoders.base import DecodeCause, Undecodable

T = TypeVar("T")
Convert = Callable[[Any], object]
"""From a value of the annotated type to one of the logical type; raises ValueError if there is none."""

DAY_MILLIS: Final = 86_400_000
EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
DAY_MAX: Final = date.max.toordinal() - EPOCH_DAY
DAY_MIN: Final = date.min.toordinal() - EPOCH_DAY
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
LOCAL_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001  # a local timestamp has no zone
MIDNIGHT: Final = datetime(1, 1, 1)  # noqa: DTZ001  # a time of day has no zone
BITS_A_DIGIT: Final = 3.33
"""Above the bits of a decimal digit."""
INT_MIN: Final = -(2**31)
INT_MAX: Final = 2**31 - 1
LONG_MIN: Final = -(2**63)
LONG_MAX: Final = 2**63 - 1
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", re.ASCII)


def find_conversion(schema: PrimitiveType | FixedType) -> Convert | None:
    """The conversion to a type's logical type; None if its values stay as they are."""
    logical = schema.logical
    if logical is None:
        return None
    if logical.name == "decimal":
        return _decimals(logical)
    if logical.name == "uuid":
        return _read_uuid if schema.kind == "string" else _read_uuid_bytes
    return _CONVERSIONS.get(logical.name)


def _decimals(logical: Logical) -> Convert:
    digits_max = logical.precision
    scale = logical.scale
    context = Context(prec=min(digits_max, MAX_PREC))

    def read(data: bytes) -> Decimal:
        if not data:
            raise ValueError("a decimal without bytes")
        unscaled = int.from_bytes(data, "big", signed=True)
        # Count the bits first: to make digits of a megabyte takes minutes.
        is_short = unscaled.bit_length() <= 1 + digits_max * BITS_A_DIGIT
        if not is_short or (exact := Decimal(unscaled)).adjusted() >= digits_max:
            raise ValueError(f"a decimal of {len(data)} bytes has more digits than {digits_max}")
        return exact.scaleb(-scale, context)

    return read


def _read_date(days: int) -> date:
    if not DAY_MIN <= days <= DAY_MAX:
        raise ValueError(f"day {days} since 1970 is outside of the years 1 to 9999")
    return date.fromordinal(EPOCH_DAY + days)


def _times(units_a_milli: int) -> Convert:
    unit = timedelta(milliseconds=1) / units_a_milli
    units_a_day = units_a_milli * DAY_MILLIS

    def read(units: int) -> time:
        if not 0 <= units < units_a_day:
            raise ValueError(f"{units} is not a time of day: a day has {units_a_day}")
        return (MIDNIGHT + units * unit).time()

    return read


def _timestamps(epoch: datetime, units_a_milli: int) -> Convert:
    # Multiplied by a whole number: a division would make a float of it.
    micros = 1_000 // units_a_milli

    def read(units: int) -> datetime:
        try:
            return epoch + timedelta(microseconds=units * micros)
        except OverflowError:
            raise ValueError(f"timestamp {units} is outside of the years 1 to 9999") from None

    return read


def _read_uuid(text: str) -> UUID:
    if _UUID.fullmatch(text) is None:
        raise ValueError(f"{text[:40]!r} is not a UUID")
    return UUID(text)


def _read_uuid_bytes(data: bytes) -> UUID:
    return UUID(bytes=data)


_CONVERSIONS: Final[Mapping[str, Convert]] = {
    "date": _read_date,
    "time-millis": _times(1),
    "time-micros": _times(1_000),
    "timestamp-millis": _timestamps(EPOCH, 1),
    "timestamp-micros": _timestamps(EPOCH, 1_000),
    "local-timestamp-millis": _timestamps(LOCAL_EPOCH, 1),
    "local-timestamp-micros": _timestamps(LOCAL_EPOCH, 1_000),
}
"""Python's datetime ends at microseconds: nanoseconds stay a number."""


def set_defaults(schema: Schema) -> None:
    """Replace the defaults of a reader's schema by their values.

    Raises:
        Undecodable: A default is not a value of its type.
    """
    fields = [one for part in list_parts(schema) if isinstance(part, RecordType) for one in part.fields]
    defaults = [_read_default(one) for one in fields]  # all before the first is set: a record's may need those inside
    for one, default in zip(fields, defaults, strict=True):
        one.default = default


def _read_default(field: Field) -> object:
    if field.default is NO_DEFAULT:
        return NO_DEFAULT
    try:
        return _make_default(field.type, field.default)
    except (ValueError, RecursionError) as error:
        problem = f"default of field {field.name}: {type(error).__name__}: {error}"
        raise Undecodable(DecodeCause.UNFIT_SCHEMA, problem) from error


def _make_default(schema: Schema, given: object) -> object:
    """The value of a default, as if it had been written.

    Raises:
        ValueError: It is not a value of the type.
    """
    match schema:
        case UnionType():
            return _make_of_first(schema, given)
        case ArrayType():
            return [_make_default(schema.items, one) for one in _require(list[object], given)]
        case MapType():
            return {name: _make_default(schema.values, one) for name, one in _require(dict[str, object], given).items()}
        case RecordType():
            fields = _require(dict[str, object], given)
            return {one.name: _make_default(one.type, fields.get(one.name, one.default)) for one in schema.fields}
        case EnumType():
            return _make_symbol(schema, given)
        case _:
            return _make_converted(schema, given)


def _make_converted(schema: PrimitiveType | FixedType, given: object) -> object:
    """The value of a primitive or fixed type, in the form of its logical type."""
    plain = _make_plain(schema, given)
    convert = find_conversion(schema)
    if convert is None:
        return plain
    return convert(plain)


def _make_of_first(union: UnionType, given: object) -> object:
    """The value of the first branch that has it."""
    for branch in union.branches:
        with contextlib.suppress(ValueError):
            return _make_default(branch, given)
    raise ValueError(f"{given!r} is a value of no branch")


def _make_symbol(enum: EnumType, given: object) -> str:
    if given not in enum.symbols:
        raise ValueError(f"{given!r} is none of {', '.join(enum.symbols)}")
    return cast("str", given)


def _make_plain(schema: PrimitiveType | FixedType, given: object) -> object:
    """The value of a default without its logical type."""
    if isinstance(schema, FixedType):
        data = _require(str, given).encode("latin-1")
        if len(data) != schema.size:
            raise ValueError(f"{len(data)} bytes, not {schema.size}")
        return data
    if schema.kind == "bytes":
        return _require(str, given).encode("latin-1")
    return _require(_OF_JSON[schema.kind], given)


_OF_JSON: Final[Mapping[str, Any]] = {
    "null": type(None),
    "boolean": bool,
    "int": Annotated[int, msgspec.Meta(ge=INT_MIN, le=INT_MAX)],
    "long": Annotated[int, msgspec.Meta(ge=LONG_MIN, le=LONG_MAX)],
    "float": float,
    "double": float,
    "string": str,
}
"""The types by which a default is read."""


def _require(kind: type[T], given: object) -> T:
    """A part of a schema's JSON, of this type; msgspec's error is a ValueError."""
    return msgspec.convert(given, kind)
