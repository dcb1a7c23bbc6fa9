"""Statistics of a file's columns in the log, compared with the rows: floats with NaN, fields of structs, odd times."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest

from lockstep.verify.bounds import FileBounds

TIME = pa.timestamp("us", "UTC")
YEAR_33658 = 10**18
"""Outside of Python's calendar, in microseconds."""
INNER = [{"deep": 3}, None, {"deep": None}]
FIRST = pa.RecordBatch.from_pydict(
    {
        "ratio": [0.5, math.nan, None],
        "at": pa.array([0, YEAR_33658, None], TIME),
        "inner": pa.array(INNER, pa.struct([("deep", pa.int64())])),
        "names": pa.array([["a"], None, []], pa.list_(pa.string())),
    }
)
SAID: dict[str, Any] = {
    "num_records": pa.scalar(4),
    "min.ratio": pa.scalar(-1.0),
    "max.ratio": pa.scalar(math.nan),
    "null_count.ratio": pa.scalar(1),
    "min.at": pa.scalar(None, TIME),
    "max.at": pa.scalar(YEAR_33658, TIME),
    "min.inner.deep": pa.scalar(3),
    "max.inner.deep": pa.scalar(3),
    "null_count.inner.deep": pa.scalar(2),
    "null_count.names": pa.scalar(1),
}


@pytest.fixture(scope="module")
def bounds() -> FileBounds:
    """Return the bounds of two row groups."""
    found = FileBounds()
    second = FIRST.slice(0, 1).set_column(0, "ratio", pa.array([-1.0]))
    for batch in (FIRST, second):
        found.add(batch)
    return found


def test_a_column_with_a_time_that_readers_cannot_return_is_named(bounds: FileBounds) -> None:
    assert list(bounds.find_unreadable()) == [("at", YEAR_33658)]


def test_what_is_right_or_wider_or_says_nothing_is_no_difference(bounds: FileBounds) -> None:
    assert list(bounds.find_differences(SAID)) == []
    wider = SAID | {"min.inner.deep": pa.scalar(-9), "max.inner.deep": pa.scalar(None, pa.int64())}
    assert list(bounds.find_differences(wider)) == []
    assert list(bounds.find_differences({})) == []


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("num_records", pa.scalar(5), "4"),
        ("null_count.names", pa.scalar(0), "1"),
        ("null_count.inner.deep", pa.scalar(1), "2"),
        ("min.ratio", pa.scalar(-0.5), "-1.0"),
        ("min.ratio", pa.scalar(math.nan), "-1.0"),
        ("max.ratio", pa.scalar(10.0**300), "nan"),
        ("max.at", pa.scalar(YEAR_33658 - 1, TIME), str(YEAR_33658)),
        ("min.inner.deep", pa.scalar(4), "3"),
        ("max.inner.deep", pa.scalar(2), "3"),
    ],
)
def test_what_would_hide_rows_is_a_difference(bounds: FileBounds, name: str, value: Any, found: str) -> None:
    ((expected, actual),) = bounds.find_differences(SAID | {name: value})
    assert expected.startswith(f"{name} ")
    assert actual == found
