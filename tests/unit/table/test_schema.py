"""Row types become table schemas, and a type without a column is refused by name when it is declared."""

from __future__ import annotations

import enum
import types
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, NewType, Optional
from uuid import UUID

import msgspec
import pyarrow as pa
import pytest

from lockstep.errors import DeclarationError
from lockstep.model.column_types import DecimalType, Int32, IntegerType
from lockstep.model.table_schema import (
    IDENTITY,
    make_file_schema,
    make_provenance_schema,
    make_row_schema,
    make_table_schema,
    to_delta,
)

SensorId = NewType("SensorId", int)
Price = Annotated[Decimal, DecimalType(18, 8)]


class Side(enum.Enum):
    BID = "bid"
    ASK = "ask"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Mixed(enum.Enum):
    ONE = 1
    TWO = "two"


class Nothing(msgspec.Struct):
    pass


class Loop(msgspec.Struct):
    inner: Loop | None


class Point(msgspec.Struct):
    x: float
    label: str | None


class Dangling(msgspec.Struct):
    value: Missing  # type: ignore[name-defined]  # noqa: F821  that it is missing is the point


@dataclass
class Plain:
    x: int


def with_field(annotation: object, name: str = "value") -> type[msgspec.Struct]:
    return msgspec.defstruct("Reading", [(name, annotation)])


UTC_TIME = pa.timestamp("us", tz="UTC")
POINT = pa.struct([("x", pa.float64()), ("label", pa.string())])
MAPPED: list[tuple[object, Any, bool]] = [
    (str, pa.string(), False),
    (bytes, pa.binary(), False),
    (bool, pa.bool_(), False),
    (int, pa.int64(), False),
    (float, pa.float64(), False),
    (datetime, UTC_TIME, False),
    (date, pa.date32(), False),
    (int | None, pa.int64(), True),
    (Optional[str], pa.string(), True),  # noqa: UP045  users write both
    (SensorId, pa.int64(), False),
    (Annotated[int, msgspec.Meta(ge=0)], pa.int64(), False),
    (Annotated[int, msgspec.Meta(description="of the value")] | None, pa.int64(), True),
    (Annotated[int, IntegerType(32), msgspec.Meta(description="of the value")], pa.int32(), False),
    (list[Annotated[int, IntegerType(32)]], pa.list_(pa.field("element", pa.int32())), False),
    (Int32, pa.int32(), False),
    (Int32 | None, pa.int32(), True),
    (Price, pa.decimal128(18, 8), False),
    (Annotated[Decimal | None, DecimalType(38, 0)], pa.decimal128(38, 0), True),
    (Side, pa.string(), False),
    (Level, pa.int64(), False),
    (Literal["a", "b"], pa.string(), False),
    (Literal["a"] | None, pa.string(), True),
    (Literal[1, 2], pa.int64(), False),
    (Point, POINT, False),
    (list[int], pa.list_(pa.field("element", pa.int64())), False),
    (tuple[str | None, ...], pa.list_(pa.field("element", pa.string())), False),
    (dict[str, Price], pa.map_(pa.string(), pa.decimal128(18, 8)), False),
    (list[Point | None] | None, pa.list_(pa.field("element", POINT)), True),
]


@pytest.mark.parametrize(("annotation", "arrow", "nullable"), MAPPED)
def test_a_type_has_one_column_type(annotation: object, arrow: Any, nullable: bool) -> None:  # noqa: FBT001
    assert pa.field("value", arrow, nullable=nullable) == make_row_schema(with_field(annotation)).field("value")


@pytest.mark.parametrize(("annotation", "arrow", "nullable"), MAPPED)
def test_a_column_type_survives_delta(annotation: object, arrow: Any, nullable: bool) -> None:  # noqa: FBT001
    declared: Any = to_delta(make_row_schema(with_field(annotation))).to_arrow()
    assert pa.field("value", arrow, nullable=nullable) == pa.schema(declared).field("value")


