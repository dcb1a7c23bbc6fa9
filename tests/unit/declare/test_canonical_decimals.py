"""All spellings of a number are one key; other texts and numbers that do not fit are refused, never rounded."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep import DecimalType
from tests.support.spellings import spell

if TYPE_CHECKING:
    from hypothesis.strategies import DataObject

KIND = DecimalType(28, 12)
LARGEST = 10**28 - 1
NUMBERS = st.integers(-LARGEST, LARGEST).map(lambda digits: Decimal(digits).scaleb(-12))


@given(number=NUMBERS, data=st.data())
def test_every_spelling_of_a_number_is_the_same_key(number: Decimal, data: DataObject) -> None:
    first, second = (KIND.canonical(data.draw(spell(number))) for _ in range(2))
    assert (first, str(first), hash(first)) == (second, str(second), hash(second))
    assert first == number
    assert str(KIND.canonical(Decimal(data.draw(spell(number))))) == str(first)
    assert first.as_tuple().exponent == -KIND.scale


@given(data=st.data())
def test_zero_has_no_sign(data: DataObject) -> None:
    assert str(KIND.canonical(data.draw(spell(Decimal(0))))) == "0E-12"


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "1 ", " 1", "1_000", "1,5", "0x10", "e5", ".", "+", "1e", "--1", "NaN", "sNaN", "Infinity", "-inf"),
        *("\uff11", "1.5.2", "1\n", "1e16", "1e-13", "0.0000000000001", "1e999999999", "1e-999999999", "null"),
    ],
)
def test_what_is_no_number_of_the_type_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a number of decimal\(28, 12\)"):
        KIND.canonical(text)


@pytest.mark.parametrize("number", [Decimal("NaN"), Decimal("-Infinity"), Decimal("1e16"), Decimal("1e-13")])
def test_a_decimal_that_does_not_fit_is_refused(number: Decimal) -> None:
    with pytest.raises(ValueError, match=r"is not a number of decimal\(28, 12\)"):
        KIND.canonical(number)


def test_a_long_text_is_read_once_and_not_remembered() -> None:
    """With backtracking, the parse would take hours."""
    assert KIND.canonical("1." + "0" * 1_000_000) == 1
    with pytest.raises(ValueError, match="is not a number"):
        KIND.canonical("1" * 1_000_000 + "x")
