"""Readers of the Avro schema read the encoded values unchanged; values outside the schema are refused."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from io import BytesIO
from typing import Annotated, Any, Literal
from uuid import uuid4

import msgspec
import pytest
from fastavro import parse_schema, schemaless_reader
from hypothesis import given
from hypothesis import strategies as st

from lockstep import DecimalType, IntegerType
from lockstep.declare.row_schema import make_avro_schema
from lockstep.decoders import Avro
from lockstep.errors import DeclarationError
from lockstep.features.delivery.row_values import UNENCODABLE, AvroValues
from tests.support.decoders.registered import FIRST_ID, Connected, InMemory, avro

Amount = Annotated[Decimal, DecimalType(12, 3)]
Small = Annotated[int, IntegerType(32)]


class Side(Enum):
    BID = "bid"
    ASK = "ask"


class Level(Enum):
    LOW = 1
    HIGH = -7


class Place(msgspec.Struct):
    country: str
    height: float | None = None


class Town(Place):
    people: int = 0


class Everything(msgspec.Struct):
    text: str
    raw: bytes
    flag: bool
    number: int
    small: Small
    ratio: float
    amount: Amount
    at: datetime
    day: date
    side: Side
    level: Level
    kind: Literal["a", "b"]
    place: Place
    places: list[Place]
    amounts: dict[str, Amount | None]
    sides: tuple[Side | None, ...]
    matrix: list[list[Small]]
    optional_text: str | None = None
    optional_small: Small | None = None
    optional_place: Place | None = None
    optional_side: Side | None = None
    optional_names: tuple[str, ...] | None = None
    pairs: list[tuple[str, ...] | None] = []
    count: int = 4
    tags: list[str] = []


AMOUNTS = st.decimals(-999_999_999, 999_999_999, places=3)
TIMES = st.datetimes(timezones=st.just(UTC))
PLACES = st.builds(Place, st.text(), st.none() | st.floats(allow_nan=False))
SMALL = st.integers(-(2**31), 2**31 - 1)
NAMES = st.lists(st.sampled_from(["null", "array", "a"]), max_size=3).map(tuple)
VALUES = st.builds(
    Everything,
    number=st.integers(-(2**63), 2**63 - 1),
    small=SMALL,
    ratio=st.floats(allow_nan=False),
    amount=AMOUNTS,
    at=TIMES,
    place=PLACES,
    places=st.lists(PLACES, max_size=3),
    amounts=st.dictionaries(st.text(), st.none() | AMOUNTS, max_size=3),
    sides=st.lists(st.none() | st.sampled_from(Side), max_size=3).map(tuple),
    matrix=st.lists(st.lists(SMALL, max_size=3), max_size=3),
    optional_text=st.none() | st.text(),
    optional_small=st.none() | SMALL,
    optional_place=st.none() | PLACES,
    optional_side=st.none() | st.sampled_from(Side),
    optional_names=st.none() | NAMES,
    pairs=st.lists(st.none() | NAMES, max_size=3),
    count=SMALL,
    tags=st.lists(st.text(), max_size=3),
)
EVERYTHING = AvroValues(Everything, FIRST_ID)
READ = Connected(Avro(), InMemory((avro(make_avro_schema(Everything)),))).build(Everything)


@given(VALUES)
def test_a_message_is_read_by_its_schema_as_the_value_that_was_encoded(value: Everything) -> None:
    """Read by lockstep's reader, which shares no code with the writer."""
    assert READ(EVERYTHING.encode(value)) == value


