"""Random Protobuf messages: types with all kinds of fields, and bytes that are valid, nearly valid, or invalid."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from random import Random
from typing import Any

from google.protobuf import (
    any_pb2,
    descriptor_pool,
    duration_pb2,
    message_factory,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto

from tests.support.decoders.strict_protobuf import FIXED, VARINTS, Messages, is_repeated, kind_of, wire_type_of

WELL_KNOWN = (any_pb2, duration_pb2, struct_pb2, timestamp_pb2, wrappers_pb2)
WELL_KNOWN_TYPES = ("Any", "Duration", "Struct", "Value", "Timestamp", "Int32Value", "StringValue", "BoolValue")
SCALARS = (*VARINTS[:-1], *FIXED, "string", "bytes")
PACKAGE = "made"
OPTIONAL: Any = FieldDescriptorProto.LABEL_OPTIONAL
NUMBERS: tuple[int, ...] = (
    *(0, 1, 2, 127, 128, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1, 2**64 - 2**31),
    *(2**64 - 2**31 - 1, 2**64 - 5, 999_999_999, 10**9, 315_576_000_001, 253_402_300_799, 253_402_300_800),
    *(2**64 - 62_135_596_800, 2**64 - 62_135_596_801),
)


@dataclass
class File:
    """A random .proto file, its messages for the strict reader, and their classes."""

    random: Random

    def __post_init__(self) -> None:
        self.is_proto2 = self.random.random() < 0.3
        self.file = FileDescriptorProto(
            name="made.proto", package=PACKAGE, syntax="proto2" if self.is_proto2 else "proto3"
        )
        enum = self.file.enum_type.add(name="E")
        for name, number in (("E0", 0), ("E1", 1), ("E5", 5)):
            enum.value.add(name=name, number=number)
        for number in range(3):
            self.add_message(f"M{number}")
        pool: Any = descriptor_pool.DescriptorPool()  # the library's types lack its methods
        self.messages = Messages()
        for module in WELL_KNOWN:
            self.file.dependency.append(module.DESCRIPTOR.name)
            copied = FileDescriptorProto()
            module.DESCRIPTOR.CopyToProto(copied)
            pool.Add(copied)
            self.messages.add(copied)
        pool.Add(self.file)
        self.messages.add(self.file)
        self.cls = message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.M0"))

    def add_message(self, name: str) -> None:
        message = self.file.message_type.add(name=name)
        for number in range(1, self.random.choice((2, 3, 5))):
            self.add_field(message, number)

    def add_field(self, message: DescriptorProto, number: int) -> None:
        one = message.field.add(name=f"f{number}", number=number, json_name=f"f{number}")
        one.label = self.choose_label()
        choice = self.random.random()
        if choice < 0.5:
            one.type = type_number(self.random.choice(SCALARS))
        elif choice < 0.6:
            one.type = type_number("enum")
            one.type_name = f".{PACKAGE}.E"
        elif choice < 0.7:
            self.make_map(message, one)
        else:
            self.make_nested(message, one)
        if one.label == OPTIONAL and self.random.random() < 0.2:
            if not message.oneof_decl:
                message.oneof_decl.add(name="one")
            one.oneof_index = 0

    def choose_label(self) -> Any:
        if self.is_proto2 and self.random.random() < 0.1:
            return FieldDescriptorProto.LABEL_REQUIRED
        return self.random.choice((OPTIONAL, OPTIONAL, FieldDescriptorProto.LABEL_REPEATED))

    def make_nested(self, message: DescriptorProto, one: FieldDescriptorProto) -> None:
        """Make a field of type message: a group, a well-known type, or, if not required, a type of the file."""
        if self.is_proto2 and self.random.random() < 0.2:
            group = message.nested_type.add(name=f"F{one.number}")
            group.field.add(name="inner", number=1, type=type_number("int32"), label=OPTIONAL, json_name="inner")
            one.type = type_number("group")
            one.type_name = f".{PACKAGE}.{message.name}.F{one.number}"
        elif one.label == FieldDescriptorProto.LABEL_REQUIRED or self.random.random() < 0.5:
            one.type, one.type_name = type_number("message"), f".google.protobuf.{self.random.choice(WELL_KNOWN_TYPES)}"
        else:
            one.type, one.type_name = type_number("message"), f".{PACKAGE}.M{self.random.randrange(3)}"

    def make_map(self, message: DescriptorProto, one: FieldDescriptorProto) -> None:
        one.label = FieldDescriptorProto.LABEL_REPEATED
        one.type = type_number("message")
        one.type_name = f".{PACKAGE}.{message.name}.F{one.number}Entry"
        entry = message.nested_type.add(name=f"F{one.number}Entry")
        entry.options.map_entry = True
        key = self.random.choice(("string", "int32", "uint64", "bool", "sint32"))
        entry.field.add(name="key", number=1, label=OPTIONAL, type=type_number(key), json_name="key")
        value = entry.field.add(name="value", number=2, label=OPTIONAL, json_name="value")
        if self.random.random() < 0.6:
            value.type = type_number(self.random.choice(SCALARS))
        else:
            value.type, value.type_name = type_number("message"), f".{PACKAGE}.M{self.random.randrange(3)}"


def type_number(kind: str) -> Any:
    return FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")


def varint(number: int) -> bytes:
    groups = [number & 0x7F]
    while number := number >> 7:
        groups.append(number & 0x7F)
    return bytes([*(group | 0x80 for group in groups[:-1]), groups[-1]])


@dataclass
class Bytes:
    """Makes the bytes of messages of a file; values are mostly usual, and sometimes odd."""

    random: Random
    messages: Messages
    odd: float = 0.03

    def is_odd(self) -> bool:
        return self.random.random() < self.odd

    def message(self, name: str, depth: int = 0) -> bytes:
        fields = list(self.messages.by_name[name].field)
        if depth > 3:
            fields = [one for one in fields if kind_of(one) not in {"message", "group"}]
        chosen = [one for one in fields if self.random.random() < 0.8]
        if name.endswith("Value") and fields:
            chosen = [self.random.choice(fields)] if not self.is_odd() else []
        if self.is_odd():
            self.random.shuffle(chosen)
        body = b"".join(self.field(one, depth) for one in chosen)
        return body + (self.unknown() if self.is_odd() else b"")

    def unknown(self) -> bytes:
        return self.random.choice((b"\xf8\x07\x05", b"\xfb\x07\x08\x01\xfc\x07", b"\xfa\x07\x01\xff", b"\xfd\x07abcd"))

    def field(self, one: FieldDescriptorProto, depth: int) -> bytes:
        kind = kind_of(one)
        count = self.random.choice((0, 1, 2)) if is_repeated(one) else 2 if self.is_odd() else 1
        if self.is_odd():
            kind = self.random.choice(SCALARS)
        wire_type = wire_type_of(kind)
        if is_repeated(one) and wire_type not in {2, 3} and self.random.random() < 0.8:
            packed = b"".join(self.scalar(kind) for _ in range(count))
            return varint(one.number * 8 + 2) + varint(len(packed)) + packed if packed else b""
        tag = varint(one.number * 8 + wire_type)
        return b"".join(tag + self.value(one, kind, depth) for _ in range(count))

    def value(self, one: FieldDescriptorProto, kind: str, depth: int) -> bytes:
        if kind == "group":
            return self.message(one.type_name, depth + 1) + varint(one.number * 8 + 4)
        if kind == "message":
            body = self.message(one.type_name, depth + 1)
            return varint(len(body)) + body
        return self.scalar(kind)

    def scalar(self, kind: str) -> bytes:
        if kind in FIXED:
            numbers: tuple[float, ...] = (0, 1, 200) if FIXED[kind][1] not in "fd" else (0.0, -0.0, 1.5, float("nan"))
            return struct.pack(FIXED[kind], self.random.choice(numbers))
        if kind in {"string", "bytes"}:
            texts = ("", "a", "x" * 130, "\u00e9", "type.example/T")
            content = self.random.choice(texts).encode() if not self.is_odd() else b"\xff\xfe"
            return varint(len(content)) + content
        if kind == "bool":
            return varint(2 if self.is_odd() else self.random.randrange(2))
        if kind == "enum":
            return varint(self.random.choice(NUMBERS) if self.is_odd() else self.random.choice((0, 1, 5, 7)))
        return varint(self.random.choice(NUMBERS) if self.random.random() < 0.15 else self.random.randrange(300))
