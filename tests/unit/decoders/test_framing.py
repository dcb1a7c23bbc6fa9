"""A schema id is requested once; an unknown id is a verdict, and a silent registry is not."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

import pytest

from lockstep import Json
from lockstep.declare.decoders import schema_registry
from lockstep.declare.decoders.base import DecodeCause, Registry, Undecodable
from lockstep.declare.decoders.schema_registry import build_decode, check_registry
from lockstep.decoders import Avro, Protobuf, RegisteredSchema
from lockstep.errors import RegistryUnreachable, SettingsError
from tests.support.decoders.panel_pb2 import Update as ProtoUpdate
from tests.support.decoders.readings import UPDATE, Update
from tests.support.decoders.registered import FIRST_ID, InMemory, avro, frame

GOOD = frame(UPDATE, {"seq": 2, "id": "abc", "value": 2.0})


@dataclass(frozen=True)
class Answers(Registry):
    """A registry that returns prepared answers in order and records the questions."""

    given: list[RegisteredSchema | Exception | None]
    asked: list[int] = field(default_factory=list)

    def schema(self, schema_id: int) -> RegisteredSchema | None:
        self.asked.append(schema_id)
        answer = self.given.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def schema_by_guid(self, guid: UUID) -> RegisteredSchema | None:
        return self.schema(guid.int)


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_registry, "SECOND_LOOK_SECONDS", 0.0)


def test_the_schema_of_an_id_is_asked_once() -> None:
    registry = Answers([avro(UPDATE)])
    decode = Avro().build_with(registry, Update)
    assert [decode(GOOD) for _ in range(3)] == [Update(2, "abc", 2.0)] * 3
    assert registry.asked == [FIRST_ID]


def test_an_unknown_id_is_looked_for_twice_for_a_follower_may_lag_and_then_not_again_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registry = Answers([None, avro(UPDATE)])
    assert Avro().build_with(registry, Update)(GOOD) == Update(2, "abc", 2.0)
    registry = Answers([None, None, avro(UPDATE)])
    decode = Avro().build_with(registry, Update)
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
    decode = Avro().build_with(registry, Update)
    for number in range(500):
        with pytest.raises(Undecodable):
            decode(b"\x00" + number.to_bytes(4, "big"))
    assert len(registry.asked) == 500 + schema_registry.SECOND_LOOKS_MAX


def test_a_registry_that_does_not_answer_is_no_verdict_and_is_asked_again() -> None:
    registry = Answers([RegistryUnreachable("HTTP 503", next_step="look"), avro(UPDATE)])
    decode = Avro().build_with(registry, Update)
    with pytest.raises(RegistryUnreachable):
        decode(GOOD)
    assert decode(GOOD) == Update(2, "abc", 2.0)


@pytest.mark.parametrize("error", [ValueError("no such city"), KeyError("token"), UnicodeError("surrogate")])
def test_a_registry_client_that_fails_in_another_way_is_no_verdict_either(error: Exception) -> None:
    """If a ValueError of the client were a verdict on each message, a class that counts would drop all messages."""
    decode = Avro().build_with(Answers([error, avro(UPDATE)]), Update)
    with pytest.raises(RegistryUnreachable, match=f"the client of the schema registry failed: {type(error).__name__}"):
        decode(GOOD)
    assert decode(GOOD) == Update(2, "abc", 2.0)


def test_a_decoder_is_declared_without_a_registry_and_connected_where_it_runs() -> None:
    assert build_decode(Avro(), InMemory((avro(UPDATE),)), Update)(GOOD) == Update(2, "abc", 2.0)
    assert build_decode(Json(), InMemory(()), Update)(b'{"seq": 2, "id": "abc", "value": 2.0}') == Update(2, "abc", 2.0)
    with pytest.raises(RegistryUnreachable, match="no schema registry is connected"):
        Avro().build(Update)(GOOD)


@pytest.mark.parametrize("decoder", [Avro(), Protobuf()])
def test_a_run_without_the_registry_that_its_decoder_needs_is_refused(decoder: Avro | Protobuf) -> None:
    decoder.build(Update if isinstance(decoder, Avro) else ProtoUpdate)
    with pytest.raises(SettingsError) as refused:
        check_registry(decoder, None)
    assert str(refused.value) == (
        f"{type(decoder).__name__}() needs a schema registry and none is set\n"
        "  next: set url in the [registry] part of the settings, or LOCKSTEP_REGISTRY__URL"
    )
    check_registry(decoder, InMemory(()))
    check_registry(Json(), None)
