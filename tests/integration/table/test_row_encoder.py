"""Rows become Arrow with their proof, are read back equal through Delta, and are refused if they do not fit."""

from __future__ import annotations

import enum
import pickle
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from lockstep.model.column_types import DecimalType, Int32
from lockstep.table import row_encoder
from lockstep.table.row_encoder import PartitionRun, Provenance, RowRejected, RowsBuilder
from tests.support.native import BOTH_WAYS
from tests.support.row_table import RowTable, proof_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


class Side(enum.Enum):
    BID = "bid"
    ASK = "ask"


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 2


class Point(msgspec.Struct):
    x: float
    label: str | None
    side: Side
    when: datetime


class Everything(msgspec.Struct, kw_only=True):
    text: str
    raw: bytes
    flag: bool
    whole: int
    small: Int32
    value: float
    amount: Annotated[Decimal, DecimalType(18, 8)]
    at: datetime
    day: date
    side: Side
    colour: Colour
    level: Level
    mode: Literal["a", "b"]
    point: Point
    numbers: list[int]
    texts: tuple[str | None, ...]
    amounts: dict[str, Annotated[Decimal, DecimalType(18, 8)]]
    points: list[Point] | None = None
    maybe: int | None = None
    maybe_at: datetime | None = None
    maybe_side: Side | None = None
    maybe_point: Point | None = None


class Flat(msgspec.Struct, kw_only=True):
    text: str = "a"
    whole: int = 1
    small: Int32 = 1
    value: float = 1.0
    flag: bool = True
    raw: bytes = b""
    amount: Annotated[Decimal, DecimalType(5, 2)] = Decimal("1.25")
    at: datetime = datetime(2024, 1, 1, tzinfo=UTC)
    day: date = date(2024, 1, 1)
    maybe: int | None = None


class Nested(msgspec.Struct, kw_only=True):
    side: Side = Side.BID
    point: Point | None = None
    numbers: list[int] = []
    amounts: dict[str, int] = {}


TIME = datetime(2024, 2, 29, 23, 59, 59, 999999, tzinfo=UTC)
POINT = Point(0.1, None, Side.ASK, TIME)
POINT_READ = {"x": 0.1, "label": None, "side": "ask", "when": TIME}
ROW = Everything(
    text="grüße \U0001f600",
    raw=b"\x00\xff",
    flag=True,
    whole=-(2**63),
    small=2**31 - 1,
    value=5e-324,
    amount=Decimal("-9999999999.12345678"),
    at=datetime(2024, 3, 1, 1, 59, 59, 999999, tzinfo=timezone(timedelta(hours=2))),
    day=date(1969, 12, 31),
    side=Side.BID,
    colour=Colour.RED,
    level=Level.HIGH,
    mode="b",
    point=POINT,
    numbers=[1, -1],
    texts=("a", None),
    amounts={"a": Decimal("1.5")},
    points=[POINT, POINT],
    maybe=1,
    maybe_at=TIME,
    maybe_side=Side.ASK,
    maybe_point=POINT,
)
SAME = ("text", "raw", "flag", "whole", "small", "value", "amount", "day")
ROW_READ: dict[str, Any] = {name: getattr(ROW, name) for name in SAME} | {
    "at": TIME,
    "side": "bid",
    "colour": "red",
    "level": 2,
    "mode": "b",
    "point": POINT_READ,
    "numbers": [1, -1],
    "texts": ["a", None],
    "amounts": {"a": Decimal("1.5")},
    "points": [POINT_READ, POINT_READ],
    "maybe": 1,
    "maybe_at": TIME,
    "maybe_side": "ask",
    "maybe_point": POINT_READ,
}
NONES = dict.fromkeys(("points", "maybe", "maybe_at", "maybe_side", "maybe_point"))
ROWS = [ROW, msgspec.structs.replace(ROW, numbers=[], texts=(), amounts={}, **NONES)]
ROWS_READ = [ROW_READ, ROW_READ | {"numbers": [], "texts": [], "amounts": {}} | NONES]


