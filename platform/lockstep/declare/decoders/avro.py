"""Avro: schema resolution and target types."""

# pyright: basic

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Context, Decimal
from functools import partial
from graphlib import CycleError, TopologicalSorter
from io import BytesIO
from typing import Any, Final, NamedTuple, NoReturn, cast

import msgspec
from typing_extensions import override

from lockstep.declare.decoders.base import (
    FRAME_BYTES,
    Decode,
    DecodeCause,
    RegisteredSchema,
    SchemaReference,
    Undecodable,
    list_decoded,
    make_missing_extra,
)
from lockstep.declare.decoders.plain import find_foreign_classes, find_tag_fields
from lockstep.declare.decoders.schema_registry import Framed, FramedDecoder
from lockstep.errors import DeclarationError

NAMED: Final = frozenset({"record", "error", "enum", "fixed"})
FREE_VALUES_MAX: Final = 1_000
"""Values without bytes in one value: a schema that a tool made of samples has a null in each field it never saw."""
HIDDEN: Final = " (hidden)"
"""Behind the name of a field: no name and no alias has a space."""
EXACT_DECIMAL: Final = "lockstep-decimal"
BITS_A_DIGIT: Final = 3.33
"""Above the bits of a decimal digit."""
LEVELS_MAX: Final = 200
"""Records inside of each other that the compiled reader reads: of 20,000 the process died."""


@dataclass(frozen=True)
class Schema:
    """A parsed schema.

    Attributes:
        parsed: In fastavro's form.
        named: Its named types by full name, with those of its references.
    """

    parsed: object
    named: Mapping[str, Any] = field(default_factory=dict)

    def resolved(self, part: object) -> object:
        """A part of it, with a name replaced by the named type."""
        return self.named.get(part, part) if isinstance(part, str) else part

    def records(self) -> list[str]:
        """Full names of the records that a message may be: one, or those of a union; empty if it is no record."""
        parts = self.parsed if isinstance(self.parsed, list) else [self.parsed]
        resolved = [self.resolved(part) for part in parts]
        return [cast("dict[str, str]", part)["name"] for part in resolved if _is_record(part)]

    def find_resolved(self, writers: str) -> str:
        """Full name of the record of this schema to which a writer's record resolves: by its name or an alias."""
        for record in self.records():
            if _resolves(writers, self.named[record]):
                return record
        raise Undecodable(DecodeCause.UNFIT_SCHEMA, f"record {writers} is none of {', '.join(self.records())}")

    def fields(self, record: str) -> set[str]:
        """Names of a record's fields."""
        return {cast("str", one["name"]) for one in self.named[record]["fields"]}


def _resolves(writers: str, record: Mapping[str, Any]) -> bool:
    """Whether a writer's record resolves to this one: by its name, in any namespace, or by an alias."""
    short = writers.rpartition(".")[2]
    return short == record["name"].rpartition(".")[2] or not {writers, short}.isdisjoint(record.get("aliases", ()))


def require_schema() -> None:
    """Raise ImportError if fastavro is not installed."""
    import fastavro  # noqa: F401


def parse_schema(text: str, references: Sequence[SchemaReference] = (), *, readers: bool = False) -> Schema:
    """Parse a schema.

    Args:
        text: Its text.
        references: The schemas that it builds on.
        readers: It is a reader's: its defaults are used, so they have to be right.

    Raises:
        Undecodable: It is no Avro schema, or one with which a small message could fill the memory.
    """
    from fastavro import parse_schema
    from fastavro.schema import SchemaParseException, UnknownType

    def parsed(text: str) -> object:
        decoded = msgspec.json.decode(text)
        return parse_schema(decoded if readers else _without_defaults(decoded), named_schemas=named)

    named: dict[str, Any] = {}
    try:
        for reference in references:
            parsed(reference.text)
        schema = Schema(_with_named(parsed(text), named), named)
    except (msgspec.MsgspecError, SchemaParseException, UnknownType, RecursionError, *_MISSHAPEN) as error:
        problem = f"cannot be parsed: {type(error).__name__}: {error}"
        raise Undecodable(DecodeCause.UNFIT_SCHEMA, problem) from error
    _refuse_bombs(schema)
    _read_decimals_exactly(schema)
    if readers:
        _read_defaults(schema)
    return schema


