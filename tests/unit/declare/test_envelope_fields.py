"""The envelope of a message is declared by fields or by a method, never by both; names are checked at import."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, Literal, cast

import msgspec
import pytest
from msgspec import UnsetType

from lockstep import Envelope, EnvelopeFields, Kind, NoIntegrity, Record, Sequence, Stream, Strict, Topics, Transform
from lockstep.engine.executor.compiled_stream import compile_stream
from lockstep.errors import DeclarationError
from lockstep.testing import run


class Whole(msgspec.Struct, tag="whole"):
    room: str
    seq: int
    time_us: int | None
    level: float


class Step(msgspec.Struct, tag="step"):
    room: str
    seq: int
    time_us: int | None
    level: float


class Close(msgspec.Struct, tag="close"):
    room: str
    seq: int
    time_us: int | None


class Row(msgspec.Struct, frozen=True):
    level: float


class Room(Transform[Whole | Step | Close, list[float], Row]):
    envelope_fields = EnvelopeFields(snapshot=Whole, end=Close, session="room", sequence="seq", event_time_us="time_us")

    def on_snapshot(self, message: Whole | Step | Close, record: Record, previous: list[float] | None) -> list[float]:
        return [message.level] if isinstance(message, Whole) else []

    def on_update(self, state: list[float], message: Whole | Step | Close, record: Record) -> Iterable[Row]:
        assert isinstance(message, Step)
        state.append(message.level)
        return [Row(message.level)]


def declare(fields: EnvelopeFields | None, base: type[Transform[Any, Any, Any]] = Room) -> object:
    transform = type("Made", (base,), {"envelope_fields": fields, "__module__": __name__, "__qualname__": "Made"})
    globals()["Made"] = transform
    return Stream(
        name="rooms", topics=Topics(pattern="rooms"), transform=transform(), integrity=Strict(evidence=Sequence())
    )


def test_each_message_type_has_its_kind_and_its_fields() -> None:
    rooms = Stream(name="rooms", topics=Topics(pattern="rooms"), transform=Room(), integrity=NoIntegrity())
    record = Record("t", "id", 0, 7, None)  # type: ignore[arg-type]  # nothing of it is read
    envelope = rooms.transform.envelope
    assert envelope(Whole("a", 1, 5, 1.0), record) == Envelope("a", Kind.SNAPSHOT, 1, None, 5)
    assert envelope(Step("a", 2, None, 1.0), record) == Envelope("a", Kind.UPDATE, 2)
    assert envelope(Close("a", 3, 6), record) == Envelope("a", Kind.END, 3, None, 6)


def test_a_stream_runs_by_its_fields() -> None:
    stream = Stream(
        name="rooms", topics=Topics(pattern="rooms"), transform=Room(), integrity=Strict(evidence=Sequence())
    )
    ran = run(stream, Whole("a", 1, 5, 1.0), Step("a", 2, 6, 1.5), Step("a", 4, 7, 2.0))
    assert ran.rows == [Row(1.5)]
    assert (ran.verdicts[-1].cause, ran.verdicts[-1].found) == ("gap", "4, missing 3")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (EnvelopeFields(sequence="number"), "is not a field of Whole"),
        (EnvelopeFields(session="name"), "is not a field of Whole"),
        (EnvelopeFields(id="id"), "is not a field of Whole"),
        (EnvelopeFields(snapshot=Row), "is not a message type of Made"),
        (EnvelopeFields(end=Row), "is not a message type of Made"),
        (None, "has neither envelope nor envelope_fields"),
    ],
)
def test_a_wrong_name_or_type_is_refused(fields: EnvelopeFields | None, text: str) -> None:
    with pytest.raises(DeclarationError, match=text):
        declare(fields)


TEXTS: tuple[object, ...] = (str, Literal["a", "b"], Annotated[str, msgspec.Meta(max_length=9)])
NUMBERS: tuple[object, ...] = (int, Literal[1, 2], Annotated[int, msgspec.Meta(ge=0)])
OTHERS: tuple[object, ...] = (float, bool, bytes, list[int], Any, datetime, int | UnsetType, str | float)
OPTIONAL = tuple(kind | None for kind in (str, int))
TAKEN: dict[str, tuple[object, ...]] = {
    "session": TEXTS,
    "sequence": (*NUMBERS, int | None),
    "event_time_us": (*NUMBERS, int | None),
    "id": (*TEXTS, *NUMBERS, *OPTIONAL, str | int),
}


@pytest.mark.parametrize("part", TAKEN)
@pytest.mark.parametrize("kind", [*TEXTS, *NUMBERS, *OTHERS, *OPTIONAL, str | int], ids=str)
def test_a_field_of_a_type_that_no_envelope_has_is_refused(part: str, kind: object) -> None:
    made = msgspec.defstruct("Made", [("value", kind)])
    fields: EnvelopeFields = cast("Any", EnvelopeFields)(**{part: "value"})
    if kind in TAKEN[part]:
        fields.check("Fold", made)
        return
    with pytest.raises(DeclarationError, match=rf"Fold.envelope_fields.{part} = 'value': is of type .* in Made"):
        fields.check("Fold", made)


class WithMethod(Room):
    def envelope(self, message: Whole | Step | Close, record: Record) -> Envelope:
        return Envelope(message.room, Kind.UPDATE, message.seq)


def test_fields_beside_a_method_are_refused() -> None:
    with pytest.raises(DeclarationError, match="has envelope_fields that its method envelope hides"):
        declare(Room.envelope_fields, WithMethod)
    declare(None, WithMethod)


def test_a_method_in_a_subclass_replaces_the_fields() -> None:
    stream = Stream(name="rooms", topics=Topics(pattern="rooms"), transform=WithMethod(), integrity=NoIntegrity())
    assert compile_stream(stream).plain_updates is None  # type: ignore[arg-type]  # of any stream
    ran = run(stream, Step("a", 0, None, 0.5), Step("a", 1, None, 1.5))
    assert ran.rows == [Row(1.5)]


def test_messages_without_fields_are_refused() -> None:
    class Texts(Transform[dict[str, int], int, Row]):
        envelope_fields = EnvelopeFields(sequence="seq")

        def on_snapshot(self, message: dict[str, int], record: Record, previous: int | None) -> int:
            return 0

        def on_update(self, state: int, message: dict[str, int], record: Record) -> Iterable[Row]:
            return []

    with pytest.raises(DeclarationError, match="has messages that are not Structs"):
        Texts.envelope_fields.check("Texts", dict[str, int])
