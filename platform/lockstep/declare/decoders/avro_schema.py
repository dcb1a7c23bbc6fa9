"""Avro schemas: parsing by the specification, and the limits of a schema that is read safely."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, cast

import msgspec

from lockstep.declare.decoders.base import DecodeCause, SchemaReference, Undecodable

LEVELS_MAX: Final = 100
"""Types inside of each other, as in Protobuf: the reader recurses, and Python ends at 1,000 calls."""
TOO_DEEP: Final = f"more than {LEVELS_MAX} types inside of each other: not safely readable"
FREE_VALUES_MAX: Final = 1_000
"""Values without bytes in one value: a schema that a tool made of samples has a null in each field it never saw."""
TOO_FREE: Final = (
    f"a value with more than {FREE_VALUES_MAX} values without bytes: a small message could fill the memory"
)
NO_DEFAULT: Final = object()
"""The default of a field without one; None is the default null."""


class Logical(NamedTuple):
    """A logical type that annotates a type that it may annotate.

    Attributes:
        name: Its name in the specification.
        precision: Decimal digits at most, of a decimal.
        scale: Digits behind the point, of a decimal.
    """

    name: str
    precision: int = 0
    scale: int = 0


@dataclass(eq=False)
class PrimitiveType:
    """A type with a separate name in the specification."""

    kind: str
    logical: Logical | None = None


@dataclass(eq=False)
class FixedType:
    """So many bytes."""

    name: str
    aliases: frozenset[str]
    size: int
    logical: Logical | None
    kind: Final = "fixed"


@dataclass(eq=False)
class EnumType:
    """One of some symbols. The default is for a reader that lacks the writer's symbol."""

    name: str
    aliases: frozenset[str]
    symbols: Sequence[str]
    default: str | None
    kind: Final = "enum"


@dataclass(eq=False)
class ArrayType:
    """Values of one type, in order."""

    items: Schema
    kind: Final = "array"


@dataclass(eq=False)
class MapType:
    """Values of one type by strings."""

    values: Schema
    kind: Final = "map"


@dataclass(eq=False)
class Field:
    """A field of a record. Its default is as the schema's JSON has it until `set_defaults`."""

    name: str
    aliases: Sequence[str]
    type: Schema
    default: object


@dataclass(eq=False)
class RecordType:
    """Fields in order. They are filled in last: a record may contain itself."""

    name: str
    aliases: frozenset[str]
    fields: list[Field] = field(default_factory=list)
    kind: Final = "record"


@dataclass(eq=False)
class UnionType:
    """One of some types, by its index."""

    branches: Sequence[Schema]
    kind: Final = "union"


Named = FixedType | EnumType | RecordType
Schema = PrimitiveType | FixedType | EnumType | ArrayType | MapType | RecordType | UnionType

NAMED: Final = ("record", "error", "enum", "fixed")
PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
ANNOTATED: Final[Mapping[str, Sequence[str]]] = {
    "date": ("int",),
    "time-millis": ("int",),
    "time-micros": ("long",),
    "timestamp-millis": ("long",),
    "timestamp-micros": ("long",),
    "timestamp-nanos": ("long",),
    "local-timestamp-millis": ("long",),
    "local-timestamp-micros": ("long",),
    "local-timestamp-nanos": ("long",),
    "decimal": ("bytes", "fixed"),
    "uuid": ("string", "fixed"),
}
"""The types that a logical type may annotate. All else, `duration` too, stays as the type that is annotated."""
UUID_BYTES: Final = 16


def find_short_name(name: str) -> str:
    """A name without its namespace."""
    return name.rpartition(".")[2]


def list_records(schema: Schema) -> list[RecordType]:
    """The records that a message may be: one, or those of a union."""
    parts = schema.branches if isinstance(schema, UnionType) else [schema]
    return [part for part in parts if isinstance(part, RecordType)]


