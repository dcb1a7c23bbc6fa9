"""A second implementation of Protobuf's encoding: slow, from the descriptors alone, and stricter than the library.

It follows the definition of the encoding, and refuses inputs as docs/decoders.md states: a known field of another wire
type, a number out of the field's range, text that is not UTF-8, and well-known types out of their range.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto

VARINTS = ("int32", "int64", "uint32", "uint64", "sint32", "sint64", "bool", "enum")
FIXED = {"fixed64": "<Q", "sfixed64": "<q", "double": "<d", "fixed32": "<I", "sfixed32": "<i", "float": "<f"}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Refused(Exception):
    """The bytes are not a message."""


def require(holds: object, problem: str) -> None:
    if not holds:
        raise Refused(problem)


@dataclass
class Messages:
    """Message types by full name."""

    by_name: dict[str, DescriptorProto] = field(default_factory=dict)
    enums: dict[str, set[int]] = field(default_factory=dict)
    is_proto2: dict[str, bool] = field(default_factory=dict)

    def add(self, file: FileDescriptorProto) -> Messages:
        for enum in file.enum_type:
            self.enums[f".{file.package}.{enum.name}"] = {value.number for value in enum.value}
        for message in file.message_type:
            self.nest(message, f".{file.package}.{message.name}", is_proto2=file.syntax != "proto3")
        return self

    def nest(self, message: DescriptorProto, name: str, *, is_proto2: bool) -> None:
        self.by_name[name] = message
        self.is_proto2[name] = is_proto2
        for inner in message.nested_type:
            self.nest(inner, f"{name}.{inner.name}", is_proto2=is_proto2)


def kind_of(one: FieldDescriptorProto) -> str:
    return FieldDescriptorProto.Type.Name(one.type).removeprefix("TYPE_").lower()


def is_repeated(one: FieldDescriptorProto) -> bool:
    return one.label == FieldDescriptorProto.LABEL_REPEATED


def wire_type_of(kind: str) -> int:
    if kind in VARINTS:
        return 0
    if kind in FIXED:
        return 1 if struct.calcsize(FIXED[kind]) == 8 else 5
    return 3 if kind == "group" else 2


@dataclass
class Reader:
    """Reads messages of these types."""

    messages: Messages
    data: bytes
    at: int = 0

    def byte(self, end: int) -> int:
        require(self.at < end, "too short")
        self.at += 1
        return self.data[self.at - 1]

    def varint(self, end: int, bytes_max: int = 10) -> int:
        groups = [self.byte(end)]
        while groups[-1] >= 128:
            require(len(groups) < bytes_max, "too long a number")
            groups.append(self.byte(end))
        return sum((group % 128) << (7 * place) for place, group in enumerate(groups)) % 2**64

    def take(self, count: int, end: int) -> bytes:
        require(self.at + count <= end, "too short")
        self.at += count
        return self.data[self.at - count : self.at]

    def message(self, name: str, end: int, into: dict[str, Any], group: int | None = None) -> dict[str, Any]:
        """Read the fields of a message up to a position, or to the end of a group."""
        fields = {one.number: one for one in self.messages.by_name[name].field} if name else {}
        while self.at < end:
            tag = self.varint(end, 5)
            require(8 <= tag < 2**32, "no tag")
            number, wire_type = divmod(tag, 8)
            if wire_type == 4:
                require(number == group, "the end of no group")
                return into
            known = fields.get(number)
            is_entry = bool(name) and self.messages.by_name[name].options.map_entry
            require(known is not None or not is_entry, "an entry of a map with another field")
            if known is None:
                self.skip(number, wire_type, end)
            else:
                self.known(name, known, wire_type, end, into)
        require(group is None, "a group without an end")
        return into

    def skip(self, number: int, wire_type: int, end: int) -> None:
        require(wire_type in {0, 1, 2, 3, 5}, "no wire type")
        if wire_type == 0:
            self.varint(end)
        elif wire_type == 3:
            self.message("", end, {}, number)
        else:
            self.take({1: 8, 5: 4}.get(wire_type) or self.size(end), end)

    def size(self, end: int) -> int:
        size = self.varint(end, 5)
        require(size < 2**31, "too large")
        return size

    def known(self, name: str, one: FieldDescriptorProto, wire_type: int, end: int, into: dict[str, Any]) -> None:
        kind = kind_of(one)
        if wire_type == 2 and is_repeated(one) and wire_type_of(kind) not in {2, 3}:
            size = self.size(end)
            inner = self.at + size
            require(inner <= end, "too short")
            while self.at < inner:
                self.put(name, one, self.scalar(kind, inner), into)
            require(self.at == inner, "too short")
            return
        require(wire_type == wire_type_of(kind), "another wire type")
        if kind == "group":
            self.put(name, one, self.message(one.type_name, end, self.before(one, into), one.number), into)
        elif kind == "message":
            size = self.size(end)
            inner = self.at + size
            require(inner <= end, "too short")
            self.put(name, one, self.message(one.type_name, inner, self.before(one, into)), into)
        else:
            self.put(name, one, self.scalar(kind, end), into)

    def before(self, one: FieldDescriptorProto, into: dict[str, Any]) -> dict[str, Any]:
        """Return the message into which the next occurrence of the same field is merged."""
        return {} if is_repeated(one) else into.get(one.name) or {}

    def put(self, name: str, one: FieldDescriptorProto, value: Any, into: dict[str, Any]) -> None:
        if isinstance(value, Text) and not self.messages.is_proto2[name]:
            text(value)
        if kind_of(one) == "enum" and self.messages.is_proto2[name]:
            known = self.messages.enums[one.type_name]
            if value not in known:
                return  # evolution: a symbol that the class does not know
        if one.HasField("oneof_index"):
            for other in self.messages.by_name[name].field:
                if other.HasField("oneof_index") and other.oneof_index == one.oneof_index and other.name != one.name:
                    into.pop(other.name, None)
        if is_repeated(one):
            into.setdefault(one.name, []).append(value)
        else:
            into[one.name] = value

    def scalar(self, kind: str, end: int) -> Any:
        if kind in FIXED:
            return struct.unpack(FIXED[kind], self.take(struct.calcsize(FIXED[kind]), end))[0]
        if kind in {"string", "bytes"}:
            content = self.take(self.size(end), end)
            return Text(content) if kind == "string" else content
        number = self.varint(end)
        if kind.startswith("sint"):
            require(number < 2 ** int(kind[4:]), "too many bits")
            return number // 2 if number % 2 == 0 else -(number + 1) // 2
        if kind in {"int32", "int64", "enum"}:
            number -= 2**64 if number >= 2**63 else 0
            require(kind == "int64" or -(2**31) <= number < 2**31, "too many bits")
        require(kind not in {"uint32", "bool"} or number < (2**32 if kind == "uint32" else 2), "too many bits")
        return number == 1 if kind == "bool" else number


class Text(bytes):
    """A string; in the older syntax, a value that a later value of the field replaces need not be UTF-8."""


def text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Refused("no UTF-8") from None


def texts(value: Any) -> Any:
    if isinstance(value, list):
        return [texts(each) for each in value]
    return text(value) if isinstance(value, Text) else value


def complete(messages: Messages, name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return a message with the defaults of absent fields, checked as a whole; map entries become maps."""
    whole: dict[str, Any] = {}
    for one in messages.by_name[name].field:
        value = fields.get(one.name)
        kind = kind_of(one)
        require(value is not None or one.label != FieldDescriptorProto.LABEL_REQUIRED, "a required field")
        if kind == "message" and messages.by_name[one.type_name].options.map_entry:
            whole[one.name] = complete_map(messages, one.type_name, value or [])
        elif kind in {"message", "group"} and is_repeated(one):
            whole[one.name] = [complete(messages, one.type_name, each) for each in value or []]
        elif kind in {"message", "group"}:
            whole[one.name] = None if value is None else complete(messages, one.type_name, value)
        elif value is None:
            whole[one.name] = [] if is_repeated(one) else DEFAULTS.get(kind, 0)
        else:
            whole[one.name] = texts(value)
    check_well_known(name, whole, fields)
    return whole


