"""Avro: message types, and the decoder."""

# pyright: basic

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NoReturn, cast

import msgspec
from typing_extensions import override

from lockstep.declare.decoders.avro_reader import UNRESOLVABLE, Compiler, Read, read_message, read_union
from lockstep.declare.decoders.avro_resolution import Unresolvable, choose_branch
from lockstep.declare.decoders.avro_schema import (
    PrimitiveType,
    RecordType,
    Schema,
    UnionType,
    find_short_name,
    list_parts,
    list_records,
    parse_schema,
)
from lockstep.declare.decoders.avro_values import set_defaults
from lockstep.declare.decoders.base import (
    Decode,
    DecodeCause,
    RegisteredSchema,
    Registry,
    Undecodable,
    list_decoded,
)
from lockstep.declare.decoders.canonical import make_canonical
from lockstep.declare.decoders.plain import find_foreign_classes, find_tag_fields
from lockstep.declare.decoders.schema_registry import Framed, FramedDecoder
from lockstep.errors import DeclarationError

Convert = Callable[[Any], object]
"""From a record's fields to a message; raises Undecodable or msgspec.ValidationError."""


@dataclass(frozen=True)
class MessageTarget:
    """The message type of a stream.

    Attributes:
        by_name: The Structs by tag, or by class name if they have no tag.
        tag_field: The field that distinguishes them, if there are several.
        tag_fields: Names of all tag fields anywhere inside.
    """

    by_name: Mapping[str, type[msgspec.Struct]]
    tag_field: str | None
    tag_fields: tuple[str, ...]

    def find_conversion(self, record: RecordType, *, is_alone: bool) -> Convert:
        """The conversion of messages of a record; `is_alone` if the schema has no other.

        Raises:
            Undecodable: No message of the stream is of this record.
        """
        # The record names its type itself, in each message.
        if self.tag_field is not None and any(one.name == self.tag_field for one in record.fields):
            return partial(_by_tag, {name: _to(struct) for name, struct in self.by_name.items()}, self.tag_field)
        if len(self.by_name) == 1 and is_alone:
            return _to(next(iter(self.by_name.values())))
        struct = self.by_name.get(record.name) or self.by_name.get(find_short_name(record.name))
        if struct is None:
            problem = f"record {record.name} is none of {', '.join(self.by_name)}"
            raise Undecodable(DecodeCause.UNFIT_SCHEMA, problem)
        return _to(struct)


def find_target(message_type: object) -> MessageTarget:
    """The target of a message type: a Struct, or a union of Structs.

    Raises:
        DeclarationError: It is neither.
    """
    structs = list_decoded(message_type)
    if not structs or not all(isinstance(one, type) and issubclass(one, msgspec.Struct) for one in structs):
        raise _unfit(message_type, "Avro records become Structs, and this is none")
    try:
        msgspec.json.Decoder(message_type)  # reports the same for unions that cannot be distinguished
        foreign = find_foreign_classes(message_type)
        fields = find_tag_fields(message_type)
    except (TypeError, NameError) as error:
        raise _unfit(message_type, f"messages cannot be decoded to this type: {error}") from error
    if foreign:
        raise _unfit(message_type, f"messages cannot be decoded to {foreign[0].__qualname__}")
    classes = cast("tuple[type[msgspec.Struct], ...]", structs)
    by_name = {str(one.__struct_config__.tag or one.__name__): one for one in classes}
    tag_field = None
    if len(classes) > 1:
        tag_field = classes[0].__struct_config__.tag_field
    return MessageTarget(by_name, tag_field, tuple(fields))


def _unfit(message_type: object, problem: str) -> DeclarationError:
    remedy = "use a msgspec.Struct, or a union of Structs distinguished by tag_field and tag"
    return DeclarationError("Stream.transform", message_type, problem, remedy)


def _to(struct: type[msgspec.Struct]) -> Convert:
    # Only bytes make bytes: otherwise msgspec would decode a string as base64.
    return partial(msgspec.convert, type=struct, builtin_types=(bytes,))


def _by_tag(by_name: Mapping[str, Convert], tag_field: str, record: Mapping[str, object]) -> object:
    # Looked up here: msgspec takes ten times as long to find the member of a union, on each call.
    tag = record.get(tag_field)
    convert = by_name.get(str(tag))
    if convert is None:
        raise Undecodable(DecodeCause.WRONG_TYPE, f"{tag_field} = {tag!r} is none of {', '.join(by_name)}")
    return convert(record)


KIND: Final = "AVRO"
NANOSECONDS: Final = "Avro's timestamp-nanos is an int of nanoseconds, because a datetime ends at microseconds"


