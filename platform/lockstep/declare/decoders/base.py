"""Decoder, its errors, the base of schema registries.

msgspec decoders raise msgspec's errors; these are classified only after they were raised, so that valid
messages cost nothing.
"""

from __future__ import annotations

import types
from abc import abstractmethod
from collections.abc import Callable
from enum import StrEnum
from typing import ClassVar, Union, get_args, get_origin
from uuid import UUID

import msgspec

from lockstep.declare.decoders.wire_formats import describe_format
from lockstep.errors import DeclarationError
from lockstep.model.declaration import Declaration
from lockstep.model.field_types import mark_extension_point

Headers = tuple[tuple[str, bytes | None], ...]
"""A record's headers: names and values, in order."""
Decode = Callable[..., object]
"""From a record's value to a message; with `Decoder.reads_headers` from the value and the headers."""


@mark_extension_point
class Decoder(Declaration):
    """Makes the function that decodes one value strictly to a message type.

    A decoder is a value: it is pickled to executors, and opens files or connections only there.

    Attributes:
        reads_headers: The decode function takes the record's headers as its second argument. Reading them costs
            time for each message.
    """

    reads_headers: ClassVar[bool] = False

    @abstractmethod
    def build(self, message_type: object) -> Decode:
        """The decode function.

        Called when the stream is declared, and once in each worker. It must not reach outside of the process; the
        returned function may. That function raises `ValueError` or `msgspec.DecodeError` on bad input: a verdict on the
        message. If a service does not answer, it raises `RegistryUnreachable`: no verdict, the batch is retried.

        Args:
            message_type: The stream's message type. None in it represents records without a value, which are never
                passed to the function.

        Raises:
            DeclarationError: This decoder does not support messages of this type.
        """


def list_members(message_type: object) -> tuple[object, ...]:
    """The members of a union; any other type is its only member."""
    is_union = get_origin(message_type) in {Union, types.UnionType}
    if is_union:
        return get_args(message_type)
    return (message_type,)


def has_null(message_type: object) -> bool:
    """Whether a record without a value (a tombstone) is a message of a stream: None, if its message type allows it."""
    return type(None) in list_members(message_type)


def list_decoded(message_type: object) -> tuple[object, ...]:
    """The members of a message type that are made of a value: all but None."""
    return tuple(member for member in list_members(message_type) if member is not type(None))


def make_missing_extra(decoder: str, extra: str, error: ImportError) -> DeclarationError:
    """The error of a decoder whose library is not installed."""
    problem = f"its library is not installed: {error}"
    step = f"pip install 'PATH/TO/CHECKOUT[{extra}]'"
    return DeclarationError("Stream.decoder", decoder, problem, step)


class DecodeCause(StrEnum):
    """Causes of undecodable values."""

    NO_VALUE = "no value"
    TOO_LARGE = "message too large"
    MALFORMED = "malformed"
    TRUNCATED = "truncated"
    TRAILING = "trailing bytes"
    TOO_DEEP = "nested too deeply"
    WRONG_TYPE = "wrong type"
    MISSING_FIELD = "missing field"
    UNKNOWN_MAGIC_BYTE = "unknown magic byte"
    UNKNOWN_SCHEMA_ID = "unknown schema id"
    UNFIT_SCHEMA = "unfit schema"
    CRASHES_WORKER = "kills its worker"


class Undecodable(ValueError):
    """A value is not a message of the stream. A verdict on the value; never raised for its surroundings.

    Attributes:
        cause: One of the known causes.
    """

    def __init__(self, cause: DecodeCause, problem: str) -> None:
        super().__init__(problem)
        self.cause = cause


def find_decode_cause(error: Exception) -> DecodeCause:
    """The cause of a decoder's error."""
    if isinstance(error, Undecodable):
        return error.cause
    if isinstance(error, msgspec.ValidationError):
        return DecodeCause.MISSING_FIELD if "missing required field" in str(error) else DecodeCause.WRONG_TYPE
    if isinstance(error, RecursionError):
        return DecodeCause.TOO_DEEP
    if isinstance(error, msgspec.DecodeError):
        return _of_text(str(error))
    return DecodeCause.MALFORMED


def describe_decode_error(error: Exception, value: bytes) -> str:
    """The error; if the value is not JSON or MessagePack at all, also the format that its start resembles."""
    if isinstance(error, msgspec.ValidationError) or not isinstance(error, msgspec.DecodeError):
        return str(error)
    return f"{error}{describe_format(value)}"


def _of_text(problem: str) -> DecodeCause:
    """The cause of a msgspec error on unreadable JSON or MessagePack."""
    if "truncated" in problem:
        return DecodeCause.TRUNCATED
    return DecodeCause.TRAILING if "trailing" in problem else DecodeCause.MALFORMED


class SchemaReference(msgspec.Struct, frozen=True):
    """A schema on which another schema builds.

    Attributes:
        name: The name by which it is referenced: a full type name in Avro, a file in Protobuf.
        text: Its text.
    """

    name: str
    text: str


class RegisteredSchema(msgspec.Struct, frozen=True):
    """A registered schema. The schema of an id never changes.

    Attributes:
        kind: "AVRO", "PROTOBUF" or "JSON".
        text: Its text: JSON of an Avro schema, the source of a .proto file.
        references: All schemas it builds on, also indirectly, each after its own references.
    """

    kind: str
    text: str
    references: tuple[SchemaReference, ...] = ()


class Registry(Declaration):
    """Finds schemas by the id in each message.

    A registry is a value: it is pickled to executors and opens connections only there. The
    decoder caches the answers, in each worker.
    """

    @abstractmethod
    def schema(self, schema_id: int) -> RegisteredSchema | None:
        """The schema of an id; None only when the registry answers that it has none.

        Raises:
            RegistryUnreachable: It does not answer, refuses, or sends an invalid answer.
        """

    @abstractmethod
    def schema_by_guid(self, guid: UUID) -> RegisteredSchema | None:
        """The schema of a GUID, which some producers send in a header instead of an id.

        Raises:
            RegistryUnreachable: As `schema`.
        """
