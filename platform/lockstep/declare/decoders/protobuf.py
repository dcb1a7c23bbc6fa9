"""Protobuf and its .proto index parser.

The registry returns the source of a schema, and the Protobuf library includes no compiler; names and
indexes do not need one. Nothing else of a file is interpreted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, cast

from typing_extensions import override

from lockstep.declare.decoders.base import (
    Decode,
    DecodeCause,
    RegisteredSchema,
    Registry,
    Undecodable,
    list_decoded,
    make_missing_extra,
)
from lockstep.declare.decoders.protobuf_checks import check_fields, find_value_checks, make_rules
from lockstep.declare.decoders.schema_registry import Framed, FramedDecoder
from lockstep.errors import DeclarationError

if TYPE_CHECKING:
    from google._upb._message import Descriptor as CompiledDescriptor
    from google.protobuf.descriptor import Descriptor as PlainDescriptor
    from google.protobuf.message import Message


Path = tuple[int, ...]
"""The index of a message in its file or enclosing message, from outside in."""

_TOKEN: Final = re.compile(
    r"""//[^\n]* | /\*.*?\*/                         # comments
      | "(?:\\.|[^"\\])*" | '(?:\\.|[^'\\])*'        # strings
      | [A-Za-z_][\w.]* | [^\sA-Za-z_]               # names, and all else a character at a time""",
    re.VERBOSE | re.DOTALL,
)
_GROUP_TOKENS: Final = 20
"""Between the name of a group and its brace: a number and perhaps options."""


@dataclass
class _Scope:
    """A file, a message, or a block without nested messages."""

    name: str
    path: Path
    found: int = 0


@dataclass
class _Reading:
    """The messages found so far."""

    tokens: list[str]
    names: dict[Path, str] = field(default_factory=dict)

    def read(self) -> dict[Path, str]:
        scopes = [_Scope("", ())]
        for at, word in enumerate(self.tokens):
            if word == "package" and len(scopes) == 1 and at + 1 < len(self.tokens):
                scopes[0].name = self.tokens[at + 1]
            elif word == "{":
                name = self._opened(at)
                scopes.append(scopes[-1] if name is None else self._message(scopes[-1], name))
            elif word == "}":
                scopes.pop()
                if not scopes:
                    raise Undecodable(DecodeCause.UNFIT_SCHEMA, "is no .proto file: a brace too many")
        return self.names

    def _opened(self, at: int) -> str | None:
        """The name of the message that this brace opens; None for blocks of other kinds."""
        if at >= 2 and self.tokens[at - 2] == "message" and _is_name(self.tokens[at - 1]):  # noqa: PLR2004  # two before
            return self.tokens[at - 1]
        for back in range(at - 1, max(at - _GROUP_TOKENS, 0), -1):
            if self.tokens[back] in {";", "{", "}"}:
                return None
            if self.tokens[back] == "group" and _is_name(self.tokens[back + 1]):
                return self.tokens[back + 1]
        return None

    def _message(self, around: _Scope, name: str) -> _Scope:
        path = (*around.path, around.found)
        around.found += 1
        full_name = f"{around.name}.{name}" if around.name else name
        self.names[path] = full_name
        return _Scope(full_name, path)


def list_message_names(text: str) -> dict[Path, str]:
    """The full names of a file's messages by their paths.

    Raises:
        Undecodable: It is no .proto file.
    """
    tokens = [token for token in _TOKEN.findall(text) if not token.startswith(("//", "/*"))]
    return _Reading(tokens).read()


def _is_name(token: str) -> bool:
    return token.isidentifier()


KIND: Final = "PROTOBUF"
DEPTH_MAX: Final = 100
"""Levels of nested message types; Protobuf's own limit of nested messages."""
VARINT_BYTES_MAX: Final = 5
"""Of a 32-bit number."""

Parse = Callable[[bytes], object]


@dataclass(frozen=True)
class Protobuf(FramedDecoder):
    """Protobuf in the wire format of a schema registry: the schema's id and the message's path in the schema.

    The message type is a generated message class, or a union of several: the frame selects one. Fields evolve by
    Protobuf's own rules.
    """

    @override
    def build_with(self, registry: Registry | None, message_type: object) -> Decode:
        try:
            classes = _classes(message_type)
        except ImportError as error:
            raise make_missing_extra("Protobuf()", "protobuf,registry", error) from error
        parsers = {one.DESCRIPTOR.full_name: _make_parser(one) for one in classes}
        return Framed(registry, partial(_make_reader, parsers), _find_body).decode


def _find_body(value: bytes, start: int) -> int:
    return find_message_path(value, start)[1]


def find_message_path(value: bytes, start: int) -> tuple[Path, int]:
    """The message's path in its schema, and the start of the message.

    A count and as many indexes, as zigzag varints; a count of zero abbreviates the first message.

    Raises:
        Undecodable: The bytes are not such a list.
    """
    count, at = _varint(value, start)
    if not 0 <= count <= DEPTH_MAX:
        raise Undecodable(DecodeCause.MALFORMED, f"{count} message indexes")
    if count == 0:
        return (0,), at
    path: list[int] = []
    for _ in range(count):
        index, at = _varint(value, at)
        path.append(index)
    return tuple(path), at


