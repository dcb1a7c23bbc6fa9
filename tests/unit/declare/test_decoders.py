"""Decoders are strict: bytes that are not exactly a message of the stream are refused, never guessed."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep import Json
from lockstep.declare.decoders.base import DecodeCause, Undecodable, find_decode_cause, has_null
from lockstep.decoders import Bytes, Decoder, Function, MessagePack
from lockstep.errors import DeclarationError
from tests.unit.declare.panels import Snapshot, Update
from tests.unit.declare.wrong_transforms import decode_update

if TYPE_CHECKING:
    from collections.abc import Callable

UPDATE = Update(seq=3, id="a", value=1.5)

REFUSED = {
    "empty": b"",
    "cut": b'{"type":"update","seq":3,"id":"a","val',
    "trailing text": b'{"type":"update","seq":3,"id":"a","value":1.5}{}',
    "another type": b'{"type":"update","seq":"3","id":"a","value":1.5}',
    "fraction for an integer": b'{"type":"update","seq":3.5,"id":"a","value":1.5}',
    "missing field": b'{"type":"update","seq":3,"id":"a"}',
    "null field": b'{"type":"update","seq":3,"id":"a","value":null}',
    "no tag": b'{"seq":3,"id":"a","value":1.5}',
    "unknown tag": b'{"type":"upsert","seq":3,"id":"a","value":1.5}',
    "NaN": b'{"type":"update","seq":3,"id":"a","value":NaN}',
    "Infinity": b'{"type":"update","seq":3,"id":"a","value":Infinity}',
    "bad UTF-8": b'{"type":"update","seq":3,"id":"\xff","value":1.5}',
    "byte order mark": b'\xef\xbb\xbf{"type":"update","seq":3,"id":"a","value":1.5}',
    "a list": b"[]",
    "deeper than any message": b"[" * 100_000,
}


@pytest.mark.parametrize("what", REFUSED)
def test_json_that_is_not_exactly_a_message_is_refused(what: str) -> None:
    decode = Json().build(Snapshot | Update)
    with pytest.raises((msgspec.MsgspecError, ValueError, RecursionError)):
        decode(REFUSED[what])


def test_json_becomes_the_message_that_its_tag_names() -> None:
    decode = Json().build(Snapshot | Update)
    assert decode(b'{"type":"update","seq":3,"id":"a","value":1.5,"unknown":true}') == UPDATE
    assert decode(b'{"type":"snapshot","seq":0,"values":{"a":1.0}}') == Snapshot(seq=0, values={"a": 1.0})


def test_message_pack_becomes_the_message_that_its_tag_names() -> None:
    assert MessagePack().build(Snapshot | Update)(msgspec.msgpack.encode(UPDATE)) == UPDATE


PACKED = msgspec.msgpack.encode(UPDATE)


@pytest.mark.parametrize("value", [b"", b"\xc1", PACKED[:-1], PACKED + b"\x00", msgspec.msgpack.encode({"seq": 3})])
def test_message_pack_that_is_not_exactly_a_message_is_refused(value: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        MessagePack().build(Snapshot | Update)(value)


DECODE_ERRORS = (msgspec.MsgspecError, ValueError, RecursionError)
MESSAGES = st.builds(Update, value=st.floats(allow_nan=False, allow_infinity=False)) | st.builds(
    Snapshot, values=st.dictionaries(st.text(), st.floats(allow_nan=False, allow_infinity=False))
)
STRUCTS = {
    "json": (Json(), msgspec.json.encode),
    "message pack": (MessagePack(), msgspec.msgpack.encode),
}


@pytest.mark.parametrize("kind", STRUCTS)
@given(message=MESSAGES.filter(lambda message: -(2**63) <= message.seq < 2**64))
def test_whatever_was_written_is_read(kind: str, message: Snapshot | Update) -> None:
    decoder, encode = STRUCTS[kind]
    assert decoder.build(Snapshot | Update)(encode(message)) == message


@pytest.mark.parametrize("kind", STRUCTS)
@given(value=st.binary(max_size=200))
def test_random_bytes_raise_nothing_but_a_decode_error(kind: str, value: bytes) -> None:
    with contextlib.suppress(*DECODE_ERRORS):
        STRUCTS[kind][0].build(Snapshot | Update)(value)


CAUSES = {
    "empty": DecodeCause.TRUNCATED,
    "cut": DecodeCause.TRUNCATED,
    "trailing text": DecodeCause.TRAILING,
    "another type": DecodeCause.WRONG_TYPE,
    "fraction for an integer": DecodeCause.WRONG_TYPE,
    "missing field": DecodeCause.MISSING_FIELD,
    "null field": DecodeCause.WRONG_TYPE,
    "no tag": DecodeCause.MISSING_FIELD,
    "unknown tag": DecodeCause.WRONG_TYPE,
    "NaN": DecodeCause.MALFORMED,
    "Infinity": DecodeCause.MALFORMED,
    "bad UTF-8": DecodeCause.MALFORMED,
    "byte order mark": DecodeCause.MALFORMED,
    "a list": DecodeCause.WRONG_TYPE,
    "deeper than any message": DecodeCause.WRONG_TYPE,
}


@pytest.mark.parametrize("what", REFUSED)
def test_each_refusal_has_its_cause(what: str) -> None:
    with pytest.raises(DECODE_ERRORS) as refused:
        Json().build(Snapshot | Update)(REFUSED[what])
    assert find_decode_cause(refused.value) is CAUSES[what]


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (Undecodable(DecodeCause.TOO_LARGE, "9 bytes"), DecodeCause.TOO_LARGE),
        (RecursionError("too deep"), DecodeCause.TOO_DEEP),
        (ValueError("what a user's function says"), DecodeCause.MALFORMED),
    ],
)
def test_other_errors_have_causes_too(error: Exception, cause: DecodeCause) -> None:
    assert find_decode_cause(error) is cause


def test_bytes_are_the_value_itself() -> None:
    value = bytes(range(256))
    assert Bytes().build(bytes)(value) is value


@pytest.mark.parametrize(
    ("decoder", "encode"), [(Json(), msgspec.json.encode), (MessagePack(), msgspec.msgpack.encode)]
)
def test_none_in_the_message_type_is_for_tombstones(decoder: Decoder, encode: Callable[[object], bytes]) -> None:
    """None is also for the null of an encoding that has a null."""
    decode = decoder.build(Snapshot | Update | None)
    assert (decode(encode(UPDATE)), decode(encode(None))) == (UPDATE, None)
    assert (has_null(Snapshot | Update | None), has_null(Snapshot | Update), has_null(bytes)) == (
        True,
        False,
        False,
    )
    assert Bytes().build(bytes | None)(b"") == b""
    with pytest.raises(DeclarationError, match="bytes are what arrives"):
        decoder.build(bytes | None)


class Generated:
    """A class unknown to msgspec, like a generated message."""


class Around(msgspec.Struct):
    inner: list[Generated]


@pytest.mark.parametrize(
    ("decoder", "message_type", "problem"),
    [
        (
            Bytes(),
            Update,
            r"Bytes\(\) returns bytes, not this message type\n  next: write Transform\[bytes, State, Row\]",
        ),
        (Json(), bytes, r"bytes are what arrives, .*\n  next: use a msgspec.Struct.*Stream\(decoder=Bytes\(\)\)"),
        (MessagePack(), bytes, r"bytes are what arrives"),
        (Json(), Generated, r"messages cannot be decoded to Generated\n.*Stream\(decoder=Protobuf\(\)\)"),
        (MessagePack(), Around, r"messages cannot be decoded to Generated"),
    ],
)
def test_a_message_type_that_the_decoder_cannot_make_is_refused(
    decoder: Decoder, message_type: object, problem: str
) -> None:
    with pytest.raises(DeclarationError, match=problem):
        decoder.build(message_type)


def untold(value: bytes):  # type: ignore[no-untyped-def]  # noqa: ANN201  # no annotation on purpose
    return value


def unresolved(value: bytes) -> Nowhere:  # type: ignore[name-defined]  # noqa: F821  # on purpose
    return value


def number(value: bytes) -> float:
    return math.fsum(value)


@pytest.mark.parametrize("function", [decode_update, untold, unresolved, Json().build])
def test_a_function_of_the_user_is_taken_as_it_is(function: object) -> None:
    assert Function(function).build(Snapshot | Update) is function  # type: ignore[arg-type]  # also functions of other types


def test_a_function_that_says_to_return_something_else_is_refused() -> None:
    with pytest.raises(DeclarationError, match=r"Stream.decoder = .*returns <class 'float'>, and the transform takes"):
        Function(number).build(Snapshot | Update)
    with pytest.raises(DeclarationError, match=r"returns .*Update'>, and the transform takes .*Snapshot"):
        Function(decode_update).build(Snapshot)
