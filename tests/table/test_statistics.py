"""Statistics are exact, rounded outwards or left out, so that no reader skips a row that it was asked for."""

from __future__ import annotations

import functools
import json
import math
import operator
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder

from lockstep.declare.types import DecimalType
from lockstep.table.statistics import SeenValues, file_statistics, written_columns
from tests.table.row_table import RowTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Inner(msgspec.Struct):
    number: int
    value: float | None
    at: datetime


class Edge(msgspec.Struct, kw_only=True):
    id: int
    whole: int | None = None
    value: float | None = None
    text: str | None = None
    at: datetime | None = None
    day: date | None = None
    amount: Annotated[Decimal, DecimalType(38, 10)] | None = None
    flag: bool | None = None
    raw: bytes | None = None
    inner: Inner | None = None
    numbers: list[int] | None = None
    names: dict[str, int] | None = None


def at(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[misc, arg-type]  # the parts end before the zone


HIGH = "\U0010ffff"
FILES = [
    [
        Edge(id=1, value=1.0, at=at(2024, 1, 1, 0, 0, 0, 1), text="a" * 32 + "b", whole=-(2**63), flag=True),
        Edge(
            id=2,
            value=math.nan,
            at=at(2024, 1, 1, 0, 0, 0, 999),
            text="a" * 32 + "c",
            whole=2**53 + 1,
            flag=False,
        ),
    ],
    [
        Edge(
            id=3,
            value=-0.0,
            at=at(1969, 12, 31, 23, 59, 59, 999999),
            text="é" * 40,
            day=date(1, 1, 1),
            raw=b"\xff" * 40,
        )
    ],
    [Edge(id=4), Edge(id=5)],
    [
        Edge(
            id=6,
            value=math.inf,
            text="k" * 32 + HIGH + "k",
            amount=Decimal("9999999999999999999999999999.9999999999"),
        ),
        Edge(id=7, value=-math.inf, text="", amount=Decimal("-9999999999999999999999999999.9999999999")),
    ],
    [
        Edge(
            id=8,
            at=at(9999, 12, 31, 23, 59, 59, 999999),
            day=date(9999, 12, 31),
            whole=2**63 - 1,
            value=5e-324,
        ),
        Edge(
            id=9,
            at=at(1, 1, 1),
            text="z" * 5000,
            amount=Decimal("0.0000000001"),
            value=1.7976931348623157e308,
        ),
    ],
    [
        Edge(id=10, inner=Inner(7, math.nan, at(2024, 6, 1, 0, 0, 0, 1001)), numbers=[], names={}),
        Edge(id=11, inner=Inner(9, None, at(2024, 6, 1, 0, 0, 0, 1001)), numbers=[1, 2], names={"a": 1}),
        Edge(id=12),
    ],
    [Edge(id=13, value=math.nan), Edge(id=14, value=math.nan)],
]
ROWS = [row for rows in FILES for row in rows]
COMPARED = (
    "whole",
    "value",
    "text",
    "at",
    "day",
    "amount",
    "flag",
    "inner.number",
    "inner.value",
    "inner.at",
)
IN_FILES_WITH_NAN = {row.id for rows in FILES for row in rows if any(math.isnan(one.value or 0.0) for one in rows)}
SQL_TYPES = {
    datetime: "timestamp",
    date: "date",
    Decimal: "decimal(38, 10)",
    float: "double",
    int: "bigint",
    bool: "boolean",
    str: "string",
}
OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
}


def value_of(row: Edge, path: str) -> Any:
    found: Any = row
    for name in path.split("."):
        found = None if found is None else getattr(found, name)
    return found


def distinct(path: str) -> list[Any]:
    return list({repr(value): value for row in ROWS if (value := value_of(row, path)) is not None}.values())


def matching(path: str, compare: Callable[[Any, Any], bool], wanted: Any, *, nan_is_highest: bool) -> list[int]:
    """Plain Python's answer; Spark takes NaN for equal to itself and above all else."""

    def rank(value: Any) -> Any:
        if not (nan_is_highest and isinstance(value, float)):
            return value
        return (math.isnan(value), 0.0 if math.isnan(value) else value)

    held = [(row.id, value_of(row, path)) for row in ROWS]
    return [number for number, value in held if value is not None and compare(rank(value), rank(wanted))]


def sql(value: Any) -> str:
    text = f"{value:f}" if isinstance(value, Decimal) else str(value)
    if isinstance(value, datetime):
        text = value.replace(tzinfo=None).isoformat(" ", "microseconds") + "Z"
    return f"cast('{text}' as {SQL_TYPES[type(value)]})"


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> RowTable:
    made = RowTable(tmp_path_factory.mktemp("edges"), Edge)
    for rows in FILES:
        made.add(rows)
    return made


@pytest.fixture(scope="module")
def read_by_spark(table: RowTable, spark: SparkSession) -> DataFrame:
    return spark.read.format("delta").load(str(table.folder))