@pytest.fixture(autouse=True, params=BOTH_WAYS)
def native(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.param:
        monkeypatch.setattr(row_encoder, "extension", None)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> RowTable:
    made = RowTable(tmp_path_factory.mktemp("rows") / "table", Everything)
    made.add(ROWS)
    return made


def test_every_type_comes_back_equal_through_deltalake(table: RowTable) -> None:
    assert_rows(DeltaTable(table.folder).to_pyarrow_table().to_pylist(maps_as_pydicts="strict"))


def test_every_type_comes_back_equal_through_spark(table: RowTable, spark: SparkSession) -> None:
    frame = spark.read.format("delta").load(str(table.folder)).orderBy("_offset")
    assert_rows(pa.table(frame.toArrow()).to_pylist(maps_as_pydicts="strict"))


def assert_rows(read: list[dict[str, Any]]) -> None:
    expected = ROWS_READ
    assert expected == [{name: row[name] for name in ROW_READ} for row in read]


def test_spark_sees_what_may_be_null_as_it_was_declared(table: RowTable, spark: SparkSession) -> None:
    schema = spark.read.format("delta").load(str(table.folder)).schema
    assert {name for name in ROW_READ if schema[name].nullable} == set(NONES)


def test_a_row_carries_its_proof() -> None:
    proof = Provenance(
        runs=[PartitionRun("a.1", "idA", 0, 1), PartitionRun("b.1", "idB", 7, 2)],
        offsets=[5, 8, 8],
        row_numbers=[0, 0, 1],
        sessions=["s", "t", "t"],
        sequences=[None, 4, 4],
        event_times_us=[None, 1_000_001, 1_000_001],
        emit_offsets=[5, 9, 9],
    )
    read = RowsBuilder(Flat).build([Flat()] * 3, proof).select([*range(10, 19)]).to_pylist()
    second = {"_topic": "b.1", "_topic_id": "idB", "_partition": 7, "_offset": 8, "_emit_offset": 9, "_row": 0}
    second |= {"_session": "t", "_sequence": 4, "_event_time": datetime(1970, 1, 1, 0, 0, 1, 1, tzinfo=UTC)}
    first = {"_topic": "a.1", "_topic_id": "idA", "_partition": 0, "_offset": 5, "_emit_offset": 5, "_row": 0}
    first |= {"_session": "s", "_sequence": None, "_event_time": None}
    assert [first, second, second | {"_row": 1}] == read


def test_a_row_is_emitted_at_its_source_unless_said_otherwise() -> None:
    batch = RowsBuilder(Flat).build([Flat(), Flat()], proof_of(2))
    assert [100, 101] == batch.column("_offset").to_pylist() == batch.column("_emit_offset").to_pylist()


@pytest.mark.parametrize("row_type", [Flat, Nested])
def test_a_chunk_may_be_empty(row_type: type[msgspec.Struct]) -> None:
    assert RowsBuilder(row_type).build([], proof_of(0)).num_rows == 0


NAIVE = datetime(2024, 1, 1)  # noqa: DTZ001  refused below
REFUSED: list[tuple[str, Any, str]] = [
    ("text", b"a", "is of type bytes, not str"),
    ("text", None, "None in a column that is not optional"),
    ("text", "\ud800", "surrogates not allowed"),
    ("raw", "abcd", "is of type str, not bytes"),
    ("whole", 1.5, "is of type float, not int"),
    ("whole", Decimal(2), "is of type Decimal, not int"),
    ("whole", True, "is of type bool, not int"),
    ("whole", 2**63, "too large"),
    ("whole", None, "None in a column that is not optional"),
    ("small", 2**31, "too large"),
    ("value", "1", "is of type str, not float"),
    ("value", Decimal(1), "is of type Decimal, not float"),
    ("flag", 1, "is of type int, not bool"),
    ("amount", Decimal("1.255"), "would cause data loss"),
    ("amount", Decimal(1000), "precision"),
    ("amount", Decimal("NaN"), "NaN"),
    ("amount", 1.25, "is of type float, not Decimal"),
    ("at", NAIVE, "is a datetime without a zone"),
    ("at", 0, "is of type int, not datetime"),
    ("at", date(2024, 1, 1), "is of type date, not datetime"),
    ("day", datetime(2024, 1, 1, 5, tzinfo=UTC), "is of type datetime, not date"),
    ("day", 5, "is of type int, not date"),
    ("maybe", 0.5, "is of type float, not int"),
]
REFUSED_NESTED: list[tuple[str, Any, str]] = [
    ("side", "bid", "is of type str, not Side"),
    ("side", None, "None in a column that is not optional"),
    ("point", {"x": 1.0}, "is of type dict, not Point"),
    ("point", Point(1.0, None, Side.BID, NAIVE), ".when: is a datetime without a zone"),
    ("point", Point(None, None, Side.BID, TIME), ".x: None in a column that is not optional"),  # type: ignore[arg-type]
    ("numbers", [1, 2.5], "[1]: is of type float, not int"),
    ("numbers", [None], "[0]: None in a column that is not optional"),
    ("numbers", {1}, "is of type set, not list or tuple"),
    ("numbers", [2**63], "too large"),
    ("amounts", {"a": 1.5}, "['a']: is of type float, not int"),
    ("amounts", {1: 1}, "is of type int, not str"),
]


@pytest.mark.parametrize(("column", "value", "problem"), REFUSED)
def test_a_value_that_does_not_fit_is_refused_with_its_row(column: str, value: Any, problem: str) -> None:
    check_refusal(Flat, column, value, problem)


@pytest.mark.parametrize(("column", "value", "problem"), REFUSED_NESTED)
def test_a_nested_value_that_does_not_fit_is_refused_with_its_place(column: str, value: Any, problem: str) -> None:
    check_refusal(Nested, column, value, problem)


def check_refusal(row_type: type[Any], column: str, value: Any, problem: str) -> None:
    with pytest.raises(RowRejected) as refused:
        RowsBuilder(row_type).build([row_type(), row_type(**{column: value}), row_type()], proof_of(3))
    assert (column, 101, 1) == (refused.value.column, refused.value.offset, refused.value.origin.position)
    assert value is refused.value.value
    assert problem in str(refused.value)
    assert f"sensors.1/3@101 row 0: column {column} = " in str(refused.value)


def test_a_row_of_another_type_is_refused() -> None:
    with pytest.raises(RowRejected, match=r"@101 row 0: column \* = Nested.* the stream declares rows of type Flat"):
        RowsBuilder(Flat).build([Flat(), Nested()], proof_of(2))


def test_a_refusal_survives_pickling() -> None:
    with pytest.raises(RowRejected) as refused:
        RowsBuilder(Flat).build([Flat(whole=1.5)], proof_of(1))  # type: ignore[arg-type]  # refused
    again = pickle.loads(pickle.dumps(refused.value))  # noqa: S301  our own bytes
    assert str(refused.value) == str(again)


class Whole(int):
    """An integer subclass, as in numeric libraries."""


class Moment(datetime):
    """A datetime subclass."""


def test_values_that_need_a_closer_look_are_written_when_they_fit() -> None:
    row = Flat(whole=Whole(7), at=Moment(2024, 1, 1, tzinfo=UTC), value=2, amount=Decimal("1.250"))
    read = RowsBuilder(Flat).build([Flat(), row], proof_of(2)).to_pylist()[1]
    assert (7, datetime(2024, 1, 1, tzinfo=UTC), 2.0) == (read["whole"], read["at"], read["value"])
    expected = Decimal("1.25")
    assert expected == read["amount"]


def test_delta_declares_what_is_not_optional_as_not_null(tmp_path: Path) -> None:
    table = RowTable(tmp_path / "table", Flat)
    fields = DeltaTable(table.folder).schema().fields
    expected = {"maybe", "_sequence", "_event_time"}
    assert expected == {field.name for field in fields if field.nullable}
