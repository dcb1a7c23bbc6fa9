"""Avro against a second reader of its specification: for every schema and all bytes the same value, or none."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from lockstep.declare.decoders.base import Undecodable
from lockstep.decoders import Avro
from tests.support.decoders.generated_avro import Bytes, Evolution, Schemas, corrupt
from tests.support.decoders.registered import FIRST_ID, InMemory, avro
from tests.support.decoders.strict_avro import Names, Refused, decode

HEADER = b"\x00" + FIRST_ID.to_bytes(4, "big")
UNREAD = "undecodable"


class Message(msgspec.Struct):
    """A value of any type."""

    v: Any = None


def message_of(schema: Any) -> Any:
    return {"type": "record", "name": "Message", "fields": [{"name": "v", "type": schema}]}


def by_decoder(body: bytes, writer: Any, reader: Any = None) -> str:
    own = {} if reader is None else {"reader_schema": json.dumps(message_of(reader))}
    read = Avro(**own).build_with(InMemory((avro(message_of(writer)),)), Message)
    try:
        message = read(HEADER + body)
    except (Undecodable, msgspec.ValidationError):
        return UNREAD
    assert isinstance(message, Message)
    return repr(message.v)


def by_specification(body: bytes, writer: Any, reader: Any = None) -> str:
    try:
        value = decode(body, message_of(writer), None if reader is None else message_of(reader))
    except Refused:
        return UNREAD
    return repr(value["v"])


FAULTS = st.sampled_from((None, corrupt))


@given(st.randoms(use_true_random=False), FAULTS)
def test_what_is_written_by_a_schema_is_read_or_refused_as_the_specification_has_it(random: Random, fault: Any) -> None:
    """Numbers with too many bits, booleans of 2, negative indexes and blocks of a wrong size are refused."""
    writer = Schemas(random).schema(3)
    body = Bytes(random, Names().add(writer).by_name).value(writer)
    if fault is not None:
        body = fault(random, body)
    assert by_decoder(body, writer) == by_specification(body, writer)


@given(st.randoms(use_true_random=False), FAULTS)
def test_a_message_is_resolved_to_a_readers_schema_as_the_specification_has_it(random: Random, fault: Any) -> None:
    writer = Schemas(random).record(3)
    named = Names().add(writer).by_name
    reader = Evolution(random, named).schema(writer)
    body = Bytes(random, named, odd=0.003).value(writer)
    if fault is not None:
        body = fault(random, body)
    assert by_decoder(body, writer, reader) == by_specification(body, writer, reader)