def _without_defaults(part: Any) -> Any:
    """A schema without its defaults: no reader uses those of a writer, and registries hold some that fit no type."""
    if isinstance(part, list):
        return [_without_defaults(one) for one in part]
    if isinstance(part, dict):
        return {name: _without_defaults(one) for name, one in part.items() if name != "default"}
    return part


def _with_named(parsed: object, named: Mapping[str, Any]) -> object:
    """A schema with its definition for each name at its top, as in a union of references.

    Fastavro looks for names of other schemas inside of definitions alone.
    """
    if isinstance(parsed, list):
        return [_with_named(part, named) for part in parsed]
    if not isinstance(parsed, str) or parsed not in named:
        return parsed
    return {**named[parsed], "__fastavro_parsed": True, "__named_schemas": named}


_OF_JSON: Final = {
    str: {"string", "bytes", "fixed", "enum"},
    bool: {"boolean"},
    int: {"int", "long", "float", "double"},
    float: {"float", "double"},
    list: {"array"},
    dict: {"map", "record", "error"},
    type(None): {"null"},
}
"""The types that a JSON value may be the default of."""


def _read_defaults(schema: Schema) -> None:
    """Make values of a reader's defaults: fastavro returns them as the schema's JSON has them.

    Raises:
        Undecodable: A default is no value of its type.
    """
    for part in _parts(schema, schema.parsed, set()):
        for one in cast("Mapping[str, Any]", part)["fields"] if _is_record(part) else ():
            if "default" not in one:
                continue
            try:
                one["default"] = _default(schema, one["type"], one["default"])
            except UNREADABLE as error:
                problem = f"default of field {one['name']}: {type(error).__name__}: {error}"
                raise Undecodable(DecodeCause.UNFIT_SCHEMA, problem) from error


def _default(schema: Schema, part: object, value: Any) -> object:
    """The value of a default, as fastavro would return it if it had been written."""
    from fastavro.read import LOGICAL_READERS

    part = schema.resolved(part)
    if isinstance(part, list):
        part = next(one for one in map(schema.resolved, part) if _kind(one) in _OF_JSON[type(value)])
    kind = _kind(part)
    if not isinstance(part, dict):
        return value.encode("latin-1") if kind == "bytes" else value
    if kind in {"record", "error"}:
        types = {one["name"]: one["type"] for one in part["fields"]}
        return {name: _default(schema, types[name], one) for name, one in value.items() if name in types}
    if kind == "array":
        return [_default(schema, part["items"], one) for one in value]
    if kind == "map":
        return {key: _default(schema, part["values"], one) for key, one in value.items()}
    read = cast("dict[str, Callable[..., object]]", LOGICAL_READERS).get(f"{kind}-{part.get('logicalType')}")
    plain = value.encode("latin-1") if kind in {"bytes", "fixed"} else value
    return plain if read is None else read(plain, part, None)


def _kind(part: object) -> str:
    """The name of a type that is no union and no name."""
    return cast("str", part["type"] if isinstance(part, dict) else part)


def _read_decimals_exactly(schema: Schema) -> None:
    """Have its decimals read by `_decimal`, under a name of its own: fastavro's readers are for the whole process."""
    from fastavro.read import LOGICAL_READERS

    readers = cast("dict[str, Callable[..., object]]", LOGICAL_READERS)
    readers.update({f"{kind}-{EXACT_DECIMAL}": _decimal for kind in ("bytes", "fixed")})
    for part in _parts(schema, schema.parsed, set()):
        if isinstance(part, dict) and part.get("logicalType") == "decimal":
            part["logicalType"] = EXACT_DECIMAL


