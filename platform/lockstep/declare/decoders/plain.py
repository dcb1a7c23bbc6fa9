"""JSON, MessagePack, bytes, user function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import get_type_hints

import msgspec
from msgspec import inspect
from typing_extensions import override

from lockstep.declare.decoders.base import Decode, Decoder, list_decoded, list_members
from lockstep.declare.decoders.canonical import make_canonical
from lockstep.errors import DeclarationError
from lockstep.model.type_parts import list_type_parts


def find_foreign_classes(message_type: object) -> list[type]:
    """Classes inside a type that msgspec does not support, such as generated Protobuf messages."""
    parts = list_type_parts(inspect.type_info(message_type))
    return [part.cls for part in parts if isinstance(part, inspect.CustomType)]


def find_tag_fields(message_type: object) -> list[str]:
    """Names of the tag fields of the Structs inside a type."""
    parts = list_type_parts(inspect.type_info(message_type))
    return sorted({part.tag_field for part in parts if isinstance(part, inspect.StructType) and part.tag_field})


@dataclass(frozen=True)
class Json(Decoder):
    """Strict JSON: wrong types, missing fields, NaN, trailing text and bad UTF-8 are refused."""

    @override
    def build(self, message_type: object) -> Decode:
        _refuse_unsupported(message_type)
        return make_canonical(msgspec.json.Decoder(message_type).decode, message_type)


@dataclass(frozen=True)
class MessagePack(Decoder):
    """MessagePack, as strict as `Json`."""

    @override
    def build(self, message_type: object) -> Decode:
        _refuse_unsupported(message_type)
        return make_canonical(msgspec.msgpack.Decoder(message_type).decode, message_type)


@dataclass(frozen=True)
class Bytes(Decoder):
    """No decoding: the message is the record's value, of type `bytes`."""

    @override
    def build(self, message_type: object) -> Decode:
        if list_decoded(message_type) != (bytes,):
            raise DeclarationError(
                "Stream.transform",
                message_type,
                "Bytes() returns bytes, not this message type",
                "write Transform[bytes, State, Row], or choose the decoder of this type",
            )
        return bytes  # returns the same object: no copy


@dataclass(frozen=True)
class Function(Decoder):
    """A function of the user.

    Example: `Function(read_line)`

    Attributes:
        decode: Takes the value's bytes; raises `ValueError` when they are not a message. It must be importable by name.
            An annotated return type is compared with the stream's message type; results are not checked.
    """

    decode: Callable[[bytes], object]

    def __post_init__(self) -> None:
        """Refuse a value that is not a function: it would refuse every message."""
        if not callable(self.decode):
            raise DeclarationError(
                "Function.decode", self.decode, "is not a function", "for example Function(read_message)"
            )

    @override
    def build(self, message_type: object) -> Decode:
        returned = _returned(self.decode)
        if returned is not None and not _fits(returned, message_type):
            raise DeclarationError(
                "Stream.decoder",
                self.decode,
                f"returns {returned}, and the transform takes {message_type}",
                "annotate the function with the transform's message type, or part of it",
            )
        return make_canonical(self.decode, message_type)


def _refuse_unsupported(message_type: object) -> None:
    """Refuse types that msgspec cannot decode to, with its reason."""
    try:
        msgspec.json.Decoder(message_type)
        foreign = find_foreign_classes(message_type)
    except (TypeError, NameError) as error:
        raise _unsupported(message_type, f"messages cannot be decoded to this type: {error}") from error
    if list_decoded(message_type) == (bytes,):
        raise _unsupported(message_type, "bytes are what arrives, not what this decoder makes of it", "Bytes()")
    if foreign:
        raise _unsupported(message_type, f"messages cannot be decoded to {foreign[0].__qualname__}", "Protobuf()")


def _unsupported(message_type: object, problem: str, instead: str | None = None) -> DeclarationError:
    remedy = "use a msgspec.Struct, or a union of Structs distinguished by tag_field and tag"
    hint = f"; or declare Stream(decoder={instead}), if the topics hold those" if instead else ""
    return DeclarationError("Stream.transform", message_type, problem, remedy + hint)


def _returned(function: Callable[[bytes], object]) -> object:
    """The annotated return type of a function; None without a readable one."""
    try:
        return get_type_hints(function).get("return")
    except (NameError, TypeError):
        return None


def _fits(returned: object, message_type: object) -> bool:
    """Whether the transform takes each class that may be returned; types that are not classes are not judged."""
    taken = [member for member in list_members(message_type) if isinstance(member, type)]
    given = [member for member in list_members(returned) if isinstance(member, type)]
    if not taken or object in given:
        return True
    return all(any(issubclass(one, other) for other in taken) for one in given)
