"""What Avro records become: the Struct of the stream, or the member of its union that the record's name says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, cast

import msgspec

from lockstep.declare.decoders.avro_schema import Schema, has_mixed_unions
from lockstep.declare.decoders.causes import Cause, Undecodable
from lockstep.declare.decoders.contract import members
from lockstep.declare.decoders.inside import foreign_classes, tag_fields
from lockstep.errors import DeclarationError

Convert = Callable[[object], object]
"""From what fastavro read to a message; raises Undecodable or msgspec.ValidationError."""


@dataclass(frozen=True)
class Target:
    """The message type of a stream.

    Attributes:
        by_name: The Structs by tag, or by class name where they have no tag.
        tag_field: The field that tells them apart, where there are several.
        tag_fields: Names of all tag fields anywhere inside.
    """

    by_name: Mapping[str, type[msgspec.Struct]]
    tag_field: str | None
    tag_fields: tuple[str, ...]

    def conversion(self, schema: Schema) -> Convert:
        """The conversion of messages of one schema.

        Raises:
            Undecodable: No message of this schema is one of the stream.
        """
        records = schema.records()
        if not records:
            raise Undecodable(Cause.UNFIT_SCHEMA, "is no record, and no union of records")
        tagged = partial(_tagged, tag_fields=self.tag_fields) if has_mixed_unions(schema) else None
        if len(records) == 1:
            return _then(tagged, self._of_record(schema, records[0]))
        by_record = {name: self._or_refusal(schema, name) for name in records}
        return _then(None, partial(_by_record, by_record, tagged))

    def _or_refusal(self, schema: Schema, record: str) -> Convert:
        """In a union, a record that is none of the stream refuses its own messages only."""
        try:
            return self._of_record(schema, record)
        except Undecodable as unfit:
            return partial(_refuse, str(unfit))

    def _of_record(self, schema: Schema, record: str) -> Convert:
        if self.tag_field is not None and self.tag_field in schema.fields(record):
            return partial(_by_tag, self.by_name, self.tag_field)
        if len(self.by_name) == 1 and len(schema.records()) == 1:
            return _to(next(iter(self.by_name.values())))
        struct = self.by_name.get(record) or self.by_name.get(record.rpartition(".")[2])
        if struct is None:
            raise Undecodable(Cause.UNFIT_SCHEMA, f"record {record} is none of {', '.join(self.by_name)}")
        return _to(struct)


def target_of(message_type: object) -> Target:
    """The target of a message type: a Struct, or a union of Structs.

    Raises:
        DeclarationError: It is neither.
    """
    structs = members(message_type)
    if not all(isinstance(one, type) and issubclass(one, msgspec.Struct) for one in structs):
        raise _unfit(message_type, "Avro records become Structs, and this is none")
    try:
        msgspec.json.Decoder(message_type)  # says the same of unions that cannot be told apart
        foreign, fields = foreign_classes(message_type), tag_fields(message_type)
    except (TypeError, NameError) as error:
        raise _unfit(message_type, f"messages cannot be decoded to this type: {error}") from error
    if foreign:
        raise _unfit(message_type, f"messages cannot be decoded to {foreign[0].__qualname__}")
    classes = cast("tuple[type[msgspec.Struct], ...]", structs)
    by_name = {str(one.__struct_config__.tag or one.__name__): one for one in classes}
    return Target(by_name, classes[0].__struct_config__.tag_field if len(classes) > 1 else None, tuple(fields))


def _unfit(message_type: object, problem: str) -> DeclarationError:
    remedy = "use a msgspec.Struct, or a union of Structs told apart by tag_field and tag"
    return DeclarationError("Stream.transform", message_type, problem, remedy)


def _to(struct: type[msgspec.Struct]) -> Convert:
    # Bytes come from bytes alone: msgspec would else take a string for base64.
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
        raise Undecodable(Cause.WRONG_TYPE, f"{tag_field} = {tag!r} is none of {', '.join(by_name)}")
    return _convert(struct, record)


def _by_record(by_record: Mapping[str, Convert], tagged: Convert | None, named: object) -> object:
    """Of a union: fastavro gives (full name, record), and anything else bare."""
    if not isinstance(named, tuple):
        raise Undecodable(Cause.WRONG_TYPE, f"is of type {type(named).__name__}, not a record")
    name, record = cast("tuple[str, object]", named)
    return by_record[name](record if tagged is None else tagged(record))


def _refuse(problem: str, record: object) -> NoReturn:
    del record
    raise Undecodable(Cause.WRONG_TYPE, problem)


def _tagged(value: Any, tag_fields: tuple[str, ...]) -> object:
    """Put the name of each record of a union into its tag field, where the record has no such field."""
    if isinstance(value, tuple):
        name, record = cast("tuple[str, dict[str, object]]", value)
        tags = dict.fromkeys(tag_fields, name.rpartition(".")[2])
        return {**tags, **cast("dict[str, object]", _tagged(record, tag_fields))}
    if isinstance(value, dict):
        return {key: _tagged(inner, tag_fields) for key, inner in cast("dict[str, object]", value).items()}
    if isinstance(value, list):
        return [_tagged(inner, tag_fields) for inner in cast("list[object]", value)]
    return value
