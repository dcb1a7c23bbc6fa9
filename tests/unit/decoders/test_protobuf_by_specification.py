"""Protobuf against a second reader of its encoding: for every type and all bytes the same fields, or none."""

from __future__ import annotations

from random import Random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from hypothesis import given
from hypothesis import strategies as st

from lockstep.declare.decoders.base import Undecodable
from lockstep.decoders import Protobuf, RegisteredSchema
from tests.support.decoders.generated_avro import corrupt
from tests.support.decoders.generated_protobuf import PACKAGE, Bytes, File
from tests.support.decoders.registered import InMemory, protobuf_frame
from tests.support.decoders.strict_protobuf import Refused, decode

SCHEMA = RegisteredSchema("PROTOBUF", f"package {PACKAGE}; message M0 {{ }}")
UNREAD = "undecodable"
FAULTS = st.sampled_from((None, corrupt))


def plain(message: Any) -> dict[str, Any]:
    """Return the fields of a message of the library, with all defaults."""
    return {one.name: plain_field(message, one) for one in message.DESCRIPTOR.fields}


def plain_field(message: Any, one: FieldDescriptor) -> Any:
    value = getattr(message, one.name)
    if one.message_type is None:
        return list(value) if one.is_repeated else value
    if one.message_type.GetOptions().map_entry:
        is_plain = one.message_type.fields_by_name["value"].message_type is None
        return dict(sorted((key, each if is_plain else plain(each)) for key, each in value.items()))
    if one.is_repeated:
        return [plain(each) for each in value]
    return plain(value) if message.HasField(one.name) else None


def by_decoder(file: File, body: bytes) -> str:
    read = Protobuf().build_with(InMemory((SCHEMA,)), file.cls)
    try:
        return repr(plain(read(protobuf_frame(body))))
    except Undecodable:
        return UNREAD


def by_specification(file: File, body: bytes) -> str:
    try:
        return repr(decode(file.messages, f".{PACKAGE}.M0", body))
    except Refused:
        return UNREAD


@given(st.randoms(use_true_random=False), FAULTS)
def test_what_is_written_is_read_or_refused_as_the_encoding_has_it(random: Random, fault: Any) -> None:
    """Once accepted: cut numbers, nested fields that seemed absent, bytes for text, and invalid times."""
    file = File(random)
    body = Bytes(random, file.messages).message(f".{PACKAGE}.M0")
    if fault is not None:
        body = fault(random, body)
    assert by_decoder(file, body) == by_specification(file, body)