def _decimal(data: bytes, writer_schema: Mapping[str, Any], reader_schema: object = None) -> Decimal:
    """A decimal as it was written. Fastavro's reader rounds one of more digits than its schema allows.

    Raises:
        ValueError: It has more digits than its schema allows.
    """
    del reader_schema
    unscaled, digits = int.from_bytes(data, "big", signed=True), int(writer_schema["precision"])
    # The bits come first: to make digits of a megabyte takes minutes.
    if unscaled.bit_length() > 1 + digits * BITS_A_DIGIT or (exact := Decimal(unscaled)).adjusted() >= digits:
        raise ValueError(f"a decimal of {len(data)} bytes has more digits than {digits}")
    return exact.scaleb(-int(writer_schema.get("scale", 0)), Context(prec=digits))


_MISSHAPEN: Final = (KeyError, TypeError, ValueError, AttributeError)
"""Raised by fastavro on JSON that is no schema at all."""


def make_datum_reader(writers: Schema, own: Schema | None) -> Callable[[BytesIO], object]:
    """The function that reads one message from a binary stream.

    Records of a union of several record types are returned as (full name, record); with a reader's schema, in which a
    union may have more of them than in the writer's, those of every union.
    """
    from fastavro import schemaless_reader

    read = cast("Callable[..., object]", schemaless_reader)
    if is_nested_deeply(writers):
        # The compiled reader recurses on the C stack: a deep message would kill the worker instead of raising.
        from fastavro import _read_py

        read = cast("Callable[..., object]", _read_py.schemaless_reader)
    return partial(
        read,
        writer_schema=writers.parsed,
        reader_schema=None if own is None else own.parsed,
        return_record_name=True,
        return_record_name_override=own is None,
    )


def _hide_old_names(writers: Schema, own: Schema) -> None:
    """Hide the fields of a writer that its reader knows by an alias, where the writer has the name, too.

    A producer writes a renamed field twice for a while. Fastavro takes whichever comes first, or fails.
    """
    read = [record for record in own.named.values() if _is_record(record)]
    for written in filter(_is_record, writers.named.values()):
        for record in (one for one in read if _resolves(written["name"], one)):
            there, named = ({one["name"] for one in each["fields"]} for each in (written, record))
            renamed = {alias for one in record["fields"] if one["name"] in there for alias in one.get("aliases", ())}
            for one in written["fields"]:
                if one["name"] in renamed - named:
                    one["name"] += HIDDEN


def is_nested_deeply(schema: Schema) -> bool:
    """Whether a record can contain one of its own type, or more records inside of each other than are safely read."""
    inside = {
        name: tuple(_records_inside(schema, record)) for name, record in schema.named.items() if _is_record(record)
    }
    levels = dict[str, int]()
    try:
        for name in TopologicalSorter(inside).static_order():
            levels[name] = 1 + max((levels[one] for one in inside[name]), default=0)
    except CycleError:
        return True
    return max(levels.values(), default=0) > LEVELS_MAX


def has_mixed_unions(schema: Schema) -> bool:
    """Whether a union inside a message has several record types."""
    return any(
        isinstance(part, list) and sum(_is_record(schema.resolved(one)) for one in part) > 1
        for part in _parts(schema, schema.parsed, set())
        if part is not schema.parsed
    )


def _refuse_bombs(schema: Schema) -> None:
    """Refuse values without bytes where there may be many.

    Five bytes can claim an array of a billion of them, and records inside of records, twice in each, are a million at
    20 levels.
    """
    free = _FreeValues(schema)
    for part in _parts(schema, schema.parsed, set()):
        if isinstance(part, dict) and part.get("type") == "array" and not free.count(part["items"]).takes_bytes:
            raise Undecodable(
                DecodeCause.UNFIT_SCHEMA, "an array of values without bytes: a small message could be endless"
            )
        if free.count(part).values > FREE_VALUES_MAX:
            raise Undecodable(
                DecodeCause.UNFIT_SCHEMA,
                f"a value with more than {FREE_VALUES_MAX} values without bytes: a small message could fill the memory",
            )


class _Free(NamedTuple):
    """What one value of a type takes.

    Attributes:
        takes_bytes: Whether it takes at least one byte.
        values: Values without bytes in it, itself included; what arrays and maps hold is not.
    """

    takes_bytes: bool
    values: int


