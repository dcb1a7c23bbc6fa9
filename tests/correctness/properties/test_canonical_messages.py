"""A decoded message has values that a state can hold, in any zone, number kind or spelling that was sent."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep import Json
from lockstep.declare.decoders.base import Decoder
from lockstep.decoders import Function, MessagePack
from lockstep.model.storable import StorableType
from tests.correctness.properties.state_types import KINDS, Kind, make_makers, make_module
from tests.support.examples import scale_examples

EXAMPLES = scale_examples(200)
ENCODE = {"json": msgspec.json.encode, "msgpack": msgspec.msgpack.encode}
DECODERS: dict[str, Decoder] = {"json": Json(), "msgpack": MessagePack()}
UNSENT = (TypeError, ValueError, OverflowError)
"""Raised for a value that no producer can send."""
MESSAGE = """
class Message(msgspec.Struct):
    value: STATE
    total: float = 0
    since: datetime = datetime(2020, 1, 1, tzinfo=ZoneInfo("Europe/Berlin"))
"""


def sent(name: str, makers: list[Any]) -> list[bytes]:
    """Return messages as encoded by a producer with other classes."""
    found = []
    for make in makers:
        try:
            found.append(ENCODE[name]({"value": make()}))
        except UNSENT:
            continue
    return found


@pytest.mark.parametrize("name", DECODERS)
@settings(max_examples=EXAMPLES)
@given(kind=KINDS, data=st.data())
def test_each_decoded_message_can_be_stored(name: str, kind: Kind, data: st.DataObject) -> None:
    values = st.one_of(kind.exact, kind.odd)
    makers = make_makers(data.draw(st.lists(values, min_size=1, max_size=4)))
    made = make_module("generated_messages", f"\nSTATE = {kind.source}\nMAKERS = {makers}\n{MESSAGE}")
    decode = DECODERS[name].build(made.Message)
    stored = StorableType(made.STATE)
    for value in sent(name, made.MAKERS):
        try:
            message: Any = decode(value)
        except msgspec.DecodeError:
            continue
        problem = stored.find(message.value)
        assert stored.holds(message.value) or "equals nothing" in problem, problem
        assert (type(message.total), message.since.tzinfo) == (float, UTC)


class Timed(msgspec.Struct, frozen=True):
    at: datetime
    earlier: list[datetime] = []


def read_timed(value: bytes) -> Timed:
    """A decoder of the user that keeps the zone of the text."""
    return Timed(datetime.fromisoformat(value.decode()), [datetime.fromisoformat(value.decode())])


@given(at=st.datetimes(), hours=st.integers(-12, 14))
def test_times_of_a_users_function_are_in_utc_too(at: datetime, hours: int) -> None:
    text = f"{at.isoformat()}{hours:+03d}:00"
    message: Any = Function(read_timed).build(Timed)(text.encode())
    expected = datetime.fromisoformat(text)
    assert message == Timed(expected, [expected])
    if 1 < at.year < 9999:
        assert [each.tzinfo for each in (message.at, *message.earlier)] == [UTC, UTC]


class Untimed(msgspec.Struct):
    value: float = 0.0
    names: dict[str, list[int]] = {}


def test_a_type_without_times_costs_nothing() -> None:
    assert Json().build(Untimed).__self__.__class__ is msgspec.json.Decoder  # type: ignore[attr-defined]  # of C
