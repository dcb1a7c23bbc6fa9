"""Rows are encoded, or refused with the same message, with and without `lockstep-native`."""

from __future__ import annotations

import enum
import math
from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.table import row_encoder
from lockstep.table.row_encoder import RowRejected, RowsBuilder
from tests.support.native import needs_extension
from tests.support.row_table import proof_of

pytestmark = needs_extension


class Side(enum.Enum):
    BID = "bid"


class Text(str):
    """A text of another class."""

    __slots__ = ()


class Level(enum.IntEnum):
    HIGH = 2


class Row(msgspec.Struct):
    """Plain columns between others."""

    text: str
    side: Side
    whole: int
    at: datetime | None
    value: float
    flag: bool
    maybe_text: str | None
    numbers: list[int]
    maybe_whole: int | None
    maybe_value: float | None
    maybe_flag: bool | None


TEXTS = st.one_of(st.text(max_size=9), st.sampled_from(["", "\N{SNOWMAN}" * 30, Text("t")]))
WHOLES = st.one_of(st.integers(-(2**63), 2**63 - 1), st.sampled_from([Level.HIGH, np.int64(3)]))
VALUES = st.one_of(st.floats(), st.sampled_from([2, -(2**53), math.nan, -0.0, np.float64(1.5)]))
FLAGS = st.booleans()
ODD = st.sampled_from([None, "\ud800", b"x", 1.5, 2**53 + 1, 2**63, -(2**64), True, np.bool_(1), Side.BID])
ROWS = st.fixed_dictionaries(
    {
        "text": TEXTS,
        "side": st.just(Side.BID),
        "whole": WHOLES,
        "at": st.none() | st.just(datetime(2024, 1, 1, tzinfo=UTC)),
        "value": VALUES,
        "flag": FLAGS,
        "maybe_text": st.none() | TEXTS,
        "numbers": st.just([1]),
        "maybe_whole": st.none() | WHOLES,
        "maybe_value": st.none() | VALUES,
        "maybe_flag": st.none() | FLAGS,
    }
)


def build(builder: RowsBuilder, rows: list[msgspec.Struct]) -> str:
    try:
        batch = builder.build(rows, proof_of(len(rows)))
    except RowRejected as refused:
        return str(refused)
    batch.validate(full=True)
    return repr(batch.to_pylist())  # -0.0 is not 0.0, and NaN is NaN


@pytest.fixture(scope="module")
def builders() -> tuple[RowsBuilder, RowsBuilder]:
    """Return the builder with the extension, and the builder without it."""
    native = RowsBuilder(Row)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_encoder, "extension", None)
        return native, RowsBuilder(Row)


@given(
    made=st.lists(ROWS, max_size=20),
    odd=st.none() | st.tuples(st.integers(0, 19), st.sampled_from(Row.__struct_fields__), ODD),
)
def test_rows_are_encoded_or_refused_alike(
    builders: tuple[RowsBuilder, RowsBuilder], made: list[dict[str, Any]], odd: tuple[int, str, object] | None
) -> None:
    if odd is not None and made:
        made[odd[0] % len(made)][odd[1]] = odd[2]
    rows: list[msgspec.Struct] = [Row(**each) for each in made]
    native, general = builders
    assert build(native, rows) == build(general, rows)