def _make_reader(parsers: Mapping[str, Parse], registered: RegisteredSchema, start: int) -> Decode:
    """The function that reads frames of one schema, whose message indexes start at a position.

    Raises:
        Undecodable: No message of the stream has this schema.
    """
    if registered.kind != KIND:
        raise Undecodable(DecodeCause.UNFIT_SCHEMA, f"is of type {registered.kind}, not {KIND}")
    names = list_message_names(registered.text)
    by_path = {path: parsers[name] for path, name in names.items() if name in parsers}
    if not by_path:
        raise Undecodable(DecodeCause.UNFIT_SCHEMA, f"holds none of {', '.join(parsers)}")
    first = by_path.get((0,))
    top = _top_level(by_path)
    after_one = start + 1
    after_two = start + 2

    def read(value: bytes) -> object:
        # Nearly all frames contain a top-level message of their schema, whose index takes a byte or two.
        if first is not None and value[start:after_one] == b"\x00":
            return first(value[after_one:])
        if (parse := top.get(value[start:after_two])) is not None:
            return parse(value[after_two:])
        path, at = find_message_path(value, start)
        parse = by_path.get(path)
        if parse is None:
            raise Undecodable(DecodeCause.WRONG_TYPE, f"holds {names.get(path, path)}, not {', '.join(parsers)}")
        return parse(value[at:])

    return read


def _top_level(by_path: Mapping[Path, Parse]) -> dict[bytes, Parse]:
    """The parsers of top-level messages by the two bytes of their index."""
    below_two_bytes = {path[0]: parse for path, parse in by_path.items() if len(path) == 1 and path[0] < 64}  # noqa: PLR2004  # of a zigzag byte
    return {bytes((2, 2 * index)): parse for index, parse in below_two_bytes.items()}


def _varint(value: bytes, start: int) -> tuple[int, int]:
    number = 0
    for shift, byte in enumerate(value[start : start + VARINT_BYTES_MAX]):
        number |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:  # noqa: PLR2004  # the last byte of a varint has no high bit
            return (number >> 1) ^ -(number & 1), start + shift + 1
    short = len(value) - start < VARINT_BYTES_MAX
    raise Undecodable(DecodeCause.TRUNCATED if short else DecodeCause.MALFORMED, "no end of a message index")


def _classes(message_type: object) -> list[type[Message]]:
    from google.protobuf.message import Message

    classes = list_decoded(message_type)
    are_generated = (isinstance(one, type) and issubclass(one, Message) and one is not Message for one in classes)
    if not classes or not all(are_generated):
        raise DeclarationError(
            "Stream.transform",
            message_type,
            "Protobuf() makes generated message classes, and this is none",
            "write Transform[reading_pb2.Reading, State, Row], or choose the decoder of this type",
        )
    return [cast("type[Message]", one) for one in classes]


def _make_parser(message: type[Message]) -> Parse:
    """The strict parser of one class: checks what the library accepts."""
    from google.protobuf.message import DecodeError

    descriptor = cast("PlainDescriptor", message.DESCRIPTOR)
    parse = message.FromString
    name = descriptor.full_name
    requires = _requires(descriptor, set())
    rules = make_rules(descriptor, {})
    is_odd = _has_unknown_fields() if rules.are_visible else _has_other_bytes
    check_values = find_value_checks(descriptor)

    def read(body: bytes) -> object:
        try:
            parsed = parse(body)
            if is_odd(parsed, body):
                check_fields(rules, body)
                parsed = parse(body)
        except DecodeError as error:
            raise Undecodable(DecodeCause.MALFORMED, f"is no {name}: {error}") from error
        if requires and not parsed.IsInitialized():
            raise Undecodable(DecodeCause.MISSING_FIELD, f"{name} lacks required fields")
        if check_values is not None:
            check_values(parsed)
        return parsed

    return read


def _has_unknown_fields() -> Callable[[Message, bytes], bool]:
    # The library ships no types for this module.
    unknown_fields: Callable[[Message], Sequence[object]] = import_module(
        "google.protobuf.unknown_fields"
    ).UnknownFieldSet
    return lambda parsed, _: bool(unknown_fields(parsed))


def _has_other_bytes(parsed: Message, body: bytes) -> bool:
    """Whether the library would write other bytes for a message. Drops its unknown fields.

    A field of another wire type is an unknown field, at any depth, and a number that was cut is written otherwise. Most
    messages have the bytes that the library writes.
    """
    cast("Any", parsed).DiscardUnknownFields()  # the library's types lack it
    # An unknown field is missing in it, and a number that was cut is written otherwise.
    return parsed.SerializePartialToString() != body


def _requires(descriptor: PlainDescriptor | CompiledDescriptor, seen: set[str]) -> bool:
    """Whether a message, or one inside of it, has required fields."""
    from google.protobuf.message_factory import GetMessageClass

    seen.add(descriptor.full_name)
    if not GetMessageClass(cast("PlainDescriptor", descriptor))().IsInitialized():
        return True
    inner = [field.message_type for field in descriptor.fields if field.message_type is not None]
    return any(one.full_name not in seen and _requires(one, seen) for one in inner)
