"""Every committed value can be read: generated values of each column type, by each reader of docs/reading.md."""

from __future__ import annotations

import enum
import math
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.integration.readers.generated import ODD, ROWS, SIDE_ROWS, Generated, Value
from tests.integration.readers.written import run_snippet

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Generated:
    made = Generated.write(tmp_path_factory.mktemp("generated"))
    assert len(made.rows) >= ROWS
    return made


def test_only_values_that_do_not_fit_their_columns_are_refused(generated: Generated) -> None:
    assert generated.refused.keys() == ODD.keys()


@pytest.fixture(scope="module", autouse=True)
def utc() -> Iterator[None]:
    """Set UTC, as Spark and duckdb convert times to the zone of their process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


def of_spark(frame: Any) -> Rows:
    """Return the rows as Python objects."""
    return [row.asDict(recursive=True) for row in frame.collect()]


def of_spark_arrow(frame: Any) -> Rows:
    return list(frame.toArrow().to_pylist())


def of_arrow(frame: Any) -> Rows:
    return list(frame.to_pylist())


def of_polars(frame: Any) -> Rows:
    return list(frame.iter_rows(named=True))


def of_duckdb(frame: Any) -> Rows:
    return [dict(zip(frame.columns, row, strict=True)) for row in frame.fetchall()]


EXACT: Mapping[str, tuple[str, Callable[[Any], Rows]]] = {
    "spark": ("spark", of_spark),
    "spark to Arrow": ("spark", of_spark_arrow),
    "deltalake": ("deltalake", of_arrow),
    "polars": ("polars", of_polars),
    "duckdb": ("duckdb", of_duckdb),
}
FRAMES: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "pandas": ("pandas", lambda frame: frame),
    "pandas by Spark": ("spark", lambda frame: frame.toArrow().to_pandas()),
    "pandas by polars": ("polars", lambda frame: frame.to_pandas()),
    "pandas by duckdb": ("duckdb", lambda frame: frame.df()),
}
"""Readers into pandas, which has no integers with nulls and, by duckdb, no decimals."""
TABLES = ("table", "quarantine", "late", "ledger")


def marked(readers: Mapping[str, tuple[str, object]]) -> list[Any]:
    return [
        pytest.param(name, marks=pytest.mark.spark if snippet == "spark" else ())
        for name, (snippet, _) in readers.items()
    ]


def read(snippet: str, folder: Path, request: pytest.FixtureRequest) -> Any:
    spark: dict[str, SparkSession] = {"spark": request.getfixturevalue("spark")} if snippet == "spark" else {}
    return run_snippet(snippet, table=str(folder), **spark)


def plain(value: Any) -> Any:
    """Convert a reader's value so that equal values compare equal: NaN, -0.0, numbers of different scales, maps."""
    if isinstance(value, msgspec.Struct):
        return plain(msgspec.structs.asdict(value))
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        pairs = bool(value) and all(isinstance(each, tuple) and len(each) == PAIR for each in value)
        return plain(dict(value)) if pairs else [plain(each) for each in value]
    return next((convert(value) for kind, convert in SCALARS.items() if isinstance(value, kind)), value)


PAIR = 2
SCALARS: Mapping[type, Callable[[Any], object]] = {
    float: lambda value: ("float", "nan" if math.isnan(value) else repr(value)),
    Decimal: Fraction,
    datetime: lambda value: (value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)).isoformat(),
    bytearray: bytes,
    enum.Enum: lambda value: value.value,
}


def as_map(row: dict[str, Any]) -> dict[str, Any]:
    """Convert maps to dicts, as Arrow returns an empty map as an empty list."""
    maps = {"named", "named_times", "named_inners"}
    found = {name: dict(value) if name in maps else value for name, value in row.items()}
    inners = [found["inner"], found["maybe_inner"], *found["inners"], *found["named_inners"].values()]
    for inner in inners:
        if inner is not None:
            inner["more"] = dict(inner["more"])
    return found


@pytest.mark.parametrize("reader", marked(EXACT))
def test_a_reader_returns_each_row_as_it_was_written(
    reader: str, generated: Generated, request: pytest.FixtureRequest
) -> None:
    snippet, list_rows = EXACT[reader]
    found = {row["number"]: as_map(plain(row)) for row in list_rows(read(snippet, generated.folders.table, request))}
    for row, (session, sequence, moment) in generated.rows:
        stored = found.pop(row.number)
        assert {name: stored[name] for name in Value.__struct_fields__} == as_map(plain(row))
        assert (stored["_session"], stored["_sequence"]) == (session, sequence)
        assert stored["_event_time"] == plain(moment)
    assert found == {}


@pytest.mark.parametrize("reader", marked(EXACT))
@pytest.mark.parametrize("side", ["quarantine", "late"])
def test_a_reader_returns_each_message_that_was_set_aside(
    reader: str, side: str, generated: Generated, request: pytest.FixtureRequest
) -> None:
    snippet, list_rows = EXACT[reader]
    rows = list_rows(read(snippet, getattr(generated.folders, side), request))
    assert len(rows) == SIDE_ROWS
    assert sorted(map(plain, rows), key=by_offset) == sorted(map(plain, generated.quarantine), key=by_offset)


def by_offset(row: dict[str, Any]) -> int:
    return int(row["offset"])


@pytest.mark.parametrize("reader", marked(EXACT))
def test_a_reader_returns_each_ledger_row(reader: str, generated: Generated, request: pytest.FixtureRequest) -> None:
    snippet, list_rows = EXACT[reader]
    found = {row["partition"]: plain(row) for row in list_rows(read(snippet, generated.folders.ledger, request))}
    assert found == {row.partition: plain(row) for row in generated.ledger}


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("reader", marked(FRAMES))
def test_pandas_holds_every_row(reader: str, table: str, generated: Generated, request: pytest.FixtureRequest) -> None:
    snippet, to_frame = FRAMES[reader]
    frame = to_frame(read(snippet, getattr(generated.folders, table), request))
    assert len(frame.to_dict("records")) == (len(generated.rows) if table == "table" else SIDE_ROWS)