@dataclass(frozen=True)
class Avro(FramedDecoder):
    """Avro in the wire format of a schema registry, converted strictly to the message type.

    Each message is read with the schema that its writer registered (docs/decoders.md). Several record types become a
    union of tagged Structs: the tag is the record's name, unless the record has a field of the tag's name.

    Attributes:
        reader_schema: An Avro schema as JSON text to which messages are resolved first, for its aliases and defaults.
    """

    reader_schema: str | None = None

    @override
    def build_with(self, registry: Registry | None, message_type: object) -> Decode:
        make_reader = partial(_make_reader, find_target(message_type), self._parse_own())
        framed = Framed(registry, make_reader, lambda _, start: start)
        return make_canonical(framed.decode, message_type)

    def _parse_own(self) -> Schema | None:
        if self.reader_schema is None:
            return None
        try:
            own = parse_schema(self.reader_schema)
            set_defaults(own)
        except Undecodable as error:
            raise DeclarationError(
                "Avro.reader_schema",
                self.reader_schema,
                str(error),
                "pass an Avro schema as JSON text, or leave it out",
            ) from error
        return own


def _make_reader(target: MessageTarget, own: Schema | None, registered: RegisteredSchema, start: int) -> Decode:
    """The function that reads frames of one schema, whose message starts at a position.

    Raises:
        Undecodable: No message of the stream has this schema.
    """
    if registered.kind != KIND:
        raise Undecodable(DecodeCause.UNFIT_SCHEMA, f"is of type {registered.kind}, not {KIND}")
    writers = parse_schema(registered.text, registered.references)
    try:
        decode = _SchemaReader(target, own, writers).make(start)
    except Unresolvable as error:
        raise Undecodable(DecodeCause.UNFIT_SCHEMA, f"{UNRESOLVABLE}: {error}") from error
    decoded = writers if own is None else own
    if _has_nanoseconds(decoded):
        return _explain_nanoseconds(decode)
    return decode


class _SchemaReader:
    """Makes the function that decodes messages of one schema to the stream's message type."""

    def __init__(self, target: MessageTarget, own: Schema | None, writers: Schema) -> None:
        """See the class.

        Raises:
            Undecodable: No message of the stream is of the writer's schema.
        """
        self._target = target
        self._own = own
        self._writers = writers
        self._compiler = Compiler(target.tag_fields)
        decoded = writers if own is None else own
        records = list_records(decoded)
        self._is_alone = len(records) == 1
        if not records or not list_records(writers):
            raise Undecodable(DecodeCause.UNFIT_SCHEMA, "is neither a record nor a union of records")

    def make(self, start: int) -> Decode:
        """The decode function of messages that start at a position.

        Raises:
            Undecodable: No message of the schema is one of the stream.
            Unresolvable: No message of the schema resolves to the reader's.
        """
        if not isinstance(self._writers, UnionType):
            read, convert = self._read_record(self._writers)
            return lambda value: convert(read_message(read, value, start))
        branches = [partial(_read_with, *self._read_branch(one)) for one in self._writers.branches]
        read_any = read_union(branches)

        def decode(value: bytes) -> object:
            convert, record = read_message(read_any, value, start)
            return convert(record)

        return decode

    def _read_branch(self, branch: Schema) -> tuple[Read, Convert]:
        """The reader of a branch, and its conversion: a foreign one refuses its own messages alone."""
        try:
            return self._read_record(branch)
        except Undecodable as unfit:
            refuse = partial(_refuse, DecodeCause.WRONG_TYPE, str(unfit))
        except Unresolvable as error:
            refuse = partial(_refuse, DecodeCause.UNFIT_SCHEMA, f"{UNRESOLVABLE}: {error}")
        return self._compiler.compile(branch, None), refuse

    def _read_record(self, writer: Schema) -> tuple[Read, Convert]:
        own = None
        if self._own is not None:
            own = choose_branch(writer, self._own)
        record = writer if own is None else own
        if not isinstance(record, RecordType):
            raise Undecodable(DecodeCause.UNFIT_SCHEMA, f"is of type {record.kind}, not a record")
        convert = self._target.find_conversion(record, is_alone=self._is_alone)
        return self._compiler.compile(writer, own), convert


def _read_with(read: Read, convert: Convert, data: bytes, at: int) -> tuple[tuple[Convert, object], int]:
    """Read a value, and name its conversion: the branch of a union decides it."""
    value, at = read(data, at)
    return (convert, value), at


def _refuse(cause: DecodeCause, problem: str, record: object) -> NoReturn:
    del record
    raise Undecodable(cause, problem)


def _has_nanoseconds(schema: Schema) -> bool:
    logical = (part.logical for part in list_parts(schema) if isinstance(part, PrimitiveType))
    return any(one is not None and one.name.endswith("-nanos") for one in logical)


def _explain_nanoseconds(decode: Decode) -> Decode:
    """Name the remedy in the error of a field that takes a datetime."""

    def explained(value: bytes) -> object:
        try:
            return decode(value)
        except msgspec.ValidationError as error:
            if "datetime" in str(error) and "got `int`" in str(error):
                raise Undecodable(DecodeCause.WRONG_TYPE, f"{error}; {NANOSECONDS}") from error
            raise

    return explained