REFUSED: list[tuple[object, str, str]] = [
    (Any, "has no column type", "name the type the column holds"),
    (object, "has no column type", "name the type the column holds"),
    (int | str, "union of several types", "split it into optional columns"),
    (None, "has no column type", "use one of: str"),
    (list, "has no column type", "name its parts: list[X]"),
    (tuple, "has no column type", "name its parts: tuple[X, ...]"),
    (dict, "has no column type", "name its parts: dict[str, X]"),
    (set[int], "has no column type", "use list[X] with a fixed order"),
    (frozenset[int], "has no column type", "use list[X] with a fixed order"),
    (tuple[int, str], "has a type for each position", "use a nested Struct"),
    (dict[int, str], "has keys that are not str", "use dict[str, X]"),
    (Decimal, "needs its precision and scale", "Annotated[Decimal, DecimalType(18, 8)]"),
    (Annotated[Decimal, DecimalType(39, 2)], "no table holds it", "precision 1 to 38"),
    (Annotated[Decimal, DecimalType(5, 6)], "no table holds it", "scale 0 to precision"),
    (Annotated[int, IntegerType(16)], "has 32 or 64 bits", "use int or Int32"),
    (Annotated[int, IntegerType], "is a class and no value of it", "Annotated[int, IntegerType(32)]"),
    (Annotated[str, IntegerType(32)], "is for int alone", "Annotated[int, IntegerType(32)]"),
    (Annotated[list[int], IntegerType(32)], "is for int alone", "Annotated[int, IntegerType(32)]"),
    (Annotated[float | None, DecimalType(4, 2)], "is for Decimal alone", "Annotated[Decimal, DecimalType(18, 8)]"),
    (Annotated[datetime, msgspec.Meta(tz=False)], "without a zone", "use aware datetimes"),
    (Mixed, "has values of these types: int, str", "strings only or integers only"),
    (Literal["a", 1], "has values of these types: int, str", "strings only or integers only"),
    (timedelta, "has no column type", "use one of: str"),
    (UUID, "has no column type", "use one of: str"),
    (Plain, "has no column type", "another Struct"),
    (Nothing, "has no fields", "declare at least one field"),
    (Loop, "is recursive", "encoded bytes"),
    (Dangling, "cannot be resolved: name 'Missing'", "module level"),
]


@pytest.mark.parametrize(("annotation", "problem", "instead"), REFUSED)
def test_a_type_without_a_column_is_refused(annotation: object, problem: str, instead: str) -> None:
    with pytest.raises(DeclarationError) as refused:
        make_row_schema(with_field(annotation))
    assert refused.value.field.startswith("Reading.value")
    assert problem in str(refused.value)
    assert instead in refused.value.next_step


@pytest.mark.parametrize(
    ("wrap", "path"),
    [
        (lambda inner: types.GenericAlias(list, (inner,)), "Reading.value[]"),
        (lambda inner: types.GenericAlias(dict, (str, inner)), "Reading.value{}"),
        (lambda inner: msgspec.defstruct("Deep", [("at", inner)]), "Reading.value.at"),
    ],
)
def test_a_refusal_names_the_place_inside_the_field(wrap: Callable[[Any], object], path: str) -> None:
    with pytest.raises(DeclarationError) as refused:
        make_row_schema(with_field(wrap(set[int])))
    assert path == refused.value.field


@pytest.mark.parametrize("name", ["_offset", "_mine", "commit_hour", "Commit_Hour"])
def test_names_of_lockstep_s_own_columns_are_refused(name: str) -> None:
    with pytest.raises(DeclarationError, match="belong to lockstep's own columns"):
        make_row_schema(with_field(int, name))


def test_names_that_differ_in_case_only_are_refused() -> None:
    with pytest.raises(DeclarationError, match=r"Reading\.Price.*cannot tell it from the column 'price'"):
        make_row_schema(msgspec.defstruct("Reading", [("price", int), ("Price", int)]))


def test_a_row_type_without_fields_is_refused() -> None:
    with pytest.raises(DeclarationError, match="has no fields"):
        make_row_schema(Nothing)


def test_the_proof_stands_after_the_user_s_columns_and_the_hour_last() -> None:
    names = make_table_schema(Point).names
    assert ["x", "label", *make_provenance_schema().names, "commit_hour"] == names
    assert names[:-1] == make_file_schema(Point).names
    assert set(IDENTITY) <= set(names)