def parse_schema(text: str, references: Sequence[SchemaReference] = ()) -> Schema:
    """Parse a schema.

    Args:
        text: Its text.
        references: The schemas that it builds on.

    Raises:
        Undecodable: It is not an Avro schema, or one that a small message could fill the memory with.
    """
    parser = _Parser()
    try:
        for reference in references:
            parser.parse(msgspec.json.decode(reference.text), "")
        schema = parser.parse(msgspec.json.decode(text), "")
        _Limits().check(schema)
    except Undecodable:
        raise
    except RecursionError as error:
        raise _unfit(TOO_DEEP) from error
    except (msgspec.MsgspecError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise _unfit(f"cannot be parsed: {type(error).__name__}: {error}") from error
    return schema


def list_parts(schema: Schema) -> Iterator[Schema]:
    """A schema and all types inside of it, each once."""
    seen = set[int]()
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if id(part) not in seen:
            seen.add(id(part))
            yield part
            waiting.extend(list_inner(part))


def list_inner(part: Schema) -> list[Schema]:
    """The types directly inside of a type."""
    match part:
        case ArrayType():
            return [part.items]
        case MapType():
            return [part.values]
        case RecordType():
            return [one.type for one in part.fields]
        case UnionType():
            return list(part.branches)
        case _:
            return []


def _unfit(problem: str) -> Undecodable:
    return Undecodable(DecodeCause.UNFIT_SCHEMA, problem)


class _Parser:
    """Parses schemas that share their named types."""

    def __init__(self) -> None:
        self._named: dict[str, Named] = {}

    def parse(self, part: Any, namespace: str) -> Schema:
        """The type that a part of a schema's JSON describes."""
        if isinstance(part, str):
            return self._find(part, namespace)
        if isinstance(part, list):
            return UnionType([self.parse(one, namespace) for one in cast("list[object]", part)])
        return self._parse_object(part, namespace)

    def _parse_object(self, part: Any, namespace: str) -> Schema:
        kind = part["type"]
        if kind in NAMED:
            return self._define(part, kind, namespace)
        if kind == "array":
            return ArrayType(self.parse(part["items"], namespace))
        if kind == "map":
            return MapType(self.parse(part["values"], namespace))
        is_primitive = isinstance(kind, str) and kind in PRIMITIVES
        if is_primitive:
            return PrimitiveType(kind, _find_logical(part, kind))
        return self.parse(kind, namespace)

    def _find(self, name: str, namespace: str) -> Schema:
        if name in PRIMITIVES:
            return PrimitiveType(name)
        for full_name in (_qualify(name, namespace), name):
            if full_name in self._named:
                return self._named[full_name]
        raise _unfit(f"cannot be parsed: unknown type {name}")

    def _define(self, part: dict[str, Any], kind: str, namespace: str) -> Named:
        name = _qualify(_text(part["name"]), part.get("namespace", namespace))
        inside = name.rpartition(".")[0]
        aliases = frozenset(full for alias in part.get("aliases", ()) for full in (alias, _qualify(alias, inside)))
        if name in self._named:
            raise _unfit(f"cannot be parsed: {name} is defined twice")
        if kind == "fixed":
            self._named[name] = FixedType(name, aliases, _size(part["size"]), _find_logical(part, kind))
        elif kind == "enum":
            symbols = [_text(symbol) for symbol in part["symbols"]]
            self._named[name] = EnumType(name, aliases, symbols, part.get("default"))
        else:
            self._named[name] = record = RecordType(name, aliases)
            record.fields.extend(self._field(one, inside) for one in part["fields"])
            if len({one.name for one in record.fields}) < len(record.fields):
                raise _unfit(f"cannot be parsed: a field of {name} is defined twice")
        return self._named[name]

    def _field(self, part: dict[str, Any], namespace: str) -> Field:
        default = part.get("default", NO_DEFAULT)
        return Field(_text(part["name"]), part.get("aliases", ()), self.parse(part["type"], namespace), default)


def _qualify(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _text(part: object) -> str:
    if not isinstance(part, str):
        raise TypeError(f"{part!r} is not a name")
    return part


def _size(part: object) -> int:
    if type(part) is not int or part < 0:
        raise ValueError(f"{part!r} is not a size")
    return part


def _find_logical(part: dict[str, Any], kind: str) -> Logical | None:
    """The logical type of an annotated type; None if it is unknown or invalid: the specification ignores it then."""
    name = part.get("logicalType")
    if kind not in ANNOTATED.get(cast("str", name), ()):
        return None
    if name == "decimal":
        return _find_decimal(part, kind)
    if name == "uuid" and kind == "fixed" and part["size"] != UUID_BYTES:
        return None
    return Logical(cast("str", name))


def _find_decimal(part: dict[str, Any], kind: str) -> Logical | None:
    precision = part.get("precision")
    scale = part.get("scale", 0)
    if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision or precision == 0:
        return None
    if kind == "fixed" and precision > math.floor(math.log10(2) * (8 * _size(part["size"]) - 1)):
        return None
    return Logical("decimal", precision, scale)


class _Free(NamedTuple):
    """The space and the parts of one value of a type.

    Attributes:
        takes_bytes: Whether it takes at least one byte.
        values: Values without bytes in it, itself included; those in arrays and maps are not counted.
    """

    takes_bytes: bool
    values: int


class _Limits:
    """Refuses schemas by which a message can exhaust the stack or the memory.

    Five bytes can claim an array of a billion values without bytes, and records inside of records, twice in each, are
    a million at 20 levels.
    """

    def __init__(self) -> None:
        self._free: dict[int, _Free] = {}
        self._levels: dict[int, int] = {}

    def check(self, schema: Schema) -> None:
        for part in list_parts(schema):
            if self._count_levels(part) > LEVELS_MAX:
                raise _unfit(TOO_DEEP)
            if isinstance(part, ArrayType) and not self._count(part.items).takes_bytes:
                raise _unfit("an array of values without bytes: a small message could be endless")
            if self._count(part).values > FREE_VALUES_MAX:
                raise _unfit(TOO_FREE)

    def _count_levels(self, part: Schema) -> int:
        """Types inside of each other; a type inside of itself ends the count, and the reader counts it."""
        if id(part) not in self._levels:
            self._levels[id(part)] = 0
            own = isinstance(part, (RecordType, ArrayType, MapType))
            self._levels[id(part)] = own + max(map(self._count_levels, list_inner(part)), default=0)
        return self._levels[id(part)]

    def _count(self, part: Schema) -> _Free:
        if id(part) not in self._free:
            self._free[id(part)] = _Free(takes_bytes=True, values=0)  # one inside of itself ends at a union or array
            self._free[id(part)] = self._count_new(part)
        return self._free[id(part)]

    def _count_new(self, part: Schema) -> _Free:
        if isinstance(part, UnionType):  # the index is a byte
            return _Free(takes_bytes=True, values=max((self._count(one).values for one in part.branches), default=0))
        if isinstance(part, RecordType):
            fields = [self._count(one.type) for one in part.fields]
            takes_bytes = any(one.takes_bytes for one in fields)
            return _Free(takes_bytes, sum(one.values for one in fields) + (not takes_bytes))
        takes_bytes = part.kind != "null" and not (isinstance(part, FixedType) and part.size == 0)
        return _Free(takes_bytes, values=int(not takes_bytes))
