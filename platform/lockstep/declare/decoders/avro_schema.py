"""Avro schemas as the registry gives them: parsed, judged whether they can be read safely, and read with."""

# pyright: basic
# Parsed JSON and a library without types: strict mypy checks what can be checked here.

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from typing import Any, Final, cast

import msgspec

from lockstep.declare.decoders.causes import Cause, Undecodable
from lockstep.declare.decoders.registry import SchemaReference

NAMED: Final = frozenset({"record", "error", "enum", "fixed"})


@dataclass(frozen=True)
class Schema:
    """A parsed schema.

    Attributes:
        parsed: As fastavro takes it.
        named: Its named types by full name, with those of its references.
    """

    parsed: object
    named: Mapping[str, Any] = field(default_factory=dict)

    def resolved(self, part: object) -> object:
        """A part of it, a name replaced by what it names."""
        return self.named.get(part, part) if isinstance(part, str) else part

    def records(self) -> list[str]:
        """Full names of the records that a message may be: one, or those of a union; empty if it may be none."""
        parts = self.parsed if isinstance(self.parsed, list) else [self.parsed]
        resolved = [self.resolved(part) for part in parts]
        return [cast("dict[str, str]", part)["name"] for part in resolved if _is_record(part)]

    def fields(self, record: str) -> set[str]:
        """Names of a record's fields."""
        return {cast("str", one["name"]) for one in self.named[record]["fields"]}


def require() -> None:
    """Raise ImportError where fastavro is not installed."""
    import fastavro  # noqa: F401


def parsed(text: str, references: Sequence[SchemaReference] = ()) -> Schema:
    """A schema from its text.

    Raises:
        Undecodable: It is no Avro schema, or one by which a small message could fill the memory.
    """
    from fastavro import parse_schema
    from fastavro.schema import SchemaParseException, UnknownType

    named: dict[str, Any] = {}
    try:
        for reference in references:
            parse_schema(msgspec.json.decode(reference.text), named_schemas=named)
        schema = Schema(parse_schema(msgspec.json.decode(text), named_schemas=named), named)
    except (msgspec.MsgspecError, SchemaParseException, UnknownType, RecursionError, *_MISSHAPEN) as error:
        problem = f"cannot be parsed: {type(error).__name__}: {error}"
        raise Undecodable(Cause.UNFIT_SCHEMA, problem) from error
    _refuse_bombs(schema)
    return schema


_MISSHAPEN: Final = (KeyError, TypeError, ValueError, AttributeError)
"""What fastavro raises of JSON that is no schema at all."""


def datum_reader(writers: Schema, own: Schema | None) -> Callable[[BytesIO], object]:
    """The function that reads one message from a stream.

    Records of a union with several of them come as (full name, record).
    """
    from fastavro import schemaless_reader

    read = cast("Callable[..., object]", schemaless_reader)
    if is_recursive(writers):
        # The compiled reader nests on the C stack: a deep message would kill the worker, not raise.
        from fastavro import _read_py

        read = cast("Callable[..., object]", _read_py.schemaless_reader)
    return partial(
        read,
        writer_schema=writers.parsed,
        reader_schema=None if own is None else own.parsed,
        return_record_name=True,
        return_record_name_override=True,
    )


def is_recursive(schema: Schema) -> bool:
    """Whether a record can hold a record of its own kind."""
    return any(_reaches(schema, name, schema.named[name], set()) for name in schema.named)


def has_mixed_unions(schema: Schema) -> bool:
    """Whether a union inside a message has several records."""
    return any(
        isinstance(part, list) and sum(_is_record(schema.resolved(one)) for one in part) > 1
        for part in _parts(schema, schema.parsed, set())
        if part is not schema.parsed
    )


def _refuse_bombs(schema: Schema) -> None:
    """An array of values that take no bytes can claim a billion of them in five bytes."""
    for part in _parts(schema, schema.parsed, set()):
        if isinstance(part, dict) and part.get("type") == "array" and not _takes_bytes(schema, part["items"], ()):
            raise Undecodable(Cause.UNFIT_SCHEMA, "an array of values without bytes: a small message could be endless")


def _takes_bytes(schema: Schema, part: object, around: tuple[str, ...]) -> bool:
    """Whether each value of this type takes at least a byte."""
    part = schema.resolved(part)
    if isinstance(part, str):
        return part != "null"
    if not isinstance(part, dict):
        return True  # a union takes the byte of its index
    if not _is_record(part):
        return _takes_bytes(schema, part["type"], around) if part["type"] == "null" else part.get("size") != 0
    name = cast("str", part["name"])
    return name in around or any(_takes_bytes(schema, one["type"], (*around, name)) for one in part["fields"])


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
    """A type and all types inside of it, each named one once."""
    part = schema.resolved(part)
    if isinstance(part, dict) and part.get("type") in NAMED:
        if part["name"] in seen:
            return
        seen.add(part["name"])
    yield part
    for one in _inner(part):
        yield from _parts(schema, one, seen)


def _reaches(schema: Schema, name: str, part: object, seen: set[str]) -> bool:
    """Whether a named type stands somewhere inside a type."""
    for one in map(schema.resolved, _inner(part)):
        if _is_record(one):
            inner = cast("str", cast("Mapping[str, object]", one)["name"])
            if inner == name:
                return True
            if inner in seen:
                continue
            seen.add(inner)
        if _reaches(schema, name, one, seen):
            return True
    return False
