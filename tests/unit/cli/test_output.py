"""Printed output: one row a line for any name, and JSON with every number."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from math import inf, nan

import msgspec
import pytest

from lockstep.cli.output import (
    SHOWN_SCOPES,
    encode_json,
    make_facts,
    make_first_rows,
    make_grid,
    order_for_first_rows,
    print_out,
)
from lockstep.errors import format_some
from lockstep.operations.inspect.state import SessionState


def test_a_row_is_one_line_whatever_control_characters_are_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    print_out(make_grid(("na\nme", "n"), [("a\nb", 1), ("\x1b[31mred\r\t", 2), ("c\u2028d\u202e", None)]))
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        [r"na\nme", "n"],
        [r"a\nb", "1"],
        [r"\x1b[31mred\r\t", "2"],
        [r"c\u2028d\u202e", "-"],
    ]
    print_out(make_facts([("name", "a\nfound  all")]))
    assert capsys.readouterr().out == "name  a\\nfound  all\n"


def test_an_answer_with_many_rows_shows_the_worst_and_counts_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    """`status` once printed 5,000 lines for 5,000 partitions."""
    all_shown = range(SHOWN_SCOPES)
    many = range(5_000)
    assert order_for_first_rows(all_shown, lambda lag: -lag) == all_shown
    worst = order_for_first_rows(many, lambda lag: -lag)
    print_out(make_first_rows(["lag"], ([lag] for lag in worst)) or "")
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert lines == ["lag", *(str(4_999 - n) for n in range(SHOWN_SCOPES)), f"and {5_000 - SHOWN_SCOPES} more"]
    assert make_first_rows(["lag"], []) is None
    assert format_some([]) == ""
    assert format_some(["a", "b"], 2) == "a, b"
    assert format_some(["a", "b", "c", "d"], 2) == "a, b and 2 more"


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (nan, '"NaN"'),
        ({"a": [inf, (-inf, 1.5)], "b": None}, '{"a":["Infinity",["-Infinity",1.5]],"b":null}'),
        ({1.5: nan, 2: None}, '{"1.5":"NaN","2":null}'),
    ],
)
def test_numbers_that_json_has_none_for_are_strings(value: object, encoded: str) -> None:
    state = SessionState(topic="t", partition=0, session="s", position=1, stored_bytes=1, state=value)
    said = encode_json(state).decode()
    assert said.endswith(f'"gate":null,"state":{encoded}}}')
    assert json.loads(said)["session"] == "s"


def test_all_other_values_are_as_without_them() -> None:
    times = (datetime(2026, 1, 2, 3, 4, 5, 678, UTC), timedelta(seconds=1.5), datetime(2026, 1, 2).date())  # noqa: DTZ001  # a date
    others = [*times, Decimal("1.50"), b"bytes", "null", "é\n", True, 2**63, 0.1, [], {}, ValueError("x")]
    plain = msgspec.json.encode(others, enc_hook=str)
    assert encode_json([*others, nan]) == plain[:-1] + b',"NaN"]'
    assert encode_json(others) == plain