class _FreeValues:
    """Counts the values without bytes of each type of a schema, of each named one once."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._of_record: dict[str, _Free] = {}

    def count(self, part: object) -> _Free:
        part = self._schema.resolved(part)
        if isinstance(part, list):  # a union takes the byte of its index
            return _Free(takes_bytes=True, values=max((self.count(one).values for one in part), default=0))
        if _is_record(part):
            return self._count_record(cast("dict[str, Any]", part))
        kind = part["type"] if isinstance(part, dict) else part
        if isinstance(kind, (dict, list)):
            return self.count(kind)
        takes_bytes = kind != "null" and not (kind == "fixed" and cast("dict[str, Any]", part)["size"] == 0)
        return _Free(takes_bytes, values=int(not takes_bytes))

    def _count_record(self, record: dict[str, Any]) -> _Free:
        name = cast("str", record["name"])
        if name not in self._of_record:
            self._of_record[name] = _Free(takes_bytes=True, values=0)  # one inside of itself ends at a union or array
            fields = [self.count(one["type"]) for one in record["fields"]]
            takes_bytes = any(one.takes_bytes for one in fields)
            self._of_record[name] = _Free(takes_bytes, sum(one.values for one in fields) + (not takes_bytes))
        return self._of_record[name]


def _is_record(part: object) -> bool:
    return isinstance(part, dict) and part.get("type") in {"record", "error"}


def _inner(part: object) -> Iterator[object]:
    """The types directly inside a type."""
    if isinstance(part, list):
        yield from part
    elif isinstance(part, dict):
        yield from (part[name] for name in ("items", "values") if name in part)
        yield from (one["type"] for one in part.get("fields", ()))
        if isinstance(part.get("type"), (dict, list)):
            yield part["type"]


def _parts(schema: Schema, part: object, seen: set[str]) -> Iterator[object]:
    """A type and all types inside of it, each named type once."""
    part = schema.resolved(part)
    if isinstance(part, dict) and part.get("type") in NAMED:
        if part["name"] in seen:
            return
        seen.add(part["name"])
    yield part
    for one in _inner(part):
        yield from _parts(schema, one, seen)


def _records_inside(schema: Schema, part: object) -> Iterator[str]:
    """Names of the records inside a type, without those inside of these."""
    for one in map(schema.resolved, _inner(part)):
        if _is_record(one):
            yield cast("str", cast("Mapping[str, object]", one)["name"])
        else:
            yield from _records_inside(schema, one)


Convert = Callable[[object], object]
"""From fastavro's result to a message; raises Undecodable or msgspec.ValidationError."""


@dataclass(frozen=True)
class Target:
    """The message type of a stream.

    Attributes:
        by_name: The Structs by tag, or by class name where they have no tag.
        tag_field: The field that distinguishes them, where there are several.
        tag_fields: Names of all tag fields anywhere inside.
    """

    by_name: Mapping[str, type[msgspec.Struct]]
    tag_field: str | None
    tag_fields: tuple[str, ...]

    def conversion(self, schema: Schema, *, resolved: bool = False) -> Convert:
        """The conversion of messages of one schema; of a reader's schema, if they were resolved to it.

        Raises:
            Undecodable: No message of this schema belongs to the stream.
        """
        records = schema.records()
        if not records:
            raise Undecodable(DecodeCause.UNFIT_SCHEMA, "is no record, and no union of records")
        tagged = partial(_tagged, tag_fields=self.tag_fields) if resolved or has_mixed_unions(schema) else None
        if len(records) == 1:
            return _then(tagged, self._of_record(schema, records[0], alone=True))
        by_record = {name: self._or_refusal(schema, name) for name in records}
        return _then(None, partial(_by_record, by_record, tagged))

    def _or_refusal(self, schema: Schema, record: str) -> Convert:
        """In a union, a foreign record type refuses only its own messages."""
        try:
            return self._of_record(schema, record, alone=False)
        except Undecodable as unfit:
            return partial(_refuse, str(unfit))

    def _of_record(self, schema: Schema, record: str, *, alone: bool) -> Convert:
        if self.tag_field is not None and self.tag_field in schema.fields(record):
            return partial(_by_tag, self.by_name, self.tag_field)
        if len(self.by_name) == 1 and alone:
            return _to(next(iter(self.by_name.values())))
        struct = self.by_name.get(record) or self.by_name.get(record.rpartition(".")[2])
        if struct is None:
            raise Undecodable(DecodeCause.UNFIT_SCHEMA, f"record {record} is none of {', '.join(self.by_name)}")
        return _to(struct)


