"""A subclass of a closed part of a declaration is refused: it would run without end, or be ignored."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from lockstep import (
    AvailableNow,
    Checksum,
    Earliest,
    EventTime,
    Every,
    FileSize,
    FirstSnapshot,
    FromTime,
    FuzzyWindow,
    GroupOffsets,
    Halt,
    Latest,
    Limits,
    Linked,
    LogOnly,
    Lookup,
    NoIntegrity,
    Objectives,
    Once,
    Ordered,
    Sequence,
    Strict,
    Suspend,
    Topics,
)
from lockstep.declare.transform import Transform
from lockstep.decoders import Decoder
from lockstep.delivery import Delivery, KafkaTopic, PostgresTable, Target, Webhook
from lockstep.derived import Archive, Export, Watermark
from lockstep.errors import DeclarationError
from lockstep.integrity.base import IntegrityClass
from lockstep.model.field_types import EXTENSION_POINTS, check_class
from lockstep.rules import Expectation, InRange, InSet, Matches, Predicate, References, Unique
from tests.support.adding_stream import adding
from tests.support.derived_tables import activity
from tests.support.gauges import Gauges
from tests.support.hand_gauges import BY_HAND, ByKey
from tests.support.window_folds import Counting, Silence, Sliding, Tumbling
from tests.unit.declare.test_public_surface import NAMES

if TYPE_CHECKING:
    from lockstep.declare.stream import AnyStream

Path = tuple[str | int, ...]

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
STARTS = (Earliest(), FirstSnapshot(), Latest(), FromTime(NOON), GroupOffsets("old-job"))
TRIGGERS = (Every(seconds=1), AvailableNow(), FileSize("1 MB"))
EVIDENCES = (Sequence(), Linked(), Checksum(), LogOnly())
CLASSES = (
    *(Strict(evidence=evidence) for evidence in EVIDENCES),
    Ordered(on_violation=Suspend()),
    Ordered(on_violation=Halt()),
    Once(keep_ids=1_000),
    FuzzyWindow(lateness=timedelta(minutes=5)),
    NoIntegrity(),
)
RULES = (
    InRange("value", at_least=0),
    Unique("value"),
    InSet("name", {"a"}),
    Matches("name", "a+"),
    References("name", "names"),
    Predicate("value >= 0", id="never_negative"),
    Expectation("expect_column_values_to_not_be_null", {"column": "value"}),
)


class Unit(msgspec.Struct, frozen=True):
    number: int


UNITS = Lookup("units", "/units", key="number", row=Unit)


def list_streams() -> Iterator[AnyStream]:
    """Yield streams that together have a value of every closed class."""
    plain = adding("values")
    for start in STARTS:
        yield replace(plain, topics=Topics(pattern="values", start=start))
        yield replace(plain, topics=Topics(pattern="values", start_by_topic={"values": start}))
    for trigger in TRIGGERS:
        yield replace(plain, trigger=trigger)
    for integrity in CLASSES:
        yield replace(plain, integrity=integrity)
    yield replace(plain, rules=RULES, limits=Limits(), event_time=EventTime(), objectives=Objectives(), export=Export())
    yield replace(plain, lookups=(UNITS,), archive=Archive())
    database = PostgresTable(table="moves", connection="env:DATABASE")
    for target in (KafkaTopic(topic="moves"), database, Webhook(url="env:URL")):
        yield replace(plain, deliveries=(Delivery(name="moves", target=target),))


STREAMS = tuple(list_streams())


def list_places(value: object, before: Path = ()) -> Iterator[tuple[Path, object]]:
    """Yield every part of a declaration with its place, without the declaration itself."""
    for name, part in list_parts(value):
        yield (*before, name), part
        yield from list_places(part, (*before, name))


def list_parts(value: object) -> list[tuple[str | int, object]]:
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, tuple | list):
        return list(enumerate(value))
    if is_dataclass(value) and not isinstance(value, Transform | type):
        return [(each.name, getattr(value, each.name)) for each in fields(value)]
    return []


def put(whole: Any, place: Path, part: object) -> Any:
    """Return the declaration with another part in a place, checked again on each level."""
    if not place:
        return part
    name, *inner = place
    if isinstance(whole, Mapping):
        return {**whole, name: put(whole[name], tuple(inner), part)}
    if isinstance(whole, tuple | list):
        return [put(each, tuple(inner), part) if at == name else each for at, each in enumerate(whole)]
    return replace(whole, **{str(name): put(getattr(whole, str(name)), tuple(inner), part)})


def derive(value: object) -> Any:
    """Return the same value as an instance of a subclass."""
    kind = type(f"My{type(value).__name__}", (type(value),), {})
    made: object = object.__new__(kind)
    vars(made).update(vars(value))
    return made


def is_closed(part: object) -> bool:
    return (
        is_dataclass(part)
        and type(part).__module__.startswith("lockstep.")
        and not isinstance(part, Decoder | Transform)
    )


def list_cases() -> Iterator[tuple[AnyStream, Path, object]]:
    """Yield each closed class once for each place."""
    seen = set()
    for stream in STREAMS:
        for place, part in list_places(stream):
            if is_closed(part) and (place, type(part)) not in seen:
                seen.add((place, type(part)))
                yield stream, place, part


CASES = list(list_cases())


@pytest.mark.parametrize(
    ("stream", "place", "part"), CASES, ids=[f"{'.'.join(map(str, at))} {type(part).__name__}" for _, at, part in CASES]
)
def test_a_derived_class_is_refused_where_it_is_declared(stream: AnyStream, place: Path, part: object) -> None:
    assert put(stream, place, part).name == stream.name
    own = derive(part)
    with pytest.raises(DeclarationError) as refused:
        put(stream, place, own)
    assert refused.value.value is own
    assert type(own).__name__ in refused.value.problem
    assert refused.value.next_step


ELSEWHERE = {
    "CountWindows": "test_derived_windows_are_refused",
    "DecimalType": "within Annotated of a column, whose type is read by its fields",
    "Derived": "a declaration itself",
    "IntegerType": "within Annotated of a column, whose type is read by its fields",
    "NotNull": "as InRange; of a column that is null nowhere it is refused before",
    "SessionWindows": "test_derived_windows_are_refused",
    "SlidingWindows": "test_derived_windows_are_refused",
    "Stream": "a declaration itself",
    "EnvelopeFields": "test_derived_fields_of_an_envelope_are_refused",
    "TableFields": "test_derived_fields_of_a_fold_are_refused",
    "TumblingWindows": "test_derived_windows_are_refused",
    "Watermark": "test_a_derived_watermark_is_refused",
}


def test_every_public_class_of_a_declaration_is_tried_or_open() -> None:
    public = [getattr(sys.modules[module], name) for module, name in NAMES]
    parts = [kind for kind in public if isinstance(kind, type) and is_dataclass(kind)]
    closed = {kind.__name__ for kind in parts if not issubclass(kind, Decoder | Target | Transform)}
    assert closed - {type(part).__name__ for _, _, part in CASES} == set(ELSEWHERE)


@pytest.mark.parametrize("fold", [Counting, Silence, Sliding, Tumbling])
def test_derived_windows_are_refused(fold: Any) -> None:
    own = type(fold.__name__, (fold,), {"windows": derive(fold.windows)})
    with pytest.raises(DeclarationError, match=r"windows = .*: is of the class My\w+Windows, and no class may be"):
        own()


def test_derived_fields_of_a_fold_are_refused() -> None:
    own: Any = type("Own", (Gauges,), {"fields": derive(Gauges.fields)})
    with pytest.raises(DeclarationError, match=r"Own: fields = .*: is of the class MyTableFields, and no class may be"):
        replace(adding("values"), transform=own())


def test_derived_fields_of_an_envelope_are_refused() -> None:
    own: Any = type("Own", (ByKey,), {"envelope_fields": derive(ByKey.envelope_fields)})
    with pytest.raises(DeclarationError, match=r"Own: envelope_fields = .*: is of the class MyEnvelopeFields, and no"):
        replace(BY_HAND["by key"], transform=own())


def test_a_derived_watermark_is_refused() -> None:
    whole = activity()
    with pytest.raises(DeclarationError, match=r"Derived.watermark = .*: is of the class MyWatermark, and no class"):
        replace(whole, watermark=derive(Watermark("_event_time", timedelta(minutes=1))))


class Upper(Decoder):
    """A user's decoder."""

    def build(self, message_type: object) -> Any:
        return bytes.upper


def test_classes_may_be_derived_from_the_extension_points_alone() -> None:
    assert {kind.__name__ for kind in EXTENSION_POINTS} == {"Decoder", "Target", "Transform"}
    check_class("Stream.decoder", Upper())
    check_class("Stream.transform", adding("values").transform)


def test_a_base_that_is_not_exported_cannot_be_derived_from_either() -> None:
    class Forgetful(IntegrityClass):
        def gate(self, time: object) -> Any:
            raise NotImplementedError

        def guarantee(self) -> str:
            return "nothing"

    with pytest.raises(DeclarationError) as refused:
        adding("values", Forgetful())
    assert str(refused.value).startswith("Stream.integrity = ")
    assert "is of the class Forgetful" in refused.value.problem


def test_no_base_of_a_closed_part_is_exported() -> None:
    names = {name for _, name in NAMES}
    assert names.isdisjoint({"Trigger", "StartingOffsets", "Registry", "IntegrityClass", "Evidence", "Policy", "Rule"})