def complete_map(messages: Messages, name: str, entries: list[dict[str, Any]]) -> dict[Any, Any]:
    """Return a map, sorted by key: of equal keys the last entry counts, and missing parts have defaults."""
    key, value = messages.by_name[name].field
    by_key = {texts(entry.get("key", DEFAULTS.get(kind_of(key), 0))): entry.get("value") for entry in entries}
    whole: dict[Any, Any] = {}
    for name_of_entry, there in sorted(by_key.items(), key=lambda item: item[0]):
        if value.type_name:
            whole[name_of_entry] = complete(messages, value.type_name, there or {})
        else:
            whole[name_of_entry] = DEFAULTS.get(kind_of(value), 0) if there is None else texts(there)
    return whole


DEFAULTS: dict[str, Any] = {"string": "", "bytes": b"", "bool": False, "double": 0.0, "float": 0.0}


def check_well_known(name: str, whole: dict[str, Any], fields: dict[str, Any]) -> None:
    match name.removeprefix(".google.protobuf."):
        case "Timestamp":
            require(0 <= whole["nanos"] < 10**9, "nanoseconds")
            try:
                EPOCH + timedelta(seconds=whole["seconds"])
            except OverflowError:
                raise Refused("outside of the years 1 to 9999") from None
        case "Duration":
            require(abs(whole["seconds"]) <= 315_576_000_000 and abs(whole["nanos"]) < 10**9, "range")
            require(not {-1, 1} <= {(part > 0) - (part < 0) for part in (whole["seconds"], whole["nanos"])}, "signs")
        case "Any":
            require("/" in whole["type_url"] or whole == {"type_url": "", "value": b""}, "no URL")
        case "Value":
            require(fields, "no kind")


def decode(messages: Messages, name: str, data: bytes) -> dict[str, Any]:
    """Decode the fields of a message.

    Raises:
        Refused: The bytes are not a message.
    """
    return complete(messages, name, Reader(messages, data).message(name, len(data), {}))
