"""Numbers in JSON against a second reader of their grammar: exact, rounded once, or refused; never another number."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep import Json
from lockstep.declare.decoders.base import DecodeCause, find_decode_cause

if TYPE_CHECKING:
    from collections.abc import Callable

NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?", re.ASCII)
REFUSED = "undecodable"
DIGITS_MAX = 4_300
"""Digits of an integer: the limit of Python, which would take minutes for more digits."""


class Whole(msgspec.Struct):
    v: int


class Float(msgspec.Struct):
    v: float


class Exact(msgspec.Struct):
    v: Decimal


def read_whole(text: str) -> object:
    return int(text) if re.fullmatch(r"-?(0|[1-9][0-9]*)", text) and len(text.lstrip("-")) <= DIGITS_MAX else REFUSED


def read_float(text: str) -> object:
    number = float(text)
    return REFUSED if math.isinf(number) else 0.0 if text == NO_SIGN else number


def read_exact(text: str) -> object:
    return Decimal(0) if text == NO_SIGN else Decimal(text)


NO_SIGN = "-0"
"""An integer zero has no sign; `-0.0` is another number."""
READINGS: dict[type[Any], Callable[[str], object]] = {Whole: read_whole, Float: read_float, Exact: read_exact}

digits = st.text("0123456789", min_size=1, max_size=25)
near_numbers = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(["", "-", "+", "--", " "]),
    st.one_of(digits, st.integers(0, 2**70).map(str), st.sampled_from(["", "0", "00", "9007199254740993"])),
    st.one_of(st.just(""), digits.map(".{}".format), st.sampled_from([".", ".0", ",5"])),
    st.one_of(
        st.just(""),
        st.builds("{}{}".format, st.sampled_from(["e", "E", "e+", "e-"]), st.integers(0, 420)),
        st.sampled_from(["e", "e+", "E1.5", "f", "_0", "n"]),
    ),
)
EDGES = (
    *("9223372036854775807", "9223372036854775808", "-9223372036854775809", "18446744073709551616"),
    *("1e400", "-1e400", "1e308", "1.7976931348623159e308", "4.9e-324", "1e-400", "-0", "-0.0", "0e0", "1e3", "1.0"),
    *("NaN", "Infinity", "-Infinity", "nan", "0x10", "1_000", "01", "-01", ".5", "5.", "\u0661", "true", "null", '"1"'),
    *("9" * DIGITS_MAX, "9" * (DIGITS_MAX + 1), "0." + "3" * 800, "1" + "0" * 308, "1" + "0" * 309),
)


@given(st.sampled_from(list(READINGS)), st.one_of(near_numbers, st.sampled_from(EDGES), st.floats().map(repr)))
def test_a_number_is_the_one_that_was_sent_or_the_message_is_refused(kind: type[Any], text: str) -> None:
    decode: Callable[[bytes], Any] = Json().build(kind)
    try:
        found = decode(f'{{"v":{text}}}'.encode()).v
    except msgspec.DecodeError:
        found = REFUSED
    is_text = kind is Exact and text == '"1"'  # a Decimal may be a text
    expected = READINGS[kind](text.strip(' "')) if NUMBER.fullmatch(text.strip(" ")) or is_text else REFUSED
    assert (type(found), repr(found)) == (type(expected), repr(expected))


@pytest.mark.parametrize(("kind", "text"), [(Whole, "1e3"), (Whole, "1.0"), (Float, "1e400"), (Whole, "true")])
def test_a_number_that_does_not_fit_its_field_is_of_a_wrong_type(kind: type[Any], text: str) -> None:
    with pytest.raises(msgspec.ValidationError) as refused:
        Json().build(kind)(f'{{"v":{text}}}'.encode())
    assert find_decode_cause(refused.value) is DecodeCause.WRONG_TYPE


@pytest.mark.parametrize("text", ["NaN", "01", "1_000", "5."])
def test_what_is_no_number_is_malformed(text: str) -> None:
    with pytest.raises(msgspec.DecodeError) as refused:
        Json().build(Float)(f'{{"v":{text}}}'.encode())
    assert find_decode_cause(refused.value) is DecodeCause.MALFORMED


@given(st.lists(st.integers(-9, 9), min_size=1, max_size=5))
def test_of_a_key_that_is_there_several_times_the_last_counts(numbers: list[int]) -> None:
    """As in the JSON readers of all common languages; docs/decoders.md documents it."""
    text = ",".join(f'"v":{number}' for number in numbers)
    assert Json().build(Whole)(f"{{{text}}}".encode()) == Whole(numbers[-1])
