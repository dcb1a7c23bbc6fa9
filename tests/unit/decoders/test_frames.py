"""Schema ids in headers are read, and the frames of other tools are named in the error."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import UUID

import fastavro
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep import Ordered, Sequence, SessionStart, Stream, Strict, Topics
from lockstep.declare.decoders import schema_registry
from lockstep.declare.decoders.base import (
    DecodeCause,
    Decoder,
    Headers,
    Undecodable,
    describe_decode_error,
)
from lockstep.declare.decoders.schema_registry import HttpRegistry
from lockstep.decoders import Avro, Protobuf, RegisteredSchema
from lockstep.testing import SentMessage, run
from tests.support.decoders import panel_pb2
from tests.support.decoders.readings import SNAPSHOT, UPDATE, Lengths, Panels, Reading, Snapshot, Update, Where
from tests.support.decoders.registered import (
    FIRST_ID,
    Connected,
    InMemory,
    avro,
    frame,
    guid_header,
    http_schemas,
    protobuf_frame,
    zigzag,
)

HEADER = "__value_schema_id"
GOOD = frame(UPDATE, {"seq": 2, "id": "abc", "value": 2.0})
BODY = GOOD[5:]
PANEL = RegisteredSchema("PROTOBUF", (Path(panel_pb2.__file__).parent / "panel.proto").read_text())
AVRO = Connected(Avro(), InMemory((avro(UPDATE), avro(SNAPSHOT))))
PROTOBUF = Connected(Protobuf(), InMemory((PANEL,)))


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_registry, "SECOND_LOOK_SECONDS", 0.0)


def cause(
    decoder: Decoder | Connected, message_type: object, value: bytes, headers: Headers = ()
) -> tuple[DecodeCause, str]:
    with pytest.raises(Undecodable) as refused:
        decoder.build(message_type)(value, headers)
    return refused.value.cause, str(refused.value)


NAMES = st.text(max_size=20).filter(lambda name: name != HEADER)
OTHERS = st.lists(st.tuples(NAMES, st.none() | st.binary(max_size=20)), max_size=3)


@given(OTHERS, st.booleans(), st.builds(Update, st.integers(0, 9), st.text(), st.floats(allow_nan=False)))
def test_an_id_or_guid_in_a_header_is_read_as_one_in_front_of_the_message(
    others: list[tuple[str, bytes | None]],
    by_guid: bool,  # noqa: FBT001  # drawn
    update: Update,
) -> None:
    framed = frame(UPDATE, msgspec.structs.asdict(update))
    headers = (*others, (HEADER, guid_header() if by_guid else framed[:5]), *others)
    decode = AVRO.build(Update)
    assert decode(framed[5:], headers) == decode(framed, tuple(others)) == decode(framed) == update


@given(st.sampled_from([(0,), (1,)]), st.booleans())
def test_the_header_of_protobuf_ends_with_the_message_indexes(path: tuple[int, ...], by_guid: bool) -> None:  # noqa: FBT001
    message = [panel_pb2.Snapshot(seq=1, values={"a": 1.0}), panel_pb2.Update(seq=2, id="a")][path[0]]
    framed = protobuf_frame(message.SerializeToString(), path)
    indexes = framed[5 : len(framed) - message.ByteSize()]
    header = (guid_header() if by_guid else framed[:5]) + indexes
    decode = PROTOBUF.build(panel_pb2.Snapshot | panel_pb2.Update)
    assert decode(message.SerializeToString(), ((HEADER, header),)) == decode(framed) == message


def test_a_header_counts_before_a_frame_in_front_of_the_message() -> None:
    """The body of another schema may start like a frame: 0x00, and a known id."""
    odd = {"type": "record", "name": "Update", "fields": [{"name": "raw", "type": {**FIXED, "size": len(GOOD)}}]}
    decode = Avro().build_with(InMemory((avro(UPDATE), avro(odd))), Raw)
    assert decode(GOOD, ((HEADER, guid_header(FIRST_ID + 1)),)) == Raw(GOOD)
    assert AVRO.build(Update)(GOOD, ((HEADER, None),)) == Update(2, "abc", 2.0)


FIXED = {"type": "fixed", "name": "Raw"}


class Raw(msgspec.Struct):
    raw: bytes


NO_IDS: dict[str, tuple[Connected, bytes]] = {
    "nothing": (AVRO, b""),
    "another magic byte": (AVRO, b"\x02" + guid_header()[1:]),
    "half of a GUID": (AVRO, guid_header()[:-1]),
    "half of an id": (AVRO, GOOD[:4]),
    "more than an id": (AVRO, GOOD[:5] + b"\x00"),
    "more than a GUID": (AVRO, guid_header() + b"\x00"),
    "an id as text": (AVRO, b"101"),
    "more than the indexes": (PROTOBUF, guid_header() + b"\x00\x00"),
}


@pytest.mark.parametrize("what", NO_IDS)
def test_a_header_that_is_no_id_is_refused(what: str) -> None:
    decoder, content = NO_IDS[what]
    message_type: object = Update if decoder is AVRO else panel_pb2.Update
    found = cause(decoder, message_type, BODY, ((HEADER, content),))
    assert found == (DecodeCause.UNKNOWN_SCHEMA_ID, f"header {HEADER} = {content.hex()} is not a schema id")


@pytest.mark.parametrize("content", [guid_header(), guid_header() + zigzag(2) + zigzag(0)])
def test_a_header_of_protobuf_without_all_indexes_never_takes_them_from_the_message(content: bytes) -> None:
    headers = ((HEADER, content),)
    assert cause(PROTOBUF, panel_pb2.Update, b"\x00" * 9, headers)[0] is DecodeCause.TRUNCATED


def test_headers_that_differ_are_refused() -> None:
    headers = ((HEADER, guid_header()), (HEADER, guid_header(FIRST_ID + 1)))
    assert cause(AVRO, Update, BODY, headers) == (
        DecodeCause.UNKNOWN_SCHEMA_ID,
        f"several headers {HEADER} that differ",
    )


def test_an_unknown_guid_is_a_verdict() -> None:
    headers = ((HEADER, guid_header(7)),)
    problem = f"the schema registry knows no schema GUID {UUID(int=7)}"
    assert cause(AVRO, Update, BODY, headers) == (DecodeCause.UNKNOWN_SCHEMA_ID, problem)


def test_a_guid_is_asked_by_the_path_that_registries_document() -> None:
    with http_schemas() as schemas:
        schemas.register("updates", msgspec.json.encode(UPDATE).decode())
        decode = Avro().build_with(HttpRegistry(schemas.url), Update)
        for _ in range(2):
            assert decode(BODY, ((HEADER, guid_header()),)) == Update(2, "abc", 2.0)
        assert schemas.asked == [f"/schemas/guids/{UUID(int=FIRST_ID)}"]
        with pytest.raises(Undecodable, match="knows no schema GUID"):
            decode(BODY, ((HEADER, guid_header(7)),))


def single_object() -> bytes:
    return (
        b"\xc3\x01"
        + bytes.fromhex(fastavro.schema.fingerprint(fastavro.schema.to_parsing_canonical_form(UPDATE), "CRC-64-AVRO"))
        + BODY
    )


def avro_file() -> bytes:
    file = BytesIO()
    fastavro.writer(file, fastavro.parse_schema(dict(UPDATE)), [{"seq": 2, "id": "abc", "value": 2.0}])
    return file.getvalue()


FOREIGN: dict[str, tuple[bytes, DecodeCause, str]] = {
    "an id of eight bytes": (
        b"\x00" + (300).to_bytes(8, "big") + BODY,
        DecodeCause.UNKNOWN_SCHEMA_ID,
        "it resembles a frame with the id 300 in eight bytes, as of Apicurio (docs/decoders.md)",
    ),
    "a single object": (single_object(), DecodeCause.UNKNOWN_MAGIC_BYTE, "it resembles Avro's single-object encoding"),
    "an Avro file": (avro_file(), DecodeCause.UNKNOWN_MAGIC_BYTE, "it resembles an Avro file"),
    "Glue": (
        b"\x03\x00" + UUID(int=5).bytes + BODY,
        DecodeCause.UNKNOWN_MAGIC_BYTE,
        f"it resembles a frame of AWS Glue with the schema version {UUID(int=5)}",
    ),
    "a GUID in front": (guid_header() + BODY, DecodeCause.UNKNOWN_MAGIC_BYTE, "which belongs into a header"),
    "JSON": (b' {"seq": 2}\n', DecodeCause.UNKNOWN_MAGIC_BYTE, "this with 0x20; it resembles JSON"),
    "a bare message": (BODY, DecodeCause.UNKNOWN_MAGIC_BYTE, "a message without a frame has no schema id"),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_a_frame_of_others_is_named(what: str) -> None:
    value, expected, problem = FOREIGN[what]
    for decoder, message_type in ((AVRO, Update), (PROTOBUF, panel_pb2.Update)):
        found, said = cause(decoder, message_type, value)
        assert (found, problem in said) == (expected, True), said


def test_headers_of_another_registry_are_named() -> None:
    found = cause(AVRO, Update, BODY, (("apicurio.value.globalId", bytes(7) + b"\x05"),))
    problem = "a frame starts with 0x00, this with 0x04; header apicurio.value.globalId is of Apicurio's registry"
    assert found == (DecodeCause.UNKNOWN_MAGIC_BYTE, f"{problem} (docs/decoders.md)")


@pytest.mark.parametrize(
    ("value", "remark"),
    [
        (GOOD, "a schema registry's frame of schema id 101"),
        (single_object(), "Avro's single-object encoding with the fingerprint "),
    ],
)
def test_a_value_that_is_no_json_at_all_is_named_too(value: bytes, remark: str) -> None:
    with pytest.raises(msgspec.DecodeError) as refused:
        msgspec.json.decode(value)
    assert f"; it resembles {remark}" in describe_decode_error(refused.value, value)


PANELS = Stream(
    name="panels",
    topics=Topics(pattern="values"),
    transform=Panels(),
    integrity=Strict(evidence=Sequence(), buffer_until_snapshot=True),
    decoder=Avro(),
)


SCHEMAS: dict[int | UUID, RegisteredSchema] = {
    UUID(int=FIRST_ID): avro(SNAPSHOT),
    UUID(int=FIRST_ID + 1): avro(UPDATE),
}


def sent(schema: Any, message: Any, schema_id: int) -> SentMessage[Snapshot | Update]:
    return SentMessage(value=frame(schema, message)[5:], headers=[("trace", None), (HEADER, guid_header(schema_id))])


def test_a_fold_reads_the_ids_of_its_messages_in_their_headers() -> None:
    first = sent(SNAPSHOT, {"seq": 1, "values": {"a": 1.0}}, FIRST_ID)
    second = sent(UPDATE, {"seq": 2, "id": "a", "value": 1.5}, FIRST_ID + 1)
    for messages in ((first, second), (second, first)):  # the second order buffers the update, in state files
        for split in (None, 1):
            assert run(PANELS, *messages, key="s", split=split, schemas=SCHEMAS).rows == [Reading("a", 1.5, 1.0)]


class Tenants(Decoder):
    """A user's decoder that puts the tenant of a header in front of a value."""

    reads_headers = True

    def build(self, message_type: object) -> Any:
        return read_tenant


def read_tenant(value: bytes, headers: Headers) -> bytes:
    tenants = [content for name, content in headers if name == "tenant"]
    if not tenants:
        raise ValueError("no tenant")
    return (tenants[0] or b"") + value


def test_a_decoder_of_a_user_may_read_headers() -> None:
    stream = Stream(
        name="tenants",
        topics=Topics(pattern="values"),
        transform=Lengths(),
        integrity=Ordered(session_start=SessionStart.FIRST_MESSAGE),
        decoder=Tenants(),
    )
    known = SentMessage[bytes](value=b"ab", headers=[("tenant", b"acme")])
    ran = run(stream, known, SentMessage[bytes](value=b"a"), known, key="s")
    assert [(message.cause, message.found) for message in ran.quarantine] == [("undecodable", "no tenant")]
    assert ran.rows == [Where("testing", 6)]
