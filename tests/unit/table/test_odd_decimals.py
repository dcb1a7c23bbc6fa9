"""Decimals of very many places, which fit into ten characters of JSON."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated

import msgspec
import pytest

from lockstep import DecimalType
from lockstep.table.row_encoder import PartitionRun, Provenance, RowRejected, RowsBuilder


class Price(msgspec.Struct):
    """A row with decimals, one of them nested."""

    amount: Annotated[Decimal, DecimalType(38, 9)]
    further: list[Annotated[Decimal, DecimalType(18, 8)]] = []


PROOF = Provenance([PartitionRun("a", "id", 0, 1)], [5], [0], ["s"], [None], [None])


def encode(row: Price) -> dict[str, object]:
    (found,) = RowsBuilder(Price).build([row], PROOF).to_pylist()
    return {"amount": found["amount"], "further": found["further"]}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("1E-1000", "has 1000 decimal places; the column is decimal128(38, 9)"),
        (f"0.{'1' * 1000}", "has 1000 decimal places; the column is decimal128(38, 9)"),
        ("1E-999999999", "has 999999999 decimal places; the column is decimal128(38, 9)"),
        ("1E+999999999", "ends with 999999999 zeros; the column is decimal128(38, 9)"),
    ],
)
def test_a_decimal_that_no_column_holds_is_refused(text: str, problem: str) -> None:
    """Arrow would store the first two as 0, and the third would end the process."""
    with pytest.raises(RowRejected) as refused:
        encode(Price(Decimal(text)))
    assert problem in str(refused.value)
    with pytest.raises(RowRejected, match="decimal"):
        encode(Price(Decimal(1), [Decimal(text)]))


@pytest.mark.parametrize("text", [f"1.{'0' * 1000}", "1", "1E+0", "1.000000000"])
def test_zeros_at_the_end_change_nothing(text: str) -> None:
    assert encode(Price(Decimal(text), [Decimal(text)])) == {"amount": Decimal(1), "further": [Decimal(1)]}


@pytest.mark.parametrize("text", ["1.0000000001", "1E+30", "NaN", "sNaN", "Infinity"])
def test_what_does_not_fit_otherwise_is_refused_by_arrow(text: str) -> None:
    with pytest.raises(RowRejected):
        encode(Price(Decimal(text)))
