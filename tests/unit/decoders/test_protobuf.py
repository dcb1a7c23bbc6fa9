"""Protobuf in the frame of a registry: the schema names the message, and other bytes are not read as a message."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.any_pb2 import Any as Any_
from google.protobuf.duration_pb2 import Duration
from google.protobuf.struct_pb2 import Struct
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from lockstep.declare.decoders.base import DecodeCause, Undecodable
from lockstep.declare.decoders.protobuf import list_message_names
from lockstep.decoders import Protobuf, RegisteredSchema
from lockstep.errors import DeclarationError
from tests.support.decoders import panel_pb2, strict_pb2
from tests.support.decoders.panel_pb2 import Snapshot, Update
from tests.support.decoders.readings import Trade
from tests.support.decoders.registered import FIRST_ID, InMemory, protobuf_frame, zigzag
from tests.support.decoders.strict_pb2 import Reading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

PROTOS = Path(__file__).parents[2] / "support" / "decoders"
PANEL = RegisteredSchema("PROTOBUF", (PROTOS / "panel.proto").read_text())
STRICT = RegisteredSchema("PROTOBUF", (PROTOS / "strict.proto").read_text())
UPDATE = Update(seq=2, id="abc", value=2.0, origin=Update.Origin(device="d", quality=Update.Origin.GOOD), text="x")
GOOD = protobuf_frame(UPDATE.SerializeToString(), (1,))


def decoder(message_type: object, *schemas: RegisteredSchema) -> Callable[[bytes], object]:
    return Protobuf().build_with(InMemory(schemas or (PANEL,)), message_type)


def cause(decode: Callable[[bytes], object], value: bytes) -> tuple[DecodeCause, str]:
    with pytest.raises(Undecodable) as refused:
        decode(value)
    return refused.value.cause, str(refused.value)


@given(
    st.builds(Update, seq=st.integers(-(2**63), 2**63 - 1), id=st.text(), value=st.floats(allow_nan=False)),
    st.builds(Snapshot, seq=st.integers(0, 9), values=st.dictionaries(st.text(), st.floats(allow_nan=False))),
)
def test_whatever_was_written_is_read_as_the_class_that_its_place_names(update: Update, snapshot: Snapshot) -> None:
    decode = decoder(Snapshot | Update)
    assert decode(protobuf_frame(update.SerializeToString(), (1,))) == update
    assert decode(protobuf_frame(snapshot.SerializeToString())) == snapshot


def test_none_in_the_message_type_is_for_tombstones_and_no_class() -> None:
    assert decoder(Update | None)(GOOD) == UPDATE


def test_the_first_message_may_also_be_named_by_its_number() -> None:
    snapshot = Snapshot(seq=1, values={"a": 1.0})
    header = b"\x00" + FIRST_ID.to_bytes(4, "big")
    assert decoder(Snapshot)(header + zigzag(1) + zigzag(0) + snapshot.SerializeToString()) == snapshot


def test_a_message_inside_another_is_found_by_its_path() -> None:
    origin = Update.Origin(device="d1")
    decode = decoder(Update.Origin)
    assert decode(protobuf_frame(origin.SerializeToString(), (1, 0))) == origin
    assert cause(decode, GOOD) == (DecodeCause.WRONG_TYPE, "holds acme.panels.Update, not acme.panels.Update.Origin")


HEADER = GOOD[:5]
REFUSED = {
    "empty": (b"", DecodeCause.TRUNCATED, "this has 0"),
    "no frame": (UPDATE.SerializeToString(), DecodeCause.UNKNOWN_MAGIC_BYTE, "this with 0x08"),
    "header alone": (HEADER, DecodeCause.TRUNCATED, "no end of a message index"),
    "half of the indexes": (HEADER + zigzag(3) + zigzag(0), DecodeCause.TRUNCATED, "no end of a message index"),
    "an endless index": (HEADER + b"\xff" * 9, DecodeCause.MALFORMED, "no end of a message index"),
    "indexes below zero": (HEADER + zigzag(-2), DecodeCause.MALFORMED, "-2 message indexes"),
    "too many indexes": (HEADER + zigzag(101) + bytes(101), DecodeCause.MALFORMED, "101 message indexes"),
    "another message": (
        protobuf_frame(b""),
        DecodeCause.WRONG_TYPE,
        "holds acme.panels.Snapshot, not acme.panels.Update",
    ),
    "no such message": (protobuf_frame(b"", (9,)), DecodeCause.WRONG_TYPE, "holds (9,), not acme.panels.Update"),
    "cut": (GOOD[:-1], DecodeCause.MALFORMED, "is no acme.panels.Update"),
    "trailing": (GOOD + b"\x00", DecodeCause.MALFORMED, "is no acme.panels.Update"),
    "bad UTF-8": (GOOD[:7] + b"\x12\x01\xff", DecodeCause.MALFORMED, "is no acme.panels.Update"),
    "another wire type": (GOOD[:7] + b"\x10\x02", DecodeCause.WRONG_TYPE, "Update.id (field 2) has another wire type"),
    "unknown id": (b"\x00\x00\x00\x00\x07" + GOOD[5:], DecodeCause.UNKNOWN_SCHEMA_ID, "knows no schema id 7"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_exactly_a_message_is_refused_with_its_cause(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstep.declare.decoders.schema_registry.SECOND_LOOK_SECONDS", 0.0)
    value, expected, problem = REFUSED[what]
    found, said = cause(decoder(Update), value)
    assert (found, problem in said) == (expected, True), said


@pytest.mark.parametrize("body", [b"\x12\x04GOOD", b"\x15\x01\x00\x00\x00"])
def test_an_enum_of_another_wire_type_is_refused_as_any_field(body: bytes) -> None:
    """An enum field with a text or a fixed number must not count as absent, with its default as value."""
    assert cause(decoder(Update.Origin), protobuf_frame(body, (1, 0))) == (
        DecodeCause.WRONG_TYPE,
        "acme.panels.Update.Origin.quality (field 2) has another wire type",
    )
    later = decoder(Update.Origin)(protobuf_frame(b"\x10\x07", (1, 0)))  # a symbol that the class does not know
    assert isinstance(later, Update.Origin)
    assert int(later.quality) == 7


def length(body: bytes) -> bytes:
    """Return the length of a body below 16,384 bytes as Protobuf's varint, without zigzag."""
    size = len(body)
    return bytes([size]) if size < 128 else bytes([size & 0x7F | 0x80, size >> 7])