def find_target(message_type: object) -> Target:
    """The target of a message type: a Struct, or a union of Structs.

    Raises:
        DeclarationError: It is neither.
    """
    structs = list_decoded(message_type)
    if not structs or not all(isinstance(one, type) and issubclass(one, msgspec.Struct) for one in structs):
        raise _unfit(message_type, "Avro records become Structs, and this is none")
    try:
        msgspec.json.Decoder(message_type)  # reports the same for unions that cannot be distinguished
        foreign, fields = find_foreign_classes(message_type), find_tag_fields(message_type)
    except (TypeError, NameError) as error:
        raise _unfit(message_type, f"messages cannot be decoded to this type: {error}") from error
    if foreign:
        raise _unfit(message_type, f"messages cannot be decoded to {foreign[0].__qualname__}")
    classes = cast("tuple[type[msgspec.Struct], ...]", structs)
    by_name = {str(one.__struct_config__.tag or one.__name__): one for one in classes}
    return Target(by_name, classes[0].__struct_config__.tag_field if len(classes) > 1 else None, tuple(fields))


def _unfit(message_type: object, problem: str) -> DeclarationError:
    remedy = "use a msgspec.Struct, or a union of Structs distinguished by tag_field and tag"
    return DeclarationError("Stream.transform", message_type, problem, remedy)


def _to(struct: type[msgspec.Struct]) -> Convert:
    # Bytes come from bytes only: otherwise msgspec would decode a string as base64.
    return partial(_convert, struct)


def _convert(struct: type[msgspec.Struct], record: object) -> object:
    return msgspec.convert(record, struct, builtin_types=(bytes,))


def _then(first: Convert | None, second: Convert) -> Convert:
    return second if first is None else lambda record: second(first(record))


def _by_tag(by_name: Mapping[str, type[msgspec.Struct]], tag_field: str, record: object) -> object:
    # Looked up here: msgspec takes ten times as long to find the member of a union, on each call.
    tag = cast("dict[str, object]", record).get(tag_field)
    struct = by_name.get(str(tag))
    if struct is None:
        raise Undecodable(DecodeCause.WRONG_TYPE, f"{tag_field} = {tag!r} is none of {', '.join(by_name)}")
    return _convert(struct, record)


def _by_record(by_record: Mapping[str, Convert], tagged: Convert | None, named: object) -> object:
    """Of a union: fastavro returns (full name, record) for a record, and other values bare."""
    if not isinstance(named, tuple):
        raise Undecodable(DecodeCause.WRONG_TYPE, f"is of type {type(named).__name__}, not a record")
    name, record = cast("tuple[str, object]", named)
    return by_record[name](record if tagged is None else tagged(record))


def _refuse(problem: str, record: object) -> NoReturn:
    del record
    raise Undecodable(DecodeCause.WRONG_TYPE, problem)


def _tagged(value: Any, tag_fields: tuple[str, ...]) -> object:
    """Put the name of each record of a union into its tag field, if the record has no such field."""
    if isinstance(value, tuple):
        name, record = cast("tuple[str, dict[str, object]]", value)
        tags = dict.fromkeys(tag_fields, name.rpartition(".")[2])
        return {**tags, **cast("dict[str, object]", _tagged(record, tag_fields))}
    if isinstance(value, dict):
        return {key: _tagged(inner, tag_fields) for key, inner in cast("dict[str, object]", value).items()}
    if isinstance(value, list):
        return [_tagged(inner, tag_fields) for inner in cast("list[object]", value)]
    return value


KIND: Final = "AVRO"
MISMATCH_MAX: Final = 300
"""Characters of fastavro's text, which may contain both schemas."""
UNREADABLE: Final = (ValueError, LookupError, ArithmeticError, TypeError, AttributeError, struct.error, MemoryError)
"""Raised by fastavro when bytes do not fit their schema, besides EOFError and RecursionError."""