@pytest.mark.parametrize("path", COMPARED)
def test_spark_finds_every_row_by_every_edge(read_by_spark: DataFrame, path: str) -> None:
    # Equality with every value shows that each lies within its file's bounds, so the first value
    # is enough for the other signs; NaN takes them all.
    filters = {
        f"{path} {sign} {sql(wanted)}": matching(path, compare, wanted, nan_is_highest=True)
        for i, wanted in enumerate(distinct(path))
        for sign, compare in OPERATORS.items()
        if sign == "=" or i == 0 or repr(wanted) == "nan"
    }
    assert filters == found_by_spark(read_by_spark, filters)


def test_spark_finds_nulls_and_what_is_not_null(read_by_spark: DataFrame) -> None:
    paths = [*COMPARED, "raw", "inner", "numbers", "names"]
    nulls = {f"{path} is null": [row.id for row in ROWS if value_of(row, path) is None] for path in paths}
    others = {f"{path} is not null": [row.id for row in ROWS if value_of(row, path) is not None] for path in paths}
    assert nulls | others == found_by_spark(read_by_spark, nulls | others)


def found_by_spark(frame: DataFrame, filters: Iterable[str]) -> dict[str, list[int]]:
    """The ids that each filter finds. Each branch of the union plans for itself which files to skip."""
    branches = [frame.where(wanted).selectExpr("id", f"{i} as branch") for i, wanted in enumerate(filters)]
    found = functools.reduce(lambda one, other: one.unionAll(other), branches).collect()
    return {wanted: sorted(row.id for row in found if row.branch == i) for i, wanted in enumerate(filters)}


def test_spark_answers_extremes_and_counts_as_if_it_had_read_the_rows(read_by_spark: DataFrame) -> None:
    asked = [f"{function}({column})" for column in ("whole", "day", "value") for function in ("min", "max", "count")]
    from_statistics = read_by_spark.selectExpr(*asked).first()
    from_rows = read_by_spark.where("id + 0 > 0").selectExpr(*asked).first()
    assert repr(from_rows) == repr(from_statistics)


@pytest.mark.parametrize("path", COMPARED)
def test_deltalake_finds_every_row_by_every_edge(table: RowTable, path: str) -> None:
    dataset: Any = DeltaTable(table.folder).to_pyarrow_dataset()
    field = pc.field(*path.split("."))
    for wanted in distinct(path):
        if repr(wanted) == "nan":  # to Arrow NaN is not even equal to itself
            continue
        for sign, compare in OPERATORS.items():
            literal = pa.scalar(wanted, pa.decimal128(38, 10)) if isinstance(wanted, Decimal) else wanted
            found = ids(dataset, compare(field, literal))
            expected = matching(path, compare, wanted, nan_is_highest=False)
            unsure = IN_FILES_WITH_NAN if path == "value" else set()  # the one reader that NaN misleads
            assert set(expected) - unsure == set(found) - unsure, f"{path} {sign} {wanted!r}"


def test_queries_of_deltalake_find_rows_beside_nan(table: RowTable) -> None:
    query = QueryBuilder().register("edges", DeltaTable(table.folder))
    for condition, compare in (
        ("value = 1", operator.eq),
        ("value >= 1", operator.ge),
        ("value < 1", operator.lt),
    ):
        found: Any = pa.table(query.execute(f"select id from edges where {condition}").read_all())  # noqa: S608
        expected = matching("value", compare, 1.0, nan_is_highest=True)
        assert expected == sorted(found.column("id").to_pylist()), condition


@pytest.mark.parametrize("path", ["whole", "value", "text", "at", "day", "amount", "flag", "raw"])
def test_deltalake_finds_nulls_and_what_is_not_null(table: RowTable, path: str) -> None:
    dataset: Any = DeltaTable(table.folder).to_pyarrow_dataset()
    assert [row.id for row in ROWS if value_of(row, path) is None] == ids(dataset, pc.field(path).is_null())
    assert [row.id for row in ROWS if value_of(row, path) is not None] == ids(dataset, pc.field(path).is_valid())


def ids(dataset: Any, wanted: Any) -> list[int]:
    found: Any = dataset.to_table(columns=["id"], filter=wanted).column("id").to_pylist()
    return sorted(found)


def statistics_of(rows: list[Edge], folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RowTable(folder, Edge).add(rows))
    return found


def test_a_timestamp_is_rounded_outwards_to_the_millisecond(tmp_path: Path) -> None:
    rows = [Edge(id=1, at=at(2024, 1, 1, 0, 0, 0, 1999)), Edge(id=2, at=at(2024, 1, 1, 0, 0, 1, 1))]
    found = statistics_of(rows, tmp_path)
    assert found["minValues"]["at"] == "2024-01-01T00:00:00.001Z"
    assert found["maxValues"]["at"] == "2024-01-01T00:00:01.001Z"


