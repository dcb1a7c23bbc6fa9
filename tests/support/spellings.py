"""Spellings of a number: with leading and trailing zeros, a sign, an exponent."""

from __future__ import annotations

from decimal import Decimal

from hypothesis import strategies as st


@st.composite
def spell(draw: st.DrawFn, number: Decimal) -> str:
    """Draw a spelling of this number."""
    text = f"{abs(number):f}"
    shift = draw(st.one_of(st.just(0), st.integers(-30, 30)))
    if shift:
        text = f"{abs(number).scaleb(-shift):f}" if number else text
    whole, _, rest = text.partition(".")
    whole = "0" * draw(st.integers(0, 3)) + whole.lstrip("0")
    rest = rest.rstrip("0") + "0" * draw(st.integers(0, 9))
    point = "." if rest or (whole and draw(st.booleans())) else ""
    if not whole and not rest:
        whole = "0"
    sign = "-" if number < 0 else draw(st.sampled_from(["", "+"])) if number else draw(st.sampled_from(["", "+", "-"]))
    exponent = f"{draw(st.sampled_from('eE'))}{shift:+d}" if shift else draw(st.sampled_from(["", "e0", "E-0"]))
    return f"{sign}{whole}{point}{rest}{exponent}"