@dataclass(frozen=True)
class Avro(FramedDecoder):
    """Avro in the wire format of a schema registry, converted strictly to the message type.

    Each message is read with the schema that its writer registered, so producers may move to a new
    schema while older messages are retained. Fields that the Struct lacks are ignored; a field that
    the writer's schema lacks takes the Struct's default, or is a missing field. Several record types
    become a union of tagged Structs: the tag is the record's name, unless the record has a field of
    the tag's name.

    Attributes:
        registry: The schema registry; by default the installation's (`[registry]` of the settings).
        reader_schema: An Avro schema as JSON text to which messages are resolved before they are
            converted, for its aliases and defaults. Seldom needed.
    """

    reader_schema: str | None = None

    @override
    def build(self, message_type: object) -> Decode:
        target = find_target(message_type)
        return Framed(self.registry, partial(_reader, target, self._own_schema()), "Avro").decode

    def _own_schema(self) -> Schema | None:
        try:
            require_schema()
            return None if self.reader_schema is None else parse_schema(self.reader_schema, readers=True)
        except ImportError as error:
            raise make_missing_extra("Avro()", "avro,registry", error) from error
        except Undecodable as error:
            raise DeclarationError(
                "Avro.reader_schema",
                self.reader_schema,
                str(error),
                "give an Avro schema as JSON text, or leave it out",
            ) from error


def _reader(target: Target, own: Schema | None, registered: RegisteredSchema) -> Decode:
    """The function that reads frames of one schema.

    Raises:
        Undecodable: No message of the stream has this schema.
    """
    if registered.kind != KIND:
        raise Undecodable(DecodeCause.UNFIT_SCHEMA, f"is of type {registered.kind}, not {KIND}")
    writers = parse_schema(registered.text, registered.references)
    if own is not None:
        _hide_old_names(writers, own)
    convert, datum = _conversion(target, writers, own), make_datum_reader(writers, own)

    def read(value: bytes) -> object:
        return convert(_datum(datum, value))

    return read if own is None else _resolving(read)


def _resolving(read: Decode) -> Decode:
    """Reads with a reader's schema: fastavro's error of a message that does not resolve to it is no ValueError."""
    from fastavro.read import SchemaResolutionError

    def resolve(value: bytes) -> object:
        try:
            return read(value)
        except SchemaResolutionError as error:
            problem = f"cannot be resolved to Avro.reader_schema: {str(error)[:MISMATCH_MAX]}"
            raise Undecodable(DecodeCause.UNFIT_SCHEMA, problem) from error

    return resolve


def _conversion(target: Target, writers: Schema, own: Schema | None) -> Convert:
    """The conversion of messages of the writer's schema, resolved to one's own if there is one."""
    if own is None:
        return target.conversion(writers)
    convert = target.conversion(own, resolved=True)
    if len(own.records()) == 1 or isinstance(writers.parsed, list) or not writers.records():
        return convert
    name = own.find_resolved(writers.records()[0])  # fastavro names the records of the writer's unions alone
    return lambda record: convert((name, record))


def _datum(datum: Callable[[BytesIO], object], value: bytes) -> object:
    """Fastavro's result for a whole frame."""
    stream = BytesIO(value)
    stream.seek(FRAME_BYTES)
    try:
        read = datum(stream)
    except EOFError as error:
        raise Undecodable(DecodeCause.TRUNCATED, f"the message ends too early: {error}") from error
    except RecursionError as error:
        raise Undecodable(DecodeCause.TOO_DEEP, "the message is nested too deeply") from error
    except UNREADABLE as error:
        raise _unreadable(stream, value, error) from error
    left = len(value) - stream.tell()
    if left:
        raise Undecodable(DecodeCause.TRAILING, f"{left} bytes after the message")
    return read


def _unreadable(stream: BytesIO, value: bytes, error: Exception) -> Undecodable:
    """Fastavro raises IndexError when it reads past the end of a number: the message is truncated."""
    if isinstance(error, IndexError) and stream.tell() >= len(value):
        return Undecodable(DecodeCause.TRUNCATED, "the message ends too early")
    return Undecodable(DecodeCause.MALFORMED, f"does not fit its schema: {type(error).__name__}: {error}")