def inside(field: int, body: bytes) -> bytes:
    """Return a field that contains a message."""
    return bytes([field << 3 | 2]) + length(body) + body


MADE_WRONG: dict[str, tuple[type[Any], bytes, DecodeCause, str]] = {
    "a nested field of another wire type": (
        Update,
        inside(4, b"\x08\x07"),
        DecodeCause.WRONG_TYPE,
        "acme.panels.Update.Origin.device (field 1) has another wire type",
    ),
    "a number of an enum that was cut": (
        Update,
        inside(4, b"\x10\x81\x80\x80\x80\x10"),
        DecodeCause.WRONG_TYPE,
        "acme.panels.Update.Origin.quality = 4294967297 does not fit its type",
    ),
    "an entry of a map that would be dropped": (
        Snapshot,
        inside(2, b"\x0a\x01a\x18\x05"),
        DecodeCause.WRONG_TYPE,
        "an entry of a map has an unknown field 3",
    ),
    "a value of a map of another wire type": (
        Snapshot,
        inside(2, b"\x0a\x01a\x10\x05"),
        DecodeCause.WRONG_TYPE,
        "acme.panels.Snapshot.ValuesEntry.value (field 2) has another wire type",
    ),
    "text of the older syntax": (
        Reading,
        b"\x08\x01\x12\x01\xff",
        DecodeCause.MALFORMED,
        "acme.strict.Reading: id is not UTF-8",
    ),
    "a second after the year 9999": (
        Timestamp,
        Timestamp(seconds=253_402_300_800).SerializeToString(),
        DecodeCause.MALFORMED,
        "google.protobuf.Timestamp: 253402300800 s and 0 ns are not a time of the years 1 to 9999",
    ),
    "nanoseconds below zero": (
        Timestamp,
        Timestamp(nanos=-1).SerializeToString(),
        DecodeCause.MALFORMED,
        "google.protobuf.Timestamp: 0 s and -1 ns are not a time of the years 1 to 9999",
    ),
    "a duration of two signs": (
        Duration,
        Duration(seconds=1, nanos=-1).SerializeToString(),
        DecodeCause.MALFORMED,
        "google.protobuf.Duration: 1 s and -1 ns are not a duration of 10,000 years at most",
    ),
    "a type without a URL": (
        Any_,
        Any_(type_url="acme.Update").SerializeToString(),
        DecodeCause.MALFORMED,
        "google.protobuf.Any: 'acme.Update' is not the URL of a type",
    ),
    "a value of no kind": (
        Struct,
        inside(1, b"\x0a\x01a\x12\x00"),
        DecodeCause.MALFORMED,
        "google.protobuf.Value: is a value of no kind",
    ),
}


