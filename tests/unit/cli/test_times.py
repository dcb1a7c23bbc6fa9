"""Times in arguments: ISO 8601 as other tools write it, and as commands print it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
import typer
from typer.testing import CliRunner

from lockstep.cli.__main__ import app
from lockstep.cli.app import parse_time
from lockstep.cli.messages import format_time

MOMENT = datetime(2026, 1, 31, 9, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    "text",
    [
        "2026-01-31T09:30:00Z",
        "2026-01-31T09:30:00",
        "2026-01-31 09:30:00",
        "2026-01-31T09:30Z",
        "2026-01-31T09:30:00.000Z",
        "2026-01-31T11:30:00+02:00",
        f" {format_time(MOMENT)} ",
    ],
)
def test_a_time_is_read_with_and_without_a_zone(text: str) -> None:
    assert parse_time(text) == MOMENT
    assert parse_time(text).tzinfo is UTC


@pytest.mark.parametrize("text", ["yesterday", "", "2026-02-30", "09:30", "0001-01-01T00:00:00+23:00"])
def test_what_is_no_time_is_a_wrong_argument_that_shows_a_right_one(text: str) -> None:
    with pytest.raises(typer.BadParameter, match=r"is not a time such as 2026-01-31T09:30:00Z"):
        parse_time(text)
    said = CliRunner().invoke(app, ["query", "order_books", "--at", text])
    assert (said.exit_code, "Invalid value for '--at'" in said.stderr) == (2, True)
