"""Avro's schema resolution: which type of a reader's schema takes the values of a writer's type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from lockstep.declare.decoders.avro_schema import (
    NO_DEFAULT,
    ArrayType,
    EnumType,
    Field,
    FixedType,
    MapType,
    PrimitiveType,
    RecordType,
    Schema,
    UnionType,
    find_short_name,
)
from lockstep.declare.decoders.avro_values import Convert


class Unresolvable(Exception):  # becomes Undecodable: of a schema, or of the messages of a branch
    """A writer's type does not resolve to the reader's."""


PROMOTIONS: Final[Mapping[tuple[str, str], Convert | None]] = {
    ("int", "long"): None,
    ("int", "float"): float,
    ("int", "double"): float,
    ("long", "float"): float,
    ("long", "double"): float,
    ("float", "double"): None,
    ("string", "bytes"): str.encode,
    ("bytes", "string"): bytes.decode,
}
"""The conversion of a value by the types of writer and reader."""


def choose_branch(writer: Schema, reader: Schema) -> Schema:
    """The type of a reader's schema to which a writer's type is resolved: of a union the first that matches.

    Raises:
        Unresolvable: There is none.
    """
    branches = reader.branches if isinstance(reader, UnionType) else [reader]
    for branch in branches:
        if is_match(writer, branch):
            return branch
    raise Unresolvable(f"{describe(writer)} is not {describe(reader)}")


def is_match(writer: Schema, reader: Schema) -> bool:
    """Whether two types match by the specification, which compares neither fields nor branches."""
    match writer, reader:
        case (UnionType(), _) | (_, UnionType()):
            is_alike = True
        case ArrayType(), ArrayType():
            is_alike = is_match(writer.items, reader.items)
        case MapType(), MapType():
            is_alike = is_match(writer.values, reader.values)
        case FixedType(), FixedType():
            is_alike = _has_name(writer, reader) and writer.size == reader.size and _means_the_same(writer, reader)
        case (EnumType(), EnumType()) | (RecordType(), RecordType()):
            is_alike = _has_name(writer, reader)
        case PrimitiveType(), PrimitiveType():
            is_promoted = (writer.kind, reader.kind) in PROMOTIONS
            is_alike = (writer.kind == reader.kind or is_promoted) and _means_the_same(writer, reader)
        case _:
            is_alike = False
    return is_alike


def _has_name(writer: Any, reader: Any) -> bool:
    """Whether a writer's type has the name of the reader's, in any namespace, or one of its aliases."""
    short = find_short_name(writer.name)
    return short == find_short_name(reader.name) or not reader.aliases.isdisjoint({writer.name, short})


def _means_the_same(writer: PrimitiveType | FixedType, reader: PrimitiveType | FixedType) -> bool:
    """Whether the logical types agree; a type without one takes the values as they are."""
    return writer.logical is None or reader.logical in {None, writer.logical}


def describe(schema: Schema) -> str:
    """A type in a few words."""
    if isinstance(schema, UnionType):
        return f"one of {', '.join(map(describe, schema.branches))}"
    if isinstance(schema, (ArrayType, MapType)):
        inner = schema.items if isinstance(schema, ArrayType) else schema.values
        return f"{schema.kind} of {describe(inner)}"
    words = [schema.kind] if isinstance(schema, PrimitiveType) else [schema.kind, schema.name]
    if isinstance(schema, (PrimitiveType, FixedType)) and schema.logical is not None:
        words.extend(str(part) for part in schema.logical if part)
    return " ".join(words)


def resolve_fields(writer: RecordType, reader: RecordType) -> tuple[dict[str, Field], list[Field]]:
    """The reader's fields by their names in the writer's schema, and those that the writer lacks.

    Raises:
        Unresolvable: The writer lacks a field that has no default.
    """
    written = {one.name for one in writer.fields}
    # First by name: a producer that renames a field writes both for a while, and the name counts.
    targets = {one.name: one for one in reader.fields if one.name in written}
    lacking = list[Field]()
    for field in reader.fields:
        if field.name in written:
            continue
        alias = next((one for one in field.aliases if one in written and one not in targets), None)
        if alias is not None:
            targets[alias] = field
        elif field.default is NO_DEFAULT:
            raise Unresolvable(f"{writer.name} has no field {field.name}, and it has no default")
        else:
            lacking.append(field)
    return targets, lacking


def resolve_symbols(writer: EnumType, reader: EnumType | None) -> Sequence[str | None]:
    """The reader's symbols by the writer's indexes; None for one that the reader lacks."""
    if reader is None:
        return writer.symbols
    return [symbol if symbol in reader.symbols else reader.default for symbol in writer.symbols]