def test_a_timestamp_is_not_rounded_into_the_year_10000(tmp_path: Path) -> None:
    found = statistics_of([Edge(id=1, at=at(9999, 12, 31, 23, 59, 59, 999999))], tmp_path)
    assert found["minValues"]["at"] == "9999-12-31T23:59:59.999Z"
    assert found["maxValues"]["at"] == "9999-12-31T23:59:59.999999Z"


def test_a_long_string_is_cut_and_its_maximum_sorts_after_it(tmp_path: Path) -> None:
    found = statistics_of([Edge(id=1, text="é" * 40)], tmp_path)
    assert found["minValues"]["text"] == "é" * 32
    assert found["maxValues"]["text"] == "é" * 32 + HIGH


@pytest.mark.parametrize("text", ["k" * 32 + HIGH + "k", "k" * 5000])
def test_a_string_that_cannot_be_cut_gets_the_widest_bounds(text: str, tmp_path: Path) -> None:
    found = statistics_of([Edge(id=1, text=text)], tmp_path)
    assert found["minValues"]["text"] <= text < found["maxValues"]["text"] == HIGH * 32


def test_nan_is_the_maximum_of_a_float_column(tmp_path: Path) -> None:
    found = statistics_of([Edge(id=1, value=2.0), Edge(id=2, value=math.nan), Edge(id=3)], tmp_path / "some")
    assert (found["minValues"]["value"], found["maxValues"]["value"]) == (2.0, "NaN")
    found = statistics_of([Edge(id=1, value=math.nan), Edge(id=2)], tmp_path / "only")
    assert (found["minValues"]["value"], found["maxValues"]["value"]) == ("NaN", "NaN")


def test_floats_are_bounded_exactly_and_infinities_by_name(tmp_path: Path) -> None:
    found = statistics_of([Edge(id=1, value=-0.1), Edge(id=2, value=5e-324)], tmp_path / "finite")
    assert (found["minValues"]["value"], found["maxValues"]["value"]) == (-0.1, 5e-324)
    found = statistics_of([Edge(id=1, value=-math.inf), Edge(id=2, value=1.0)], tmp_path / "infinite")
    assert (found["minValues"]["value"], found["maxValues"]["value"]) == ("-Infinity", 1.0)


def test_decimals_are_written_to_the_last_digit(tmp_path: Path) -> None:
    text = RowTable(tmp_path, Edge).add([Edge(id=1, amount=Decimal("1234567890123456789012345678.0123456789"))])
    assert '"amount":1234567890123456789012345678.0123456789' in text


def test_binary_has_a_null_count_only_and_booleans_have_bounds(tmp_path: Path) -> None:
    found = statistics_of([Edge(id=1, raw=b"x", flag=True), Edge(id=2)], tmp_path)
    assert "raw" not in found["minValues"]
    assert found["minValues"]["flag"] is found["maxValues"]["flag"] is True
    assert found["nullCount"]["raw"] == found["nullCount"]["flag"] == 1


def test_every_leaf_has_a_null_count_and_lists_count_their_own_nulls(tmp_path: Path) -> None:
    rows = [Edge(id=1, numbers=[], inner=Inner(1, None, at(2024, 1, 1))), Edge(id=2, names={"a": 1})]
    found = statistics_of(rows, tmp_path)["nullCount"]
    assert found["inner"] == {"number": 1, "value": 2, "at": 1}
    assert (found["numbers"], found["names"], found["id"], found["whole"]) == (1, 1, 0, 2)
    assert set(Edge.__struct_fields__) <= set(found)


def test_bounds_span_all_row_groups(tmp_path: Path) -> None:
    schema = pa.table({"n": [1], "v": [1.0]}).schema
    columns, seen = written_columns(schema), SeenValues(schema)
    with pq.ParquetWriter(tmp_path / "f", schema, write_statistics=columns.write_statistics) as writer:
        for part in ([3, 5], [None, None], [1, 4]):
            rows = pa.table({"n": part, "v": part}, schema=schema)
            writer.write_table(rows)
            seen.add(rows)
    found = json.loads(file_statistics(pq.read_metadata(tmp_path / "f"), schema, seen))
    assert found == {
        "numRecords": 6,
        "minValues": {"n": 1, "v": 1.0},
        "maxValues": {"n": 5, "v": 5.0},
        "nullCount": {"n": 2, "v": 2},
    }


def test_what_nobody_watched_is_left_out(tmp_path: Path) -> None:
    rows = pa.table({"n": [1], "v": [2.0]})
    pq.write_table(rows, tmp_path / "f")
    found = json.loads(file_statistics(pq.read_metadata(tmp_path / "f"), rows.schema))
    assert found == {"numRecords": 1, "minValues": {"n": 1}, "maxValues": {"n": 1}, "nullCount": {"n": 0}}


def test_a_file_without_rows_has_no_bounds(tmp_path: Path) -> None:
    found = statistics_of([], tmp_path)
    assert (found["numRecords"], found["minValues"], found["maxValues"]) == (0, {}, {})
