"""Bounds in the statistics are exact, rounded outwards, or left out."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lockstep.errors import TableError
from lockstep.table import parquet
from lockstep.table.parquet import (
    ColumnStatistics,
    compute_file_statistics,
    explain_unreadable,
    find_written_columns,
    write_file,
)
from lockstep.verify import files
from tests.integration.table.edges import HIGH, Edge, Inner, at
from tests.support.row_table import RowTable


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
    columns = find_written_columns(schema)
    seen = ColumnStatistics(schema)
    with pq.ParquetWriter(tmp_path / "f", schema, write_statistics=columns.write_statistics) as writer:
        for part in ([3, 5], [None, None], [1, 4]):
            rows = pa.table({"n": part, "v": part}, schema=schema)
            writer.write_table(rows)
            seen.add(rows)
    found = json.loads(compute_file_statistics(pq.read_metadata(tmp_path / "f"), schema, seen))
    assert found == {
        "numRecords": 6,
        "minValues": {"n": 1, "v": 1.0},
        "maxValues": {"n": 5, "v": 5.0},
        "nullCount": {"n": 2, "v": 2},
    }


def test_what_nobody_watched_is_left_out(tmp_path: Path) -> None:
    rows = pa.table({"n": [1], "v": [2.0]})
    pq.write_table(rows, tmp_path / "f")
    found = json.loads(compute_file_statistics(pq.read_metadata(tmp_path / "f"), rows.schema))
    assert found == {"numRecords": 1, "minValues": {"n": 1}, "maxValues": {"n": 1}, "nullCount": {"n": 0}}


def test_a_file_without_rows_has_no_bounds(tmp_path: Path) -> None:
    found = statistics_of([], tmp_path)
    assert (found["numRecords"], found["minValues"], found["maxValues"]) == (0, {}, {})


@pytest.mark.parametrize(("bytes_max", "codec"), [(8_001, "LZ4"), (8_000, "ZSTD")])
def test_a_file_that_is_compacted_costs_less_and_numbers_are_differences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bytes_max: int, codec: str
) -> None:
    monkeypatch.setattr(parquet, "LZ4_BYTES_MAX", bytes_max)
    rows = pa.table({"n": range(1_000)})
    file = write_file(tmp_path, rows, prefix="rows")
    column = pq.read_metadata(tmp_path / file.path).row_group(0).column(0)
    assert (column.compression, "DELTA_BINARY_PACKED" in column.encodings) == (codec, True)
    assert pq.read_table(tmp_path / file.path).equals(rows)


def test_lack_of_memory_is_not_a_damaged_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a command nor the proof may take a sound file for damaged."""
    lacking = pa.ArrowMemoryError("malloc of size 64 failed")
    assert "more memory" in explain_unreadable(tmp_path / "part.parquet", lacking).next_step

    def starve(_: Path) -> None:
        raise lacking

    path = tmp_path / "part.parquet"
    pq.write_table(pa.table({"a": [1]}), path)
    monkeypatch.setattr(files, "open_parquet", starve)
    with pytest.raises(TableError, match=r"part\.parquet cannot be read for lack of memory: malloc of size 64"):
        files.open_if_there(path)
