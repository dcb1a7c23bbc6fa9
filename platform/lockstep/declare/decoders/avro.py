"""Avro messages in the frame of a schema registry, read with the schema that their writer registered."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from typing import Final

from lockstep.declare.decoders import avro_schema
from lockstep.declare.decoders.avro_schema import Schema
from lockstep.declare.decoders.avro_target import Target, target_of
from lockstep.declare.decoders.causes import Cause, Undecodable
from lockstep.declare.decoders.contract import Decode, missing_extra
from lockstep.declare.decoders.framing import HEADER_BYTES, Framed, FramedDecoder
from lockstep.declare.decoders.registry import RegisteredSchema
from lockstep.errors import DeclarationError

KIND: Final = "AVRO"
UNREADABLE: Final = (ValueError, LookupError, ArithmeticError, TypeError, AttributeError, struct.error, MemoryError)
"""What fastavro raises when bytes do not fit their schema, besides EOFError and RecursionError."""


@dataclass(frozen=True)
class Avro(FramedDecoder):
    """Avro with the frame of a schema registry, converted strictly to the message type.

    Each message is read with the schema that its writer registered, so producers may move to a new
    schema while older messages are still there. Fields that the Struct does not have are left
    out; a field that the writer's schema does not have takes the Struct's default, or is a missing
    field. Several record types become a union of tagged Structs: the tag is the record's name,
    unless the record has a field of the tag's name.

    Attributes:
        registry: Where schemas are found; the installation's (`[registry]` of the settings) when left out.
        reader_schema: An Avro schema as JSON text that messages are resolved to before they are
            converted, for its aliases and defaults. Seldom needed.
    """

    reader_schema: str | None = None

    def build(self, message_type: object) -> Decode:
        """See `Decoder.build`."""
        target = target_of(message_type)
        return Framed(self.registry, partial(_reader, target, self._own_schema()), "Avro").decode

    def _own_schema(self) -> Schema | None:
        try:
            avro_schema.require()
            return None if self.reader_schema is None else avro_schema.parsed(self.reader_schema)
        except ImportError as error:
            raise missing_extra("Avro()", "avro,registry", error) from error
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
        Undecodable: No message of the stream is written with this schema.
    """
    if registered.kind != KIND:
        raise Undecodable(Cause.UNFIT_SCHEMA, f"is of type {registered.kind}, not {KIND}")
    writers = avro_schema.parsed(registered.text, registered.references)
    convert = target.conversion(writers if own is None else own)
    datum = avro_schema.datum_reader(writers, own)

    def read(value: bytes) -> object:
        return convert(_datum(datum, value))

    return read


def _datum(datum: Callable[[BytesIO], object], value: bytes) -> object:
    """What fastavro makes of a frame's message, all of it."""
    stream = BytesIO(value)
    stream.seek(HEADER_BYTES)
    try:
        read = datum(stream)
    except EOFError as error:
        raise Undecodable(Cause.TRUNCATED, f"the message ends too early: {error}") from error
    except RecursionError as error:
        raise Undecodable(Cause.TOO_DEEP, "the message is nested too deeply") from error
    except UNREADABLE as error:
        raise _unreadable(stream, value, error) from error
    left = len(value) - stream.tell()
    if left:
        raise Undecodable(Cause.TRAILING, f"{left} bytes after the message")
    return read


def _unreadable(stream: BytesIO, value: bytes, error: Exception) -> Undecodable:
    """Fastavro reads past the end of a number with an IndexError: that is the end of the message, too."""
    if isinstance(error, IndexError) and stream.tell() >= len(value):
        return Undecodable(Cause.TRUNCATED, "the message ends too early")
    return Undecodable(Cause.MALFORMED, f"does not fit its schema: {type(error).__name__}: {error}")
