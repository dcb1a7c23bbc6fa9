"""What an id stands for is asked once; an unknown one is a verdict, a silent registry is none."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from lockstep import Json
from lockstep.declare.decoders import schema_registry
from lockstep.declare.decoders.base import DecodeCause, Undecodable
from lockstep.declare.decoders.schema_registry import check_registry
from lockstep.decoders import Avro, Protobuf, RegisteredSchema, Registry
from lockstep.errors import RegistryUnreachable, SettingsError
from tests.support.decoders.panel_pb2 import Update as ProtoUpdate
from tests.support.decoders.readings import UPDATE, Update
from tests.support.decoders.registered import FIRST_ID, InMemory, avro, frame

GOOD = frame(UPDATE, {"seq": 2, "id": "abc", "value": 2.0})


@dataclass(frozen=True)
class Answers(Registry):
    """Gives prepared answers, one after the other, and remembers the questions."""

    given: list[RegisteredSchema | Exception | None]
    asked: list[int] = field(default_factory=list)

    def schema(self, schema_id: int) -> RegisteredSchema | None:
        self.asked.append(schema_id)
        answer = self.given.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_registry, "SECOND_LOOK_SECONDS", 0.0)


def test_the_schema_of_an_id_is_asked_once() -> None:
    registry = Answers([avro(UPDATE)])
    decode = Avro(registry=registry).build(Update)
    assert [decode(GOOD) for _ in range(3)] == [Update(2, "abc", 2.0)] * 3
    assert registry.asked == [FIRST_ID]


def test_an_unknown_id_is_looked_for_twice_for_a_follower_may_lag_and_then_not_again_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registry = Answers([None, avro(UPDATE)])
    assert Avro(registry=registry).build(Update)(GOOD) == Update(2, "abc", 2.0)
    registry = Answers([None, None, avro(UPDATE)])
    decode = Avro(registry=registry).build(Update)
    for _ in range(3):
        with pytest.raises(Undecodable, match=f"the schema registry knows no schema id {FIRST_ID}") as refused:
            decode(GOOD)
        assert refused.value.cause is DecodeCause.UNKNOWN_SCHEMA_ID
    assert registry.asked == [FIRST_ID] * 2
    monkeypatch.setattr(schema_registry, "UNKNOWN_SECONDS", 0.0)
    assert decode(GOOD) == Update(2, "abc", 2.0)


def test_a_flood_of_unknown_ids_gets_no_second_looks_and_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_registry, "UNKNOWN_IDS_MAX", 10)
    registry = Answers([None] * 1_000)
    decode = Avro(registry=registry).build(Update)
    for number in range(500):
        with pytest.raises(Undecodable):
            decode(b"\x00" + number.to_bytes(4, "big"))
    assert len(registry.asked) == 500 + schema_registry.SECOND_LOOKS_MAX


def test_a_registry_that_does_not_answer_is_no_verdict_and_is_asked_again() -> None:
    registry = Answers([RegistryUnreachable("HTTP 503", next_step="look"), avro(UPDATE)])
    decode = Avro(registry=registry).build(Update)
    with pytest.raises(RegistryUnreachable):
        decode(GOOD)
    assert decode(GOOD) == Update(2, "abc", 2.0)


@pytest.mark.parametrize("answer", [ValueError("no such city"), KeyError("token"), "a text"])
def test_a_registry_that_fails_in_another_way_is_no_verdict_either(answer: Any) -> None:
    """A ValueError of it was a verdict on each message: a class that counts dropped them all."""
    decode = Avro(registry=Answers([answer, avro(UPDATE)])).build(Update)
    with pytest.raises(RegistryUnreachable, match=rf"Answers.schema\({FIRST_ID}\) (raised|returned)") as unclear:
        decode(GOOD)
    assert unclear.value.next_step.startswith("correct Answers: it returns a RegisteredSchema, or None")
    assert decode(GOOD) == Update(2, "abc", 2.0)


def test_a_decoder_is_declared_without_a_registry_and_connected_where_it_runs() -> None:
    installation, own = InMemory((avro(UPDATE),)), InMemory(())
    assert Avro().connected(installation) == Avro(registry=installation)
    assert Avro(registry=own).connected(installation) == Avro(registry=own)
    assert Json().connected(installation) == Json()
    with pytest.raises(RegistryUnreachable, match="no schema registry is connected"):
        Avro().build(Update)(GOOD)


@pytest.mark.parametrize("decoder", [Avro(), Protobuf()])
def test_a_run_without_the_registry_that_its_decoder_needs_is_refused(decoder: Avro | Protobuf) -> None:
    name = type(decoder).__name__
    decoder.build(Update if isinstance(decoder, Avro) else ProtoUpdate)
    with pytest.raises(SettingsError) as refused:
        check_registry(decoder.connected(None))
    assert str(refused.value) == (
        f"{name}() needs a schema registry and none is set\n  next: set url in the [registry] part of the settings, "
        f"or LOCKSTEP_REGISTRY__URL; or give the decoder its own: {name}(registry=...)"
    )
    check_registry(decoder.connected(InMemory(())))
    check_registry(Json())
