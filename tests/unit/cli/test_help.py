"""`lockstep --help` fits on a screen: the commands of daily use are first, and no command is left out."""

from __future__ import annotations

import re
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from lockstep.cli.__main__ import app
from lockstep.cli.app import DAILY, EXIT_CODES

SCREEN = {"COLUMNS": "80", "LINES": "24"}
LINES_MAX = 30
DAILY_COUNT = 10
COMMANDS: dict[str, Any] = vars(typer.main.get_command(app))["commands"]
GROUPS = {name: command for name, command in COMMANDS.items() if hasattr(command, "commands")}


def read_help(*arguments: str) -> str:
    said = CliRunner().invoke(app, [*arguments], env=SCREEN)
    assert said.exit_code == 0
    return said.stdout


@pytest.mark.parametrize("arguments", [(), ("--help",)])
def test_the_help_fits_on_a_screen(arguments: tuple[str, ...]) -> None:
    lines = read_help(*arguments).splitlines()
    assert len(lines) <= LINES_MAX
    assert max(map(len, lines)) <= int(SCREEN["COLUMNS"])


def test_commands_of_daily_use_are_first_in_a_line_each() -> None:
    daily, others = read_help("--help").split("Other commands:")
    shown = re.findall(r"^  ([a-z]+) {2,}(.+)$", daily, re.MULTILINE)
    assert [name for name, _ in shown] == list(DAILY)
    assert len(shown) == DAILY_COUNT
    assert all(summary.endswith(".") for _, summary in shown)
    listed = re.findall(r"\b[a-z]+\b", others.split("`lockstep")[0])
    assert sorted([*DAILY, *listed]) == sorted(COMMANDS)


def test_all_exit_codes_are_named() -> None:
    codes = read_help("--help").split("Exit codes: ")[1]
    assert [int(code) for code in re.findall(r"\b\d\b", codes)] == list(EXIT_CODES)


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_lists_its_commands(group: str) -> None:
    text = read_help(group, "--help")
    assert [name for name in GROUPS[group].commands if not re.search(rf"\b{name} ", text)] == []
