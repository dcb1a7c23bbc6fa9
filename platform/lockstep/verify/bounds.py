"""The log's statistics of a data file, compared with its rows.

Readers skip files by these statistics, and take counts, least and greatest values from them. If they are wrong,
readers miss rows.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lockstep.verify.gates.base import is_readable_time


class FileBounds:
    """The rows of one file: how many, and per column how many nulls, the least and the greatest value.

    Attributes:
        rows: How many rows.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._nulls: Counter[str] = Counter()
        self._least: dict[str, Any] = {}
        self._greatest: dict[str, Any] = {}
        self._nan: set[str] = set()
        self._times: set[str] = set()

    def add(self, batch: pa.RecordBatch) -> None:
        """Take the next rows."""
        self.rows += batch.num_rows
        for name, column in _find_leaves(zip(batch.schema.names, batch.columns, strict=True)):
            self._nulls[name] += column.null_count
            if _is_bounded(column.type) and column.null_count < len(column):
                self._widen(name, column)
            if pa.types.is_timestamp(column.type):
                self._times.add(name)

    def _widen(self, name: str, column: Any) -> None:
        if pa.types.is_floating(column.type):
            if pc.any(pc.is_nan(column)).as_py():
                self._nan.add(name)
            # Without a number Arrow's minimum is NaN, which no comparison orders.
            column = column.filter(pc.invert(pc.is_nan(column)))
        found: Any = pc.min_max(column)
        if not found["min"].is_valid:
            return
        low = _to_comparable(found["min"])
        high = _to_comparable(found["max"])
        self._least[name] = min(low, self._least.get(name, low))
        self._greatest[name] = max(high, self._greatest.get(name, high))

    def find_differences(self, said: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """The statistics of the log, and the actual values of the rows.

        Args:
            said: By "num_records", and "null_count", "min" and "max" with a column's name; null without a statistic.
        """
        counts = {"num_records": self.rows} | {f"null_count.{name}": nulls for name, nulls in self._nulls.items()}
        for name, count in counts.items():
            stated = _find_said(said, name)
            if stated not in {None, count}:
                yield f"{name} {stated}, by the log", str(count)
        greatest = self._greatest | dict.fromkeys(self._nan, math.nan)
        limits = [(f"min.{name}", value, False) for name, value in self._least.items()]
        limits += [(f"max.{name}", value, True) for name, value in greatest.items()]
        for name, value, is_greatest in limits:
            stated = _find_said(said, name)
            if stated is None:
                continue
            # Wider bounds than the rows need only cost time; narrower bounds make readers miss rows.
            is_narrower = _is_above(value, stated) if is_greatest else _is_above(stated, value)
            if is_narrower:
                yield f"{name} {stated}, by the log", str(value)

    def find_unreadable(self) -> Iterator[tuple[str, int]]:
        """Columns with a time that not every reader can return, and the first such time of each."""
        for name in sorted(self._times & self._least.keys()):
            for time_us in (self._least[name], self._greatest[name]):
                if not is_readable_time(time_us):
                    yield name, time_us
                    break


def _is_above(value: Any, limit: Any) -> bool:
    """Whether a value is greater; NaN is above all numbers, as for Spark."""
    if isinstance(value, float) and math.isnan(value):
        return not (isinstance(limit, float) and math.isnan(limit))
    return bool(value > limit)


def _find_leaves(columns: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Columns, and in the place of each struct its fields."""
    for name, column in columns:
        if not pa.types.is_struct(column.type):
            yield name, column
            continue
        yield from _find_leaves(
            (f"{name}.{field.name}", pc.struct_field(column, [at])) for at, field in enumerate(column.type)
        )


def _is_bounded(kind: pa.DataType) -> bool:
    checks = (pa.types.is_integer, pa.types.is_floating, pa.types.is_string, pa.types.is_decimal, pa.types.is_date)
    return pa.types.is_timestamp(kind) or any(check(kind) for check in checks)


def _find_said(said: Mapping[str, Any], name: str) -> Any:
    value = said.get(name)
    if value is None or not value.is_valid:
        return None
    return _to_comparable(value)


def _to_comparable(value: Any) -> Any:
    """A time as its number: it may be outside of the calendar."""
    if pa.types.is_timestamp(value.type):
        return value.value
    return value.as_py()
