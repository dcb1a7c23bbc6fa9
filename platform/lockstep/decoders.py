"""Decoders of record values; `Json`, the default, is at the top of lockstep."""

from lockstep.declare.decoders.avro import Avro
from lockstep.declare.decoders.base import Decoder, RegisteredSchema, SchemaReference
from lockstep.declare.decoders.plain import Bytes, Function, MessagePack
from lockstep.declare.decoders.protobuf import Protobuf
from lockstep.errors import RegistryUnreachable
from lockstep.model.record import TimestampType

__all__ = [
    "Avro",
    "Bytes",
    "Decoder",
    "Function",
    "MessagePack",
    "Protobuf",
    "RegisteredSchema",
    "RegistryUnreachable",
    "SchemaReference",
    "TimestampType",
]
