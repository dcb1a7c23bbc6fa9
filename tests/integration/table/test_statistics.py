"""Statistics are exact, rounded outwards or left out, so that no reader skips a requested row."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, QueryBuilder

from tests.support.row_table import RowTable
from tests.support.tiers import keep_usual

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
from tests.integration.table.edges import COMPARED, FILES, IN_FILES_WITH_NAN, OPERATORS, ROWS, SQL_TYPES, Edge


def value_of(row: Edge, path: str) -> Any:
    found: Any = row
    for name in path.split("."):
        found = None if found is None else getattr(found, name)
    return found


def distinct(path: str) -> list[Any]:
    return list({repr(value): value for row in ROWS if (value := value_of(row, path)) is not None}.values())


def matching(path: str, compare: Callable[[Any, Any], bool], wanted: Any, *, nan_is_highest: bool) -> list[int]:
    """Return plain Python's result; for Spark, NaN equals itself and exceeds all other values."""

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


@pytest.mark.parametrize("path", keep_usual(("value", "at", "text"), COMPARED))
def test_spark_finds_every_row_by_every_edge(read_by_spark: DataFrame, path: str) -> None:
    # Equality with every value shows that each is within its file's bounds, so the first value
    # is enough for the other signs; NaN is compared by all signs.
    filters = {
        f"{path} {sign} {sql(wanted)}": matching(path, compare, wanted, nan_is_highest=True)
        for i, wanted in enumerate(distinct(path))
        for sign, compare in OPERATORS.items()
        if sign == "=" or i == 0 or repr(wanted) == "nan"
    }
    assert filters == found_by_spark(read_by_spark, filters)


@pytest.mark.slow
def test_spark_finds_nulls_and_what_is_not_null(read_by_spark: DataFrame) -> None:
    paths = [*COMPARED, "raw", "inner", "numbers", "names"]
    nulls = {f"{path} is null": [row.id for row in ROWS if value_of(row, path) is None] for path in paths}
    others = {f"{path} is not null": [row.id for row in ROWS if value_of(row, path) is not None] for path in paths}
    assert nulls | others == found_by_spark(read_by_spark, nulls | others)


def found_by_spark(frame: DataFrame, filters: Iterable[str]) -> dict[str, list[int]]:
    """Return the ids that each filter finds. Each branch of the union plans its file skipping separately."""
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
            unsure = IN_FILES_WITH_NAN if path == "value" else set()  # NaN misleads this reader only
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
