"""Decoders are strict: what is not exactly a message of the stream is refused, never guessed."""

from __future__ import annotations

import msgspec
import pytest

from lockstep import Function, Json, MessagePack
from tests.declare.panels import Snapshot, Update
from tests.declare.wrong_transforms import decode_update

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


def test_a_function_of_the_user_is_taken_as_it_is() -> None:
    assert Function(decode_update).build(Update) is decode_update