@pytest.mark.parametrize("what", MADE_WRONG)
def test_what_the_library_gets_wrong_is_refused(what: str) -> None:
    """The library reads each as a message: with a default, a cut number, bytes for text, or an invalid time."""
    message, body, expected, problem = MADE_WRONG[what]
    message.FromString(body)
    package, _, name = message.DESCRIPTOR.full_name.rpartition(".")
    schema = RegisteredSchema("PROTOBUF", f"package {package}; message {name} {{ }}")
    assert cause(decoder(message, schema), protobuf_frame(body)) == (expected, problem)


def test_fields_that_the_class_does_not_know_are_evolution_and_pass() -> None:
    later = UPDATE.SerializeToString() + b"\x78\x05"  # field 15
    message = decoder(Update)(protobuf_frame(later, (1,)))
    assert isinstance(message, Update)
    assert (message.seq, message.id) == (2, "abc")
    assert message.SerializeToString() == later


def test_a_required_field_that_is_missing_is_refused_here_and_inside() -> None:
    decode = decoder(Reading, STRICT)
    whole = Reading(seq=1, id="a")
    assert decode(protobuf_frame(whole.SerializeToString())) == whole
    half = Reading(seq=1).SerializePartialToString()
    assert cause(decode, protobuf_frame(half)) == (
        DecodeCause.MISSING_FIELD,
        "acme.strict.Reading lacks required fields",
    )


def test_a_message_nested_beyond_the_limit_is_refused() -> None:
    inner = b""
    for _ in range(150):
        inner = b"\x12" + length(inner) + inner
    deep = protobuf_frame(Reading(seq=1, id="a").SerializeToString() + b"\x22" + length(inner) + inner)
    assert cause(decoder(Reading, STRICT), deep)[0] is DecodeCause.MALFORMED


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        (RegisteredSchema("AVRO", "{}"), "is of type AVRO, not PROTOBUF"),
        (STRICT, "holds none of acme.panels.Update"),
        (RegisteredSchema("PROTOBUF", "message A { } }"), "is no .proto file: a brace too many"),
    ],
)
def test_a_schema_that_holds_no_message_of_the_stream_is_refused(schema: RegisteredSchema, problem: str) -> None:
    assert cause(decoder(Update, schema), GOOD) == (DecodeCause.UNFIT_SCHEMA, f"schema {FIRST_ID}: {problem}")


@given(st.binary(max_size=200))
def test_random_bytes_raise_nothing_but_a_decode_error(body: bytes) -> None:
    decode = decoder(Snapshot | Update | Reading, PANEL, STRICT)
    for number in range(2):
        with contextlib.suppress(Undecodable):
            decode(b"\x00" + (FIRST_ID + number).to_bytes(4, "big") + body)


@pytest.mark.parametrize("message_type", [bytes, Trade, Update | Trade, object, type(None)])
def test_a_message_type_that_is_no_generated_class_is_refused_when_declared(message_type: object) -> None:
    with pytest.raises(DeclarationError, match=r"Protobuf\(\) makes generated message classes, and this is none"):
        Protobuf().build(message_type)


def test_a_missing_library_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.protobuf.message", None)
    with pytest.raises(DeclarationError, match=r"next: pip install 'PATH/TO/CHECKOUT\[protobuf,registry\]'"):
        Protobuf().build(Update)


@pytest.mark.parametrize(("module", "schema"), [(panel_pb2, PANEL), (strict_pb2, STRICT)])
def test_the_messages_of_a_file_are_those_that_the_compiler_found(module: object, schema: RegisteredSchema) -> None:
    file = descriptor_pb2.FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(file)  # type: ignore[attr-defined]  # of a generated module
    assert list_message_names(schema.text) == dict(compiled((), file.package, file.message_type))


def compiled(
    path: tuple[int, ...], package: str, messages: Iterable[descriptor_pb2.DescriptorProto]
) -> Iterable[tuple[tuple[int, ...], str]]:
    """Yield the compiler's messages, without the messages of maps, which are not written in a file."""
    written = [message for message in messages if not message.options.map_entry]
    for number, message in enumerate(written):
        yield (*path, number), f"{package}.{message.name}"
        yield from compiled((*path, number), f"{package}.{message.name}", message.nested_type)


def test_what_only_looks_like_a_message_is_none() -> None:
    text = """
        syntax = "proto3"; // message Comment { }
        /* message Block { } */
        option (note) = { text: "message Text {" };
        enum message_kind { message = 0; }
        service Messages { rpc Get (A) returns (A) { option deadline = 1; } }
        message A { oneof one { string message = 1; B b = 2; } message B { } }
        extend A { optional int32 more = 9; }
        message C { }
    """
    assert list_message_names(text) == {(0,): "A", (0, 0): "A.B", (1,): "C"}
