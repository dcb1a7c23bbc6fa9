"""Rows at the limits of every type, for which slightly wrong statistics lose rows."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated, Any

import msgspec

from lockstep.model.column_types import DecimalType


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
            at=at(1, 1, 3),
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