def make(**changes: Any) -> Everything:
    """Return a value of all fields with changes that bypass type checks."""
    fields: dict[str, Any] = {
        "text": "t",
        "raw": b"r",
        "flag": True,
        "number": 1,
        "small": 1,
        "ratio": 0.5,
        "amount": Decimal("1.5"),
        "at": datetime(2026, 1, 1, tzinfo=UTC),
        "day": date(2026, 1, 1),
        "side": Side.BID,
        "level": Level.LOW,
        "kind": "a",
        "place": Place("x"),
        "places": [],
        "amounts": {},
        "sides": (),
        "matrix": [],
    }
    return Everything(**(fields | changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"number": 2**63},
        {"number": None},
        {"number": "1"},
        {"small": 2**31},
        {"optional_small": -(2**31) - 1},
        {"matrix": [[1], [2**31]]},
        {"amount": Decimal("1.2345")},
        {"amount": Decimal("1234567890.123")},
        {"amount": Decimal("NaN")},
        {"amounts": {"a": Decimal("1.2345")}},
        {"amount": Decimal("1E+20")},
        {"amount": b"\x01"},
        {"number": 1.7},
        {"number": Decimal(1)},
        {"number": True},
        {"small": 1.7},
        {"flag": None},
        {"flag": "no"},
        {"ratio": "1.5"},
        {"ratio": 2**60 + 1},
        {"at": datetime(2026, 1, 1)},  # noqa: DTZ001  # without a zone
        {"at": 5},
        {"at": date(2026, 1, 1)},
        {"day": datetime(2026, 1, 1, tzinfo=UTC)},
        {"day": 5},
        {"tags": "abc"},
        {"tags": {"a"}},
        {"tags": {"a": 1}},
        {"amounts": {1: None}},
        {"amounts": [("a", None)]},
        {"place": Town("x", 1.0, 5)},
        {"optional_names": "array"},
        {"text": "\ud800"},
        {"text": None},
        {"side": "bid"},
        {"place": None},
        {"optional_place": 3},
    ],
    ids=str,
)
def test_a_value_that_avro_would_change_or_cannot_hold_is_refused(changes: dict[str, Any]) -> None:
    assert EVERYTHING.encode(make())
    with pytest.raises(UNENCODABLE):
        EVERYTHING.encode(make(**changes))


def test_a_value_of_another_type_is_refused() -> None:
    with pytest.raises(TypeError, match="of the type Place, not Everything"):
        EVERYTHING.encode(Place("x"))


class Before(msgspec.Struct):
    name: str


class After(msgspec.Struct):
    name: str
    note: str | None = None
    side: Side = Side.ASK
    ratio: float = 0.5
    counts: dict[str, int] = {}
    parts: tuple[int, ...] = ()
    limit: float = float("inf")


def test_readers_of_a_later_schema_have_the_defaults_of_new_fields() -> None:
    earlier = parse_schema(make_avro_schema(Before))
    later = make_avro_schema(After)
    later["name"] = "Before"
    later["fields"] = [each for each in later["fields"] if each["name"] != "limit"]
    encoded = AvroValues(Before, 1).encode(Before("x"))[5:]
    read = schemaless_reader(BytesIO(encoded), earlier, parse_schema(later))
    assert read == {"name": "x", "note": None, "side": "ask", "ratio": 0.5, "counts": {}, "parts": []}


@pytest.mark.parametrize("damage", [b"", b"\x01", b"\x01\x02\x03\x04", b"\x01\x00\x00\x00\x65", b"\x00\x00"])
def test_a_message_that_lost_its_frame_is_not_equal_to_one_that_has_it(damage: bytes) -> None:
    """The proof ignores only the schema id, which may differ."""
    message = EVERYTHING.encode(make())
    cleared = EVERYTHING.clear_id(message)
    assert EVERYTHING.clear_id(b"\x00\x00\x00\x00\x07" + message[5:]) == cleared
    assert EVERYTHING.clear_id(damage + message[5:]) != cleared


class Odd(msgspec.Struct):
    """Defaults of other types than their fields, and defaults that change."""

    amount: Amount = 0  # type: ignore[assignment]  # the case: of another type
    flag: bool = 0  # type: ignore[assignment]  # the case: of another type
    number: int = True
    other: int = 1.5  # type: ignore[assignment]  # the case: of another type
    large: int = 2**70
    small: Small = 2**40
    text: str = 5  # type: ignore[assignment]  # the case: of another type
    raw: bytes = b"x"
    places: list[Place] = {}  # type: ignore[assignment]  # the case: of another type
    limit: float = float("inf")
    made: str = msgspec.field(default_factory=lambda: uuid4().hex)
    good: int = -(2**63)


def test_a_default_that_its_field_or_json_cannot_have_is_not_in_the_schema() -> None:
    schema = make_avro_schema(Odd)
    assert {each["name"]: each["default"] for each in schema["fields"] if "default" in each} == {"good": -(2**63)}
    assert json.dumps(schema, allow_nan=False) == json.dumps(make_avro_schema(Odd))
    parse_schema(schema)


Other = msgspec.defstruct("Place", [("name", str)])


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ([("first", Place), ("second", Other)], "is the name of two Structs"),
        ([("größe", int)], "is not a name in Avro"),
        ([("either", int | str)], "is a union of several types"),
        ([("amount", Decimal)], "needs its precision and scale"),
        ([("inner", msgspec.defstruct("a-b", [("x", int)]))], "is not a name in Avro"),
    ],
)
def test_a_type_that_avro_cannot_have_is_refused_by_name(fields: list[tuple[str, Any]], problem: str) -> None:
    with pytest.raises(DeclarationError, match=problem):
        make_avro_schema(msgspec.defstruct("Row", fields))
